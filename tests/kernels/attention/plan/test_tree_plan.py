"""Tree plans against brute force: every query meets each of its keys once, wherever it is listed, now and later."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.kernels.attention.interface import SharedPrefix
from bough.kernels.attention.plan.padded_work import WorkCapacity, write_padded
from bough.kernels.attention.plan.tree_cost import (
    H200,
    HeadShape,
    Machine,
    TileCost,
    processor_loads,
    split_tiles,
    tile_costs,
)
from bough.kernels.attention.plan.tree_plan import MIN_SHARED, TreePlan, TreePlanner
from bough.kernels.attention.plan.work_list import (
    KV_START,
    KV_STOP,
    KV_VISIBLE,
    NUM_QUERIES,
    OPEN_END,
    PARTIAL,
    QUERY_FIRST,
    TABLE_ROW,
)

from ..tree_batch import TreeBatch, make_batch, random_paths

EAGER = Machine(bandwidth=1e9, flops=1e15, num_sms=132, item_overhead_s=0.0, launch_s=0.0)
"""Memory is so slow that whatever is shared is worth an item."""

PROGRAMS = {16: 396, 64: 264, 128: 132}


def shape_of(page_size: int, group: int = 4, num_kv_heads: int = 8) -> HeadShape:
    return HeadShape(page_size, group, num_kv_heads, head_dim=128, kv_itemsize=2)


def plan_of(planner: TreePlanner, batch: TreeBatch, **options: Any) -> TreePlan:
    return planner.plan(batch.query_start, batch.context_len, batch.table_row, batch.shared, **options)


def one_query_each(context_len: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    size = len(context_len)
    return np.arange(size + 1, dtype=np.int32), np.array(context_len, np.int32), np.arange(size, dtype=np.int32)


def check(plan: TreePlan, batch: TreeBatch, group: int, *, grown: int = 0, rows: np.ndarray | None = None) -> None:
    """Walks the plan as the kernel does, with limits that have moved on by `grown` since it was made."""
    work = plan.work
    num_queries = int(batch.query_start[-1])
    rows = np.arange(num_queries) if rows is None else rows
    sequence_of = np.repeat(np.arange(len(batch.pages)), np.diff(batch.query_start))
    sequence_of_row = {int(row): int(sequence) for row, sequence in zip(rows, sequence_of, strict=True)}
    seen = {int(row): np.zeros(int(work.query_limit[row]) + grown, np.int64) for row in rows}
    listed: dict[int, list[tuple[int, int]]] = {int(row): [] for row in rows}
    direct: Counter[int] = Counter()
    partials: list[int] = []
    for launch in work.launches:
        for item in launch.items.tolist():
            assert 1 <= item[NUM_QUERIES] <= launch.block_m // group
            assert item[7] == 0
            tokens = work.query_rows[item[QUERY_FIRST] : item[QUERY_FIRST] + item[NUM_QUERIES]].tolist()
            limits = [int(work.query_limit[token]) + grown for token in tokens]
            stop = min(item[KV_STOP], max(limits))
            assert item[KV_START] < stop
            assert item[KV_START] % batch.page_size == 0
            assert 0 < item[KV_VISIBLE] <= min(item[KV_STOP], min(limits) - grown)
            pages = batch.page_table[item[TABLE_ROW]]
            for index, (token, limit) in enumerate(zip(tokens, limits, strict=True)):
                own = batch.page_table[batch.table_row[sequence_of_row[token]]]
                positions = np.arange(item[KV_START], min(stop, limit))
                seen[token][positions] += 1
                positions = positions[positions < limit - grown] // batch.page_size
                assert np.array_equal(pages[positions], own[positions])
                if item[PARTIAL] < 0:
                    direct[token] += 1
                else:
                    partials.append(item[PARTIAL] + index)
                    listed[token].append((item[KV_START], item[PARTIAL] + index))
    assert sorted(partials) == list(range(work.num_partials))
    merged = {
        int(row): work.merge_partials[work.merge_start[i] : work.merge_start[i + 1]].tolist()
        for i, row in enumerate(work.merge_rows)
    }
    assert len(merged) == len(work.merge_rows) and len(work.merge_start) == len(work.merge_rows) + 1
    assert len(work.merge_partials) == work.num_partials
    for token in seen:
        assert (seen[token] == 1).all(), f"token {token}"
        if direct[token]:
            assert direct[token] == 1 and not listed[token] and token not in merged
        else:
            assert merged[token] == [partial for _, partial in sorted(listed[token])]


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    page_size=st.sampled_from([1, 16, 64]),
    group=st.sampled_from([1, 3, 4, 8, 16]),
    machine=st.sampled_from([EAGER, H200]),
    drafts=st.booleans(),
    scattered=st.booleans(),
)
def test_every_query_meets_each_of_its_keys_once(
    seed: int, page_size: int, group: int, machine: Machine, drafts: bool, scattered: bool
) -> None:
    chance = random.Random(seed)
    paths = random_paths(chance, page_size, levels=3, branches=4, run_tokens=400)
    batch = make_batch(chance, page_size, paths, [chance.choice([1, 4, 9, 200]) if drafts else 1 for _ in paths])
    planner = TreePlanner(shape_of(page_size, group, num_kv_heads=2), machine, PROGRAMS)
    rows = None
    if scattered:
        rows = np.random.default_rng(seed).permutation(batch.query_start[-1]).astype(np.int32)
    plan = plan_of(planner, batch, query_rows=rows)
    check(plan, batch, group, rows=rows)
    check(plan, batch, group, rows=rows, grown=chance.randint(1, 100))
    for tokens, last in zip(np.split(plan.work.query_rows, batch.query_start[1:-1]), batch.context_len, strict=True):
        assert plan.work.query_limit[tokens].tolist() == list(range(last - len(tokens) + 1, last + 1))


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), group=st.sampled_from([1, 4]))
def test_what_the_plan_says_of_itself(seed: int, group: int) -> None:
    chance = random.Random(seed)
    batch = make_batch(
        chance, 16, (paths := random_paths(chance, 16, levels=3, branches=5, run_tokens=900)), [1] * len(paths)
    )
    plan = plan_of(TreePlanner(shape_of(16, group), EAGER, PROGRAMS), batch)
    kv_tokens = row_tokens = 0
    for launch, item_s in zip(plan.work.launches, plan.item_s, strict=True):
        assert len(item_s) == len(launch.items)
        assert (np.diff(item_s) <= 0).all(), "the longest come first"
        for item in launch.items.tolist():
            tokens = plan.work.query_rows[item[QUERY_FIRST] : item[QUERY_FIRST] + item[NUM_QUERIES]]
            length = min(item[KV_STOP], plan.work.query_limit[tokens].max()) - item[KV_START]
            kv_tokens += length
            row_tokens += length * launch.block_m
    assert (plan.kv_tokens, plan.row_tokens) == (kv_tokens, row_tokens)
    nodes = {slot for row in range(len(batch.pages)) for slot in batch.slots(row)}
    assert plan.kv_tokens >= len(nodes)
    assert plan.kv_tokens <= batch.context_len.sum()


def test_what_is_shared_is_read_once() -> None:
    """Three levels of two pages of 64 tokens, each worth its items on a slow memory."""
    paths = [
        [1, 2, 3 + 2 * a, 4 + 2 * a, 20 + b, 30 + b, 40 + 2 * b + c]
        for a in (0, 1)
        for b in (2 * a, 2 * a + 1)
        for c in (0, 1)
    ]
    batch = make_batch(random.Random(0), 64, paths, [1] * 8)
    plan = plan_of(TreePlanner(shape_of(64), EAGER, PROGRAMS), batch)
    assert plan.num_levels == 7
    assert plan.kv_tokens == len({slot for row in range(8) for slot in batch.slots(row)})
    check(plan, batch, 4)


@pytest.mark.parametrize(("page_size", "num_pages"), [(1, MIN_SHARED - 1), (16, MIN_SHARED // 16 - 1)])
def test_a_short_level_is_read_with_those_below(page_size: int, num_pages: int) -> None:
    planner = TreePlanner(shape_of(page_size), EAGER, PROGRAMS)
    queries = one_query_each([500] * 8)
    assert planner.plan(*queries, [SharedPrefix(0, 8, num_pages)]).num_levels == 0
    assert planner.plan(*queries, [SharedPrefix(0, 8, num_pages + 1)]).num_levels == 1
    # The short root's tokens belong to the level below it then.
    nested = [SharedPrefix(0, 8, num_pages), SharedPrefix(0, 4, num_pages + 1), SharedPrefix(4, 8, num_pages + 2)]
    plan = planner.plan(*queries, nested)
    assert plan.num_levels == 2
    assert plan.kv_tokens == 8 * 500 - 3 * page_size * (2 * num_pages + 3)


def test_where_sharing_pays_on_an_h200() -> None:
    """The break-even length falls as more sequences share, and a small gain is not worth two launches more."""
    planner = TreePlanner(shape_of(16), H200, PROGRAMS)

    def pays(num_sequences: int, tokens: int) -> bool:
        queries = one_query_each([tokens + 300] * num_sequences)
        return planner.plan(*queries, [SharedPrefix(0, num_sequences, tokens // 16)]).num_levels == 1

    assert not pays(2, 1024) and pays(2, 16384)
    assert not pays(16, 128) and pays(16, 1024)
    assert not pays(256, 48) and pays(256, 128)


def test_a_level_that_saves_no_tile_is_left_out() -> None:
    """32 sequences fill a tile: a prefix of 64 is read twice, be it alone or with levels of 32 below it."""
    planner = TreePlanner(shape_of(16), EAGER, PROGRAMS)
    halves = [SharedPrefix(0, 32, 20), SharedPrefix(32, 64, 20)]
    plan = planner.plan(*one_query_each([1000] * 64), [SharedPrefix(0, 64, 10), *halves])
    assert plan.num_levels == 2
    assert plan.kv_tokens == planner.plan(*one_query_each([1000] * 64), halves).kv_tokens


def test_nothing_shared_is_decode_without_a_tree() -> None:
    """One item for a sequence, or equal splits of it; no query waits for another's keys and no tile is wide."""
    planner = TreePlanner(shape_of(16), H200, PROGRAMS)
    many = planner.plan(*one_query_each([2048] * 64), ())
    assert [launch.block_m for launch in many.work.launches] == [16]
    assert many.work.num_partials == 0 and (many.work.launches[0].items[:, PARTIAL] == -1).all()
    assert (many.work.launches[0].items[:, KV_STOP] == OPEN_END).all()
    few = planner.plan(*one_query_each([8192, 8192]), ())
    items = few.work.launches[0].items
    assert len(items) * 8 >= 0.9 * H200.num_sms, "two sequences fill the GPU"
    assert few.work.num_partials == len(items)
    assert sorted(items[:, KV_START].tolist()) == sorted(2 * list(range(0, 8192, 8192 // (len(items) // 2))))


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20)
def test_groups_that_are_not_worth_it_change_nothing(seed: int) -> None:
    chance = random.Random(seed)
    paths = random_paths(chance, 16, levels=2, branches=4, run_tokens=MIN_SHARED // 2 - 16)
    batch = make_batch(chance, 16, paths, [1] * len(paths))
    planner = TreePlanner(shape_of(16), EAGER, PROGRAMS)
    tree, flat = plan_of(planner, batch), planner.plan(batch.query_start, batch.context_len, batch.table_row, ())
    assert tree.num_levels == flat.num_levels == 0
    for one, other in zip(tree.work.launches, flat.work.launches, strict=True):
        assert np.array_equal(one.items, other.items)
    assert np.array_equal(tree.work.merge_partials, flat.work.merge_partials)


def test_a_group_reaches_no_further_than_its_shortest_sequence_sees() -> None:
    """The newest key is a sequence's own, so that none of its items is empty, even if all its pages are shared."""
    planner = TreePlanner(shape_of(16), EAGER, PROGRAMS)
    plan = planner.plan(*one_query_each([640, 1000, 1000]), [SharedPrefix(0, 3, 40)])
    ends = [item[KV_STOP] for item in plan.work.launches[0].items.tolist() if item[NUM_QUERIES] == 3]
    assert max(ends) == 624, "the last whole page that all see and that is not a query's own"


def test_windowed_layers_read_their_windows() -> None:
    planner = TreePlanner(shape_of(16), EAGER, PROGRAMS, window=200)
    plan = planner.plan(*one_query_each([100, 1000, 5000]), [SharedPrefix(0, 3, 6)])
    assert plan.num_levels == 0
    items = [item for launch in plan.work.launches for item in launch.items.tolist()]
    assert sorted((item[TABLE_ROW], item[KV_START]) for item in items) == [(0, 0), (1, 768), (2, 4736)]
    assert plan.work.num_partials == 0


@pytest.mark.parametrize("num_programs", [132, 396])
@pytest.mark.parametrize(
    "context", [[700] * 100, [2048] * 40, [100, 20000, 3000] * 5, [131072], list(range(10, 9000, 70))]
)
def test_multiprocessors_are_busy_for_nearly_the_same_time(num_programs: int, context: list[int]) -> None:
    planner = TreePlanner(shape_of(16), H200, {16: num_programs})
    plan = planner.plan(*one_query_each(context), ())
    cost = tile_costs(shape_of(16), H200, {16: num_programs})[16]
    loads = processor_loads(plan.item_s[0], 8, cost)
    whole_s = np.array(context) * cost.token_s + cost.overhead_s(8 * len(context))
    whole = processor_loads(np.sort(whole_s)[::-1], 8, cost)
    assert loads.max() <= 1.25 * loads.mean()
    assert loads.max() <= 1.001 * whole.max()


def test_units_are_dealt_in_turns_there_and_back() -> None:
    cost = TileCost(16, num_programs=3, num_sms=3, token_s=1.0, item_s=0.0)
    assert processor_loads(np.array([5.0, 3.0, 2.0]), 2, cost).tolist() == [5 + 2, 5 + 2, 3 + 3]
    assert processor_loads(np.array([5.0]), 2, cost).tolist() == [5, 5, 0]
    side_by_side = TileCost(16, num_programs=4, num_sms=2, token_s=1.0, item_s=0.0)
    assert processor_loads(np.array([8.0, 4.0, 2.0, 1.0, 0.5]), 1, side_by_side).tolist() == [8 + 2, 4 + 1 + 0.5]


def test_partial_results_are_weighed_against_even_loads() -> None:
    """The candidate with the fewest items is best where each partial result takes a second."""
    cost = tile_costs(shape_of(16), H200, PROGRAMS)[16]
    lengths = np.array([20000, 3000, 100] * 5)
    splits = [
        split_tiles(lengths, np.full(15, partial_s), np.full(15, True), cost, 8, alignment=128)
        for partial_s in (0.0, 1.0)
    ]
    (many, short), (few, long) = splits
    assert few.tolist() == [3, 1, 1] * 5 and many.sum() > few.sum()
    for counts, tokens in ((many, short), (few, long)):
        assert (counts == -(-lengths // tokens)).all() and (tokens % 128 == 0).all()


def test_programs_side_by_side_hide_gaps() -> None:
    cost = TileCost(16, num_programs=396, num_sms=132, token_s=1.0, item_s=6.0)
    assert [cost.overhead_s(units) for units in (10, 132, 264, 396, 4000)] == [6, 6, 3, 2, 2]


def test_groups_must_nest() -> None:
    planner = TreePlanner(shape_of(16), EAGER, PROGRAMS)
    with pytest.raises(ValueError, match=r"rows 2 \.\. 5 overlap"):
        planner.plan(*one_query_each([500] * 5), [SharedPrefix(0, 3, 10), SharedPrefix(2, 5, 10)])


def test_a_query_must_fit_into_a_tile() -> None:
    with pytest.raises(ValueError, match="no tile of 32 rows"):
        TreePlanner(shape_of(16, group=32), EAGER, {16: 4})
    TreePlanner(shape_of(16, group=32), EAGER, PROGRAMS)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), group=st.sampled_from([1, 3, 8]), drafts=st.booleans())
def test_plans_of_few_levels_fit_into_the_capacity(seed: int, group: int, drafts: bool) -> None:
    """Also where many short splits are wanted: one sequence's worth of long contexts, or many."""
    chance = random.Random(seed)
    size = chance.choice([1, 2, 5, 40, 200])
    counts = np.array([chance.randint(1, 9) if drafts else 1 for _ in range(size)])
    context = np.array([chance.choice([10, 500, 3000, 40000]) + 64 * 16 for _ in range(size)], np.int32)
    starts = np.cumsum([0, *counts]).astype(np.int32)
    halves = [SharedPrefix(0, size // 2, 30), SharedPrefix(size // 2, size, 50)] if size > 3 else []
    shared = [SharedPrefix(0, size, 20), *halves] if size > 1 else []
    planner = TreePlanner(shape_of(16, group), chance.choice([EAGER, H200]), PROGRAMS)
    plan = planner.plan(starts, context, np.arange(size, dtype=np.int32), shared)
    capacity = planner.capacity(int(starts[-1]), max_levels=2)
    assert capacity.holds(plan.work)
    assert capacity.num_items <= 3 * starts[-1] + 200
    buffer = np.full(capacity.size, -7, np.int32)
    write_padded(plan.work, capacity, buffer)
    padded = capacity.views(buffer)
    read = {block_m: launch.items[: launch.num_items[0]] for block_m, launch in padded.launches.items()}
    assert list(read) == [128, 64, 16]
    for launch in plan.work.launches:
        assert np.array_equal(read.pop(launch.block_m), launch.items)
    assert all(len(items) == 0 for items in read.values())
    for name in ("query_rows", "query_limit", "merge_start", "merge_partials"):
        expected = getattr(plan.work, name)
        assert np.array_equal(getattr(padded, name)[: len(expected)], expected)
    assert np.array_equal(padded.merge_rows[: padded.num_merges[0]], plan.work.merge_rows)


def test_parts_of_the_buffer() -> None:
    """They are disjoint, begin at 16 bytes, and query_limit is last; they are views, of tensors as of arrays."""
    capacity = WorkCapacity((128, 16), num_queries=5, num_items=7, num_partials=11)
    buffer = np.zeros(capacity.size, np.int32)
    padded = capacity.views(buffer)
    parts = [part for launch in padded.launches.values() for part in (launch.items, launch.num_items)]
    parts += [padded.query_rows, padded.num_merges, padded.merge_rows, padded.merge_start, padded.merge_partials]
    for part in (*parts, padded.query_limit):
        part += 1
        assert (part.ctypes.data - buffer.ctypes.data) % 16 == 0
    assert buffer.max() == 1 and buffer.sum() == sum(part.size for part in parts) + 5
    padded.query_limit[:] = 2
    assert (buffer[capacity.limit_start : capacity.limit_start + 5] == 2).all()
    assert (buffer[: capacity.limit_start] < 2).all()
    on_device = capacity.views(torch.from_numpy(buffer))
    assert on_device.launches[16].items.shape == (7, 8)
    on_device.merge_rows.fill_(9)
    assert padded.merge_rows.tolist() == [9] * 5


def test_what_does_not_fit_is_refused_or_shared_less() -> None:
    planner = TreePlanner(shape_of(16), EAGER, PROGRAMS)
    queries = one_query_each([3000] * 40)
    shared = [SharedPrefix(0, 40, 100), *[SharedPrefix(i, i + 4, 150) for i in range(0, 40, 4)]]
    plan = planner.plan(*queries, shared)
    assert plan.num_levels == 11
    small = WorkCapacity((128, 64, 16), 40, 200, plan.work.num_partials - 1)
    with pytest.raises(ValueError, match="does not fit"):
        write_padded(plan.work, small, np.zeros(small.size, np.int32))
    assert planner.plan(*queries, shared, capacity=small).num_levels == 0
    enough = WorkCapacity((128, 64, 16), 40, 200, plan.work.num_partials)
    assert planner.plan(*queries, shared, capacity=enough).num_levels == 11
