"""The reference operations against torch's own, and the paged backend against attention on contiguous tokens."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bough.kernels.attention.interface import AttentionBatch, AttentionLayer, HeadNorm, KVShape
from bough.kernels.attention.reference import ragged_attention
from bough.kernels.attention.torch_backend import TorchAttention
from bough.kernels.decoder.reference import rms_norm, rotate, silu_multiply

from ..attention.oracle import ReferenceAttention


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 3, 24).to(dtype), torch.randn(24).to(dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    got = rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    torch.testing.assert_close(got, expected.to(dtype))


def test_rms_norm_of_large_half_precision_numbers_is_finite() -> None:
    x = torch.full((2, 8), 300.0, dtype=torch.float16)  # 300^2 is past the largest float16
    torch.testing.assert_close(
        rms_norm(x, torch.ones(8, dtype=torch.float16), 1e-6), torch.ones(2, 8, dtype=torch.float16)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rotate_turns_pairs_by_the_angle(dtype: torch.dtype) -> None:
    x = torch.randn(4, 3, 10).to(dtype)
    angle = torch.randn(4, 1, 5)
    cos = torch.cat((angle.cos(), angle.cos()), -1)
    sin = torch.cat((-angle.sin(), angle.sin()), -1)
    turned = torch.complex(x[..., :5].double(), x[..., 5:].double()) * torch.exp(1j * angle.double())
    got = rotate(x, cos, sin)
    assert got.dtype == dtype
    expected = torch.cat((turned.real, turned.imag), -1).to(dtype)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_silu_multiply() -> None:
    gate, up = torch.randn(3, 7), torch.randn(3, 7)
    both = torch.cat((gate, up), -1)
    kept = both.clone()
    torch.testing.assert_close(silu_multiply(both), gate * torch.sigmoid(gate) * up)
    assert torch.equal(both, kept)


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (6, 2), (8, 8)])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_prefill_is_causal_attention(heads: tuple[int, int], head_dim: int) -> None:
    num_heads, num_kv_heads = heads
    q = torch.randn(13, num_heads, head_dim)
    k, v = torch.randn(13, num_kv_heads, head_dim), torch.randn(13, num_kv_heads, head_dim)
    scale = head_dim**-0.5
    expected = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(ragged_attention(q, k, v, scale=scale), expected[0].transpose(0, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_every_number_by_hand(window: int | None, softcap: float | None) -> None:
    q, k, v = torch.randn(3, 2, 4), torch.randn(7, 1, 4), torch.randn(7, 1, 4)
    got = ragged_attention(q, k, v, scale=0.3, window=window, softcap=softcap)
    for row in range(3):
        position = 4 + row
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(2):
            weights = []
            for key in range(first, position + 1):
                score = 0.3 * float(q[row, head] @ k[key, 0])
                weights.append(math.exp(softcap * math.tanh(score / softcap) if softcap else score))
            expected = sum(w * v[first + i, 0] for i, w in enumerate(weights)) / sum(weights)
            torch.testing.assert_close(got[row, head], expected)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 5])
def test_paged_batch_equals_contiguous_sequences(page_size: int, window: int | None) -> None:
    """Chunks of several sequences, pages in random order: each row as if its sequence were alone and contiguous."""
    chance = random.Random(page_size)
    lengths, num_heads, num_kv_heads, head_dim = [1, 9, 16, 33], 4, 2, 8
    shape = KVShape(2, 80, page_size, num_kv_heads, head_dim, torch.float32)
    attention = ReferenceAttention(shape)
    free = chance.sample(range(shape.num_pages), shape.num_pages)
    pages = [[free.pop() for _ in range(-(-length // page_size))] for length in lengths]
    q = [torch.randn(2, length, num_heads, head_dim) for length in lengths]
    k = [torch.randn(2, length, num_kv_heads, head_dim) for length in lengths]
    v = [torch.randn(2, length, num_kv_heads, head_dim) for length in lengths]
    done = [0] * 4
    got: list[list[torch.Tensor]] = [[] for _ in range(4)]
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        work = [(i, chance.randint(1, min(9, lengths[i] - done[i]))) for i in range(4) if done[i] < lengths[i]]
        table = np.full((len(work), max(map(len, pages))), -7, np.int32)  # what is not to be read would fail
        slots, stops = [], []
        for row, (i, count) in enumerate(work):
            table[row, : -(-(done[i] + count) // page_size)] = pages[i][: -(-(done[i] + count) // page_size)]
            slots += [pages[i][p // page_size] * page_size + p % page_size for p in range(done[i], done[i] + count)]
            stops.append(done[i] + count)
        starts = np.cumsum([0] + [count for _, count in work]).astype(np.int32)
        attention.plan(AttentionBatch(starts, np.array(stops, np.int32), table, np.array(slots, np.int64)))
        per_layer = []
        for layer in range(2):
            flat = [torch.cat([part[i][layer, done[i] : done[i] + n] for i, n in work]) for part in (q, k, v)]
            per_layer.append(attention.run(AttentionLayer(layer, scale=0.25, window=window), *flat))
        for row, (i, count) in enumerate(work):
            got[i].append(torch.stack([out[starts[row] : starts[row + 1]] for out in per_layer]))
            done[i] += count
    for i in range(4):
        for layer in range(2):
            expected = ragged_attention(q[i][layer], k[i][layer], v[i][layer], scale=0.25, window=window)
            torch.testing.assert_close(torch.cat(got[i], dim=1)[layer], expected, rtol=0, atol=1e-6)


def test_cache_dtype_may_differ_from_the_model() -> None:
    attention = ReferenceAttention(KVShape(1, 2, 4, 1, 8, torch.bfloat16))
    zero = np.array([0, 3], np.int32)
    attention.plan(AttentionBatch(zero, np.array([3], np.int32), np.zeros((1, 1), np.int32), np.arange(3)))
    q, k, v = torch.randn(3, 1, 8), torch.randn(3, 1, 8), torch.randn(3, 1, 8)
    got = attention.run(AttentionLayer(0, scale=0.3), q, k, v)
    rounded = ragged_attention(q, k.bfloat16(), v.bfloat16(), scale=0.3)
    assert got.dtype == torch.float32
    assert torch.equal(got, rounded)
    assert KVShape(2, 9, 4, 3, 8, torch.bfloat16).page_bytes == 4 * 3 * 8 * 2 * 2 * 2


@pytest.mark.parametrize("backend", [ReferenceAttention, TorchAttention])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("rotated", [True, False])
def test_run_qkv_norms_then_rotates_then_attends(backend: type, normed: bool, rotated: bool) -> None:
    num_tokens, num_heads, num_kv_heads, head_dim = 5, 4, 2, 8
    qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    q, k, v = (part.unflatten(1, (-1, head_dim)) for part in qkv.split([32, 16, 16], dim=1))
    norm = HeadNorm(torch.randn(head_dim), torch.randn(head_dim), 1e-5) if normed else None
    angle = torch.randn(num_tokens, 1, head_dim // 2)
    cos, sin = torch.cat((angle.cos(), angle.cos()), -1), torch.cat((-angle.sin(), angle.sin()), -1)
    if norm is not None:
        q, k = rms_norm(q, norm.query, norm.eps), rms_norm(k, norm.key, norm.eps)
    if rotated:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    attention = backend(KVShape(2, 2, 4, num_kv_heads, head_dim, torch.float32))
    ends, pages = np.array([0, num_tokens], np.int32), np.array([[1, 0]], np.int32)
    attention.plan(AttentionBatch(ends, ends[1:], pages, np.array([4, 5, 6, 7, 0])))
    layer = AttentionLayer(1, 0.3, window=3, softcap=5.0, norm=norm)
    got = attention.run_qkv(layer, qkv, (cos, sin) if rotated else None)
    expected = ragged_attention(q, k, v, scale=0.3, window=3, softcap=5.0)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
