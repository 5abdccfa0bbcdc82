"""Products and conversions of all float types are torch's: every other kernel test rests on this."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from ..support.triton_interpreter import DEVICE, HAS_GPU

import triton  # isort: skip  after the interpreter is on
import triton.language as tl  # isort: skip

FLOATS = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
WIDE, NARROW = ("fp32", "fp16", "bf16"), ("fp8e4nv", "fp8e5")
HAS_FP8 = not HAS_GPU or torch.cuda.get_device_capability() >= (8, 9)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@triton.jit
def convert_kernel(source, target, num_values, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    values = tl.load(source + at, mask=at < num_values)
    tl.store(target + at, values.to(target.dtype.element_ty), mask=at < num_values)


@triton.jit
def product_kernel(a, b, start, out, rows: tl.constexpr, columns: tl.constexpr, terms: tl.constexpr):
    m, n, k = tl.arange(0, rows), tl.arange(0, columns), tl.arange(0, terms)
    left = tl.load(a + m[:, None] * terms + k[None, :])
    right = tl.load(b + n[None, :] * terms + k[:, None])
    acc = tl.load(start + m[:, None] * columns + n[None, :])
    acc = tl.dot(left, right, acc, input_precision="ieee")
    tl.store(out + m[:, None] * columns + n[None, :], acc)


@triton.jit
def arithmetic_kernel(x, y, out, kind: tl.constexpr, size: tl.constexpr):
    at = tl.arange(0, size)
    a, b = tl.load(x + at), tl.load(y + at)
    if kind == "add":
        result = a + b
    elif kind == "subtract":
        result = a - b
    elif kind == "multiply":
        result = a * b
    elif kind == "negate":
        result = -a
    elif kind == "maximum":
        result = tl.maximum(a, b)
    elif kind == "less":
        result = (a < b).to(tl.float32)
    elif kind == "select":
        result = tl.where(a < b, a, b)
    else:
        result = tl.zeros([size], tl.float32) + tl.max(a, 0)
    tl.store(out + at, result)


@triton.jit
def sum_kernel(x, out, size: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, size)), 0))


ARITHMETIC: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "negate": lambda a, b: -a,
    "maximum": torch.maximum,
    "less": lambda a, b: (a < b).float(),
    "select": lambda a, b: torch.where(a < b, a, b),
    "largest": lambda a, b: a.max().expand(len(a)),
}


def patterns(name: str) -> torch.Tensor:
    """Every value of a small type; of float32 random bits, so NaNs, infinities and subnormals, and all near-ties."""
    dtype = FLOATS[name]
    if name != "fp32":
        width = dtype.itemsize * 8
        return torch.arange(1 << width, dtype=torch.int64).to(BITS[dtype.itemsize]).view(dtype)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 60_000, dtype=np.uint32).view(np.int32)
    ties = [_neighbours(FLOATS[other]) for other in (*NARROW, "fp16", "bf16")]
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, 464.0, 465.0, 61440.0, 65520.0])
    return torch.cat((torch.from_numpy(bits).view(torch.float32), special, *ties))


def _neighbours(dtype: torch.dtype) -> torch.Tensor:
    """Float32 values half way between two neighbours of `dtype`, and next to that."""
    width = dtype.itemsize * 8
    values = torch.arange(1 << (width - 1), dtype=torch.int64).to(BITS[dtype.itemsize]).view(dtype).double()
    values = values[values.isfinite()]
    middle = ((values[1:] + values[:-1]) / 2).float()[:: max(1, len(values) // 4096)]
    up, down = (torch.nextafter(middle, torch.tensor(end)) for end in (torch.inf, 0.0))
    return torch.cat((middle, up, down, -middle))


def right_conversion(values: torch.Tensor, target: str) -> torch.Tensor:
    """Converts as torch does; but 8-bit floats saturate, also at infinities."""
    if target in NARROW and values.dtype.itemsize > 1:
        values = values.float().clamp(-_largest(target), _largest(target))
    return values.float().to(FLOATS[target])


def _largest(name: str) -> float:
    return torch.finfo(FLOATS[name]).max


def same(found: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Mask of where two tensors are equal: to the bit, any NaN being as good as another."""
    bits = BITS[right.dtype.itemsize]
    return (found.view(bits) == right.view(bits)) | (found.float().isnan() & right.float().isnan())


CONVERSIONS = [
    (source, target)
    for source in FLOATS
    for target in FLOATS
    if source != target and not (source in NARROW and target in NARROW)
]


@pytest.mark.parametrize(("source", "target"), CONVERSIONS)
def test_conversions(source: str, target: str) -> None:
    if "fp8e4nv" in (source, target) and not HAS_FP8:
        pytest.skip("this GPU has no such type")
    if HAS_GPU and (source, target) == ("fp8e5", "bf16"):
        pytest.skip("compiled by Triton 3.6, infinities become numbers; no kernel reads this type")
    values = patterns(source).to(DEVICE)
    found = torch.zeros(len(values), dtype=FLOATS[target], device=DEVICE)
    convert_kernel[(triton.cdiv(len(values), 4096),)](values, found, len(values), 4096)
    values, found = values.cpu(), found.cpu()
    right = right_conversion(values, target)
    wrong = ~same(found, right)
    examples = [
        (float(v), float(f), float(r))
        for v, f, r in zip(*(each[wrong][:5] for each in (values, found, right)), strict=True)
    ]
    assert not wrong.any(), f"{int(wrong.sum())} of {len(values)} differ: (value, found, right) {examples}"


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "fp8e4nv"])
@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 32), (64, 32, 128)])
def test_products(dtype: str, m: int, n: int, k: int) -> None:
    if dtype == "fp8e4nv" and not HAS_FP8:
        pytest.skip("this GPU has no such type")
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(rows, k, generator=generator).to(FLOATS[dtype]).to(DEVICE) for rows in (m, n))
    start = torch.randn(m, n, generator=generator).to(DEVICE)
    found = torch.empty_like(start)
    product_kernel[(1,)](a, b, start, found, m, n, k)
    right = a.double() @ b.double().T + start.double()
    # A GPU adds products of 8-bit floats with few bits.
    assert (found.double() - right).norm() / right.norm() < (1e-3 if dtype == "fp8e4nv" and HAS_GPU else 1e-6)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("k", [16, 64, 128])
def test_a_row_has_the_same_product_in_all_places(dtype: str, k: int) -> None:
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(rows, k, generator=generator).to(FLOATS[dtype]).to(DEVICE) for rows in (64, 32))
    start, found = torch.zeros(64, 32, device=DEVICE), torch.empty(64, 32, device=DEVICE)
    product_kernel[(1,)](a, b, start, found, 64, 32, k)
    for place in range(64):
        moved = torch.empty_like(found)
        product_kernel[(1,)](a.roll(place, 0).contiguous(), b, start, moved, 64, 32, k)
        assert torch.equal(moved, found.roll(place, 0))
    small = torch.empty(16, 32, device=DEVICE)
    product_kernel[(1,)](a[:16].contiguous(), b, start[:16].contiguous(), small, 16, 32, k)
    assert torch.equal(small, found[:16])


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_products_of_what_is_not_finite(dtype: str) -> None:
    a, b = (torch.ones(16, 16, dtype=FLOATS[dtype], device=DEVICE) for _ in range(2))
    a[1, 3], a[2, 5], a[4, 0], b[6, 5] = torch.nan, torch.inf, 2.0**-14, 0.0
    found = torch.empty(16, 16, device=DEVICE)
    product_kernel[(1,)](a, b, torch.zeros(16, 16, device=DEVICE), found, 16, 16, 16)
    right = a.double() @ b.double().T
    assert torch.equal(found.isnan().cpu(), right.isnan().cpu()) and found.isnan().sum() == 17
    assert torch.allclose(found.double(), right, rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kind", ARITHMETIC)
def test_arithmetic(kind: str, dtype: str) -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(1024, generator=generator).to(FLOATS[dtype]).to(DEVICE) for _ in range(2))
    b[5] = a[5]
    found = torch.zeros(1024, device=DEVICE)
    arithmetic_kernel[(1,)](a, b, found, kind, 1024)
    assert torch.equal(found, ARITHMETIC[kind](a, b).float())


@pytest.mark.skipif(HAS_GPU, reason="compiled, it is up to the compiler")
def test_a_sum_of_bfloat16_is_refused() -> None:
    out = torch.zeros(1)
    with pytest.raises(Exception, match="convert to float32 first"):
        sum_kernel[(1,)](torch.ones(16, dtype=torch.bfloat16), out, 16)
    sum_kernel[(1,)](torch.full((16,), 0.5, dtype=torch.float16), out, 16)
    assert out[0] == 8
