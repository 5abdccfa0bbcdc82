"""Projections of a decoder with quantised weights: as stored in a checkpoint, or rounded at load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ...kernels.linear.formats import (
    ByteWeight,
    PackedWeight,
    QuantisedWeight,
    quantise_bytes,
    quantise_int4,
    quantise_int4_minimums,
    quantise_int8,
    quantise_int8_groups,
)
from ...kernels.linear.select import Product, select_product
from ...kernels.native.weights import GROUP
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.config import ModelConfig
from ..checkpoints.gguf_tensors import GGUFTensors
from ..checkpoints.quantised_folder import QuantisedFolder
from ..checkpoints.stored_weight import QuantisedCheckpoint, StoredWeight
from ..checkpoints.weights import Progress, list_parameters
from ..protocol.errors import ModelError
from .decoder import Decoder, Linear, Projection

TORCH_KINDS: Mapping[str, str] = {
    "fp8": "weights and activations of 8-bit floats, a scale for each row of either",
    "int8": "weights of 8-bit integers, a scale for each row",
    "w8a8": "weights and activations of 8-bit integers, a scale for each row of either",
    "int4": "weights of 4-bit integers, a scale and a zero for 128 columns of a row",
    "int4-g32": "weights of 4-bit integers, a scale and a zero for 32 columns of a row",
}
"""Kinds that `quantise_decoder` rounds to, with the resulting formats of weights and activations."""

_PROJECTIONS = ("qkv", "out", "gate_up", "down")


@dataclass(frozen=True)
class QuantisedLinear:
    """x W^T + b with a quantised weight.

    order       order of the input features, as in StoredWeight
    invariant   a row's result does not depend on the number of rows
    """

    weight: QuantisedWeight
    bias: torch.Tensor | None
    order: torch.Tensor | None
    product: Product = field(repr=False)
    invariant: bool = False

    @property
    def num_parameters(self) -> int:
        """Number of elements in the weight and the bias."""
        return self.weight.shape[0] * self.weight.shape[1] + (0 if self.bias is None else self.bias.numel())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x if self.order is None else x.index_select(-1, self.order), self.bias)


@dataclass(frozen=True)
class StackedLinear:
    """Projections of one input with concatenated outputs, whose weights cannot be fused as their formats differ."""

    parts: tuple[QuantisedLinear, ...]

    @property
    def invariant(self) -> bool:
        return all(part.invariant for part in self.parts)

    @property
    def num_parameters(self) -> int:
        """Number of elements in the weights and biases."""
        return sum(part.num_parameters for part in self.parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


def make_linear(
    stored: StoredWeight,
    bias: torch.Tensor | None,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    invariant: bool = False,
) -> QuantisedLinear:
    """Builds a projection of activations of `dtype`, on `device`."""
    weight = stored.weight.to(device)
    order = None if stored.order is None else stored.order.to(device)
    product = select_product(weight, dtype, rounds_rows=stored.rounds_rows, invariant=invariant)
    return QuantisedLinear(weight, None if bias is None else bias.to(device, dtype), order, product, invariant)


# -- rounding a decoder's weights ---------------------------------------------------------------------------------


def quantise_decoder(
    decoder: Decoder,
    kind: str,
    *,
    include_head: bool = False,
    invariant: bool = False,
    progress: Progress | None = None,
) -> None:
    """Replaces the decoder's projections by quantised ones, in place and one by one.

    kind           one of TORCH_KINDS
    include_head   quantise the output head as well
    invariant      make a row's result independent of the number of rows (fp8: activations are then not rounded)
    progress       called with ("quantise", done, total), in layers

    Raises:
        ModelError: there is no such kind, or a projection is already quantised.
    """
    if kind not in TORCH_KINDS:
        raise ModelError(f"quantization must be one of {', '.join(TORCH_KINDS)}, got {kind!r}")

    def quantise(projection: Projection, name: str) -> QuantisedLinear:
        if not isinstance(projection, Linear):
            raise ModelError(f"{name} is already quantised: load the model without quantization {kind!r}")
        weight = projection.weight
        stored = StoredWeight(_QUANTISERS[kind](weight), rounds_rows=kind in ("fp8", "w8a8"))
        return make_linear(stored, projection.bias, dtype=weight.dtype, device=weight.device, invariant=invariant)

    for index, layer in enumerate(decoder.layers):
        for name in _PROJECTIONS:
            setattr(layer, name, quantise(getattr(layer, name), f"layers.{index}.{name}"))
        if progress is not None:
            progress("quantise", index + 1, len(decoder.layers))
    if include_head:
        decoder.head = quantise(decoder.head, "head")


_QUANTISERS: Mapping[str, Callable[[torch.Tensor], QuantisedWeight]] = {
    "fp8": lambda weight: quantise_bytes(weight, torch.float8_e4m3fn),
    "int8": quantise_int8,
    "w8a8": lambda weight: quantise_bytes(weight, torch.int8),
    "int4": lambda weight: quantise_int4(weight, 128),
    "int4-g32": lambda weight: quantise_int4(weight, 32),
}


# -- loading weights as they are stored ---------------------------------------------------------------------------


def load_projections(
    config: ModelConfig,
    checkpoint: QuantisedCheckpoint,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    invariant: bool = False,
) -> dict[str, QuantisedLinear | StackedLinear]:
    """Loads the projections whose weights are all stored quantised, by their parameters' names: `layers.3.qkv`, ...

    The caller has checked the names and shapes of the checkpoint's tensors (weights.check_shapes).
    """
    biases = {parameter.name: parameter for parameter in list_parameters(config) if parameter.name.endswith("_bias")}
    projections: dict[str, QuantisedLinear | StackedLinear] = {}
    for parameter in list_parameters(config):
        names = [name for name, _ in parameter.sources]
        if parameter.name.split(".")[-1] not in _PROJECTIONS or not all(map(checkpoint.is_quantised, names)):
            continue
        bias_parameter = biases.get(f"{parameter.name}_bias")
        bias_names = [] if bias_parameter is None else [name for name, _ in bias_parameter.sources]
        stored = [checkpoint.read_stored(name, device) for name in names]
        each_bias: list[torch.Tensor | None] = [None] * len(stored)
        if bias_names:
            each_bias = [checkpoint.read(name) for name in bias_names]
        fused = _fuse(stored)
        if fused is not None:
            bias = torch.cat([part for part in each_bias if part is not None]) if bias_names else None
            projections[parameter.name] = make_linear(fused, bias, dtype=dtype, device=device, invariant=invariant)
        else:
            parts = [
                make_linear(part, bias, dtype=dtype, device=device, invariant=invariant)
                for part, bias in zip(stored, each_bias, strict=True)
            ]
            projections[parameter.name] = StackedLinear(tuple(parts))
    return projections


def _fuse(stored: Sequence[StoredWeight]) -> StoredWeight | None:
    """Concatenates the rows of several weights; returns None if their formats differ."""
    first = stored[0]
    for other in stored[1:]:
        same_order = first.order is other.order or (
            first.order is not None and other.order is not None and torch.equal(first.order, other.order)
        )
        if not same_order or first.rounds_rows != other.rounds_rows:
            return None
    weights = [part.weight for part in stored]
    fused: QuantisedWeight | None = None
    packed = [weight for weight in weights if isinstance(weight, PackedWeight)]
    plain = [weight for weight in weights if isinstance(weight, ByteWeight)]
    if len(packed) == len(weights):
        fused = _fuse_packed(packed)
    elif len(plain) == len(weights) and len({(weight.codes.dtype, weight.group) for weight in plain}) == 1:
        scales = torch.cat([weight.scales for weight in plain], dim=1)
        fused = ByteWeight(torch.cat([weight.codes for weight in plain]), scales, plain[0].group)
    return None if fused is None else StoredWeight(fused, first.order, first.rounds_rows)


def _fuse_packed(weights: Sequence[PackedWeight]) -> PackedWeight | None:
    first = weights[0]
    kinds = {(weight.bits, weight.group, weight.scales.dtype) for weight in weights}
    zeros = [weight.zeros for weight in weights]
    present = [tensor for tensor in zeros if tensor is not None]
    if len(kinds) > 1 or len({None if tensor is None else tensor.dtype for tensor in zeros}) > 1:
        return None
    return PackedWeight(
        words=torch.cat([weight.words for weight in weights], dim=1),
        scales=torch.cat([weight.scales for weight in weights], dim=1),
        zeros=torch.cat(present, dim=1) if present else None,
        bits=first.bits,
        group=first.group,
        num_columns=first.num_columns,
    )


def read_packed(
    checkpoint: Checkpoint | GGUFTensors, name: str, kind: str | None, is_table: bool
) -> PackedWeight | None:
    """Reads a matrix as packed integers; returns None if it has floats that are not to be rounded, or other codes.

    kind        "int8" or "int4": rounded to these, in groups of `GROUP`; None: as stored
    is_table    of embeddings or an output head: rounded to 8 bits if it has floats
    """
    if kind is None and isinstance(checkpoint, QuantisedFolder) and checkpoint.is_quantised(name):
        stored = checkpoint.read_stored(name)
        return stored.weight if isinstance(stored.weight, PackedWeight) and stored.order is None else None
    if kind is None and not is_table:
        return None
    if isinstance(checkpoint, GGUFTensors):
        weight = torch.from_numpy(checkpoint.read_numbers(name))
    else:
        weight = checkpoint.read(name)
    return quantise_int4_minimums(weight, GROUP) if kind == "int4" else quantise_int8_groups(weight, GROUP)
