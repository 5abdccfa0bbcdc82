"""Head norm, rotary positions and writes to the cache in one launch, between the QKV product and attention.

Floor: every element of `qkv` is read once and written once, 2 * T * (H + 2 * G) * D elements, and the angles are read
once per block of heads. A few FLOPs a byte: bandwidth alone counts, below a few hundred tokens the launch alone.
Rotary positions: Su et al. 2021, arXiv 2104.09864. RMSNorm: Zhang, Sennrich 2019, arXiv 1910.07467.

Rounding: sums, norms and rotations are float32. The result of a norm is rounded to the dtype of `qkv` before it is
rotated, and a rotated key to the dtype of `qkv` before it is converted to that of the cache, as when
`reference.rms_norm`, `reference.rotate` and the write follow one another; only the order of the norm's sum and the
contraction of a * cos + b * sin differ from them. One program serves one token and at most BLOCK_H of its heads,
whatever T is: a token's results do not depend, to the bit, on the batch it is in.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..compile_case import CompileCase
from .interface import HeadNorm

_BLOCK_H = 8
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def rope_store(
    qkv: torch.Tensor,
    *,
    num_heads: int,
    norm: HeadNorm | None,
    rotation: tuple[torch.Tensor, torch.Tensor] | None,
    keys: torch.Tensor,
    values: torch.Tensor,
    write_slot: torch.Tensor,
    q_out: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Writes the rotated queries to `q_out`, the rotated keys and the values to one layer's cache.

        qkv              [T, (H + 2 * G) * D]    H = num_heads query heads, G key heads, G value heads; rows may be
                                                 strided. float16, bfloat16 or float32
        rotation         cos, sin float32 [T, 1, D], as reference.rotate takes them; None: nothing is rotated
        keys, values     [num_slots, G, D]       one layer of the cache: float8_e4m3fn, float16, bfloat16 or float32
        write_slot       int32 or int64 [T]      slot of each token; negative: its key and value are written nowhere
        q_out            [T, H, D]               the dtype of `qkv`; written for every token, negative slots too
        k_scale, v_scale float32 [G]             what is stored is key / scale, with a float8 cache saturating at
                                                 +-448; None: 1

    The slots of different tokens are distinct. T may be 0.

    Raises:
        ValueError: shapes, strides or dtypes do not fit one another.
    """
    num_tokens = len(qkv)
    num_kv_heads, head_dim = keys.shape[1:]
    _check(qkv, num_heads, keys, values, write_slot, q_out)
    if num_tokens == 0:
        return
    cos, sin = rotation if rotation is not None else (q_out, q_out)  # never read without ROTATE
    blocks = triton.cdiv(num_heads, _BLOCK_H) + 2 * triton.cdiv(num_kv_heads, _BLOCK_H)
    half_pad = triton.next_power_of_2(head_dim // 2)
    _rope_store_kernel[(num_tokens * blocks,)](
        qkv,
        norm.query if norm is not None else q_out,
        norm.key if norm is not None else q_out,
        cos,
        sin,
        keys,
        values,
        write_slot,
        q_out,
        k_scale if k_scale is not None else q_out,
        v_scale if v_scale is not None else q_out,
        qkv.stride(0),
        cos.stride(0),
        sin.stride(0),
        keys.stride(0),
        norm.eps if norm is not None else 0.0,
        H=num_heads,
        G=num_kv_heads,
        D=head_dim,
        HALF_PAD=half_pad,
        BLOCK_H=_BLOCK_H,
        NORM=norm is not None,
        ROTATE=rotation is not None,
        K_SCALE=k_scale is not None,
        V_SCALE=v_scale is not None,
        num_warps=_num_warps(half_pad),
    )


def _num_warps(half_pad: int) -> int:
    """Eight elements of either half of the heads to a thread: one 16-byte load of 16-bit numbers each."""
    return max(1, _BLOCK_H * half_pad // 256)


def _check(
    qkv: torch.Tensor,
    num_heads: int,
    keys: torch.Tensor,
    values: torch.Tensor,
    write_slot: torch.Tensor,
    q_out: torch.Tensor,
) -> None:
    num_kv_heads, head_dim = keys.shape[1:]
    width = (num_heads + 2 * num_kv_heads) * head_dim
    if qkv.shape[1] != width or qkv.stride(1) != 1 or qkv.dtype not in _DTYPES:
        raise ValueError(f"qkv must be [T, {width}] of a 16- or 32-bit float, got {qkv.dtype} {list(qkv.shape)}")
    if q_out.shape != (len(qkv), num_heads, head_dim) or q_out.dtype != qkv.dtype or not q_out.is_contiguous():
        raise ValueError(f"q_out must be contiguous {qkv.dtype} {[len(qkv), num_heads, head_dim]}")
    if keys.shape != values.shape or keys.stride() != values.stride() or keys.stride()[1:] != (head_dim, 1):
        raise ValueError("keys and values must be [num_slots, G, D] with the same strides, a slot's heads contiguous")
    if len(write_slot) != len(qkv):
        raise ValueError(f"write_slot must have {len(qkv)} entries, got {len(write_slot)}")


@triton.jit
def _load_heads(at, head, num_heads, D: tl.constexpr, HALF_PAD: tl.constexpr):
    """Both halves, [BLOCK_H, HALF_PAD] each, of the heads that lie one after another from `at` on."""
    d = tl.arange(0, HALF_PAD)
    inside = (head < num_heads)[:, None] & (d < D // 2)[None, :]
    offset = head[:, None] * D + d[None, :]
    return tl.load(at + offset, mask=inside, other=0.0), tl.load(at + offset + D // 2, mask=inside, other=0.0)


@triton.jit
def _store_heads(at, first, second, head, num_heads, D: tl.constexpr, HALF_PAD: tl.constexpr):
    d = tl.arange(0, HALF_PAD)
    inside = (head < num_heads)[:, None] & (d < D // 2)[None, :]
    offset = head[:, None] * D + d[None, :]
    tl.store(at + offset, first, mask=inside)
    tl.store(at + offset + D // 2, second, mask=inside)


@triton.jit
def _turn(
    first,
    second,
    weight,
    eps,
    cos,
    sin,
    D: tl.constexpr,
    HALF_PAD: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """Norm, then rotation, of the two halves of some heads; in their own dtype again."""
    dtype = first.dtype
    d = tl.arange(0, HALF_PAD)
    inside = d < D // 2
    if ROTATE:  # read before they are needed, beside the heads
        cosine = tl.load(cos + d, mask=inside, other=0.0)[None, :]
        sine = tl.load(sin + D // 2 + d, mask=inside, other=0.0)[None, :]  # the first half holds -sin
    if NORM:
        weight_first = tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)[None, :]
        weight_second = tl.load(weight + D // 2 + d, mask=inside, other=0.0).to(tl.float32)[None, :]
        wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
        total = tl.sum(wide_first * wide_first + wide_second * wide_second, 1)
        factor = tl.rsqrt(total / D + eps)[:, None]
        first = (wide_first * factor * weight_first).to(dtype)
        second = (wide_second * factor * weight_second).to(dtype)
    if ROTATE:
        wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
        first = (wide_first * cosine - wide_second * sine).to(dtype)
        second = (wide_second * cosine + wide_first * sine).to(dtype)
    return first, second


@triton.jit
def _scale_down(x, scale, head, num_heads, dtype: tl.constexpr, SCALE: tl.constexpr):
    """x [BLOCK_H, HALF_PAD] as the cache's `dtype` holds it."""
    if SCALE:
        divisor = tl.load(scale + head, mask=head < num_heads, other=1.0)[:, None]
        wide = tl.div_rn(x.to(tl.float32), tl.broadcast_to(divisor, x.shape))
    else:
        wide = x.to(tl.float32)
    if dtype == tl.float8e4nv:
        wide = tl.clamp(wide, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return wide.to(dtype)


@triton.jit(do_not_specialize_on_alignment=["k_scale", "v_scale"])
def _rope_store_kernel(
    qkv,
    query_weight,
    key_weight,
    cos,
    sin,
    keys,
    values,
    write_slot,
    q_out,
    k_scale,
    v_scale,
    token_stride,
    cos_stride,
    sin_stride,
    slot_stride,
    eps,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    HALF_PAD: tl.constexpr,
    BLOCK_H: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
    K_SCALE: tl.constexpr,
    V_SCALE: tl.constexpr,
):
    q_blocks: tl.constexpr = (H + BLOCK_H - 1) // BLOCK_H
    kv_blocks: tl.constexpr = (G + BLOCK_H - 1) // BLOCK_H
    token = (tl.program_id(0) // (q_blocks + 2 * kv_blocks)).to(tl.int64)
    block = tl.program_id(0) % (q_blocks + 2 * kv_blocks)
    row = qkv + token * token_stride
    cos += token * cos_stride
    sin += token * sin_stride
    lane = tl.arange(0, BLOCK_H)
    if block < q_blocks:
        head = block * BLOCK_H + lane
        first, second = _load_heads(row, head, H, D, HALF_PAD)
        first, second = _turn(first, second, query_weight, eps, cos, sin, D, HALF_PAD, NORM, ROTATE)
        _store_heads(q_out + token * (H * D), first, second, head, H, D, HALF_PAD)
    else:
        slot = tl.load(write_slot + token).to(tl.int64)
        if block < q_blocks + kv_blocks:
            head = (block - q_blocks) * BLOCK_H + lane
            first, second = _load_heads(row + H * D, head, G, D, HALF_PAD)
            first, second = _turn(first, second, key_weight, eps, cos, sin, D, HALF_PAD, NORM, ROTATE)
            first_key = _scale_down(first, k_scale, head, G, keys.dtype.element_ty, K_SCALE)
            second_key = _scale_down(second, k_scale, head, G, keys.dtype.element_ty, K_SCALE)
            last = tl.where(slot >= 0, G, 0)  # no head is stored where there is no slot
            _store_heads(keys + slot * slot_stride, first_key, second_key, head, last, D, HALF_PAD)
        else:
            head = (block - q_blocks - kv_blocks) * BLOCK_H + lane
            first, second = _load_heads(row + (H + G) * D, head, G, D, HALF_PAD)
            first_value = _scale_down(first, v_scale, head, G, values.dtype.element_ty, V_SCALE)
            second_value = _scale_down(second, v_scale, head, G, values.dtype.element_ty, V_SCALE)
            last = tl.where(slot >= 0, G, 0)
            _store_heads(values + slot * slot_stride, first_value, second_value, head, last, D, HALF_PAD)


def compile_cases() -> list[CompileCase]:
    """The head sizes of the models served, with and without head norm."""
    cases = [_case(f"rope_store D{head_dim} bf16", head_dim, "bf16", "bf16") for head_dim in (64, 80, 96, 128, 256)]
    cases.append(_case("rope_store D128 bf16 norm", 128, "bf16", "bf16", norm=True))
    cases.append(_case("rope_store D256 fp32 norm", 256, "fp32", "fp32", norm=True))
    cases.append(_case("rope_store D128 fp16 plain", 128, "fp16", "fp16", rotate=False))
    cases.append(_case("rope_store D128 bf16 norm fp8", 128, "bf16", "fp8e4nv", norm=True, scaled=True))
    return cases


def _case(
    name: str,
    head_dim: int,
    dtype: str,
    cache: str,
    *,
    norm: bool = False,
    rotate: bool = True,
    scaled: bool = False,
) -> CompileCase:
    half_pad = triton.next_power_of_2(head_dim // 2)
    heads = dict.fromkeys(("qkv", "query_weight", "key_weight"), f"*{dtype}")
    angles = dict.fromkeys(("cos", "sin"), "*fp32" if rotate else f"*{dtype}")
    caches = dict.fromkeys(("keys", "values"), f"*{cache}")
    scales = dict.fromkeys(("k_scale", "v_scale"), "*fp32" if scaled else f"*{dtype}")
    strides = dict.fromkeys(("token_stride", "cos_stride", "sin_stride", "slot_stride"), "i32")
    pointers = heads | angles | caches | {"write_slot": "*i64", "q_out": f"*{dtype}"} | scales
    return CompileCase(
        name=name,
        kernel=_rope_store_kernel,
        signature=pointers | strides | {"eps": "fp32"},
        constants={
            "H": 32,
            "G": 8,
            "D": head_dim,
            "HALF_PAD": half_pad,
            "BLOCK_H": _BLOCK_H,
            "NORM": norm,
            "ROTATE": rotate,
            "K_SCALE": scaled,
            "V_SCALE": scaled,
        },
        num_warps=_num_warps(half_pad),
        aligned=(*pointers, *strides),
    )
