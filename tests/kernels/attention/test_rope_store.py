"""Head norm, rotation and the cache's writes in one kernel: against float64, and against the separate operations."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from bough.kernels.attention.interface import HeadNorm, KVShape
from bough.kernels.attention.reference import split_heads

from ...support.triton_interpreter import DEVICE, HAS_GPU

from bough.kernels.attention.rope_store import rope_store  # isort: skip  after the interpreter

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
FLOAT8 = torch.float8_e4m3fn
NAN = float("nan")


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Case:
    """One layer's inputs, and caches that hold NaN wherever nothing was written.

    guarded    keys and values, [2, 1 + num_slots, G, D]: the slot before the first is nobody's
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv: torch.Tensor
    norm: HeadNorm | None
    rotation: tuple[torch.Tensor, torch.Tensor] | None
    write_slot: torch.Tensor
    guarded: torch.Tensor

    def __post_init__(self) -> None:
        self.keys, self.values = self.guarded[:, 1:]

    def run(self, rows: slice = slice(None), **scales: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv[rows]
        q_out = torch.full((len(qkv), self.num_heads, self.head_dim), NAN, dtype=qkv.dtype, device=DEVICE)
        rope_store(
            qkv,
            num_heads=self.num_heads,
            norm=self.norm,
            rotation=None if self.rotation is None else (self.rotation[0][rows], self.rotation[1][rows]),
            keys=self.keys,
            values=self.values,
            write_slot=self.write_slot[rows],
            q_out=q_out,
            **scales,
        )
        return q_out

    def expected(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v of all tokens by the plain operations, in `dtype`."""
        norm, rotation = self.norm, self.rotation
        if norm is not None:
            norm = HeadNorm(norm.query.to(dtype), norm.key.to(dtype), norm.eps)
        if rotation is not None and dtype == torch.float64:
            rotation = (rotation[0].double(), rotation[1].double())
        shape = KVShape(1, 1, 1, self.num_kv_heads, self.head_dim, dtype)
        return split_heads(self.qkv.to(dtype), shape, norm, rotation)


def make_case(
    heads: tuple[int, int],
    head_dim: int,
    slots: list[int],
    *,
    dtype: torch.dtype = torch.float32,
    cache: torch.dtype | None = None,
    norm: bool = True,
    rotate: bool = True,
    num_slots: int = 24,
) -> Case:
    num_heads, num_kv_heads = heads
    num_tokens = len(slots)
    angle = noise(num_tokens, 1, head_dim // 2, seed=1) * 5
    cos, sin = angle.cos(), angle.sin()
    weights = [(1 + 0.3 * noise(head_dim, seed=seed)).to(DEVICE, dtype) for seed in (2, 3)]
    return Case(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        qkv=noise(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim, seed=0).to(DEVICE, dtype),
        norm=HeadNorm(weights[0], weights[1], 1e-6) if norm else None,
        rotation=(torch.cat((cos, cos), -1).to(DEVICE), torch.cat((-sin, sin), -1).to(DEVICE)) if rotate else None,
        write_slot=torch.tensor(slots, dtype=torch.int64, device=DEVICE),
        guarded=torch.full((2, 1 + num_slots, num_kv_heads, head_dim), NAN, device=DEVICE).to(cache or dtype),
    )


def error(got: torch.Tensor, right: torch.Tensor) -> float:
    return float((got.double() - right.double()).norm() / right.double().norm())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("norm", "rotate"), [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize(
    ("heads", "head_dim"), [((9, 3), 64), ((2, 1), 80), ((3, 3), 96), ((17, 9), 2), ((4, 1), 128), ((1, 1), 256)]
)
def test_all_three_outputs(heads: tuple[int, int], head_dim: int, norm: bool, rotate: bool, dtype: torch.dtype) -> None:
    case = make_case(heads, head_dim, [5, -1, 23], dtype=dtype, norm=norm, rotate=rotate)
    got = case.run()
    q, k, v = case.expected(torch.float64)
    assert error(got, q) < TOLERANCE[dtype]
    assert error(case.keys[[5, 23]], k[[0, 2]]) < TOLERANCE[dtype]
    assert torch.equal(case.values[[5, 23]], v[[0, 2]].to(dtype))
    for store in case.guarded:
        assert int(store.isnan().sum()) == 23 * heads[1] * head_dim  # nothing else was written


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounds_where_the_separate_operations_round(dtype: torch.dtype) -> None:
    case = make_case((8, 4), 64, list(range(6)), dtype=dtype)
    got = case.run()
    q, k, _ = case.expected(dtype)
    # Without the rounding between norm and rotation every fourth number would differ.
    for ours, theirs in ((got, q), (case.keys[:6], k)):
        assert float((ours != theirs).float().mean()) < 0.01
        torch.testing.assert_close(ours, theirs, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_few_tokens(num_tokens: int) -> None:
    case = make_case((4, 2), 16, [7][:num_tokens])
    got = case.run()
    q, k, _ = case.expected(torch.float64)
    assert got.shape == (num_tokens, 4, 16)
    torch.testing.assert_close(got.double(), q, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(case.keys[[7][:num_tokens]].double(), k, rtol=1e-5, atol=1e-5)
    assert int(case.keys.isnan().sum()) == (24 - num_tokens) * 2 * 16


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_a_token_is_the_same_in_any_company(head_dim: int, dtype: torch.dtype) -> None:
    num_tokens = 600 if HAS_GPU else 5
    case = make_case((9, 3), head_dim, list(range(num_tokens)), dtype=dtype, num_slots=num_tokens)
    together = case.run()
    keys, values = case.keys.clone(), case.values.clone()
    for token in (0, 2, num_tokens - 1):
        case.keys.fill_(NAN)
        case.values.fill_(NAN)
        assert torch.equal(case.run(slice(token, token + 1)), together[token : token + 1])
        assert torch.equal(case.keys[token], keys[token])
        assert torch.equal(case.values[token], values[token])


def test_strided_inputs_and_short_slots() -> None:
    """Rows of a wider product, angles looked up in one table of both, slot numbers of 32 bits."""
    case = make_case((4, 2), 32, [3, 0, -1, 9])
    q, k, _ = case.expected(torch.float64)
    assert case.rotation is not None
    wide = torch.full((4, case.qkv.shape[1] + 5), NAN, device=DEVICE)
    wide[:, 5:] = case.qkv
    angles = torch.stack(case.rotation, dim=1)
    case.qkv, case.rotation = wide[:, 5:], (angles[:, 0], angles[:, 1])
    case.write_slot = case.write_slot.int()
    assert error(case.run(), q) < 1e-5
    assert error(case.keys[[3, 0, 9]], k[[0, 1, 3]]) < 1e-5


def test_cache_of_another_dtype() -> None:
    case = make_case((4, 2), 32, [3, 0], cache=torch.bfloat16)
    case.run()
    _, k, v = case.expected(torch.float64)
    assert error(case.keys[[3, 0]], k) < 1e-2
    assert torch.equal(case.values[[3, 0]], v.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scaled", [True, False])
def test_float8_cache(scaled: bool, dtype: torch.dtype) -> None:
    case = make_case((4, 3), 80, [3, -1, 0], dtype=dtype, cache=FLOAT8)
    scales = {"k_scale": torch.tensor([0.5, 0.01, 0.002]), "v_scale": torch.tensor([0.3, 0.02, 0.001])}
    scales = {name: scale.to(DEVICE) for name, scale in scales.items()} if scaled else {}
    case.run(slice(None), **scales)
    _, k, v = case.expected(dtype)
    for store, right, name in ((case.keys, k, "k_scale"), (case.values, v, "v_scale")):
        divisor = scales[name][:, None] if scaled else torch.ones(1, device=DEVICE)
        wanted = (right[[0, 2]].float() / divisor).clamp(-448, 448).to(FLOAT8).float()
        got = store[[3, 0]].float()
        assert float((got != wanted).float().mean()) < (0.01 if name == "k_scale" else 1e-9)
        torch.testing.assert_close(got, wanted, rtol=0.13, atol=2**-9)  # one step of 3 fraction bits at most
        assert bool((got.abs() == 448).any()) == scaled  # the last head's scale is too small for its numbers
        assert int(store.float().isnan().sum()) == 22 * 3 * 80


def test_float8_keeps_nan() -> None:
    case = make_case((1, 1), 16, [1], cache=FLOAT8)
    case.values.copy_(torch.zeros(24, 1, 16))
    case.qkv[0, -1] = NAN
    case.run()
    assert case.values[1].float().isnan().flatten().tolist() == [False] * 15 + [True]


def test_what_does_not_fit_is_refused() -> None:
    for name, replacement, message in (
        ("qkv", torch.zeros(2, 7, device=DEVICE), "qkv must"),
        ("qkv", torch.zeros(2, 128, device=DEVICE, dtype=torch.float64), "qkv must"),
        ("write_slot", torch.zeros(1, dtype=torch.int64, device=DEVICE), "write_slot must"),
        ("values", torch.zeros(24, 2, 32, device=DEVICE)[:, :, ::2], "keys and values"),
    ):
        case = make_case((4, 2), 16, [3, 0])
        setattr(case, name, replacement)
        with pytest.raises(ValueError, match=message):
            case.run()


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
def test_slots_past_2_to_the_31_elements() -> None:
    case = make_case((8, 8), 128, [2_200_000, 0], dtype=torch.bfloat16, num_slots=2_200_001)  # 2.25e9 elements each
    case.run()
    _, k, v = case.expected(torch.float64)
    assert error(case.keys[[2_200_000, 0]], k) < 1e-2
    assert torch.equal(case.values[[2_200_000, 0]], v.bfloat16())
