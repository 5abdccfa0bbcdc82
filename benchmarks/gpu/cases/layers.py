"""Kernels around attention at relevant sizes: norms, gates, rotary positions, sampling, weight products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ....kernels.attention.interface import HeadNorm
from ....kernels.attention.rope_store import rope_store
from ....kernels.decoder import reference
from ....kernels.decoder.norm import add_rms_norm
from ....kernels.decoder.silu import silu_multiply
from ....kernels.linear.formats import QuantisedWeight, dequantise, quantise_bytes, quantise_int4, quantise_int8
from ....kernels.linear.invariant_matmul import invariant_linear
from ....kernels.linear.select import select_few_rows, select_product
from ....kernels.sampling.reference import SampleRows, SampleTables
from ....kernels.sampling.reference import sample_rows as sample_reference
from ....kernels.sampling.sample import SampleWorkspace, sample_rows
from ...harness.shapes import shape
from .. import roofline
from .problem import Launch, Problem, Settings, poison

Tensors = tuple[torch.Tensor, ...]

_EPS = 1e-6


def _normal(settings: Settings, seed: int, *shapes: tuple[int, ...]) -> Tensors:
    generator = torch.Generator(settings.device).manual_seed(seed)
    return tuple(
        torch.randn(shape, dtype=settings.dtype, device=settings.device, generator=generator) for shape in shapes
    )


# -- Norms, gates, rotary positions ------------------------------------------------------------------------------------


def _small(settings: Settings) -> list[Problem[Any]]:
    sizes, makers = (3,) if settings.tiny else (1, 64, 8192), (_add_norm, _silu, _rope)
    return [make(settings, num_tokens) for num_tokens in sizes for make in makers]


def _add_norm(settings: Settings, num_tokens: int) -> Problem[Tensors]:
    """The kernel adds into copies: the next launch finds the inputs as they were."""
    hidden_size = 96 if settings.tiny else 4096

    def make(seed: int) -> Tensors:
        rows = (num_tokens, hidden_size)
        hidden, delta, weight = _normal(settings, seed, rows, rows, (hidden_size,))
        return hidden, delta, 1 + weight / 8

    def ours(inputs: Tensors) -> Launch:
        hidden, delta, weight = (tensor.clone() for tensor in inputs)
        return lambda: add_rms_norm(hidden, delta, weight, _EPS)

    def wanted(inputs: Tensors) -> torch.Tensor:
        hidden, delta, weight = (tensor.double() for tensor in inputs)
        total = (hidden + delta).to(settings.dtype).double()  # the residual is kept as it is rounded
        return reference.rms_norm(total, weight, _EPS)

    work = roofline.add_norm(num_tokens, hidden_size, settings.dtype.itemsize)
    return Problem("add_norm", {"T": num_tokens}, work, make, ours, reference=wanted)


def _silu(settings: Settings, num_tokens: int) -> Problem[Tensors]:
    inner = 96 if settings.tiny else 12_288
    return Problem(
        name="silu",
        cfg={"T": num_tokens},
        work=roofline.silu_multiply(num_tokens, inner, settings.dtype.itemsize),
        make=lambda seed: _normal(settings, seed, (num_tokens, 2 * inner)),
        ours=lambda inputs: lambda: silu_multiply(inputs[0]),
        reference=lambda inputs: reference.silu_multiply(inputs[0].double()),
    )


def _rope(settings: Settings, num_tokens: int) -> Problem[dict[str, Any]]:
    """Queries are compared; nobody fuses head norm, rotation and both writes in one launch as a library call."""
    itemsize = settings.dtype.itemsize
    heads = roofline.Heads(4, 2, 64, itemsize, itemsize) if settings.tiny else roofline.Heads(32, 8, 128)
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    work = roofline.rope_store(heads, num_tokens)

    def make(seed: int) -> dict[str, Any]:
        cache = (2 * num_tokens + 16, heads.num_kv_heads, heads.head_dim)
        qkv, query, key, keys, values = _normal(
            settings, seed, (num_tokens, width), (heads.head_dim,), (heads.head_dim,), cache, cache
        )
        angles = torch.rand(num_tokens, 1, heads.head_dim // 2, device=settings.device) * 6.28
        cos, sin = angles.cos(), angles.sin()
        out = torch.empty(num_tokens, heads.num_heads, heads.head_dim, dtype=qkv.dtype, device=settings.device)
        slots = torch.randperm(2 * num_tokens, device=settings.device)[:num_tokens] + 16
        rotation = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        norm = HeadNorm(1 + query / 8, 1 + key / 8, _EPS)
        fixed = {"num_heads": heads.num_heads, "norm": norm, "rotation": rotation}
        return {"qkv": qkv, **fixed, "keys": keys, "values": values, "write_slot": slots, "q_out": poison(out)}

    def ours(inputs: dict[str, Any]) -> Launch:
        def launch() -> torch.Tensor:
            rope_store(**inputs)
            out: torch.Tensor = inputs["q_out"]
            return out

        return launch

    def wanted(inputs: dict[str, Any]) -> torch.Tensor:
        q = inputs["qkv"].double()[:, : heads.num_heads * heads.head_dim].view(num_tokens, heads.num_heads, -1)
        normed = reference.rms_norm(q, inputs["norm"].query.double(), _EPS)
        return reference.rotate(normed, *(part.double() for part in inputs["rotation"]))

    return Problem("rope_store", {"T": num_tokens}, work, make, ours, reference=wanted)


# -- Sampling ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SampleInputs:
    """Logits [B, V] and how each row is drawn. `filters`: some row has top-k, top-p or min-p."""

    logits: torch.Tensor
    rows: SampleRows
    tables: SampleTables
    filters: bool


def _sample(inputs: SampleInputs) -> Launch:
    num_rows, vocab_size = inputs.logits.shape
    workspace = SampleWorkspace.create(num_rows, vocab_size, inputs.logits.device)
    out = poison(torch.empty(num_rows, dtype=torch.int64, device=inputs.logits.device))

    def launch() -> torch.Tensor:
        sample_rows(inputs.logits, inputs.rows, inputs.tables, workspace, out, filters=inputs.filters)
        return out

    return launch


def _samplers(settings: Settings) -> list[Problem[SampleInputs]]:
    kinds = ("greedy", "greedy, mask", "temperature", "all filters")
    batches = (3,) if settings.tiny else (1, 64, 256)
    return [_sampler(settings, batch, kind) for batch in batches for kind in kinds]


def _sampler(settings: Settings, batch: int, kind: str) -> Problem[SampleInputs]:
    vocab_size = 700 if settings.tiny else 151_936
    masked = kind in ("greedy, mask", "all filters")
    work = roofline.sampler(batch, vocab_size, masked=masked, itemsize=settings.dtype.itemsize)

    def make(seed: int) -> SampleInputs:
        (logits,) = _normal(settings, seed, (batch, vocab_size))
        rows = SampleRows.greedy(batch, settings.device)
        rows.seed.copy_(torch.arange(batch) * 7919 + seed)
        rows.position.copy_(torch.arange(batch) + 100)
        mask = None
        if masked:
            words = (batch, -(-vocab_size // 32))
            mask = torch.randint(-(1 << 31), 1 << 31, words, dtype=torch.int32, device=settings.device)
            rows.mask_row.copy_(torch.arange(batch))
        if kind in ("temperature", "all filters"):
            rows.temperature.fill_(0.8)
        if kind == "all filters":
            rows.top_k.fill_(50)
            rows.top_p.fill_(0.9)
            rows.min_p.fill_(0.05)
        return SampleInputs(4 * logits, rows, SampleTables(mask=mask), kind == "all filters")

    def check(inputs: SampleInputs, out: torch.Tensor) -> None:
        """The first rows must be the reference's tokens: the draw is exact."""
        few = slice(0, 4)
        expected = torch.empty(len(out[few]), dtype=torch.int64, device=out.device)
        sample_reference(inputs.logits[few], inputs.rows.select(few), inputs.tables, expected)
        if not torch.equal(out[few], expected):
            raise ValueError(f"drew {out[few].tolist()}, the reference {expected.tolist()}")

    return Problem("sampler", {"B": batch, "kind": kind}, work, make, _sample, check=check)


# -- Weight products -------------------------------------------------------------------------------------------------


_WEIGHTS = {
    f"{size} {name}": sizes
    for size in ("0.6b", "8b")
    for name, sizes in roofline.projections(shape(f"qwen3-{size}")).items()
}
_IN_ALL_KINDS = ("tiny", "0.6b gate_up", "8b gate_up", "8b down")  # the others, of plain numbers alone


@dataclass(frozen=True)
class LinearInputs:
    """x [T, N] and a weight [M, N]. `product` is x W^T as a decoder computes it, and `right` the weight it goes by."""

    x: torch.Tensor
    weight: torch.Tensor
    right: torch.Tensor
    product: Callable[[torch.Tensor], torch.Tensor]


def _products(settings: Settings) -> list[Problem[LinearInputs]]:
    weights = {"tiny": (256, 160)} if settings.tiny else _WEIGHTS
    return [
        _linear(settings, name, num_tokens, kind, *sizes)
        for name, sizes in weights.items()
        for num_tokens in ((2,) if settings.tiny else (1, 4, 16, 64, 256))
        for kind in _KINDS
        if kind == "bf16" or (name in _IN_ALL_KINDS and num_tokens != 4)
    ]


def _linear(
    settings: Settings, name: str, num_tokens: int, kind: str, num_inputs: int, num_outputs: int
) -> Problem[LinearInputs]:
    """All are compared with cuBLAS in bf16, which computes bf16 itself where the kernel for few rows does not."""
    dtype, (bits, prepare, max_error) = settings.dtype, _KINDS[kind]
    bits = bits or 8 * dtype.itemsize
    work = roofline.linear(num_tokens, num_inputs, num_outputs, weight_bits=bits, itemsize=dtype.itemsize)

    def make(seed: int) -> LinearInputs:
        x, weight = _normal(settings, seed, (num_tokens, num_inputs), (num_outputs, num_inputs))
        return prepare(x, weight * num_inputs**-0.5)

    return Problem(
        name="linear",
        cfg={"weight": name, "kind": kind, "T": num_tokens},
        work=work,
        make=make,
        ours=lambda inputs: lambda: inputs.product(inputs.x),
        peers={"cublas": lambda inputs: lambda: F.linear(inputs.x, inputs.weight)},
        reference=lambda inputs: inputs.x.float() @ inputs.right.float().T,
        of_peers=lambda inputs: inputs.x.float() @ inputs.weight.float().T,
        max_error=max_error,
    )


def _plain(x: torch.Tensor, weight: torch.Tensor) -> LinearInputs:
    few_rows = select_few_rows(weight)

    def product(x: torch.Tensor) -> torch.Tensor:
        found = None if few_rows is None else few_rows.multiply(x, None)
        return F.linear(x, weight) if found is None else found

    return LinearInputs(x, weight, weight, product)


def _quantised(
    quantise: Callable[[torch.Tensor], QuantisedWeight], rounds_rows: bool, x: torch.Tensor, weight: torch.Tensor
) -> LinearInputs:
    stored = quantise(weight)
    product = select_product(stored, x.dtype, rounds_rows=rounds_rows)
    return LinearInputs(x, weight, dequantise(stored), lambda x: product(x, None))


_KINDS: dict[str, tuple[float | None, Callable[[torch.Tensor, torch.Tensor], LinearInputs], float | None]] = {
    "bf16": (None, _plain, None),
    "invariant": (None, lambda x, weight: LinearInputs(x, weight, weight, lambda x: invariant_linear(x, weight)), None),
    # Activations are rounded to 4 bits, too.
    "fp8": (8, partial(_quantised, partial(quantise_bytes, dtype=torch.float8_e4m3fn), True), 5e-2),
    "int8": (8, partial(_quantised, quantise_int8, False), None),
    "int4": (4 + 16 / 128, partial(_quantised, quantise_int4, False), None),
}
"""Bits that a weight takes (None: as many as an activation), how it is prepared, and what error that may bring."""

FAMILIES = {"small": _small, "sampler": _samplers, "linear": _products}
