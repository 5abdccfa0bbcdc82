"""Reference attention in plain torch, short and obviously correct, for comparison with the faster kernels."""

from __future__ import annotations

import torch

from ..decoder.reference import rms_norm, rotate
from .interface import HeadNorm, KVShape, Rotation


def split_heads(
    qkv: torch.Tensor, shape: KVShape, norm: HeadNorm | None, rotation: Rotation | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The queries, keys and values in one projection's output, queries and keys normed and then rotated.

    qkv        [T, (H + 2 * G) * D]    H query heads, G key heads, G value heads; `shape` has G and D
    rotation   None: nothing is rotated
    returns    q [T, H, D], k and v [T, G, D]; may be views of one another and of `qkv`
    """
    heads = qkv.view(-1, qkv.shape[1] // shape.head_dim, shape.head_dim)
    num_rotated = heads.shape[1] - shape.num_kv_heads
    num_heads = num_rotated - shape.num_kv_heads
    rotated, v = heads[:, :num_rotated], heads[:, num_rotated:]
    if norm is not None:
        q = rms_norm(rotated[:, :num_heads], norm.query, norm.eps)
        k = rms_norm(rotated[:, num_heads:], norm.key, norm.eps)
        rotated = torch.cat((q, k), dim=1)
    if rotation is not None:
        rotated = rotate(rotated, *rotation)
    return rotated[:, :num_heads], rotated[:, num_heads:], v


def ragged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Causal attention of one sequence's newest tokens over all its tokens: softmax(mask(q K^T scale)) V.

    q               [n, H, D]   the queries of the last n of N tokens
    keys, values    [N, G, D]   H % G == 0; query head h reads head h // (H // G)
    returns         [n, H, D]   the dtype of `q`

    Scores and softmax are float32 (float64 for float64 inputs). `window`, `softcap`: see AttentionLayer.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    num_queries, num_heads, _ = q.shape
    num_keys, num_kv_heads, _ = keys.shape
    keys = keys.to(wide).repeat_interleave(num_heads // num_kv_heads, dim=1)
    values = values.to(wide).repeat_interleave(num_heads // num_kv_heads, dim=1)
    scores = q.to(wide).transpose(0, 1) @ keys.permute(1, 2, 0) * scale  # [H, n, N]
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    key_position = torch.arange(num_keys, device=q.device)
    query_position = torch.arange(num_keys - num_queries, num_keys, device=q.device)[:, None]
    visible = key_position <= query_position
    if window is not None:
        visible &= key_position > query_position - window
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return (weights @ values.transpose(0, 1)).transpose(0, 1).to(q.dtype)
