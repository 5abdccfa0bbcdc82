"""Numbers that are not finite: found in the layer where they arise, in the rows that see them, and in no other."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bough.kernels.linear.formats import quantise_int4, quantise_int4_minimums, quantise_int8_groups
from bough.kernels.native import library as native
from bough.kernels.native.library import Library
from bough.kernels.native.packed import tile_packed
from bough.kernels.native.threads import Threads
from bough.kernels.native.weights import TiledWeight, mix
from bough.runtime.models.native import NativeDecoder, NativeTarget, load_native
from bough.runtime.runner.native_runner import NativeRunner

from .test_native_runner import Sequence, Tensors, fit, make_batch, make_config

NUM_SLOTS, VOCAB = 4000, 203
BAD = 7
"""A token whose vector is not finite, in some tests."""

FOUND_IN = {
    "input_norm": 1, "post_norm": 1, "query_norm": 1, "key_norm": 1, "query": 1, "key": 1, "value": 1, "out": 1,
    "gate": 1, "up": 1, "down": 2,
}  # fmt: skip
"""Weights of layer 1, and the layer in which what they make is rounded next."""


class Decoders:
    """Decoders of three layers, and weights for them that have one number that is not as it was."""

    def __init__(self, library: Library, kind: str, num_threads: int = 2, **changes: Any) -> None:
        options: dict[str, Any] = {"num_layers": 3, "tie_embeddings": False, "qk_norm": True, "vocab_size": VOCAB}
        self.config = fit(make_config(**(options | changes)), kind)
        self.threads = Threads(library, num_threads)
        self._library, self._kind = library, kind
        self.tensors = Tensors(self.config)
        self._kept: list[object] = []
        self._whole: NativeDecoder | None = None

    def load(self) -> NativeDecoder:
        decoder = load_native(self.config, self.tensors, NativeTarget(self._library, self.threads, self._kind))
        assert decoder is not None
        return decoder

    def make(self) -> NativeDecoder:
        """Weights may be replaced in it."""
        whole = self._whole = self._whole or self.load()
        layers = (native.Layer * self.config.num_layers).from_buffer_copy(
            (native.Layer * self.config.num_layers).from_address(whole.struct.layers)
        )
        struct = native.Model.from_buffer_copy(whole.struct)
        struct.layers = ctypes.addressof(layers)
        return replace(whole, struct=struct, kept=[whole, layers])

    def layer(self, decoder: NativeDecoder, index: int) -> native.Layer:
        return (native.Layer * self.config.num_layers).from_address(decoder.struct.layers)[index]

    def spoil_layer(self, decoder: NativeDecoder, index: int, name: str, value: float) -> None:
        layer = self.layer(decoder, index)
        if name.endswith("norm"):
            size = self.config.hidden_size if name in ("input_norm", "post_norm") else self.config.head_dim
            setattr(layer, name, self.spoilt_norm(getattr(layer, name), size, value))
            return
        part = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "out": "self_attn.o_proj"}
        source = part.get(name, f"self_attn.{name[0]}_proj")
        setattr(layer, name, self.spoilt(f"model.layers.{index}.{source}.weight", value))

    def spoilt_norm(self, address: int, size: int, value: float) -> int:
        """A copy, for the decoder's may be the checkpoint's own numbers."""
        numbers = np.array((ctypes.c_float * size).from_address(address))
        numbers[5] = value
        self._kept.append(numbers)
        return int(numbers.ctypes.data)

    def spoil_head(self, decoder: NativeDecoder, value: float) -> None:
        decoder.struct.head = self.spoilt("lm_head.weight", value)

    def spoil_token(self, decoder: NativeDecoder, token: int, value: float = np.nan) -> None:
        decoder.struct.embedding = self.spoilt("model.embed_tokens.weight", value, token, is_table=True)

    def spoilt(self, name: str, value: float, row: int = 3, *, is_table: bool = False) -> native.Weight:
        """The tensor, rounded, with a number in row `row` that is `value`."""
        numbers = self.tensors.read(name).clone()
        numbers[row, 9] = value
        weight: TiledWeight | None
        if self._kind == "w8a8" and not is_table:
            weight = mix(self._library, self.threads, numbers.numpy())
        elif self._kind == "int4" and not is_table:
            weight = tile_packed(self._library, self.threads, quantise_int4_minimums(numbers, 32))
        else:
            weight = tile_packed(self._library, self.threads, quantise_int8_groups(numbers, 32))
        assert weight is not None and weight.finite <= bool(np.isfinite(value))  # scales of float16 hold less
        self._kept.append(weight)
        return weight.struct


def spread(rng: np.random.Generator, num: int) -> npt.NDArray[np.int64]:
    """Slots anywhere in the cache."""
    return rng.permutation(NUM_SLOTS)[:num]


def run(runner: NativeRunner, sequence: Sequence, count: int) -> npt.NDArray[np.float32]:
    """Logits of the next `count` tokens."""
    logits = runner.run(make_batch([sequence], [count]))
    assert logits is not None
    sequence.computed += count
    return logits.copy()


KINDS = pytest.mark.parametrize(("kind", "kv_bits"), [("int8", 16), ("int4", 8), ("w8a8", 16), ("w8a8", 8)])
VALUES = pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])


@KINDS
@VALUES
def test_a_weight_is_found_in_its_layer(value: float, kind: str, kv_bits: int, native_library: Library) -> None:
    decoders = Decoders(native_library, kind)
    tokens = np.random.default_rng(0).integers(0, VOCAB, 30)
    for name, layer in FOUND_IN.items():
        decoder = decoders.make()
        decoders.spoil_layer(decoder, 1, name, value)
        runner = NativeRunner(decoder, NUM_SLOTS, 1, kv_bits)
        logits = run(runner, Sequence(tokens, np.arange(30)), 30)
        assert np.isnan(logits).all(), name
        assert runner.faults is not None and (runner.faults == 1 + layer).all(), (name, runner.faults)


@KINDS
def test_what_follows_the_layers(kind: str, kv_bits: int, native_library: Library) -> None:
    decoders = Decoders(native_library, kind)
    tokens = np.random.default_rng(0).integers(0, VOCAB, 30)
    batch = replace(make_batch([Sequence(tokens, np.arange(30))], [30]), logit_rows=np.array([4, 29]))
    decoder = decoders.make()
    decoder.struct.norm = decoders.spoilt_norm(decoder.struct.norm, decoders.config.hidden_size, np.nan)
    runner = NativeRunner(decoder, NUM_SLOTS, 1, kv_bits)
    logits = runner.run(batch)
    assert logits is not None and np.isnan(logits).all()
    assert runner.faults is not None and runner.faults.nonzero()[0].tolist() == [4, 29] and runner.faults[4] == 4
    decoder = decoders.make()
    decoders.spoil_head(decoder, np.inf)
    logits = NativeRunner(decoder, NUM_SLOTS, 1, kv_bits).run(batch)
    assert logits is not None
    assert np.isfinite(logits).all(0).sum() == VOCAB - 1 and not np.isfinite(logits[:, 3]).any()


def test_a_load_names_the_tensor(native_library: Library) -> None:
    for kind in ("int8", "int4", "w8a8"):
        decoders = Decoders(native_library, kind, num_layers=1)
        for index, name in enumerate(decoders.tensors.shapes):
            numbers = decoders.tensors.read(name).view(-1)
            before = float(numbers[-1])
            numbers[-1] = (np.nan, np.inf)[index % 2]
            with pytest.raises(ValueError, match=f"tensor {name} has numbers that are not finite"):
                decoders.load()
            numbers[-1] = before
        decoders.load()


@KINDS
@pytest.mark.parametrize("size", [1e-42, 1e18, 1e30, 3.4e38])
def test_extreme_weights_are_found_or_right(size: float, kind: str, kv_bits: int, native_library: Library) -> None:
    """Sums that are too large are not left to chance: all logits of a token are NaN, and it is marked, or none."""
    decoders = Decoders(native_library, kind)
    tokens = np.random.default_rng(0).integers(0, VOCAB, 30)
    for name in FOUND_IN:
        decoder = decoders.make()
        decoders.spoil_layer(decoder, 1, name, size)
        runner = NativeRunner(decoder, NUM_SLOTS, 1, kv_bits)
        logits = run(runner, Sequence(tokens, np.arange(30)), 30)
        faulty = np.zeros(30, bool) if runner.faults is None else runner.faults > 0
        assert np.isnan(logits[faulty]).all() and np.isfinite(logits[~faulty]).all(), name
        if name in ("out", "down") and size > 1e19:
            assert faulty.all(), "squares of hidden states overflow"


SHAPES: list[dict[str, Any]] = [
    {},
    {"head_dim": 64, "num_kv_heads": 3},
    {"head_dim": 128, "num_heads": 4, "num_kv_heads": 1},
    {"windows": (None, 40, None)},
]


@KINDS
@pytest.mark.parametrize("changes", SHAPES, ids=range(len(SHAPES)))
@pytest.mark.parametrize("num_threads", [1, 3])
def test_only_rows_that_see_it_change(
    num_threads: int, changes: dict[str, Any], kind: str, kv_bits: int, native_library: Library
) -> None:
    """Branches of one trunk, in one of which a token is not finite, in one batch: to the bit as each alone."""
    decoders = Decoders(native_library, kind, num_threads, **changes)
    rng = np.random.default_rng(1)
    clean, spoilt = decoders.make(), decoders.make()
    decoders.spoil_token(spoilt, BAD)
    trunk = rng.integers(BAD + 1, VOCAB, 130)
    slots = spread(rng, 1000)
    runner, alone = NativeRunner(spoilt, NUM_SLOTS, 1, kv_bits), NativeRunner(clean, NUM_SLOTS, 1, kv_bits)
    run(runner, Sequence(trunk, slots[:130]), 130)
    assert runner.faults is None
    branches, counts, free = [], [33, 1, 70, 5, 60], 130
    for count in counts:
        tokens = np.concatenate([trunk, rng.integers(BAD + 1, VOCAB, count)])
        branches.append(Sequence(tokens, np.concatenate([slots[:130], slots[free : free + count]]), 130))
        free += count
    branches[2].tokens[130 + 20] = BAD
    logits = runner.run(make_batch(branches, counts))
    assert logits is not None and runner.faults is not None
    start = 0
    for index, (branch, count) in enumerate(zip(branches, counts, strict=True)):
        expected = run(alone, Sequence(branch.tokens, np.arange(130 + count)), 130 + count)[130:]
        stop = 20 if index == 2 else count
        np.testing.assert_array_equal(logits[start : start + stop], expected[:stop])
        assert np.isnan(logits[start + stop : start + count]).all()
        assert not runner.faults[start : start + stop].any() and runner.faults[start + stop : start + count].all()
        start += count


@pytest.mark.parametrize("kv_bits", [8, 16])
def test_a_token_without_logits_is_found(kv_bits: int, native_library: Library) -> None:
    """In the pass that computes it, and in those that read what it left in the cache, by few queries or many."""
    decoders = Decoders(native_library, "int8")
    decoder = decoders.make()
    decoders.spoil_token(decoder, BAD, np.inf)
    tokens = np.random.default_rng(0).integers(BAD + 1, VOCAB, 200)
    tokens[50] = BAD
    runner = NativeRunner(decoder, NUM_SLOTS, 1, kv_bits)
    sequence = Sequence(tokens, spread(np.random.default_rng(2), 200))
    silent = np.empty(0, np.int64)
    assert runner.run(replace(make_batch([sequence], [100]), logit_rows=silent)) is None
    assert runner.faults is not None and not runner.faults[:50].any() and (runner.faults[50:] == 1).all()
    sequence.computed = 100
    for count in (1, 60, 2, 30):
        assert np.isnan(run(runner, sequence, count)).all()
        assert runner.faults is not None and (runner.faults == 1).all()


@pytest.mark.parametrize(("value", "kv_bits"), [(np.nan, 8), (np.nan, 16), (np.inf, 8), (-np.inf, 16)])
@pytest.mark.parametrize("place", [0, 1], ids=["key", "value"])
@pytest.mark.parametrize(("length", "position"), [(90, 80), (90, 3), (2600, 0), (2600, 1100), (2600, 2599)])
def test_what_the_cache_holds(
    length: int, position: int, place: int, kv_bits: int, value: float, native_library: Library
) -> None:
    """A scale of one key or value, in a context with splits and in one without: who sees it has NaN, and who does not,
    as it is another's or too far back, has what he had.
    """
    decoders = Decoders(native_library, "int8", 4, num_heads=2, num_kv_heads=1, windows=(None, 64, None))
    rng = np.random.default_rng(3)
    tokens, slots = rng.integers(0, VOCAB, length + 3), spread(rng, length + 3)
    other = Sequence(rng.integers(0, VOCAB, 40), np.setdiff1d(np.arange(NUM_SLOTS), slots)[:40])
    runner = NativeRunner(decoders.make(), NUM_SLOTS, 1, kv_bits)
    sequence = Sequence(tokens, slots)
    run(runner, sequence, length)
    run(runner, other, 30)
    before = run(runner, Sequence(tokens, slots, length), 1), run(runner, Sequence(other.tokens, other.slots, 30), 1)
    scales = runner._memory[2].view(np.float32).reshape(decoders.config.num_layers, NUM_SLOTS, 2, 1)
    for layer, windowed in ((0, False), (1, True)):
        scales_before = scales[layer, slots[position], place, 0]
        scales[layer, slots[position], place, 0] = value
        batch = make_batch([Sequence(tokens, slots, length), Sequence(other.tokens, other.slots, 30)], [1, 1])
        logits = runner.run(batch)
        assert logits is not None
        np.testing.assert_array_equal(logits[1:], before[1])
        if windowed and position <= length - 64:
            np.testing.assert_array_equal(logits[:1], before[0])
            assert runner.faults is None
        else:
            assert np.isnan(logits[0]).all()
            assert runner.faults is not None and runner.faults.tolist() == [1 + layer, 0]
        scales[layer, slots[position], place, 0] = scales_before


def test_slots_that_held_it_are_as_good_as_new(native_library: Library) -> None:
    decoders = Decoders(native_library, "int8")
    decoder = decoders.make()
    decoders.spoil_token(decoder, BAD)
    rng = np.random.default_rng(4)
    tokens, slots = rng.integers(BAD + 1, VOCAB, 100), spread(rng, 100)
    used = NativeRunner(decoder, NUM_SLOTS, 1)
    assert np.isnan(run(used, Sequence(np.full(100, BAD), slots), 100)).all()
    fresh = NativeRunner(decoder, NUM_SLOTS, 1)
    found, expected = Sequence(tokens, slots), Sequence(tokens, np.arange(100))
    for count in (33, 1, 40, 26):
        np.testing.assert_array_equal(run(used, found, count), run(fresh, expected, count))
    assert used.faults is None


def test_packed_integers_with_a_scale_that_is_not_finite(native_library: Library) -> None:
    threads = Threads(native_library, 2)
    for value in (np.nan, np.inf):
        for form in (quantise_int4, quantise_int4_minimums, quantise_int8_groups):
            numbers = torch.randn(40, 128)
            whole = tile_packed(native_library, threads, form(numbers, 32))
            numbers[21, 5] = value
            weight = tile_packed(native_library, threads, form(numbers, 32))
            assert whole is not None and weight is not None
            assert whole.finite and not weight.finite
            x, y = np.ones((5, 128), np.float32), np.empty((5, 40), np.float32)
            native_library.multiply(threads.address, ctypes.addressof(weight.struct), x.ctypes.data, 5, y.ctypes.data)
            assert (~np.isfinite(y)).nonzero()[1].tolist() == [21] * 5
