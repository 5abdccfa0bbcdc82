"""The kernels around attention at the sizes that matter: norms, gates, rotary positions, sampling, weight products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ....kernels.attention.interface import HeadNorm
from ....kernels.decoder import reference
from ....kernels.linear.formats import QuantisedWeight, dequantise, quantise_bytes, quantise_int4, quantise_int8
from ....kernels.linear.invariant_matmul import invariant_linear
from ....kernels.linear.select import select_product
from ....kernels.sampling.reference import SampleRows, SampleTables
from ....kernels.sampling.reference import sample_rows as sample_reference
from .. import roofline
from . import ours as gpu_ours
from . import rivals as gpu_rivals
from .case import Case, Settings
from .ours import RopeInputs, SampleInputs
from .problem import AbsentError, Launch, Problem, poison

Tensors = tuple[torch.Tensor, ...]

_EPS = 1e-6


def _dtype(settings: Settings) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, settings.dtype_name)
    return dtype


def _normal(settings: Settings, seed: int, *shapes: tuple[int, ...]) -> Tensors:
    generator = torch.Generator(settings.device).manual_seed(seed)
    return tuple(
        torch.randn(shape, dtype=_dtype(settings), device=settings.device, generator=generator) for shape in shapes
    )


# -- Norms, gates, rotary positions ------------------------------------------------------------------------------------


def cases(settings: Settings, argument: str) -> list[Case]:
    """Those of one family."""
    families = {"small": _small, "sampler": _sampler_cases, "linear": _linear_cases, "compiled": _compiled}
    return families[argument](settings)


def _small(settings: Settings) -> list[Case]:
    found = []
    for num_tokens in (3,) if settings.tiny else (1, 64, 8192):
        problems: list[Problem[Any]] = [
            _add_norm(settings, num_tokens, "flashinfer", gpu_rivals.flashinfer_add_norm),
            _silu(settings, num_tokens, "flashinfer", gpu_rivals.flashinfer_silu),
            _rope(settings, num_tokens),
        ]
        found += [problem.case(settings) for problem in problems]
    return found


def _compiled(settings: Settings) -> list[Case]:
    """The same beside torch.compile, where bandwidth is what counts; compiling takes seconds."""
    num_tokens = 3 if settings.tiny else 8192

    def add_norm(hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(hidden.add_(delta), weight.shape, weight, eps)

    def silu(gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    problems = [
        _add_norm(settings, num_tokens, "compile", partial(gpu_rivals.compiled, add_norm)),
        _silu(settings, num_tokens, "compile", partial(gpu_rivals.compiled, silu)),
    ]
    return [problem.case(settings, 15.0) for problem in problems]


def _add_norm(settings: Settings, num_tokens: int, peer: str, bind: Callable[..., Launch]) -> Problem[Tensors]:
    """`bind` takes hidden, delta, weight, eps. Each kernel adds into copies: the next finds the inputs as they were."""
    hidden_size = 96 if settings.tiny else 4096
    work = roofline.add_norm(num_tokens, hidden_size, _dtype(settings).itemsize)

    def make(seed: int) -> Tensors:
        rows = (num_tokens, hidden_size)
        hidden, delta, weight = _normal(settings, seed, rows, rows, (hidden_size,))
        return hidden, delta, 1 + weight / 8

    def wanted(inputs: Tensors) -> torch.Tensor:
        hidden, delta, weight = (tensor.double() for tensor in inputs)
        total = (hidden + delta).to(_dtype(settings)).double()  # the residual is kept as it is rounded
        return reference.rms_norm(total, weight, _EPS)

    def on_copies(bind: Callable[..., Launch], inputs: Tensors) -> Launch:
        return bind(*(tensor.clone() for tensor in inputs), _EPS)

    return Problem(
        name="add_norm",
        cfg=_settings(num_tokens, peer),
        work=work,
        make=make,
        ours=partial(on_copies, gpu_ours.add_norm),
        peers={peer: partial(on_copies, bind)},
        reference=wanted,
    )


def _silu(settings: Settings, num_tokens: int, peer: str, bind: Callable[..., Launch]) -> Problem[Tensors]:
    inner = 96 if settings.tiny else 12_288
    work = roofline.silu_multiply(num_tokens, inner, _dtype(settings).itemsize)
    return Problem(
        name="silu",
        cfg=_settings(num_tokens, peer),
        work=work,
        make=lambda seed: _normal(settings, seed, (num_tokens, 2 * inner)),
        ours=lambda inputs: gpu_ours.silu(inputs[0]),
        peers={peer: lambda inputs: bind(inputs[0])},
        reference=lambda inputs: reference.silu_multiply(inputs[0].double()),
    )


def _settings(num_tokens: int, peer: str) -> dict[str, Any]:
    """Settings that tell a row from the one beside another peer."""
    return {"T": num_tokens} if peer == "flashinfer" else {"T": num_tokens, "peer": peer}


def _rope(settings: Settings, num_tokens: int) -> Problem[RopeInputs]:
    """Queries are compared; nobody fuses head norm, rotation and both writes in one launch as a library call."""
    itemsize = _dtype(settings).itemsize
    heads = roofline.Heads(4, 2, 64, itemsize, itemsize) if settings.tiny else roofline.Heads(32, 8, 128)
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
    work = roofline.rope_store(heads, num_tokens)

    def make(seed: int) -> RopeInputs:
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
        return RopeInputs(qkv, heads.num_heads, norm, rotation, keys, values, slots, poison(out))

    def wanted(inputs: RopeInputs) -> torch.Tensor:
        q = inputs.qkv.double()[:, : heads.num_heads * heads.head_dim].view(num_tokens, heads.num_heads, -1)
        normed = reference.rms_norm(q, inputs.norm.query.double(), _EPS)
        return reference.rotate(normed, *(part.double() for part in inputs.rotation))

    return Problem(
        name="rope_store", cfg={"T": num_tokens}, work=work, make=make, ours=gpu_ours.rope,
        reference=wanted,
    )  # fmt: skip


# -- Sampling ----------------------------------------------------------------------------------------------------------


def _sampler_cases(settings: Settings) -> list[Case]:
    kinds = ("greedy", "greedy, mask", "temperature", "all filters")
    batches = (3,) if settings.tiny else (1, 64, 256)
    return [_sampler(settings, batch, kind).case(settings, 3.0) for batch in batches for kind in kinds]


def _sampler(settings: Settings, batch: int, kind: str) -> Problem[SampleInputs]:
    vocab_size = 700 if settings.tiny else 151_936
    masked = kind in ("greedy, mask", "all filters")
    work = roofline.sampler(batch, vocab_size, masked=masked, itemsize=_dtype(settings).itemsize)

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

    def flashinfer(inputs: SampleInputs) -> Launch:
        if kind != "all filters":
            raise AbsentError("it has no fused greedy choice")
        return gpu_rivals.flashinfer_sample(
            inputs.logits, inputs.rows.temperature, inputs.rows.top_k, inputs.rows.top_p
        )

    def plain(inputs: SampleInputs) -> Launch:
        return gpu_rivals.torch_sample(inputs.logits, inputs.rows, inputs.tables.mask, filters=inputs.filters)

    return Problem(
        name="sampler", cfg={"B": batch, "kind": kind}, work=work, make=make,
        ours=gpu_ours.sample, peers={"flashinfer": flashinfer, "torch": plain}, check=check,
    )  # fmt: skip


# -- Weight products -------------------------------------------------------------------------------------------------


_WEIGHTS = {  # name -> inputs, outputs
    "8b gate_up": (4096, 24_576),
    "8b down": (12_288, 4096),
    "8b head": (4096, 151_936),
    "0.6b gate_up": (1024, 6144),
    "0.6b head": (1024, 151_936),
}


@dataclass(frozen=True)
class LinearInputs:
    """x [T, N] and a weight [M, N]. `product` is x W^T as a decoder computes it, and `right` the weight it goes by."""

    x: torch.Tensor
    weight: torch.Tensor
    right: torch.Tensor
    product: Callable[[torch.Tensor], torch.Tensor]


def _linear_cases(settings: Settings) -> list[Case]:
    weights = {"tiny": (256, 160)} if settings.tiny else _WEIGHTS
    found = []
    for name, (num_inputs, num_outputs) in weights.items():
        for num_tokens in (2,) if settings.tiny else (1, 16, 64, 256):
            for kind in _KINDS:
                if kind == "bf16" or "head" not in name:
                    problem = _linear(settings, name, num_tokens, num_inputs, num_outputs, kind)
                    found.append(problem.case(settings, 2.0))
    return found


def _linear(
    settings: Settings, name: str, num_tokens: int, num_inputs: int, num_outputs: int, kind: str
) -> Problem[LinearInputs]:
    """bf16 is cuBLAS: its row says how near the library comes to the floor, and the others are compared with it."""
    dtype = _dtype(settings)
    how = _KINDS[kind]
    bits = how.bits or 8 * dtype.itemsize
    work = roofline.linear(num_tokens, num_inputs, num_outputs, weight_bits=bits, itemsize=dtype.itemsize)

    def make(seed: int) -> LinearInputs:
        x, weight = _normal(settings, seed, (num_tokens, num_inputs), (num_outputs, num_inputs))
        return how.prepare(x, weight * num_inputs**-0.5)

    def cublas(inputs: LinearInputs) -> Launch:
        return lambda: F.linear(inputs.x, inputs.weight)

    peers: dict[str, Any] = {} if kind == "bf16" else {"cublas": cublas}
    return Problem(
        name="linear",
        cfg={"weight": name, "kind": kind, "T": num_tokens},
        work=work,
        make=make,
        ours=lambda inputs: lambda: inputs.product(inputs.x),
        peers=peers,
        reference=lambda inputs: inputs.x.float() @ inputs.right.float().T,
        of_peers=lambda inputs: inputs.x.float() @ inputs.weight.float().T,
        max_error=how.max_error,
    )


def _plain(x: torch.Tensor, weight: torch.Tensor) -> LinearInputs:
    return LinearInputs(x, weight, weight, lambda x: F.linear(x, weight))


def _invariant(x: torch.Tensor, weight: torch.Tensor) -> LinearInputs:
    return LinearInputs(x, weight, weight, lambda x: invariant_linear(x, weight))


def _quantised(
    quantise: Callable[[torch.Tensor], QuantisedWeight], rounds_rows: bool, x: torch.Tensor, weight: torch.Tensor
) -> LinearInputs:
    stored = quantise(weight)
    product = select_product(stored, x.dtype, rounds_rows=rounds_rows)
    return LinearInputs(x, weight, dequantise(stored), lambda x: product(x, None))


@dataclass(frozen=True)
class _Kind:
    """Bits that a weight takes (None: as many as an activation), how it is prepared, and what error that may bring."""

    bits: float | None
    prepare: Callable[[torch.Tensor, torch.Tensor], LinearInputs]
    max_error: float | None = None


_FP8 = partial(quantise_bytes, dtype=torch.float8_e4m3fn)
_KINDS = {
    "bf16": _Kind(None, _plain),
    "invariant": _Kind(None, _invariant),
    "fp8": _Kind(8, partial(_quantised, _FP8, True), max_error=5e-2),  # activations are rounded to 4 bits, too
    "int8": _Kind(8, partial(_quantised, quantise_int8, False)),
    "int4": _Kind(4 + 16 / 128, partial(_quantised, quantise_int4, False)),
}
