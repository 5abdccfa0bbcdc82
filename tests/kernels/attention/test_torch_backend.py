"""Attention in torch operators against the reference backend and float64, over ragged batches on random pages."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from bough.kernels.attention import torch_backend as torch_attention
from bough.kernels.attention.interface import AttentionBatch, AttentionLayer, KVShape
from bough.kernels.attention.reference import ragged_attention
from bough.kernels.attention.torch_backend import TorchAttention

from .oracle import ReferenceAttention

NAN = float("nan")
DTYPES = [(torch.float32, 2e-6, 2e-5), (torch.bfloat16, 2e-2, 2e-2)]
"""dtype, absolute and relative tolerance."""


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@dataclass
class Case:
    """A batch of sequences, each with some tokens in the cache already and some new ones as queries.

    rows    (context before, new tokens) of each
    """

    rows: list[tuple[int, int]]
    page_size: int = 1
    heads: tuple[int, int] = (3, 1)
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    layers: int = 2

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        needed = [-(-(before + new) // self.page_size) for before, new in self.rows]
        self.shape = KVShape(
            self.layers, sum(needed) + 9, self.page_size, self.heads[1], self.head_dim, self.cache_dtype or self.dtype
        )
        free = chance.sample(range(1, self.shape.num_pages), self.shape.num_pages - 1)  # page 0 is never given out
        self.pages = [[free.pop() for _ in range(count)] for count in needed]
        self.keys, self.values, self.queries = [], [], []
        for before, new in self.rows:
            size = (self.layers, before + new, self.heads[1], self.head_dim)
            self.keys.append(torch.randn(size).to(self.dtype))
            self.values.append(torch.randn(size).to(self.dtype))
            self.queries.append(torch.randn(self.layers, new, self.heads[0], self.head_dim).to(self.dtype))

    def slot(self, row: int, position: int) -> int:
        return self.pages[row][position // self.page_size] * self.page_size + position % self.page_size

    def batch(self, rows: list[int]) -> AttentionBatch:
        """The page tables are as wide as the longest; what is not to be read is out of bounds."""
        counts = [self.rows[row][1] for row in rows]
        table = np.full((len(rows), max(len(self.pages[row]) for row in rows) + 2), 10**6, np.int32)
        for line, row in enumerate(rows):
            table[line, : len(self.pages[row])] = self.pages[row]
        slots = [self.slot(row, p) for row in rows for p in range(self.rows[row][0], sum(self.rows[row]))]
        return AttentionBatch(
            np.cumsum([0, *counts]).astype(np.int32),
            np.array([sum(self.rows[row]) for row in rows], np.int32),
            table,
            np.array(slots, np.int64),
        )

    def run(self, rows: list[int] | None = None, *, unused: float = NAN) -> list[torch.Tensor]:
        """Outputs [layers, n, H, D] of each row; every slot that none of these rows owns holds `unused`."""
        rows = list(range(len(self.rows))) if rows is None else rows
        backend = TorchAttention(self.shape)
        backend._keys.fill_(unused)
        backend._values.fill_(unused)
        for row in rows:
            for position in range(self.rows[row][0]):
                backend._keys[:, self.slot(row, position)] = self.keys[row][:, position].to(self.shape.dtype)
                backend._values[:, self.slot(row, position)] = self.values[row][:, position].to(self.shape.dtype)
        backend.plan(self.batch(rows))
        outs = []
        for layer in range(self.layers):
            asked = AttentionLayer(layer, scale=self.head_dim**-0.5, **self.options)
            outs.append(backend.run(asked, *self._new(rows, layer)))
        counts = [self.rows[row][1] for row in rows]
        return [torch.stack(parts) for parts in zip(*(out.split(counts) for out in outs), strict=True)]

    def _new(self, rows: list[int], layer: int) -> list[torch.Tensor]:
        q = torch.cat([self.queries[row][layer] for row in rows])
        k, v = (torch.cat([kv[row][layer, self.rows[row][0] :] for row in rows]) for kv in (self.keys, self.values))
        return [q, k, v]

    def expected(self, row: int) -> torch.Tensor:
        """Float64 attention over the sequence laid out in order."""
        kept = self.shape.dtype
        return torch.stack(
            [
                ragged_attention(
                    self.queries[row][layer].double(),
                    self.keys[row][layer].to(kept).double(),
                    self.values[row][layer].to(kept).double(),
                    scale=self.head_dim**-0.5,
                    **self.options,
                )
                for layer in range(self.layers)
            ]
        )

    def check(self, atol: float, rtol: float) -> None:
        for row, got in enumerate(self.run()):
            assert got.dtype == self.dtype
            torch.testing.assert_close(got.double(), self.expected(row), atol=atol, rtol=rtol)


MIXED = [
    (0, 1),
    (40, 1),
    (7, 1),
    (8, 1),
    (300, 1),
    (0, 13),
    (0, 5),
    (16, 9),
    (33, 9),
    (12, 30),
    (15, 1),
    (2, 2),
    (100, 3),
]
"""Prefills, chunks, drafts and decodes; contexts of one token and at the borders of pages."""


@pytest.mark.parametrize(("dtype", "atol", "rtol"), DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (3, 1), (8, 2), (8, 1)])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_ragged_batches(
    dtype: torch.dtype, atol: float, rtol: float, heads: tuple[int, int], head_dim: int, page_size: int
) -> None:
    Case(MIXED, page_size, heads, head_dim, dtype, seed=page_size).check(atol, rtol)


@pytest.mark.parametrize(("dtype", "atol", "rtol"), DTYPES)
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("window", [None, 1, 7, 40, 1000])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_windows_and_softcaps(
    dtype: torch.dtype, atol: float, rtol: float, page_size: int, window: int | None, softcap: float | None
) -> None:
    options = {name: value for name, value in (("window", window), ("softcap", softcap)) if value is not None}
    Case(MIXED, page_size, (6, 2), 64, dtype, options=options).check(atol, rtol)


@pytest.mark.parametrize("rows", [[(0, 1)], [(0, 20)], [(19, 1)], [(20, 20)], [(5, 1)] * 9, [(0, 6)] * 4, [(9, 4)] * 3])
@pytest.mark.parametrize("options", [{}, {"window": 6}, {"window": 20}, {"softcap": 5.0}], ids=str)
def test_shapes_that_have_a_way_of_their_own(rows: list[tuple[int, int]], options: dict[str, Any]) -> None:
    """One fresh sequence, one decode, equal decodes: where no mask is needed, or torch's own causal one serves."""
    Case(rows, 4, (6, 2), 64, options=options).check(2e-6, 2e-5)


@pytest.mark.parametrize("seed", range(30))
def test_random_batches_equal_the_reference_backend(seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        (chance.choice([0, 0, chance.randrange(80), chance.randrange(400)]), chance.choice([1, 1, 1, 2, 5, 31]))
        for _ in range(chance.randrange(1, 14))
    ]
    kv_heads = chance.choice([1, 2, 3])
    case = Case(
        rows,
        chance.choice([1, 4, 16]),
        (kv_heads * chance.choice([1, 3, 4]), kv_heads),
        chance.choice([8, 64]),
        seed=seed,
        options=chance.choice(
            [{}, {"window": chance.randrange(1, 60)}, {"softcap": 2.0}, {"window": 9, "softcap": 8.0}]
        ),
    )
    reference = ReferenceAttention(case.shape)
    everyone = list(range(len(rows)))
    for row in everyone:
        for position in range(rows[row][0]):
            reference.keys[:, case.slot(row, position)] = case.keys[row][:, position]
            reference.values[:, case.slot(row, position)] = case.values[row][:, position]
    reference.plan(case.batch(everyone))
    for layer in range(case.layers):
        new = case._new(everyone, layer)
        expected = reference.run(AttentionLayer(layer, scale=case.head_dim**-0.5, **case.options), *new)
        got = torch.cat([out[layer] for out in case.run()])
        torch.testing.assert_close(got, expected, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("options", [{}, {"window": 5}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize("unused", [NAN, float("inf"), 1e30])
def test_slots_that_are_not_read_do_not_matter(options: dict[str, Any], unused: float) -> None:
    """The null page, pages of others and the rest of a last page: the outputs are the same bit for bit."""
    case = Case(MIXED, 4, (6, 2), 64, options=options)
    for with_unused, with_zeros in zip(case.run(unused=unused), case.run(unused=0.0), strict=True):
        assert torch.equal(with_unused, with_zeros)


def test_what_is_not_finite_in_one_sequence_reaches_no_other() -> None:
    """Sequences of a group are padded to one length; the bad one is the shortest, then the longest, then another."""
    case = Case([(10, 1), (12, 1), (40, 1), (9, 3), (20, 3), (0, 4)], 4)
    clean = case.run()
    for bad in range(len(case.rows)):
        kept = case.values[bad].clone(), case.keys[bad].clone()
        case.values[bad].fill_(NAN)
        case.keys[bad].fill_(NAN)
        for row, out in enumerate(case.run()):
            assert bool(out.isnan().any()) if row == bad else torch.equal(out, clean[row])
        case.values[bad], case.keys[bad] = kept


def test_a_row_alone_is_the_row_in_a_batch() -> None:
    case = Case(MIXED, 4, (6, 2), 64)
    together = case.run()
    for row in range(len(MIXED)):
        torch.testing.assert_close(case.run([row])[0], together[row], atol=1e-6, rtol=1e-5)
    order = random.Random(1).sample(range(len(MIXED)), len(MIXED))
    for row, out in zip(order, case.run(order), strict=True):
        torch.testing.assert_close(out, together[row], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}], ids=str)
def test_the_cache_may_be_narrower_than_the_model(cache_dtype: torch.dtype, options: dict[str, Any]) -> None:
    Case(MIXED, 4, cache_dtype=cache_dtype, options=options).check(2e-6, 2e-5)


def test_a_bfloat16_model_over_a_float32_cache() -> None:
    Case(MIXED, 4, dtype=torch.bfloat16, cache_dtype=torch.float32).check(2e-2, 2e-2)


def test_new_keys_are_there_for_the_next_step() -> None:
    """A sequence in chunks of growing length, with a step of another one in between, equals it in one piece."""
    whole = Case([(0, 30), (0, 11)], 4, layers=1)
    expected = whole.run()
    backend = TorchAttention(whole.shape)
    got, done = [], [0, 0]
    for row, count in [(0, 1), (0, 2), (1, 11), (0, 7), (0, 20)]:
        start, stop = done[row], done[row] + count
        slots = np.array([whole.slot(row, position) for position in range(start, stop)], np.int64)
        table = np.array([whole.pages[row]], np.int32)
        backend.plan(AttentionBatch(np.array([0, count], np.int32), np.array([stop], np.int32), table, slots))
        parts = [part[row][0, start:stop] for part in (whole.queries, whole.keys, whole.values)]
        out = backend.run(AttentionLayer(0, scale=64**-0.5), *parts)
        if row == 0:
            got.append(out)
        else:
            torch.testing.assert_close(out, expected[1][0], atol=1e-6, rtol=1e-5)
        done[row] = stop
    torch.testing.assert_close(torch.cat(got), expected[0][0], atol=1e-6, rtol=1e-5)


def lay_out(rows: list[tuple[int, int]]) -> AttentionBatch:
    """A batch of (context, queries) for the partition alone, which reads no pages."""
    return AttentionBatch(
        np.cumsum([0, *(queries for _, queries in rows)]).astype(np.int32),
        np.array([context for context, _ in rows], np.int32),
        np.zeros((len(rows), 1), np.int32),
        np.zeros(0, np.int64),
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_partition_takes_each_sequence_once_and_pads_within_bounds(seed: int) -> None:
    chance = random.Random(seed)
    rows = [(chance.randrange(40, 4000), chance.choice([1, 1, 2, 9, 40])) for _ in range(60)]
    groups = torch_attention._partition(lay_out(rows))
    assert sorted(int(i) for group in groups for i in group) == list(range(60))
    for group in groups:
        longest = max(rows[i][0] for i in group)
        counts = [rows[i][1] for i in group]
        assert len(group) == 1 or len(group) * longest <= torch_attention._GROUP_TOKENS
        assert max(counts) - min(counts) <= 8
        assert min(counts) > 1 or max(counts) == 1  # decodes are never padded to the length of chunks


@pytest.mark.parametrize(
    ("rows", "num_groups"),
    [
        ([(100, 1), (164, 1)], 1),
        ([(100, 1), (165, 1)], 2),  # more than 64 tokens and 1.3 times longer
        ([(1000, 1), (1300, 1)], 1),
        ([(1000, 1), (1301, 1)], 2),
        ([(4096, 1)] * 4, 1),
        ([(4096, 1)] * 5, 2),
        ([(8193, 1)] * 2, 2),
        ([(50, 2), (50, 10)], 1),
        ([(50, 2), (50, 11)], 2),
        ([(50, 1), (50, 2)], 2),
    ],
)
def test_borders_of_groups(rows: list[tuple[int, int]], num_groups: int) -> None:
    assert len(torch_attention._partition(lay_out(rows))) == num_groups


@pytest.mark.parametrize("bound", [1, 30, 64, 10**6])
def test_how_sequences_are_grouped_does_not_matter(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "_GROUP_TOKENS", bound)
    Case(MIXED, 4, (6, 2)).check(2e-6, 2e-5)
