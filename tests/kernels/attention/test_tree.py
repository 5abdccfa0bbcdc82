"""Tree decode attention through the kernels, against float64 over each sequence by itself."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from ...support.triton_interpreter import DEVICE

pytest.importorskip("triton")

from bough.kernels.attention.merge import merge_lists
from bough.kernels.attention.plan.padded_work import PaddedWork, write_padded
from bough.kernels.attention.plan.tree_cost import HeadShape, Machine
from bough.kernels.attention.plan.tree_plan import TreePlan, TreePlanner
from bough.kernels.attention.plan.work_list import NUM_QUERIES, DeviceWork, largest_block_m
from bough.kernels.attention.reference import ragged_attention
from bough.kernels.attention.work import work_attention

from .tree_batch import TreeBatch, make_batch

NAN = float("nan")
EAGER = Machine(bandwidth=1e9, flops=1e15, num_sms=4, item_overhead_s=0.0, launch_s=0.0)
"""Memory is so slow that nearly whatever is shared is worth an item."""

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def three_levels(chance: random.Random, page_size: int, *, run: int = 70, num_queries: int = 1) -> TreeBatch:
    """A root, 2 children, 4 below them with 2 sequences each, and one that shares nothing; levels of `run` tokens."""
    pages = iter(chance.sample(range(1, 8000), 7999))

    def level(path: list[int], depth: int) -> list[list[int]]:
        if depth == 3:
            return [path + [next(pages) for _ in range(1 + chance.randint(0, run) // page_size)]]
        path = path + [next(pages) for _ in range(-(-run // page_size))]
        return [leaf for _ in range(2) for leaf in level(path, depth + 1)]

    paths = [*level([], 0), [next(pages) for _ in range(-(-3 * run // page_size))]]
    chance.shuffle(paths)
    dense = {page: index + 1 for index, page in enumerate(dict.fromkeys(page for path in paths for page in path))}
    paths = [[dense[page] for page in path] for path in paths]
    return make_batch(chance, page_size, paths, [num_queries] * len(paths))


class Case:
    """A batch with queries, and a cache in which whatever no sequence has written is NaN."""

    def __init__(
        self,
        batch: TreeBatch,
        *,
        group: int = 4,
        num_kv_heads: int = 2,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float32,
        query_rows: np.ndarray | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.batch, self.dtype = batch, dtype
        self.shape = HeadShape(batch.page_size, group, num_kv_heads, head_dim, dtype.itemsize)
        num_queries = int(batch.query_start[-1])
        self.query_rows = np.arange(num_queries) if query_rows is None else query_rows
        self.q = torch.randn(num_queries, group * num_kv_heads, head_dim).to(dtype)
        slots = torch.tensor(sorted({slot for row in range(len(batch.pages)) for slot in batch.slots(row)}))
        self.keys, self.values = self._cache(slots), self._cache(slots)
        largest = largest_block_m(head_dim, dtype.itemsize)
        self.programs = {block_m: 4 for block_m in (16, 64, 128) if block_m <= largest}

    def _cache(self, slots: torch.Tensor) -> torch.Tensor:
        size = (self.batch.num_pages * self.batch.page_size, self.shape.num_kv_heads, self.shape.head_dim)
        cache = torch.full(size, NAN)
        cache[slots] = torch.randn(len(slots), *size[1:])
        return cache.to(self.dtype)

    def plan(self, *, tree: bool = True, window: int | None = None) -> TreePlan:
        batch, rows = self.batch, self.query_rows.astype(np.int32)
        planner = TreePlanner(self.shape, EAGER, self.programs, window=window)
        shared = batch.shared if tree else ()
        return planner.plan(batch.query_start, batch.context_len, batch.table_row, shared, query_rows=rows)

    def run(self, plan: TreePlan, *, grown: int = 0, window: int | None = None) -> torch.Tensor:
        """The output of the kernels, through buffers with room to spare; what they do not write is NaN."""
        capacity = TreePlanner(self.shape, EAGER, self.programs).capacity(len(self.q) + 3)
        buffer = np.full(capacity.size, 10**6, np.int32)
        write_padded(plan.work, capacity, buffer)
        work: PaddedWork[torch.Tensor] = capacity.views(torch.from_numpy(buffer).to(DEVICE))
        work.query_limit[: len(self.q)] += grown
        q, keys, values = self.q.to(DEVICE), self.keys.to(DEVICE), self.values.to(DEVICE)
        out = torch.full_like(q, NAN)
        partial_out = torch.full((capacity.num_partials, *q.shape[1:]), NAN, device=DEVICE)
        partial_lse = torch.full(partial_out.shape[:2], NAN, device=DEVICE)
        for block_m, launch in work.launches.items():
            work_attention(
                q,
                keys,
                values,
                out,
                work=DeviceWork(launch.items, launch.num_items, work.query_rows, work.query_limit),
                block_m=block_m,
                page_table=torch.from_numpy(self.batch.page_table).to(DEVICE),
                page_size=self.batch.page_size,
                scale=self.shape.head_dim**-0.5,
                partial_out=partial_out,
                partial_lse=partial_lse,
                window=window,
                num_programs=2,
            )
        merge_lists(
            out,
            partial_out,
            partial_lse,
            rows=work.merge_rows,
            starts=work.merge_start,
            partials=work.merge_partials,
            num_lists=work.num_merges,
        )
        return out.cpu()

    def expected(self, row: int, window: int | None = None) -> torch.Tensor:
        """Float64 attention of one sequence's queries over its own keys in order."""
        slots = self.batch.slots(row)
        queries = self.q[self.rows_of(row)].double()
        keys, values = self.keys[slots].double(), self.values[slots].double()
        return ragged_attention(queries, keys, values, scale=self.shape.head_dim**-0.5, window=window)

    def rows_of(self, row: int) -> np.ndarray:
        """Rows of a sequence's queries in q and `out`."""
        return self.query_rows[self.batch.query_start[row] : self.batch.query_start[row + 1]]

    def check(self, out: torch.Tensor, window: int | None = None) -> None:
        for row in range(len(self.batch.pages)):
            expected = self.expected(row, window)
            error = (out[self.rows_of(row)].double() - expected).norm() / expected.norm()
            assert error < TOLERANCE[self.dtype], f"sequence {row}: {error}"


@pytest.mark.parametrize(
    ("page_size", "group", "head_dim", "dtype"),
    [
        (1, 4, 64, torch.float32),
        (16, 1, 128, torch.float16),
        (16, 8, 64, torch.bfloat16),
        (64, 3, 80, torch.float32),
        (16, 16, 32, torch.float32),
    ],
)
def test_trees_equal_float64(page_size: int, group: int, head_dim: int, dtype: torch.dtype) -> None:
    """With a tree and without, queries come out alike."""
    batch = three_levels(random.Random(page_size + group), page_size)
    case = Case(batch, group=group, num_kv_heads=1, head_dim=head_dim, dtype=dtype)
    tree, flat = case.plan(), case.plan(tree=False)
    assert tree.num_levels >= 4 and flat.num_levels == 0
    assert tree.kv_tokens < 0.8 * flat.kv_tokens
    grouped, alone = case.run(tree), case.run(flat)
    case.check(grouped)
    case.check(alone)
    assert (grouped.double() - alone.double()).norm() < 2 * TOLERANCE[dtype] * alone.double().norm()


def test_wide_tiles_and_what_remains() -> None:
    """17 sequences under one prefix: a tile of 16 of them, and a low one of one."""
    paths = [[1, 2, 3, 4, 5, 6 + i] for i in range(17)]
    batch = make_batch(random.Random(1), 16, paths, [1] * 17)
    case = Case(batch, group=8, num_kv_heads=2, head_dim=16, dtype=torch.float16)
    plan = case.plan()
    sizes = {launch.block_m: np.bincount(launch.items[:, NUM_QUERIES]).tolist() for launch in plan.work.launches}
    assert sizes == {128: [0] * 16 + [1], 16: [0, 18]}
    case.check(case.run(plan))


def test_several_queries_a_sequence_at_scattered_rows() -> None:
    """Drafts: a sequence's later queries see more of its own keys, and all of what is shared."""
    chance = random.Random(5)
    batch = three_levels(chance, 16, num_queries=6)
    num_queries = int(batch.query_start[-1])
    rows = np.array(chance.sample(range(num_queries), num_queries))
    case = Case(batch, num_kv_heads=1, head_dim=16, query_rows=rows)
    plan = case.plan()
    assert plan.num_levels >= 4
    case.check(case.run(plan))


def test_a_plan_stays_good_as_sequences_grow() -> None:
    """Limits move on the device; the plan is that of 40 tokens ago."""
    batch = three_levels(random.Random(2), 64)
    paths = [[*pages, 2000 + row] for row, pages in enumerate(batch.pages)]
    table = batch.page_table.copy()
    for row, path in zip(batch.table_row, paths, strict=True):
        table[row, : len(path)] = path
    case = Case(replace(batch, pages=paths, context_len=batch.context_len + 40, page_table=table, num_pages=2100))
    before = TreePlanner(case.shape, EAGER, case.programs).plan(
        batch.query_start, batch.context_len, batch.table_row, batch.shared
    )
    assert before.num_levels == 7
    case.check(case.run(before, grown=40))


def test_windowed_layers() -> None:
    batch = three_levels(random.Random(3), 16)
    case = Case(batch, head_dim=16)
    plan = case.plan(window=100)
    assert plan.num_levels == 0
    case.check(case.run(plan, window=100), window=100)


def test_what_is_not_finite_in_one_sequence_reaches_no_other() -> None:
    batch = three_levels(random.Random(4), 16)
    case = Case(batch, num_kv_heads=1, head_dim=16)
    plan = case.plan()
    clean = case.run(plan)
    bad = 4
    own = set(batch.slots(bad)).difference(*(batch.slots(row) for row in range(len(batch.pages)) if row != bad))
    case.values[sorted(own)] = NAN
    out = case.run(plan)
    for row in range(len(batch.pages)):
        rows = case.rows_of(row)
        assert bool(out[rows].isnan().all()) if row == bad else torch.equal(out[rows], clean[rows])
