"""Hugging Face folders with quantised weights: AWQ, GPTQ, and FP8 by tensor, row or block."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from ...kernels.linear.formats import ByteWeight, PackedWeight, dequantise, holds_group, pack
from ..protocol.errors import ModelError
from .checkpoint import SafetensorsCheckpoint
from .stored_weight import StoredWeight

EXTRA_DTYPES = ("I32", "F8_E4M3")
"""Dtypes in such folders besides floats: packed codes, and fp8."""

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # column of each nibble of a word
_PARTS = {  # tensors of a quantised weight, by method: required and optional ones
    "awq": (("qweight", "qzeros", "scales"), ()),
    "gptq": (("qweight", "qzeros", "scales"), ("g_idx",)),
    "fp8": (("weight",), ("weight_scale_inv", "weight_scale", "input_scale", "activation_scale")),
}


class QuantisedFolder:
    """A safetensors folder with a quantization_config, whose quantised weights have their usual names.

    checkpoint    checkpoint opened with EXTRA_DTYPES
    settings      the quantization_config
    wanted        names of the model's tensors: other biases, which a quantiser added as zeros, are left out

    Raises:
        ModelError: the method or one of its settings is not supported, or the tensors do not fit it.
    """

    def __init__(self, checkpoint: SafetensorsCheckpoint, settings: Mapping[str, Any], wanted: Collection[str]) -> None:
        self._checkpoint = checkpoint
        self._settings = settings
        self._method = _read_method(settings)
        self._bits = _read_bits(self._method, settings)
        required, optional = _PARTS[self._method]
        mark = "weight" if self._method == "fp8" else "qweight"
        bases = {
            name.removesuffix(f".{mark}")
            for name in checkpoint.shapes
            if name.endswith(f".{mark}") and (mark == "qweight" or checkpoint.dtype(name) == "F8_E4M3")
        }
        if not bases:
            raise ModelError(f"quantization_config: the folder has no weights of {self._method}")
        hidden = {f"{base}.{part}" for base in bases for part in (*required, *optional)}
        self._bases = {f"{base}.weight": base for base in bases}
        self._shapes = {name: shape for name, shape in checkpoint.shapes.items() if name not in hidden}
        for base in bases:
            for part in required:
                if f"{base}.{part}" not in checkpoint.shapes:
                    raise ModelError(f"the {self._method} weight {base} has no tensor {part}")
            self._shapes[f"{base}.weight"] = self._dense_shape(base)
            bias = f"{base}.bias"
            if bias in self._shapes and bias not in wanted and not checkpoint.read(bias).any():
                del self._shapes[bias]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See Checkpoint.shapes."""
        return self._shapes

    def is_quantised(self, name: str) -> bool:
        """See QuantisedCheckpoint.is_quantised."""
        return name in self._bases

    def read(self, name: str) -> torch.Tensor:
        """See Checkpoint.read. Dequantises a weight; if the method also rounds activations, the caller must do so."""
        if name not in self._bases:
            return self._checkpoint.read(name)
        stored = self.read_stored(name)
        values = dequantise(stored.weight)
        if stored.order is None:
            return values
        undone = torch.empty_like(values)
        undone[:, stored.order] = values
        return undone

    def read_stored(self, name: str, device: torch.device | str = "cpu") -> StoredWeight:
        """See QuantisedCheckpoint.read_stored."""
        base = self._bases[name]
        required, optional = _PARTS[self._method]
        names = {part: f"{base}.{part}" for part in (*required, *optional)}
        parts = {
            part: self._checkpoint.read(name).to(device)
            for part, name in names.items()
            if name in self._checkpoint.shapes
        }
        match self._method:
            case "awq":
                return self._repack_awq(base, parts)
            case "gptq":
                return self._repack_gptq(base, parts)
            case "fp8":
                return _repack_fp8(base, parts)
        raise ModelError(f"weights of the method {self._method!r} cannot be read")

    def _dense_shape(self, base: str) -> tuple[int, int]:
        shape = self._checkpoint.shapes[f"{base}.{'weight' if self._method == 'fp8' else 'qweight'}"]
        if len(shape) != 2:
            raise ModelError(f"the {self._method} weight {base} has shape {list(shape)}")
        match self._method:
            case "awq":  # [N, M / 8]
                return shape[1] * 8, shape[0]
            case "gptq":
                return shape[1], shape[0] * 32 // self._bits
            case "fp8":
                return shape[0], shape[1]
        raise ModelError(f"weights of the method {self._method!r} have no known shape")

    def _group(self) -> int | None:
        group = self._settings.get("group_size", self._settings.get("q_group_size", 128))
        if group == -1:
            return None
        if type(group) is not int or not holds_group(self._bits, group):
            raise ModelError(f"quantization_config: group_size {group!r} is not supported")
        return group

    def _repack_awq(self, base: str, parts: Mapping[str, torch.Tensor]) -> StoredWeight:
        rows, columns = self._dense_shape(base)
        group = self._group()
        _check_groups(base, parts, group, columns, rows, rows // 8)
        codes = _unpack(parts["qweight"], 4, _AWQ_ORDER).t()
        zeros = _unpack(parts["qzeros"], 4, _AWQ_ORDER).to(torch.uint8)
        return StoredWeight(PackedWeight(pack(codes, 4, group), parts["scales"], zeros, 4, group, columns))

    def _repack_gptq(self, base: str, parts: Mapping[str, torch.Tensor]) -> StoredWeight:
        rows, columns = self._dense_shape(base)
        bits, group, scales = self._bits, self._group(), parts["scales"]
        _check_groups(base, parts, group, columns, rows, rows * bits // 32)
        codes = _unpack(parts["qweight"].t(), bits)
        zeros = _unpack(parts["qzeros"], bits)
        if self._settings.get("checkpoint_format", "gptq") == "gptq":
            zeros = zeros + 1  # the first version of the format subtracts 1 when it packs
        order = _column_order(base, parts.get("g_idx"), columns, group)
        if order is not None:
            codes = codes[:, order]
        if bits == 4:
            weight = PackedWeight(pack(codes, 4, group), scales, zeros.to(torch.uint8), 4, group, columns)
        elif bool((zeros == 128).all()):
            weight = PackedWeight(pack(codes - 128, 8, group), scales, None, 8, group, columns)
        else:
            minimums = (128 - zeros).float() * scales.float()
            weight = PackedWeight(pack(codes - 128, 8, group), scales.float(), minimums, 8, group, columns)
        return StoredWeight(weight, order)


def _check_groups(
    base: str, parts: Mapping[str, torch.Tensor], group: int | None, columns: int, rows: int, words: int
) -> None:
    num_groups = 1 if group is None else -(-columns // group)
    for part, shape in (("qzeros", (num_groups, words)), ("scales", (num_groups, rows))):
        if parts[part].shape != shape:
            raise ModelError(f"tensor {base}.{part} has shape {list(parts[part].shape)}, but {list(shape)} is needed")


def _column_order(base: str, group_of: torch.Tensor | None, columns: int, group: int | None) -> torch.Tensor | None:
    """Returns the order that makes each group's columns adjacent; None if they are."""
    if group_of is None or group is None:
        return None
    expected = torch.arange(columns, device=group_of.device) // group
    if group_of.shape != (columns,) or not torch.equal(group_of.long().sort().values, expected):
        raise ModelError(f"tensor {base}.g_idx does not give every group {group} columns")
    return None if torch.equal(group_of.long(), expected) else group_of.long().argsort(stable=True)


def _repack_fp8(base: str, parts: Mapping[str, torch.Tensor]) -> StoredWeight:
    codes, blocks, scale = parts["weight"], parts.get("weight_scale_inv"), parts.get("weight_scale")
    rows, columns = codes.shape
    if blocks is not None:
        if blocks.shape != (-(-rows // 128), -(-columns // 128)):
            raise ModelError(
                f"tensor {base}.weight_scale_inv has shape {list(blocks.shape)}, not one number for each "
                f"128 x 128 block of {[rows, columns]}"
            )
        scales = blocks.float().repeat_interleave(128, dim=0)[:rows].t().contiguous()
        return StoredWeight(ByteWeight(codes, scales, 128))
    if scale is None:
        raise ModelError(f"the fp8 weight {base} has neither weight_scale_inv nor weight_scale")
    if scale.numel() not in (1, rows):
        raise ModelError(f"tensor {base}.weight_scale has {scale.numel()} numbers, neither 1 nor {rows}")
    return StoredWeight(ByteWeight(codes, scale.float().reshape(1, -1).expand(1, rows).contiguous()), rounds_rows=True)


def _unpack(words: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Unpacks int32 [R, W] to int32 [R, W * 32 / bits]. Number i of a word is for its column order[i] (None: i)."""
    mask = (1 << bits) - 1
    numbers = torch.stack([words >> shift & mask for shift in range(0, 32, bits)], dim=-1)
    if order is not None:
        numbers = numbers[..., torch.tensor(order, device=words.device).argsort()]
    return numbers.reshape(len(words), -1)


def _read_method(settings: Mapping[str, Any]) -> str:
    """Returns awq, gptq or fp8; raises ModelError, naming it, for a method or setting that is not supported."""
    method = settings.get("quant_method")
    if method == "compressed-tensors" and settings.get("format") in ("float-quantized", "naive-quantized"):
        return "fp8"
    if not isinstance(method, str) or method not in _PARTS:
        wanted = f"{method!r} with format {settings['format']!r}" if "format" in settings else repr(method)
        raise ModelError(f"quantization_config: quant_method {wanted} is not supported, only {', '.join(_PARTS)}")
    if method == "awq":
        _demand(settings, "version", ("gemm", "GEMM"), default="gemm")
        _demand(settings, "zero_point", (True,), default=True)
    elif method == "gptq":
        _demand(settings, "checkpoint_format", ("gptq", "gptq_v2"), default="gptq")
    elif settings.get("weight_block_size") is not None:
        _demand(settings, "weight_block_size", ([128, 128], (128, 128)))
    return method


def _read_bits(method: str, settings: Mapping[str, Any]) -> int:
    if method == "fp8":
        return 8
    bits = settings.get("bits", settings.get("w_bit", 4))
    allowed = (4,) if method == "awq" else (4, 8)
    if bits not in allowed:
        raise ModelError(f"quantization_config: bits must be one of {list(allowed)} for {method}, got {bits!r}")
    return int(bits)


def _demand(settings: Mapping[str, Any], key: str, allowed: Collection[Any], default: Any = None) -> None:
    value = settings.get(key, default)
    if value not in allowed:
        raise ModelError(f"quantization_config: {key} {value!r} is not supported, only {next(iter(allowed))!r}")
