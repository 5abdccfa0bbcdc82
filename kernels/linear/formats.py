"""Quantised weights: their layouts, how they are made and undone, and their products in plain torch.

Where a new format goes. Most that files have are repacked into the layouts below, and need the first step only:

1. Files: a Hugging Face folder in `runtime/checkpoints/quantised_folder.py` (`EXTRA_DTYPES`, `_PARTS`, `mark`,
   `_dense_shape`, `read_stored`, a `_repack_*`, `_read_method`, `_read_bits`); a GGUF type in
   `runtime/checkpoints/gguf_file.py` (`FORMATS`, `_OTHER_FORMATS`) and `gguf_blocks.py` (`_READERS`); a dtype of
   safetensors in `runtime/checkpoints/checkpoint.py` (`_ITEM_BYTES`). By name: what `bough models` counts
   (`runtime/checkpoints/inventory.py`), whom torch instead of the CPU library is said to slow down
   (`_warn_of_torch` in `runtime/load/load_torch.py`), the table in `docs/models.md`.
2. A layout that is new in memory: a class here, in `QuantisedWeight` and `dequantise`; its product beside
   `packed_linear` and `bytes_linear`, chosen by `select.select_product`; `runtime/models/quantised_linear.py` joins
   projections (`_fuse`).
3. Rounding while a model is loaded: `TORCH_KINDS`, `_QUANTISERS`, `rounds_rows` (of activations, too) and
   `read_packed` in `runtime/models/quantised_linear.py`; the name in `runtime/protocol/config.py` (`quantization`, and
   `STORED` if it is the checkpoint's own), unless it is for measurements alone, as int4-g32.
4. The CPU library: `NATIVE_KINDS`, `fits`, `_form` and `_Loader._tile` in `runtime/models/native.py`;
   `packed.py` in `kernels/native`; the format's bits in `library.py` and `source/bough_cpu.h` there; in C the tiles,
   which `source/pack.c` writes (with the types of GGUF) and `source/linear/tiles.h` reads, and a product in
   `source/linear/linear.h` (`select_product` of C).

Shapes: M output features, N input features (the terms of a sum), T tokens, G columns that share a scale (`group`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

_FP8 = torch.float8_e4m3fn
_FP8_LARGEST = 448.0
_CLIPS = tuple(1.0 - 0.03 * step for step in range(10))


@dataclass(frozen=True)
class PackedWeight:
    """A weight [M, N] of 4-bit or 8-bit integers, multiplied with activations as they are.

    words       int32 [blocks, M, words a block]: see pack
    scales      [ceil(N / group), M]    float16, bfloat16 or float32
    zeros       None, or like scales. A number is scale * code; with zeros of uint8 (4 bits only) it is
                scale * (code - zero); with zeros of a float dtype, scale * code + zero
    bits        4: codes 0 .. 15, of which 8 is taken without zeros; 8: codes -128 .. 127
    group       16 (8 bits only), 32, 64 or a multiple of 128; None: one scale a row
    num_columns N
    """

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    group: int | None
    num_columns: int

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"bits must be 4 or 8, got {self.bits}")
        if not holds_group(self.bits, self.group):
            raise ValueError(f"no layout of {self.bits} bits has groups of {self.group} columns")
        block, rows = block_columns(self.bits, self.group), self.words.shape[1]
        shape = (-(-self.num_columns // block), rows, block * self.bits // 32)
        if self.words.shape != shape or self.words.dtype != torch.int32:
            raise ValueError(f"words must be int32 {list(shape)}, got {self.words.dtype} {list(self.words.shape)}")
        if self.bits == 8 and self.zeros is not None and self.zeros.dtype == torch.uint8:
            raise ValueError("zeros of 8-bit codes must have a float dtype")
        _check_scales(self.scales, self.zeros, self.group, self.shape)

    @property
    def shape(self) -> tuple[int, int]:
        """(M, N)."""
        return self.words.shape[1], self.num_columns

    @property
    def num_bytes(self) -> int:
        """Bytes that one product reads of it."""
        return _num_bytes(self.words, self.scales, self.zeros)

    def to(self, device: torch.device | str) -> PackedWeight:
        """The same on `device`."""
        words, scales, zeros = _move((self.words, self.scales, self.zeros), device)
        assert words is not None and scales is not None
        return PackedWeight(words, scales, zeros, self.bits, self.group, self.num_columns)


@dataclass(frozen=True)
class ByteWeight:
    """A weight [M, N] of scale * code, in rows as torch's own products of bytes take them.

    codes       int8 or float8_e4m3fn [M, N]
    scales      [ceil(N / group), M]    float16, bfloat16 or float32
    group       a multiple of 128; None: one scale a row
    """

    codes: torch.Tensor
    scales: torch.Tensor
    group: int | None = None

    def __post_init__(self) -> None:
        if self.codes.dtype not in (torch.int8, _FP8):
            raise ValueError(f"codes must be int8 or float8_e4m3fn, got {self.codes.dtype}")
        if self.group is not None and (self.group < 128 or self.group % 128):
            raise ValueError(f"group must be None or a multiple of 128, got {self.group}")
        _check_scales(self.scales, None, self.group, self.shape)

    @property
    def shape(self) -> tuple[int, int]:
        """(M, N)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes that one product reads of it."""
        return _num_bytes(self.codes, self.scales)

    def to(self, device: torch.device | str) -> ByteWeight:
        """The same on `device`."""
        return ByteWeight(self.codes.to(device), self.scales.to(device), self.group)


QuantisedWeight = PackedWeight | ByteWeight


def holds_group(bits: int, group: int | None) -> bool:
    """Tells whether a PackedWeight can have groups of that many columns."""
    return group is None or group in (32, 64) or (group == 16 and bits == 8) or (group >= 128 and group % 128 == 0)


def block_columns(bits: int, group: int | None) -> int:
    """Columns whose words lie together in a PackedWeight: so many that every part (see pack) is of one group."""
    return 128 if bits == 4 or group is None else min(2 * group, 128)


def _move(tensors: tuple[torch.Tensor | None, ...], device: torch.device | str) -> tuple[torch.Tensor | None, ...]:
    return tuple(None if tensor is None else tensor.to(device) for tensor in tensors)


def _check_scales(scales: torch.Tensor, zeros: torch.Tensor | None, group: int | None, shape: tuple[int, int]) -> None:
    rows, columns = shape
    wanted = (1 if group is None else -(-columns // group), rows)
    for name, tensor in (("scales", scales), ("zeros", zeros)):
        if tensor is not None and tensor.shape != wanted:
            raise ValueError(f"{name} must be {list(wanted)}, got {list(tensor.shape)}")
    if not scales.dtype.is_floating_point:
        raise ValueError(f"scales must have a float dtype, got {scales.dtype}")
    if zeros is not None and zeros.dtype != torch.uint8 and not zeros.dtype.is_floating_point:
        raise ValueError(f"zeros must be uint8 or have a float dtype, got {zeros.dtype}")


def _num_bytes(*tensors: torch.Tensor | None) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors if tensor is not None)


# -- layouts -----------------------------------------------------------------------------------------------------


def pack(codes: torch.Tensor, bits: int, group: int | None) -> torch.Tensor:
    """Codes of [M, N] -> the words of a PackedWeight; the columns that pad the last block have code 0.

    A block's columns are cut into 16 / bits parts. Word j has columns 2 j and 2 j + 1 of part i in the `bits` bits that
    begin at bits * i of its lower and of its upper half: one shift and one mask yield two neighbouring codes, each in a
    half of the word, where adding the bits of 128.0 makes two bfloat16 numbers of them (the like for other layouts: Kim
    et al. 2022, arXiv 2211.10017). And the blocks of all rows lie together: a tile of rows is one piece of memory.
    """
    rows, columns = codes.shape
    block, num_parts = block_columns(bits, group), 16 // bits
    padded = F.pad(codes.to(torch.int32), (0, -columns % block)) & (1 << bits) - 1
    parts = padded.reshape(rows, -1, num_parts, block // num_parts // 2, 2)
    words = torch.zeros_like(parts[:, :, 0, :, 0])
    for i in range(num_parts):
        words |= parts[:, :, i, :, 0] << bits * i
        words |= parts[:, :, i, :, 1] << (bits * i + 16)
    return words.transpose(0, 1).contiguous()


def unpack(weight: PackedWeight) -> torch.Tensor:
    """The codes that were packed: uint8 or int8 [M, N]."""
    rows, columns = weight.shape
    mask, shifts = (1 << weight.bits) - 1, range(0, 16, weight.bits)
    parts = [torch.stack([weight.words >> i & mask, weight.words >> (i + 16) & mask], dim=-1) for i in shifts]
    codes = torch.stack(parts, dim=2).to(torch.uint8)  # [blocks, M, parts, words, 2]
    codes = codes.transpose(0, 1).reshape(rows, -1)[:, :columns]
    return codes.view(torch.int8) if weight.bits == 8 else codes


def dequantise(weight: QuantisedWeight) -> torch.Tensor:
    """The numbers that a weight stands for: float32 [M, N]. The product is rounded before a zero is added."""
    columns = weight.num_columns if isinstance(weight, PackedWeight) else weight.shape[1]
    scales = _spread(weight.scales, weight.group, columns)
    if isinstance(weight, ByteWeight):
        return weight.codes.float() * scales
    codes = unpack(weight).float()
    if weight.zeros is None:
        return (codes - 8.0 if weight.bits == 4 else codes) * scales
    zeros = _spread(weight.zeros, weight.group, columns)
    return codes * scales + zeros if weight.zeros.dtype.is_floating_point else (codes - zeros) * scales


def _spread(scales: torch.Tensor, group: int | None, columns: int) -> torch.Tensor:
    """[groups, M] -> float32 [M, N], or [M, 1] where a row has one."""
    wide = scales.t().float()
    return wide if group is None else wide.repeat_interleave(group, dim=1)[:, :columns]


# -- making ------------------------------------------------------------------------------------------------------


def quantise_int4(weight: torch.Tensor, group: int = 128, *, symmetric: bool = False) -> PackedWeight:
    """Rounds to 16 levels a group of columns; of ten ranges, each group takes the one of least squared error.

    weight      [M, N] of a float dtype
    symmetric   levels -8 .. 7 times a scale, instead of a zero of their own
    """
    rows, columns = weight.shape
    values = F.pad(weight.float(), (0, -columns % group)).reshape(rows, -1, group)
    # The range holds zero, so that the padding, and weights that are zero, stay exact.
    low, high = values.amin(-1, keepdim=True).clamp(max=0.0), values.amax(-1, keepdim=True).clamp(min=0.0)
    least: torch.Tensor | None = None
    kept: tuple[torch.Tensor, ...] = ()
    for clip in _CLIPS:
        scale = clip * (torch.maximum(-low / 8, high / 7) if symmetric else (high - low) / 15)
        scale = scale.clamp(min=1e-10).to(weight.dtype).float()  # as it is stored
        scale = torch.where(scale == 0, 1.0, scale)
        zero = torch.full_like(scale, 8.0) if symmetric else (-low * clip / scale).round().clamp(0, 15)
        codes = (values / scale + zero).round().clamp(0, 15)
        error = ((codes - zero) * scale - values).square().sum(-1, keepdim=True)
        if least is None:
            least, kept = error, (codes, scale, zero)
            continue
        better = error < least
        least = torch.where(better, error, least)
        kept = tuple(torch.where(better, new, old) for new, old in zip((codes, scale, zero), kept, strict=True))
    codes, scale, zero = kept
    return PackedWeight(
        words=pack(codes.reshape(rows, -1)[:, :columns], 4, group),
        scales=scale[..., 0].t().to(weight.dtype).contiguous(),
        zeros=None if symmetric else zero[..., 0].t().to(torch.uint8).contiguous(),
        bits=4,
        group=group,
        num_columns=columns,
    )


def quantise_int4_minimums(weight: torch.Tensor, group: int) -> PackedWeight:
    """Rounds to 16 levels a group of columns, the least of which is stored; of ten ranges, each group takes the one of
    least squared error. Scales and minimums are float16, so that weights that had such levels already keep them.

    weight      [M, N] of a float dtype; N is a multiple of `group`
    """
    rows, columns = weight.shape
    values = weight.float().reshape(rows, -1, group)
    low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    least: torch.Tensor | None = None
    kept: tuple[torch.Tensor, ...] = ()
    for clip in _CLIPS:
        scale = (clip * (high - low) / 15).clamp(min=2.0**-24).half()
        minimum = (low + (1.0 - clip) / 2 * (high - low)).half()
        codes = ((values - minimum.float()) / scale.float()).round().clamp(0, 15)
        error = (codes * scale.float() + minimum.float() - values).square().sum(-1, keepdim=True)
        better = torch.ones_like(error, dtype=torch.bool) if least is None else error < least
        least = error if least is None else torch.where(better, error, least)
        found = (codes.to(torch.uint8), scale, minimum)
        kept = tuple(torch.where(better, new, old) for new, old in zip(found, kept or found, strict=True))
    codes, scale, minimum = kept
    return PackedWeight(
        words=pack(codes.reshape(rows, -1), 4, group),
        scales=scale[..., 0].t().contiguous(),
        zeros=minimum[..., 0].t().contiguous(),
        bits=4,
        group=group,
        num_columns=columns,
    )


def quantise_int8(weight: torch.Tensor) -> PackedWeight:
    """Rounds each row of a weight to -127 .. 127 times the row's scale."""
    codes, scales = quantise_rows_int8(weight)
    return PackedWeight(pack(codes, 8, None), scales[None], None, 8, None, weight.shape[1])


def quantise_int8_groups(weight: torch.Tensor, group: int) -> PackedWeight:
    """Rounds each group of columns of a row to -127 .. 127 times the group's scale, of float16."""
    rows, columns = weight.shape
    values = F.pad(weight.float(), (0, -columns % group)).reshape(rows, -1, group)
    scales = (values.abs().amax(-1) / 127.0).clamp(min=2.0**-24).half()
    codes = (values / scales[..., None].float()).round().clamp(-127, 127).to(torch.int8)
    codes = codes.reshape(rows, -1)[:, :columns]
    return PackedWeight(pack(codes, 8, group), scales.t().contiguous(), None, 8, group, columns)


def quantise_bytes(weight: torch.Tensor, dtype: torch.dtype) -> ByteWeight:
    """Rounds each row of a weight to int8 or float8_e4m3fn times the row's scale."""
    codes, scales = quantise_rows_int8(weight) if dtype == torch.int8 else quantise_rows_fp8(weight)
    return ByteWeight(codes, scales[None])


def quantise_rows_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row by its own scale: [T, N] -> int8 [T, N], scales float32 [T]. x = code * scale; -128 is not used."""
    wide = x.float()
    scales = wide.abs().amax(-1).clamp(min=1e-10) / 127.0
    return (wide / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales


def quantise_rows_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row by its own scale: [T, N] -> float8_e4m3fn [T, N], scales float32 [T]. x = code * scale."""
    wide = x.float()
    scales = wide.abs().amax(-1).clamp(min=1e-10) / _FP8_LARGEST
    return (wide / scales[:, None]).clamp(-_FP8_LARGEST, _FP8_LARGEST).to(_FP8), scales


# -- products ----------------------------------------------------------------------------------------------------


def linear_dequantised(x: torch.Tensor, weight: QuantisedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b with the weight undone first, in the dtype of `x`. [T, N] -> [T, M]."""
    return F.linear(x, dequantise(weight).to(x.dtype), bias)


def linear_rows_int8(x: torch.Tensor, weight: ByteWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b of int8 by int8: `x` is rounded row by row, the sums are exact integers. [T, N] -> [T, M]."""
    codes, scales = quantise_rows_int8(x)
    # float64 holds every sum of 2^37 such products exactly; torch has no integer product for all shapes and devices.
    sums = codes.double() @ weight.codes.double().t()
    return _scale_rows(sums, scales, weight, bias, x.dtype)


def linear_rows_fp8(x: torch.Tensor, weight: ByteWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b of fp8 by fp8: `x` is rounded row by row, the sums are float32. [T, N] -> [T, M]."""
    codes, scales = quantise_rows_fp8(x)
    return _scale_rows(codes.float() @ weight.codes.float().t(), scales, weight, bias, x.dtype)


def _scale_rows(
    sums: torch.Tensor, scales: torch.Tensor, weight: ByteWeight, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    assert weight.group is None, "the product of rounded rows needs one scale a row of the weight"
    values = sums.float() * (scales[:, None] * weight.scales.float())
    return (values if bias is None else values + bias.float()).to(dtype)
