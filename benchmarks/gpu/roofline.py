"""Floors: lower bounds on the time of a kernel, a decode step or a list of requests, from its bytes and operations.

The roofline model (Williams, Waterman, Patterson 2009): work that moves `bytes` through device memory and does `flops`
operations takes at least max(bytes / bandwidth, flops / rate). Each input counts once, and so does each output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...kernels.attention.plan.tree_cost import H200
from ...runtime.checkpoints.config import ModelConfig


@dataclass(frozen=True)
class Work:
    """Bytes through device memory and floating-point operations of one launch, or of several done one after another."""

    bytes: float
    flops: float

    def floor_s(self, bandwidth: float = H200.bandwidth, rate: float = H200.flops) -> float:
        """Seconds at bytes a second of a large copy (read plus written) and bfloat16 operations a second.

        Floors are counted with the rates of one device, so that they compare between runs.
        """
        return max(self.bytes / bandwidth, self.flops / rate)


@dataclass(frozen=True)
class Heads:
    """Attention of one layer. `itemsize`: bytes of an element of queries and outputs; `kv_itemsize`: of the cache."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    itemsize: int = 2
    kv_itemsize: int = 2

    @property
    def kv_bytes(self) -> int:
        """Bytes of one token's key and value."""
        return 2 * self.num_kv_heads * self.head_dim * self.kv_itemsize

    def query_bytes(self, num_tokens: int) -> int:
        """Bytes of the queries and the outputs of so many tokens."""
        return 2 * num_tokens * self.num_heads * self.head_dim * self.itemsize


# -- Kernels -----------------------------------------------------------------------------------------------------------


def decode_attention(heads: Heads, contexts: Iterable[int], distinct_tokens: int | None = None) -> Work:
    """One query a sequence over its context. `distinct_tokens`: cached tokens in all, each shared one counted once."""
    lengths = list(contexts)
    num_keys = sum(lengths)
    num_read = num_keys if distinct_tokens is None else distinct_tokens
    num_bytes = num_read * heads.kv_bytes + heads.query_bytes(len(lengths))
    return Work(num_bytes, 4.0 * heads.num_heads * heads.head_dim * num_keys)


def extend_attention(heads: Heads, num_tokens: int, num_prefix: int) -> Work:
    """`num_tokens` new tokens of one sequence, causally, after `num_prefix` cached ones."""
    num_scores = num_tokens * num_prefix + num_tokens * (num_tokens + 1) / 2
    num_read = (num_prefix + num_tokens) * heads.kv_bytes
    return Work(num_read + heads.query_bytes(num_tokens), 4.0 * heads.num_heads * heads.head_dim * num_scores)


def linear(num_tokens: int, num_inputs: int, num_outputs: int, *, weight_bits: float = 16, itemsize: int = 2) -> Work:
    """x W^T of [num_tokens, num_inputs] and [num_outputs, num_inputs]."""
    num_bytes = num_inputs * num_outputs * weight_bits / 8 + num_tokens * (num_inputs + num_outputs) * itemsize
    return Work(num_bytes, 2.0 * num_tokens * num_inputs * num_outputs)


def add_norm(num_tokens: int, hidden_size: int, itemsize: int = 2) -> Work:
    """Residual added, then RMSNorm: both read, both written."""
    return Work(4.0 * num_tokens * hidden_size * itemsize, 6.0 * num_tokens * hidden_size)


def silu_multiply(num_tokens: int, inner_size: int, itemsize: int = 2) -> Work:
    return Work(3.0 * num_tokens * inner_size * itemsize, 6.0 * num_tokens * inner_size)


def rope_store(heads: Heads, num_tokens: int) -> Work:
    """Head norm, rotation and the write to the cache: the projection's output is read once, all of it written once."""
    read = num_tokens * (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim * heads.itemsize
    written = num_tokens * heads.num_heads * heads.head_dim * heads.itemsize + num_tokens * heads.kv_bytes
    return Work(read + written, 10.0 * num_tokens * (heads.num_heads + heads.num_kv_heads) * heads.head_dim)


def sampler(num_rows: int, vocab_size: int, *, masked: bool, itemsize: int = 2) -> Work:
    """One token a row: the logits are read once, and the mask's bit of each."""
    return Work(num_rows * vocab_size * (itemsize + masked / 8), 2.0 * num_rows * vocab_size)


# -- A whole model -----------------------------------------------------------------------------------------------------


def projections(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of a layer's projections, and of the head."""
    hidden, heads, inner = config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size
    return {
        "qkv": (hidden, heads + 2 * config.num_kv_heads * config.head_dim),
        "out": (heads, hidden),
        "gate_up": (hidden, 2 * inner),
        "down": (inner, hidden),
        "head": (hidden, config.vocab_size),
    }


def linear_parameters(config: ModelConfig) -> tuple[int, int]:
    """Weights of all layers' projections, and of the head. The embedding is a look-up: it is not streamed."""
    *layer, head = (num_inputs * num_outputs for num_inputs, num_outputs in projections(config).values())
    return config.num_layers * sum(layer), head


def kv_bytes(config: ModelConfig) -> int:
    """Bytes that one token takes in the cache in bfloat16, over all layers."""
    return 4 * config.num_layers * config.num_kv_heads * config.head_dim


def decode_step_s(config: ModelConfig, contexts: Sequence[int], *, distinct_tokens: int | None = None) -> float:
    """Seconds that one token for each sequence takes at least: projections, then attention, which cannot overlap.

    contexts          tokens in the cache of each sequence
    distinct_tokens   tokens in the cache in all, shared ones counted once; None: nothing is shared
    """
    body, head = linear_parameters(config)
    num_keys = sum(contexts)
    num_read = num_keys if distinct_tokens is None else distinct_tokens
    projections = Work(2.0 * (body + head), 2.0 * len(contexts) * (body + head))
    scores = 4.0 * config.num_layers * config.num_heads * config.head_dim * num_keys
    return projections.floor_s() + Work(num_read * kv_bytes(config), scores).floor_s()
