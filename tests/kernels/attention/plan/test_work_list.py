"""The planner by brute force: what its items cover, in what order, how evenly; and what they mean, in plain torch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bough.kernels.attention.plan.padded_work import WorkCapacity, write_padded
from bough.kernels.attention.plan.work_list import (
    FIXED_BLOCK_M,
    ITEM_FIELDS,
    KV_START,
    KV_STOP,
    KV_VISIBLE,
    NUM_QUERIES,
    PARTIAL,
    PROGRAMS_PER_PROCESSOR,
    QUERY_FIRST,
    SPLIT_ALIGNMENT,
    TABLE_ROW,
    Int32,
    WorkList,
    largest_block_m,
    plan_extend,
)
from bough.kernels.attention.reference import ragged_attention

from ..oracle import attend_work_list

Lengths = list[tuple[int, int]]
"""The number of queries and of tokens of each sequence."""

LENGTHS = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 5, 16, 17, 33, 100]), st.sampled_from([0, 1, 15, 16, 130, 1000, 5000])),
    max_size=6,
).map(lambda lengths: [(new, new + old) for new, old in lengths])


def arrays(lengths: Lengths) -> tuple[Int32, Int32, Int32]:
    """query_start, context_len and, to be told from the sequence's own number, table_row."""
    start = np.cumsum([0, *(new for new, _ in lengths)], dtype=np.int32)
    context = np.array([length for _, length in lengths], np.int32)
    return start, context, np.arange(10, 10 + len(lengths), dtype=np.int32)[::-1].copy()


def plan(lengths: Lengths, *, group: int = 4, num_kv_heads: int = 2, page_size: int = 16, **options: Any) -> WorkList:
    options = {"num_programs": 8, **options}
    return plan_extend(*arrays(lengths), group=group, num_kv_heads=num_kv_heads, page_size=page_size, **options)


def tokens_of(work: WorkList, item: Int32) -> list[int]:
    first = int(item[QUERY_FIRST])
    return work.query_rows[first : first + item[NUM_QUERIES]].tolist()


def check_cover(lengths: Lengths, work: WorkList) -> None:
    """Every query meets every key it may see once, of its own sequence, and what merges it finds all its partials."""
    _, _, table_row = arrays(lengths)
    sequence = [row for row, (new, _) in enumerate(lengths) for _ in range(new)]
    assert work.query_limit.tolist() == [total - new + i + 1 for new, total in lengths for i in range(new)]
    ranges: dict[int, list[tuple[int, int, int]]] = {token: [] for token in range(len(sequence))}
    named: Counter[int] = Counter()
    for tiles in work.launches:
        for item in tiles.items:
            tokens = tokens_of(work, item)
            assert tokens
            for index, token in enumerate(tokens):
                limit = int(work.query_limit[token])
                assert item[TABLE_ROW] == table_row[sequence[token]]
                assert item[KV_VISIBLE] <= limit
                partial = int(item[PARTIAL])
                named[partial + index if partial >= 0 else -1] += 1
                start, stop = int(item[KV_START]), min(int(item[KV_STOP]), limit)
                if start < stop:
                    ranges[token].append((start, stop, partial + index if partial >= 0 else -1))
    partials = {}
    for index, token in enumerate(work.merge_rows.tolist()):
        partials[token] = work.merge_partials[work.merge_start[index] : work.merge_start[index + 1]].tolist()
    assert len(partials) == len(work.merge_rows), "a token is merged once"
    for token, seen in ranges.items():
        seen.sort()
        assert [start for start, _, _ in seen] == [0, *(stop for _, stop, _ in seen[:-1])]
        assert seen[-1][1] == work.query_limit[token]
        assert [partial for _, _, partial in seen] == partials.get(token, [-1])
    del named[-1]
    assert sorted(named.elements()) == list(range(work.num_partials)), "each partial row has one writer"


@given(lengths=LENGTHS, group=st.sampled_from([1, 3, 4, 7, 16]), page_size=st.sampled_from([1, 16, 24, 64]))
def test_every_query_meets_every_visible_key_once(lengths: Lengths, group: int, page_size: int) -> None:
    work = plan(lengths, group=group, page_size=page_size)
    check_cover(lengths, work)
    for tiles in work.launches:
        items = tiles.items
        cost = items[:, KV_STOP] - items[:, KV_START]
        assert items.dtype == np.int32 and items.shape[1] == ITEM_FIELDS
        assert (items[:, NUM_QUERIES] <= tiles.block_m // group).all()
        assert (np.diff(cost) <= 0).all(), "longest first"
        assert (items[:, KV_START] % page_size == 0).all() and (items[:, KV_START] % SPLIT_ALIGNMENT == 0).all()
    sizes = [tiles.block_m for tiles in work.launches]
    assert sizes == sorted(set(sizes), reverse=True)


@given(lengths=LENGTHS, group=st.sampled_from([1, 4, 5]))
def test_fixed_splits_lie_at_absolute_multiples(lengths: Lengths, group: int) -> None:
    work = plan(lengths, group=group, fixed_split=256)
    check_cover(lengths, work)
    assert [tiles.block_m for tiles in work.launches] in ([], [FIXED_BLOCK_M])
    for tiles in work.launches:
        assert (tiles.items[:, KV_START] % 256 == 0).all()
        assert (tiles.items[:, KV_STOP] <= tiles.items[:, KV_START] + 256).all()
    merged = {token: int(count) for token, count in zip(work.merge_rows, np.diff(work.merge_start), strict=True)}
    for token, limit in enumerate(work.query_limit.tolist()):
        assert merged.get(token, 1) == -(-limit // 256), "as many partials as its own position says"


@pytest.mark.parametrize(
    ("num_queries", "group", "expected"),
    [(1, 16, 16), (4, 4, 16), (5, 4, 64), (16, 4, 64), (17, 4, 128), (400, 1, 128)],
)
def test_the_tile_suits_the_number_of_queries(num_queries: int, group: int, expected: int) -> None:
    work = plan([(num_queries, 500)], group=group)
    assert [tiles.block_m for tiles in work.launches] == [expected]
    work = plan([(num_queries, 500)], group=group, max_block_m=64)
    assert [tiles.block_m for tiles in work.launches] == [min(expected, 64)]


def test_large_heads_and_float32_have_smaller_tiles() -> None:
    assert largest_block_m(128, 2) == 128
    assert largest_block_m(256, 2) == largest_block_m(128, 4) == 64


def loads(work: WorkList, num_kv_heads: int, processors: int) -> list[int]:
    """Keys of each program, when units are taken to and fro."""
    (tiles,) = work.launches
    programs = processors * PROGRAMS_PER_PROCESSOR[tiles.block_m]
    keys = np.repeat(tiles.items[:, KV_STOP] - tiles.items[:, KV_START], num_kv_heads)
    load = [0] * programs
    for unit, cost in enumerate(keys.tolist()):
        turn, place = divmod(unit, programs)
        load[place if turn % 2 == 0 else programs - 1 - place] += cost
    return load


@pytest.mark.parametrize(
    ("lengths", "least"),
    [
        ([(16, 32768)], 0.85),  # one tile, over a long prefix
        ([(4096, 4096)], 0.95),  # a whole prompt
        ([(544, 8704)], 0.75),  # one tile more than there are processors
        ([(1, 30000)] + [(1, 500)] * 100, 0.85),  # one sequence is much longer than the others
    ],
)
def test_programs_have_like_loads(lengths: Lengths, least: float) -> None:
    work = plan(lengths, num_kv_heads=8, num_programs=132)
    load = loads(work, 8, 132)
    assert sum(load) / len(load) > least * max(load)


def test_keys_are_split_only_where_that_pays() -> None:
    assert plan([(4096, 4096)], num_kv_heads=8, num_programs=132).num_partials == 0
    assert plan([(1, 400)], num_programs=132).num_partials == 0
    (tiles,) = plan([(8, 100_000)], num_programs=132).launches
    assert len(tiles.items) > 1
    assert (tiles.items[:-1, KV_STOP] - tiles.items[:-1, KV_START] >= 256).all()


def test_nothing_to_do() -> None:
    for lengths in ([], [(0, 0)], [(0, 70), (0, 3)]):
        work = plan(lengths)
        assert work.launches == () and work.num_partials == 0
        assert work.merge_start.tolist() == [0] and len(work.merge_rows) == len(work.query_rows) == 0


@pytest.mark.parametrize(("fixed_split", "page_size"), [(0, 16), (100, 16), (128, 24), (-128, 16)])
def test_a_fixed_split_that_cuts_tiles_or_pages_is_refused(fixed_split: int, page_size: int) -> None:
    with pytest.raises(ValueError, match="fixed_split must be a positive multiple of"):
        plan([(1, 1)], fixed_split=fixed_split, page_size=page_size)


@pytest.mark.parametrize("fixed_split", [None, 128])
@pytest.mark.parametrize("window", [None, 1, 50, 300])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_items_and_merge_give_attention(fixed_split: int | None, window: int | None, softcap: float | None) -> None:
    lengths: Lengths = [(0, 0), (1, 1), (0, 9), (3, 600), (40, 40), (70, 1200)]
    page_size, num_heads, num_kv_heads, head_dim = 16, 6, 2, 8
    work = plan(lengths, group=3, fixed_split=fixed_split)
    assert work.num_partials > 0
    start, context, table_row = arrays(lengths)
    chance = torch.Generator().manual_seed(1)
    slots = torch.randperm(200, generator=chance)
    keys, values = torch.randn(2, 200 * page_size, num_kv_heads, head_dim, generator=chance, dtype=torch.float64)
    q = torch.randn(int(start[-1]), num_heads, head_dim, generator=chance, dtype=torch.float64)
    table = torch.zeros(30, 100, dtype=torch.int32)
    options: dict[str, Any] = {"scale": 0.3, "window": window, "softcap": softcap}
    expected = torch.empty_like(q)
    for row, length in enumerate(context.tolist()):
        num_pages = -(-length // page_size)
        pages, slots = slots[:num_pages], slots[num_pages:]
        table[table_row[row], :num_pages] = pages.int()
        own = (pages[:, None] * page_size + torch.arange(page_size)).flatten()[:length]
        tokens = slice(start[row], start[row + 1])
        expected[tokens] = ragged_attention(q[tokens], keys[own], values[own], **options)
    result = attend_work_list(q, keys, values, work=work, page_table=table, page_size=page_size, **options)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


def test_queries_that_do_not_see_all_parts_of_their_tile_fit_into_a_place() -> None:
    """Parts that begin after a query are not in its list, which is shorter than the partial results are many."""
    work = plan_extend(
        np.array([0, 20], np.int32),
        np.array([140], np.int32),
        np.array([1], np.int32),
        group=2,
        num_kv_heads=2,
        page_size=4,
        num_programs=4,
        fixed_split=128,
    )
    assert len(work.merge_partials) < work.num_partials
    capacity = WorkCapacity((FIXED_BLOCK_M,), 32, 16, work.num_partials)
    buffer = np.zeros(capacity.size, np.int32)
    write_padded(work, capacity, buffer)
    listed = capacity.views(buffer).merge_partials[: len(work.merge_partials)]
    assert listed.tolist() == work.merge_partials.tolist()
