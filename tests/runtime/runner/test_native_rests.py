"""Activations of 8 and 16 bits: closer to exact products than those of 8, and the same to the bit in any company."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from bough.kernels.attention.interface import KVShape
from bough.kernels.attention.torch_backend import TorchAttention
from bough.kernels.linear.formats import dequantise, quantise_int4_minimums
from bough.kernels.native.library import Library
from bough.kernels.native.threads import Threads
from bough.runtime.checkpoints.config import ModelConfig
from bough.runtime.models.decoder import Decoder, Linear
from bough.runtime.models.native import NativeTarget, load_native
from bough.runtime.runner.native_runner import NativeRunner

from .test_native_runner import NUM_SLOTS, Sequence, Tensors, make_batch, make_config, make_decoder, run

NUM_TOKENS = 150


class Outlying(Tensors):
    """Norms make one group of inputs of products far larger than the others, and its columns of weights small."""

    def read(self, name: str) -> torch.Tensor:
        tensor = super().read(name)
        if name.endswith("norm.weight"):
            tensor = tensor.clone()
            tensor[32:64] *= 30.0
        return tensor


@dataclass
class Case:
    config: ModelConfig
    library: Library

    def runner(self, *, has_rests: bool, num_threads: int = 2) -> NativeRunner:
        target = NativeTarget(self.library, Threads(self.library, num_threads), "int4", has_rests=has_rests)
        decoder = load_native(self.config, Outlying(self.config), target)
        assert decoder is not None
        return NativeRunner(decoder, NUM_SLOTS, 1)


@pytest.fixture
def case(native_library: Library) -> Case:
    """A vocabulary of which some panels are refined, and others not; the last panel is not full."""
    return Case(make_config(hidden_size=256, intermediate_size=320, vocab_size=5003), native_library)


def test_logits_are_closer_to_exact_ones(case: Case) -> None:
    tokens = np.random.default_rng(0).integers(0, case.config.vocab_size, NUM_TOKENS)
    sequence = Sequence(tokens, np.arange(NUM_TOKENS))
    shape = KVShape(
        case.config.num_layers, NUM_TOKENS, 1, case.config.num_kv_heads, case.config.head_dim, torch.float64
    )
    attention = TorchAttention(shape)
    attention.plan(make_batch([sequence], [NUM_TOKENS]).attention)
    with torch.inference_mode():
        decoder = exact(case.config)
        hidden = decoder.forward(torch.from_numpy(tokens), torch.arange(NUM_TOKENS), attention)
        expected = decoder.logits(hidden).numpy()
    lost = []
    for has_rests in (False, True):
        (found,) = run(case.runner(has_rests=has_rests), [Sequence(tokens, np.arange(NUM_TOKENS))], [NUM_TOKENS])
        near = expected > expected.max(-1, keepdims=True) - 1.0
        lost.append(np.abs(found - expected)[near].mean())
    assert lost[1] < 0.5 * lost[0]


def exact(config: ModelConfig) -> Decoder:
    """The same rounded weights, and activations of float64."""
    decoder = make_decoder(Outlying(config))
    for layer in decoder.layers:
        for name in ("qkv", "out", "gate_up", "down"):
            linear = getattr(layer, name)
            weight = dequantise(quantise_int4_minimums(linear.weight.float(), 32)).double()
            setattr(layer, name, Linear(weight, linear.bias))
    return decoder


@pytest.mark.parametrize("chunks", [[1] * 150, [7] * 20 + [10], [24, 25, 49, 52], [64, 86]])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_chunks_change_nothing(chunks: list[int], num_threads: int, case: Case) -> None:
    tokens = np.random.default_rng(1).integers(0, case.config.vocab_size, NUM_TOKENS)
    (expected,) = run(case.runner(has_rests=True), [Sequence(tokens, np.arange(NUM_TOKENS))], [NUM_TOKENS])
    runner, sequence = case.runner(has_rests=True, num_threads=num_threads), Sequence(tokens, np.arange(NUM_TOKENS))
    found = np.concatenate([run(runner, [sequence], [num])[0] for num in chunks])
    np.testing.assert_array_equal(found, expected)


def test_company_changes_nothing(case: Case) -> None:
    rng = np.random.default_rng(2)
    texts = [rng.integers(0, case.config.vocab_size, num) for num in (3, 40, 17, 1, 64, 9)]
    starts = np.cumsum([0, *map(len, texts)])
    sequences = [Sequence(text, np.arange(len(text)) + start) for text, start in zip(texts, starts, strict=False)]
    together = run(case.runner(has_rests=True), sequences, [len(text) for text in texts])
    alone = case.runner(has_rests=True)
    for text, found in zip(texts, together, strict=True):
        np.testing.assert_array_equal(found, run(alone, [Sequence(text, np.arange(len(text)))], [len(text)])[0])
