"""The CPU library's forward pass: right against torch, and the same to the bit in any company."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bough.kernels.attention.interface import AttentionBatch, KVShape
from bough.kernels.attention.torch_backend import TorchAttention
from bough.kernels.linear.formats import PackedWeight, dequantise, quantise_int4_minimums, quantise_int8_groups
from bough.kernels.native.library import Library
from bough.kernels.native.threads import Threads
from bough.runtime.checkpoints.config import ModelConfig, RopeConfig
from bough.runtime.checkpoints.weights import list_parameters
from bough.runtime.models.decoder import Decoder, Linear
from bough.runtime.models.native import NATIVE_KINDS, NativeTarget, load_native
from bough.runtime.runner.native_runner import NativeRunner
from bough.runtime.runner.runner import Batch

NUM_SLOTS = 6000


class Tensors:
    """A checkpoint of random numbers."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config = config
        generator = torch.Generator().manual_seed(seed)
        self._tensors: dict[str, torch.Tensor] = {}
        for parameter in list_parameters(config):
            for name, shape in parameter.sources:
                noise = torch.randn(shape, generator=generator)
                is_norm = len(shape) == 1 and name.endswith("norm.weight")
                self._tensors[name] = 1 + noise / 10 if is_norm else noise / shape[-1] ** 0.5

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]


class Rounded:
    """A product with a rounded weight, of activations that are rounded like the library's.

    `by_row`: with "w8a8", whether a row of activations has one scale, or each block of 64 its own.
    """

    def __init__(self, linear: Linear, kind: str, *, by_row: bool = False) -> None:
        weight = linear.weight.float()
        self._group = (weight.shape[1] if by_row else 64) if kind == "w8a8" else 32
        self._mixes = kind == "w8a8"
        self._weight = (round_rows(mix(weight)) if self._mixes else dequantise(round_weight(weight, kind))).double()
        self._bias = linear.bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rounded = round_rows((mix(x) if self._mixes else x).reshape(*x.shape[:-1], -1, self._group)).reshape(x.shape)
        return torch.nn.functional.linear(rounded, self._weight, self._bias)


def mix(x: torch.Tensor) -> torch.Tensor:
    """Each block of 64 times an orthogonal matrix: Hadamard's, with a bent function's signs."""
    signs = torch.tensor([(-1.0) ** (i >> 3 & i).bit_count() for i in range(64)], dtype=x.dtype)
    matrix = torch.ones(1, 1, dtype=x.dtype)
    while len(matrix) < 64:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)]) / 2**0.5
    return (x.reshape(*x.shape[:-1], -1, 64) * signs @ matrix).reshape(x.shape)


def round_rows(x: torch.Tensor) -> torch.Tensor:
    """To 8 bits, with a scale for the last dimension."""
    scales = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
    return (x / scales).round() * scales


def round_weight(weight: torch.Tensor, kind: str) -> PackedWeight:
    return quantise_int4_minimums(weight, 32) if kind == "int4" else quantise_int8_groups(weight, 32)


def make_config(**changes: Any) -> ModelConfig:
    options: dict[str, Any] = {
        "architecture": "llama", "vocab_size": 203, "hidden_size": 96, "num_layers": 2, "num_heads": 6,
        "num_kv_heads": 2, "head_dim": 32, "max_position": 4096, "intermediate_size": 160, "norm_eps": 1e-5,
        "rope": RopeConfig(), "tie_embeddings": True, "qkv_bias": False, "out_bias": False, "qk_norm": False,
    }  # fmt: skip
    options |= changes
    layers = options["num_layers"]
    return ModelConfig(**({"rope_layers": (True,) * layers, "windows": (None,) * layers} | options))


def fit(config: ModelConfig, kind: str) -> ModelConfig:
    """With "w8a8", whose widths are multiples of 64."""
    names = ("hidden_size", "intermediate_size", "head_dim")
    return (
        replace(config, **{name: -(-getattr(config, name) // 64) * 64 for name in names}) if kind == "w8a8" else config
    )


MakeRunner = Callable[..., NativeRunner]


@pytest.fixture
def make_runner(native_library: Library) -> MakeRunner:
    """For a config: over Tensors, rounded to `kind`."""

    def make(
        config: ModelConfig, num_threads: int = 2, page_size: int = 1, kind: str = "int8", kv_bits: int = 16
    ) -> NativeRunner:
        decoder = load_native(
            config, Tensors(config), NativeTarget(native_library, Threads(native_library, num_threads), kind)
        )
        assert decoder is not None
        return NativeRunner(decoder, NUM_SLOTS // page_size, page_size, kv_bits)

    return make


def make_decoder(tensors: Tensors) -> Decoder:
    """In float64, of these weights, with the embedding as the library holds it."""
    parameters = {
        parameter.name: torch.cat([tensors.read(name) for name, _ in parameter.sources]).double()
        for parameter in list_parameters(tensors.config)
    }
    parameters["embedding"] = dequantise(quantise_int8_groups(parameters["embedding"].float(), 32)).double()
    return Decoder(tensors.config, parameters)


def make_reference(config: ModelConfig, kind: str) -> Decoder:
    """In float64, of the same rounded weights."""
    decoder = make_decoder(Tensors(config))
    for layer in decoder.layers:
        for name in ("qkv", "out", "gate_up", "down"):
            linear = getattr(layer, name)
            assert isinstance(linear, Linear)
            setattr(layer, name, Rounded(linear, kind, by_row=name in ("qkv", "gate_up")))
    assert isinstance(decoder.head, Linear)
    decoder.head = Rounded(decoder.head, "w8a8" if kind == "w8a8" else "int8")
    return decoder


class Sequence:
    """Tokens, of which the first `computed` have their keys and values in slots."""

    def __init__(self, tokens: npt.NDArray[np.int64], slots: npt.NDArray[np.int64], computed: int = 0) -> None:
        self.tokens, self.slots, self.computed = tokens, slots, computed


def make_batch(sequences: list[Sequence], counts: list[int], page_size: int = 1) -> Batch:
    """The next `counts` tokens of each; logits of all of them."""
    spans = [(s.computed, s.computed + n) for s, n in zip(sequences, counts, strict=True)]
    table = np.zeros((len(sequences), max(-(-stop // page_size) for _, stop in spans)), np.int32)
    for row, sequence, (_, stop) in zip(table, sequences, spans, strict=True):
        row[: -(-stop // page_size)] = sequence.slots[:stop:page_size] // page_size
    pairs = list(zip(sequences, spans, strict=True))
    return Batch(
        tokens=np.concatenate([s.tokens[a:b] for s, (a, b) in pairs]),
        positions=np.concatenate([np.arange(a, b) for _, (a, b) in pairs]),
        logit_rows=np.arange(sum(counts)),
        fed=np.empty(0, np.int64),
        fed_rows=np.empty(0, np.int64),
        attention=AttentionBatch(
            np.cumsum([0, *counts]).astype(np.int32),
            np.array([stop for _, stop in spans], np.int32),
            table,
            np.concatenate([s.slots[a:b] for s, (a, b) in pairs]),
        ),
    )


def run(
    runner: NativeRunner, sequences: list[Sequence], counts: list[int], page_size: int = 1
) -> list[npt.NDArray[np.float32]]:
    """Logits of each sequence's next tokens."""
    logits = runner.run(make_batch(sequences, counts, page_size))
    assert logits is not None
    for sequence, count in zip(sequences, counts, strict=True):
        sequence.computed += count
    return np.split(logits.copy(), np.cumsum(counts)[:-1])


@pytest.mark.parametrize("kind", NATIVE_KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qkv_bias": True, "out_bias": True, "num_kv_heads": 6},
        {"qk_norm": True, "head_dim": 64, "num_heads": 4, "num_kv_heads": 1, "tie_embeddings": False},
        {"windows": (None, 70), "rope_layers": (True, False)},
        {"head_dim": 128, "num_heads": 2, "rope": RopeConfig(kind="yarn", factor=4.0, original_max_position=512)},
        {"hidden_size": 32, "intermediate_size": 32, "num_heads": 1, "num_kv_heads": 1, "vocab_size": 17},
    ],
    ids=["plain", "biases", "head norms", "window", "yarn", "small"],
)
def test_logits_are_those_of_torch(changes: dict[str, Any], kind: str, make_runner: MakeRunner) -> None:
    config = fit(make_config(**changes), kind)
    rng = np.random.default_rng(0)
    num = 400
    tokens = rng.integers(0, config.vocab_size, num)
    slots = rng.permutation(NUM_SLOTS)[:num]
    (found,) = run(make_runner(config, kind=kind), [Sequence(tokens, slots)], [num])
    decoder = make_reference(config, kind)
    shape = KVShape(config.num_layers, num, 1, config.num_kv_heads, config.head_dim, torch.float64)
    attention = TorchAttention(shape)
    attention.plan(make_batch([Sequence(tokens, np.arange(num))], [num]).attention)
    with torch.inference_mode():
        hidden = decoder.forward(torch.from_numpy(tokens), torch.arange(num), attention)
        expected = decoder.logits(hidden).numpy()
    # A rounding may fall the other way, which is seen in all that follows: hence a mean.
    assert np.abs(found - expected).mean() < 0.025 * np.abs(expected).mean()
    assert (found.argmax(-1) == expected.argmax(-1)).mean() > (0.94 if kind == "w8a8" else 0.96)


@pytest.mark.parametrize("head_dim", [32, 64])
def test_keys_and_values_of_8_bits(head_dim: int, make_runner: MakeRunner) -> None:
    config = make_config(head_dim=head_dim)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 150)
    found, expected = (
        run(make_runner(config, kv_bits=bits), [Sequence(tokens, np.arange(150))], [150])[0] for bits in (8, 16)
    )
    assert 0 < np.abs(found - expected).mean() < 0.03 * np.abs(expected).mean()


class Biased(Tensors):
    """Keys have biases in a few dimensions that are far larger than all else, as those of some models do."""

    def read(self, name: str) -> torch.Tensor:
        tensor = super().read(name)
        if name.endswith("k_proj.bias"):
            tensor = tensor.clone()
            tensor[::32] += 40.0
        return tensor


def test_large_biases_of_keys_leave_8_bits_for_the_rest(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "Tensors", Biased)
    config = make_config(head_dim=64, qkv_bias=True)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 150)
    found, expected = (
        run(make_runner(config, kv_bits=bits), [Sequence(tokens, np.arange(150))], [150])[0] for bits in (8, 16)
    )
    assert 0 < np.abs(found - expected).mean() < 0.1 * np.abs(expected).mean()  # 0.055; 0.16 if they are not mixed


@pytest.mark.parametrize(("kind", "kv_bits"), [("int8", 16), ("int4", 16), ("int8", 8), ("w8a8", 16), ("w8a8", 8)])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("seed", range(4))
def test_chunks_and_company_change_nothing(
    seed: int, page_size: int, kind: str, kv_bits: int, make_runner: MakeRunner
) -> None:
    """Sequences that fork from one another, in random batches and chunks, against each alone in one go."""
    heads = ({}, {}, {"head_dim": 64, "num_kv_heads": 3}, {"head_dim": 128, "num_heads": 4, "num_kv_heads": 1})[seed]
    config = fit(make_config(**heads, windows=(None, 100) if seed % 2 else (None, None)), kind)
    rng = np.random.default_rng(seed)
    pages = list(rng.permutation(NUM_SLOTS // page_size))

    def take(num: int) -> npt.NDArray[np.int64]:
        own = np.array([pages.pop() for _ in range(-(-num // page_size))], np.int64)
        return (own[:, None] * page_size + np.arange(page_size)).reshape(-1)[:num]

    trunk = Sequence(rng.integers(0, config.vocab_size, 1200), take(1200))
    runner = make_runner(config, page_size=page_size, kind=kind, kv_bits=kv_bits)
    run(runner, [trunk], [1200], page_size)
    sequences = []
    for _ in range(12):
        shared = int(rng.choice([0, 48, 128, 640, 1184])) // page_size * page_size
        own = int(rng.integers(1, 150))
        tokens = np.concatenate([trunk.tokens[:shared], rng.integers(0, config.vocab_size, own)])
        sequences.append(Sequence(tokens, np.concatenate([trunk.slots[:shared], take(own)]), shared))
    begins = [s.computed for s in sequences]
    found: list[list[npt.NDArray[np.float32]]] = [[] for _ in sequences]
    while left := [i for i, s in enumerate(sequences) if s.computed < len(s.tokens)]:
        chosen = rng.permutation(left)[: int(rng.integers(1, len(left) + 1))]
        counts = [int(rng.integers(1, min(40, len(sequences[i].tokens) - sequences[i].computed) + 1)) for i in chosen]
        for i, logits in zip(chosen, run(runner, [sequences[i] for i in chosen], counts, page_size), strict=True):
            found[i].append(logits)
    alone = make_runner(config, num_threads=1, kind=kind, kv_bits=kv_bits)
    for sequence, begin, parts in zip(sequences, begins, found, strict=True):
        whole = Sequence(sequence.tokens, np.arange(len(sequence.tokens)))
        (expected,) = run(alone, [whole], [len(sequence.tokens)])
        np.testing.assert_array_equal(np.concatenate(parts), expected[begin:])


def test_a_long_context_is_the_same_by_one_thread_or_many(make_runner: MakeRunner) -> None:
    """Few queries over a long context are split among threads; their sums are merged in order."""
    config = make_config()
    tokens = np.random.default_rng(5).integers(0, config.vocab_size, 3500)
    results = []
    for num_threads in (1, 4):
        runner, sequence = make_runner(config, num_threads), Sequence(tokens, np.arange(3500))
        parts = [run(runner, [sequence], [n])[0] for n in (1500, 1990, 1, 8, 1)]
        results.append(np.concatenate(parts))
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("seed", range(3))
def test_rows_without_logits_change_nothing(seed: int, make_runner: MakeRunner) -> None:
    """The last layer leaves them out; sequences that share a prefix, some of them without any logits."""
    config = make_config(windows=(None, 100) if seed == 1 else (None, None))
    rng = np.random.default_rng(seed)
    runner, trunk = make_runner(config), Sequence(rng.integers(0, config.vocab_size, 1300), np.arange(1300))
    run(runner, [trunk], [1300])
    counts = [int(count) for count in rng.integers(1, 60, 6)]
    sequences, free = [], 1300
    for count in counts:
        shared = int(rng.choice([0, 64, 1300]))
        slots = np.concatenate([trunk.slots[:shared], np.arange(free, free + count)])
        sequences.append(Sequence(np.resize(trunk.tokens, shared + count), slots, shared))
        free += count
    batch = make_batch(sequences, counts)
    every = runner.run(batch)
    assert every is not None
    every = every.copy()
    for rows in (
        np.sort(rng.choice(sum(counts), 4, replace=False)),
        np.cumsum(counts)[2:4] - 1,
        rng.permutation(sum(counts))[:7],
    ):
        found = runner.run(replace(batch, logit_rows=rows))
        assert found is not None
        np.testing.assert_array_equal(found, every[rows])


def test_a_pass_may_have_no_logits(make_runner: MakeRunner) -> None:
    config = make_config()
    runner = make_runner(config)
    batch = make_batch([Sequence(np.arange(5), np.arange(5))], [5])
    silent = Batch(batch.tokens, batch.positions, np.empty(0, np.int64), batch.fed, batch.fed_rows, batch.attention)
    assert runner.run(silent) is None


def take(runner: NativeRunner) -> int:
    """Number of pieces of memory it takes."""
    num_pieces = 0
    while runner.prepare():
        num_pieces += 1
    return num_pieces


def test_memory_is_there_before_it_is_written_to(make_runner: MakeRunner) -> None:
    """Grows to what was used so far, and a little before; what is in use stays as it is."""
    config = make_config()
    runner, other = make_runner(config), make_runner(config)
    assert take(runner) == 3 * config.num_layers  # 2048 slots
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 3000)
    found, expected = Sequence(tokens, np.arange(3000)), Sequence(tokens, np.arange(3000))
    for count in (1000, 500, 1500):  # up to slots 3048, 3548 and 6000
        np.testing.assert_array_equal(run(runner, [found], [count])[0], run(other, [expected], [count])[0])
        assert take(runner) == 3 * config.num_layers
    run(runner, [Sequence(tokens, np.arange(3000, NUM_SLOTS))], [3000])
    assert take(runner) == 0
