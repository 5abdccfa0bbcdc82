"""Merging of partial results against the plain one; what must hold to the bit; what must not be touched."""

from __future__ import annotations

import pytest
import torch

from ...support.triton_interpreter import DEVICE

pytest.importorskip("triton")

from hypothesis import given, settings
from hypothesis import strategies as st

from bough.kernels.attention import merge as triton_merge

from . import oracle

NAN = float("nan")
EMPTY = float("-inf")
HEADS = 3


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def partials(lists: list[list[bool]], head_dim: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random partials, in order; where False stands they are empty, and their results poisoned."""
    chance = torch.Generator().manual_seed(seed)
    filled = torch.tensor([whether for each in lists for whether in each], dtype=torch.bool)
    out = torch.randn(len(filled), HEADS, head_dim, generator=chance)
    lse = torch.randn(len(filled), HEADS, generator=chance) * 20
    lse[~filled] = EMPTY
    out[~filled] = NAN
    return out.to(DEVICE), lse.to(DEVICE)


def starts_of(lists: list[list[bool]]) -> list[int]:
    return [sum(map(len, lists[:i])) for i in range(len(lists) + 1)]


def merge_lists(
    lists: list[list[bool]], head_dim: int, *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Results of the kernel and of the reference for the lists, on rows of a poisoned result in reverse order."""
    out, lse = partials(lists, head_dim, seed)
    rows = ints(list(range(2 * len(lists), 0, -2)))
    starts = ints(starts_of(lists))
    order = torch.randperm(len(out), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    stored_out, stored_lse = torch.empty_like(out), torch.empty_like(lse)
    stored_out[order], stored_lse[order] = out, lse
    results = []
    for merge in (triton_merge.merge_lists, oracle.merge_lists):
        result = torch.full((2 * len(lists) + 1, HEADS, head_dim), 7.0, dtype=dtype, device=DEVICE)
        count = {"num_lists": ints([len(lists)])} if merge is triton_merge.merge_lists else {}
        merge(result, stored_out, stored_lse, rows=rows, starts=starts, partials=order.int(), **count)
        assert (result[0] == 7.0).all() and (result[1::2] == 7.0).all(), "rows that are not listed are not written"
        results.append(result)
    return results[0], results[1]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    lists=st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=4),
    head_dim=st.sampled_from([16, 64, 80]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_lists(lists: list[list[bool]], head_dim: int, dtype: torch.dtype) -> None:
    got, expected = merge_lists(lists, head_dim, dtype=dtype)
    epsilon = torch.finfo(dtype).eps
    torch.testing.assert_close(got, expected, atol=2 * epsilon, rtol=2 * epsilon)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_head_sizes_and_long_lists(head_dim: int) -> None:
    got, expected = merge_lists([[True] * 37, [True, False] * 17, [False] * 3], head_dim)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
    assert (got[2] == 0.0).all(), "all partials are empty"


@pytest.mark.parametrize("where", [0, 1, 3, 5])
def test_an_empty_partial_changes_no_bit(where: int) -> None:
    without = [True] * 5
    with_empty = [*without[:where], False, *without[where:]]
    out, lse = partials([without], 64, 1)
    padded_out, padded_lse = (torch.cat((x[:where], torch.full_like(x[:1], NAN), x[where:])) for x in (out, lse))
    padded_lse[where] = EMPTY
    results = []
    for some_out, some_lse, count in ((out, lse, 5), (padded_out, padded_lse, len(with_empty))):
        result = torch.full((1, HEADS, 64), NAN, device=DEVICE)
        chosen = {"split_first": ints([0]), "split_count": ints([count])}
        triton_merge.merge_splits(result, some_out, some_lse, **chosen)
        results.append(result)
    assert torch.equal(*results)


def test_a_list_of_one_is_copied_to_the_bit() -> None:
    out, lse = partials([[True], [True, False]], 64, 2)
    result = torch.full((2, HEADS, 64), NAN, device=DEVICE)
    lists = {"rows": ints([0, 1]), "starts": ints([0, 1, 3]), "partials": ints([0, 1, 2])}
    triton_merge.merge_lists(result, out, lse, num_lists=ints([2]), **lists)
    assert torch.equal(result, out[:2])


@settings(max_examples=10, deadline=None, derandomize=True)
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_splits(counts: list[int]) -> None:
    """Rows of two splits or more are merged, the others left alone."""
    lists = [[True] * count for count in counts]
    out, lse = partials(lists, 64, 3)
    first = starts_of(lists)[:-1]
    result = torch.full((len(counts), HEADS, 64), 7.0, device=DEVICE)
    triton_merge.merge_splits(result, out, lse, split_first=ints(first), split_count=ints(counts))
    for row, (start, count) in enumerate(zip(first, counts, strict=True)):
        if count < 2:
            assert (result[row] == 7.0).all()
        else:
            expected = oracle.merge_partials(out[start : start + count], lse[start : start + count])
            torch.testing.assert_close(result[row], expected, atol=1e-6, rtol=1e-5)


def test_lists_past_the_count_are_not_read() -> None:
    out, lse = partials([[True, True]], 64, 4)
    result = torch.full((3, HEADS, 64), 7.0, device=DEVICE)
    far = 2**30
    lists = {"rows": ints([1, far, far]), "starts": ints([0, 2, far, far]), "partials": ints([1, 0])}
    triton_merge.merge_lists(result, out, lse, num_lists=ints([1]), **lists)
    assert (result[[0, 2]] == 7.0).all()
    torch.testing.assert_close(result[1], oracle.merge_partials(out, lse), atol=1e-6, rtol=1e-5)


def test_merging_equals_attention_over_all_keys() -> None:
    """The definition itself: parts of one softmax, each by hand, against the whole in float64."""
    chance = torch.Generator().manual_seed(5)
    scores = torch.randn(HEADS, 30, generator=chance).double() * 8  # to base 2
    values = torch.randn(30, 64, generator=chance).double()
    whole = torch.softmax(scores * torch.log(torch.tensor(2.0).double()), -1) @ values
    parts, sums = [], []
    for part in (slice(0, 4), slice(4, 21), slice(21, 30)):
        sums.append(torch.logsumexp(scores[:, part] * 0.6931471805599453, -1) / 0.6931471805599453)
        parts.append(torch.softmax(scores[:, part] * 0.6931471805599453, -1) @ values[part])
    out, lse = torch.stack(parts).float().to(DEVICE), torch.stack(sums).float().to(DEVICE)
    result = torch.full((1, HEADS, 64), NAN, device=DEVICE)
    triton_merge.merge_splits(result, out, lse, split_first=ints([0]), split_count=ints([3]))
    torch.testing.assert_close(result[0].double().cpu(), whole, atol=1e-6, rtol=1e-5)
