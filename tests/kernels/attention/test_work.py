"""The kernel of work lists against float64 over each sequence by itself; what must hold to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from ...support.triton_interpreter import DEVICE, HAS_GPU

pytest.importorskip("triton")

from hypothesis import given, settings
from hypothesis import strategies as st

from bough.kernels.attention.merge import merge_lists
from bough.kernels.attention.plan.work_list import DeviceWork, WorkList, largest_block_m, plan_extend
from bough.kernels.attention.reference import ragged_attention
from bough.kernels.attention.work import work_attention

from .oracle import upload, work_attention_reference

NAN = float("nan")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SCALE = 0.2
UNUSED_PAGE = 2**30
"""Page in a page table's empty entries: reading there would be seen."""

Lengths = list[tuple[int, int]]
"""The number of queries and of tokens of each sequence."""


@dataclass(frozen=True)
class Problem:
    """Sequences in a cache of which all slots but their own are NaN."""

    lengths: Lengths
    page_size: int
    q: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    page_table: torch.Tensor
    slots: list[torch.Tensor]  # of each sequence's tokens

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.keys.shape[1]

    @property
    def query_start(self) -> list[int]:
        return [0, *np.cumsum([new for new, _ in self.lengths]).tolist()]

    def plan(self, **options: Any) -> WorkList:
        num_sequences = len(self.lengths)
        options = {"max_block_m": largest_block_m(self.q.shape[2], self.q.element_size()), **options}
        return plan_extend(
            np.array(self.query_start, np.int32),
            np.array([length for _, length in self.lengths], np.int32),
            np.arange(1, num_sequences + 1, dtype=np.int32),
            group=self.group,
            num_kv_heads=self.keys.shape[1],
            page_size=self.page_size,
            **{"num_programs": 2, **options},
        )

    def of(self, lengths: Lengths) -> Problem:
        """The same tokens, of which others are queries: those that were as they were, wherever possible."""
        chosen: list[int] = []
        for (new, total), (old_new, old_total), start in zip(lengths, self.lengths, self.query_start, strict=False):
            first = old_new - (old_total - total) - new
            assert first >= 0
            chosen += range(start + first, start + first + new)
        return replace(self, lengths=lengths, q=self.q[chosen])


def problem(
    lengths: Lengths,
    *,
    page_size: int = 16,
    group: int = 2,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
) -> Problem:
    chance = torch.Generator().manual_seed(len(lengths))
    num_pages = [-(-length // page_size) for _, length in lengths]
    order = (torch.randperm(sum(num_pages) + 2, generator=chance) + 1).split([*num_pages, 2])[:-1]
    page_table = torch.full((len(lengths) + 1, max(num_pages, default=0) + 1), UNUSED_PAGE, dtype=torch.int32)
    cache = torch.full((2, (sum(num_pages) + 3) * page_size, num_kv_heads, head_dim), NAN, dtype=cache_dtype or dtype)
    slots = []
    for row, (pages, (_, length)) in enumerate(zip(order, lengths, strict=True)):
        page_table[row + 1, : len(pages)] = pages.int()
        slots.append((pages[:, None] * page_size + torch.arange(page_size)).flatten()[:length])
        cache[:, slots[-1]] = torch.randn(2, length, num_kv_heads, head_dim, generator=chance).to(cache.dtype)
    num_queries = sum(new for new, _ in lengths)
    q = torch.randn(num_queries, group * num_kv_heads, head_dim, generator=chance).to(dtype)
    keys, values = cache.to(DEVICE)
    return Problem(lengths, page_size, q.to(DEVICE), keys, values, page_table.to(DEVICE), slots)


def run(problem: Problem, work: WorkList, *, num_programs: int | None = None, **options: Any) -> torch.Tensor:
    """All launches and the merge, on poisoned results."""
    out = torch.full_like(problem.q, NAN)
    num_heads, head_dim = problem.q.shape[1:]
    partial_out = torch.full((work.num_partials, num_heads, head_dim), NAN, device=DEVICE)
    partial_lse = torch.full((work.num_partials, num_heads), NAN, device=DEVICE)
    for tiles, launch in zip(work.launches, upload(work, DEVICE), strict=True):
        work_attention(
            problem.q,
            problem.keys,
            problem.values,
            out,
            work=launch,
            block_m=tiles.block_m,
            page_table=problem.page_table,
            page_size=problem.page_size,
            partial_out=partial_out,
            partial_lse=partial_lse,
            num_programs=num_programs,
            **{"scale": SCALE, **options},
        )
    rows, starts, partials = (
        torch.from_numpy(x).to(DEVICE) for x in (work.merge_rows, work.merge_start, work.merge_partials)
    )
    count = torch.tensor([len(rows)], dtype=torch.int32, device=DEVICE)
    merge_lists(out, partial_out, partial_lse, rows=rows, starts=starts, partials=partials, num_lists=count)
    return out


def expected(
    problem: Problem, k_scale: torch.Tensor | None = None, v_scale: torch.Tensor | None = None, **options: Any
) -> torch.Tensor:
    """In float64, on the dequantised cache."""
    out = torch.empty_like(problem.q, dtype=torch.float64)
    for row, slots in enumerate(problem.slots):
        tokens = slice(*problem.query_start[row : row + 2])
        keys, values = problem.keys[slots].double(), problem.values[slots].double()
        if k_scale is not None and v_scale is not None:
            keys, values = keys * k_scale.double()[:, None], values * v_scale.double()[:, None]
        out[tokens] = ragged_attention(problem.q[tokens].double(), keys, values, **{"scale": SCALE, **options})
    return out


def check(problem: Problem, work: WorkList | None = None, **options: Any) -> None:
    result = run(problem, work or problem.plan(), **options)
    wanted = expected(problem, **options)
    assert result.dtype == problem.q.dtype
    error = torch.linalg.norm(result.double() - wanted) / torch.linalg.norm(wanted).clamp_min(1e-30)
    assert error < TOLERANCE[problem.q.dtype], f"{error:.2e}"


@pytest.mark.parametrize("page_size", [1, 16, 24, 64])
def test_borders_of_pages_and_tiles(page_size: int) -> None:
    edges = [1, 15, 16, 17, 63, 64, 65, 128, 129]
    check(problem([(1, edge) for edge in edges] + [(edge, edge) for edge in (16, 17, 65)], page_size=page_size))


@pytest.mark.parametrize("group", [1, 2, 3, 5, 7, 8, 12, 16])
def test_groups(group: int) -> None:
    check(problem([(9, 90), (1, 33), (40, 40)], group=group, num_kv_heads=1))


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_head_sizes_and_dtypes(head_dim: int, dtype: torch.dtype) -> None:
    check(problem([(40, 150), (20, 70), (1, 50)], head_dim=head_dim, dtype=dtype, num_kv_heads=1))


@pytest.mark.parametrize("window", [1, 17, 64, 200])
@pytest.mark.parametrize("fixed_split", [None, 128])
def test_window(window: int, fixed_split: int | None) -> None:
    case = problem([(0, 90), (3, 300), (40, 200), (1, 70)], num_kv_heads=1)
    check(case, case.plan(fixed_split=fixed_split), window=window)


@pytest.mark.parametrize("window", [None, 50])
def test_softcap(window: int | None) -> None:
    check(problem([(20, 300), (1, 200)]), softcap=1.5, window=window, scale=2.0)


@pytest.mark.parametrize("block_m", [16, 64, 128])
def test_quantised_cache(block_m: int) -> None:
    num_queries = {16: 3, 64: 20, 128: 60}[block_m]
    case = problem([(num_queries, 200)], dtype=torch.bfloat16, cache_dtype=torch.float8_e4m3fn, head_dim=128)
    k_scale, v_scale = torch.tensor([[0.5, 2.0], [3.0, 0.25]], device=DEVICE)
    work = case.plan()
    assert [tiles.block_m for tiles in work.launches] == [block_m]
    check(case, work, k_scale=k_scale, v_scale=v_scale)
    check(case, work, k_scale=k_scale, v_scale=v_scale, softcap=2.0)


@settings(max_examples=12)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0, 1, 16, 40, 300])), min_size=1, max_size=3).map(
        lambda lengths: [(new, new + old) for new, old in lengths]
    ),
    page_size=st.sampled_from([1, 8, 16, 64]),
    group=st.sampled_from([1, 2, 4, 6]),
    window=st.sampled_from([None, 33]),
    fixed_split=st.sampled_from([None, 128, 256]),
    num_programs=st.sampled_from([1, 3, 64]),
)
def test_ragged_batches(
    lengths: Lengths, page_size: int, group: int, window: int | None, fixed_split: int | None, num_programs: int
) -> None:
    """`num_programs` of the plan and of the grid have nothing to do with each other."""
    case = problem(lengths, page_size=page_size, group=group)
    wanted = expected(case, window=window)
    result = run(case, case.plan(fixed_split=fixed_split), num_programs=num_programs, window=window)
    assert torch.linalg.norm(result.double() - wanted) <= 1e-5 * torch.linalg.norm(wanted)


def test_partials_are_normalised_and_weighed_in_powers_of_two() -> None:
    case = problem([(3, 400), (40, 60)])
    work = case.plan(fixed_split=128)
    assert work.num_partials > 0
    shape = (work.num_partials, *case.q.shape[1:])
    results = []
    for attention in (work_attention, work_attention_reference):
        out, partial_out = torch.full_like(case.q, 7.0), torch.full(shape, 7.0, device=DEVICE)
        partial_lse = torch.full(shape[:2], 7.0, device=DEVICE)
        for tiles, launch in zip(work.launches, upload(work, DEVICE), strict=True):
            block_m: dict[str, Any] = {"block_m": tiles.block_m} if attention is work_attention else {}
            attention(
                case.q,
                case.keys,
                case.values,
                out,
                work=launch,
                page_table=case.page_table,
                page_size=case.page_size,
                scale=SCALE,
                window=100,
                partial_out=partial_out,
                partial_lse=partial_lse,
                **block_m,
            )
        results.append((out, partial_out, partial_lse))
    assert results[0][2].isneginf().any(), "some splits are before the window"
    assert (results[0][0][:3] == 7.0).all(), "what has partials is not written"
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_items_of_queries_that_lie_apart_and_keys_with_an_open_end() -> None:
    """Like a tree's work: rows in any order, keys that several sequences' queries share, limits known to the device."""
    case = problem([(1, 130), (1, 200), (1, 90)], page_size=16)
    case.page_table[2, :5] = case.page_table[1, :5]
    case.page_table[3, :5] = case.page_table[1, :5]
    case.slots[1][:80] = case.slots[2][:80] = case.slots[0][:80]
    end = 2**31 - 1
    items = [[0, 3, 2, 0, 80, 0, 80, 0], [3, 1, 1, 80, end, 3, 80, 0], [4, 1, 2, 80, end, 4, 80, 0]]
    items += [[5, 1, 3, 80, end, 5, 80, 0], [0, 0, 0, 0, 0, 0, 0, 0], [77, 1, 0, 0, end, 0, 0, 0]]

    def ints(values: list[Any]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    # One item has no queries, and what stands past num_items is nonsense.
    launch = DeviceWork(ints(items), ints([5]), ints([2, 0, 1, 0, 1, 2]), ints([130, 200, 90]))
    q = torch.full((3, 3 * case.q.shape[1], 64), NAN, device=DEVICE)[:, : case.q.shape[1]]
    q.copy_(case.q)
    out, partial_out = torch.full_like(case.q, NAN), torch.full((6, *case.q.shape[1:]), NAN, device=DEVICE)
    partial_lse = torch.full(partial_out.shape[:2], NAN, device=DEVICE)
    tables: dict[str, Any] = {"page_table": case.page_table, "page_size": 16}
    partials: dict[str, Any] = {"partial_out": partial_out, "partial_lse": partial_lse}
    work_attention(q, case.keys, case.values, out, work=launch, block_m=16, scale=SCALE, **tables, **partials)
    lists = {"rows": ints([0, 1, 2]), "starts": ints([0, 2, 4, 6]), "partials": ints([1, 3, 2, 4, 0, 5])}
    merge_lists(out, **partials, **lists, num_lists=ints([3]))
    wanted = expected(case)
    assert torch.linalg.norm(out.double() - wanted) < 1e-5 * torch.linalg.norm(wanted)


@pytest.mark.parametrize(("dtype", "window"), [(torch.float32, None), (torch.bfloat16, 70)])
def test_fixed_splits_make_a_row_independent_of_all_others(dtype: torch.dtype, window: int | None) -> None:
    """To the bit: whatever the chunk, the prefix found in the cache, the batch and the grid."""
    whole = problem([(150, 150), (1, 40)], dtype=dtype, num_kv_heads=1, group=1)
    together = run(whole, whole.plan(fixed_split=128), window=window)
    for new, total in [(150, 150), (40, 150), (17, 100), (64, 64), (1, 150), (1, 129), (1, 128), (1, 1)]:
        part = whole.of([(new, total)])
        work = part.plan(fixed_split=128, num_programs=64)
        assert (work.num_partials > 0) == (total > 128)
        alone = run(part, work, window=window, num_programs=5)
        assert torch.equal(alone, together[total - new : total]), (new, total)


def test_results_do_not_depend_on_the_grid() -> None:
    case = problem([(20, 300), (3, 90), (1, 200)])
    work = case.plan()
    one = run(case, work, num_programs=1)
    assert torch.equal(one, run(case, work, num_programs=7))
    assert torch.equal(one, run(case, work))


def test_a_query_that_sees_nothing_gets_zero() -> None:
    case = problem([(2, 20)])
    work = case.plan()
    work = replace(work, query_limit=np.zeros_like(work.query_limit))
    assert (run(case, work) == 0).all()


def test_no_work_at_all() -> None:
    case = problem([(0, 30)])
    assert run(case, case.plan()).shape == (0, 4, 64)


def test_a_tile_that_does_not_fit_is_refused() -> None:
    case = problem([(200, 200)])
    with pytest.raises(ValueError, match="no tile of 128 rows for heads of 64 elements, 4 bytes each"):
        run(case, case.plan(max_block_m=128))


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU: too large for the interpreter")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 1000])
def test_large_batches_on_a_gpu(dtype: torch.dtype, window: int | None) -> None:
    lengths = [(2048, 4096), (1, 9000), (16, 20000), (64, 8192), (0, 100), (700, 700)]
    case = problem(lengths, group=4, num_kv_heads=8, head_dim=128, dtype=dtype)
    check(case, case.plan(num_programs=132), window=window)
    check(case, case.plan(fixed_split=512), window=window)
