"""Layouts of quantised weights: rounding to them, dequantisation, and reference products in plain torch.

Adding a quantised format. Take the steps that apply; formats of files that fit a layout below need steps 1 and 2 only.

1. Reading files:
   - a method of Hugging Face folders: `runtime/checkpoints/quantised_folder.py` (`EXTRA_DTYPES`, `_PARTS`, `mark` in
     `QuantisedFolder.__init__`, `_dense_shape`, `_group`, `read_stored`, a `_repack_*`, `_read_method`, `_read_bits`);
   - another kind of folder: `_open_folder` and `_make_decoder` in `runtime/models/load.py`;
   - a tensor type of GGUF: `runtime/checkpoints/gguf_file.py` (`FORMATS`, out of `_OTHER_FORMATS`), `_READERS` in
     `gguf_blocks.py`; for the CPU library, `kernels/native/source/pack.c` (the enum of types, `bough_format_of`,
     `block_bytes`, `pack_small` or `pack_large`);
   - a dtype of safetensors: `_ITEM_BYTES` in `runtime/checkpoints/checkpoint.py`.
2. Names of stored formats: `_folder_facts` in `runtime/checkpoints/inventory.py` (parameters that `bough models`
   counts), `_warn_of_torch` in `runtime/load/load_torch.py` (formats that the CPU library computes), the tables in
   `docs/models.md` and `docs/cli.md`. Only if users may demand the format by name: `STORED` and the `Literal` of
   `EngineConfig.quantization` in `runtime/protocol/config.py`, and `_as_stored` in `runtime/load/start.py`.
3. A new layout in memory: a class here with the methods of `PackedWeight` (`shape`, `num_bytes`, `to`), in
   `QuantisedWeight` and `dequantise`; a kernel beside `packed_linear` and `bytes_linear`, with its `compile_cases`
   (`kernels/compile_check.py`), chosen by `select.select_product`; `_fuse` in `runtime/models/quantised_linear.py`.
4. Rounding at load: a `quantise_*` here; `TORCH_KINDS`, `_QUANTISERS` and `rounds_rows` (if activations are rounded as
   well) in `runtime/models/quantised_linear.py`. Unless it is only for measurements, as int4-g32: the `Literal` of
   `EngineConfig.quantization`, `VALUES` if other engines have another name for it, `docs/gpu.md`. For the benchmark,
   `_KINDS` in `benchmarks/gpu/cases/layers.py`.
5. Rounding for the CPU library: `NATIVE_KINDS`, `fits`, `decoder_bytes`, `_form`, `load_native` (the head),
   `_Loader._tile` and `_tile_in_groups` in `runtime/models/native.py`; `read_packed` in
   `runtime/models/quantised_linear.py`; in `runtime/load`, `obstacle_to_native` in `load_native.py` and the widths that
   `make_engine` names in `load_torch.py`; `docs/cli.md`, and the head of `benchmarks/perplexity.py`.
6. New tiles in the CPU library: `packed.py` and `weights.py` in `kernels/native`; the bits of the format in
   `library.py` and `source/bough_cpu.h`; the layout, which `source/pack.c` writes (`layout_of`, `put_codes`) and
   `source/linear/tiles.h` reads; a product in `source/linear/linear.h` (`PRODUCT`, `select_product`).
7. Tests: `tests/kernels/linear/test_formats.py` and one beside the kernel's; in `tests/runtime`,
   `models/quantised_folders.py` (a `write_*`), `models/test_quantised_checkpoint.py` (`FORMATS`),
   `models/test_native.py` (`EXACT`), `models/test_quantised_linear.py`, `models/test_load.py` and
   `checkpoints/test_gguf_blocks.py` (GGUF), `load/test_load_torch.py`, `load/test_pages.py`,
   `runner/test_native_runner.py`, `runner/test_native_faults.py` and `runner/test_nonfinite.py`; in
   `tests/kernels/native`, `test_weights.py` (`BLOCKS`), `test_packed.py`, `test_library.py`, `same_bits.c` and
   `sanitized_requests.py`; the choices of `--quantization` in `tests/house/features.json`, `tests/cli/parsing`.

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
    """A weight [M, N] of 4-bit or 8-bit integers, whose products take unrounded activations.

    words       int32 [blocks, M, words a block]: see pack
    scales      [ceil(N / group), M]    float16, bfloat16 or float32
    zeros       None, or as many as scales. With zeros of uint8 (4 bits only), a number is scale * (code - zero); with
                zeros of a float dtype, scale * code + zero; without, scale * code, or with 4 bits scale * (code - 8)
    bits        4: codes 0 .. 15; 8: codes -128 .. 127
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
        """Bytes of the weight that a product reads."""
        return _num_bytes(self.words, self.scales, self.zeros)

    def to(self, device: torch.device | str) -> PackedWeight:
        """Returns the weight on `device`."""
        words, scales, zeros = _move((self.words, self.scales, self.zeros), device)
        assert words is not None and scales is not None
        return PackedWeight(words, scales, zeros, self.bits, self.group, self.num_columns)


@dataclass(frozen=True)
class ByteWeight:
    """A weight [M, N] of scale * code, with rows in the layout that torch's own products of bytes take.

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
        """Bytes of the weight that a product reads."""
        return _num_bytes(self.codes, self.scales)

    def to(self, device: torch.device | str) -> ByteWeight:
        """Returns the weight on `device`."""
        return ByteWeight(self.codes.to(device), self.scales.to(device), self.group)


QuantisedWeight = PackedWeight | ByteWeight


def holds_group(bits: int, group: int | None) -> bool:
    """True if a PackedWeight of `bits` can have groups of that many columns (None: whole rows)."""
    return group is None or group in (32, 64) or (group == 16 and bits == 8) or (group >= 128 and group % 128 == 0)


def block_columns(bits: int, group: int | None) -> int:
    """Returns the columns of a block in a PackedWeight: so few that each part of it (see pack) lies in one group."""
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
    """Packs codes [M, N] into the words of a PackedWeight; the columns that pad the last block have code 0.

    A block's columns are cut into 16 / bits parts. Word j holds columns 2 j and 2 j + 1 of part i in the `bits` bits
    that begin at bits * i of its lower and of its upper half. One shift and one mask yield two adjacent codes, each in
    a half of the word, where adding the bits of 128.0 turns them into two bfloat16 numbers (Kim et al. 2022, arXiv
    2211.10017, do so in another layout). A block of all rows is contiguous, so a tile of rows is one piece of memory.
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
    """Returns the codes that were packed: uint8 (4 bits) or int8 (8 bits) [M, N]."""
    rows, columns = weight.shape
    mask, shifts = (1 << weight.bits) - 1, range(0, 16, weight.bits)
    parts = [torch.stack([weight.words >> i & mask, weight.words >> (i + 16) & mask], dim=-1) for i in shifts]
    codes = torch.stack(parts, dim=2).to(torch.uint8)  # [blocks, M, parts, words, 2]
    codes = codes.transpose(0, 1).reshape(rows, -1)[:, :columns]
    return codes.view(torch.int8) if weight.bits == 8 else codes


def dequantise(weight: QuantisedWeight) -> torch.Tensor:
    """Returns the numbers of a weight, float32 [M, N]. Scale times code is rounded before a float zero is added."""
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
    """Repeats scales [groups, M] for each column: float32 [M, N], or [M, 1] where a row has one scale."""
    wide = scales.t().float()
    return wide if group is None else wide.repeat_interleave(group, dim=1)[:, :columns]


# -- rounding ----------------------------------------------------------------------------------------------------


def quantise_int4(weight: torch.Tensor, group: int = 128, *, symmetric: bool = False) -> PackedWeight:
    """Rounds to 16 levels in each group of columns, over the range of ten that has the least squared error.

    weight      [M, N] of a float dtype
    symmetric   levels -8 .. 7 times the scale, instead of a zero for each group
    """
    rows, columns = weight.shape
    values = F.pad(weight.float(), (0, -columns % group)).reshape(rows, -1, group)
    # The range holds zero, so that the padding, and weights that are zero, stay exact.
    low, high = values.amin(-1, keepdim=True).clamp(max=0.0), values.amax(-1, keepdim=True).clamp(min=0.0)
    least: torch.Tensor | None = None
    kept: tuple[torch.Tensor, ...] = ()
    for clip in _CLIPS:
        scale = clip * (torch.maximum(-low / 8, high / 7) if symmetric else (high - low) / 15)
        scale = scale.clamp(min=1e-10).to(weight.dtype).float()  # rounded as it is stored
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
    """Rounds to 16 levels in each group of columns, of which the lowest is stored, over the range of ten that has the
    least squared error. Scales and minimums are float16, so that weights with such levels already keep them.

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
    """Rounds each group of columns of a row to -127 .. 127 times the group's float16 scale."""
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
    """Rounds each row by a scale of its own: [T, N] -> int8 [T, N] (without -128), scales float32 [T]."""
    wide = x.float()
    scales = wide.abs().amax(-1).clamp(min=1e-10) / 127.0
    return (wide / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales


def quantise_rows_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds each row by a scale of its own: [T, N] -> float8_e4m3fn [T, N], scales float32 [T]."""
    wide = x.float()
    scales = wide.abs().amax(-1).clamp(min=1e-10) / _FP8_LARGEST
    return (wide / scales[:, None]).clamp(-_FP8_LARGEST, _FP8_LARGEST).to(_FP8), scales


# -- products ----------------------------------------------------------------------------------------------------


def linear_dequantised(x: torch.Tensor, weight: QuantisedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b in the dtype of `x`, with the weight dequantised first. [T, N] -> [T, M]."""
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
