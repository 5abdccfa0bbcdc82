"""Interface of models of any family to a forward pass."""

from __future__ import annotations

from typing import Protocol

import torch

from ...kernels.attention.interface import AttentionBackend


class Model(Protocol):
    """A model for forward passes; keys and values live in the attention backend."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attention: AttentionBackend) -> torch.Tensor:
        """Computes tokens, positions int64 [T] -> hidden [T, hidden_size], after the last norm."""

    def logits(self, hidden: torch.Tensor, *, keep_dtype: bool = False) -> torch.Tensor:
        """Computes [R, hidden_size] -> [R, vocab_size], float32 unless the weights' dtype is to be kept."""
