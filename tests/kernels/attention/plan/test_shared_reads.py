"""Sharing against brute force: the order, the groups, and the index that keeps both up to date."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bough.kernels.attention.interface import SharedPrefix
from bough.kernels.attention.plan.shared_reads import SharingIndex, find_shared, order_by_prefix

few_pages = st.lists(st.integers(1, 3), max_size=6)
"""Few different ids, so that common prefixes are common; the same id may follow different ones."""


def packed(pages: list[int]) -> array:
    return array("i", pages)


def num_common(rows: list[list[int]]) -> int:
    return next((i for i, ids in enumerate(zip(*rows, strict=False)) if len(set(ids)) > 1), min(map(len, rows)))


def groups_by_hand(rows: list[list[int]]) -> set[tuple[frozenset[int], int]]:
    """For every prefix of any row: who has it. A group is named by its members and its longest common prefix."""
    prefixes = {tuple(row[:length]) for row in rows for length in range(1, len(row) + 1)}
    members = {frozenset(i for i, row in enumerate(rows) if tuple(row[: len(p)]) == p) for p in prefixes}
    return {(who, num_common([rows[i] for i in who])) for who in members if len(who) > 1}


@given(st.lists(few_pages, max_size=8))
def test_groups_are_those_found_by_hand(rows: list[list[int]]) -> None:
    order = order_by_prefix([packed(row) for row in rows])
    assert sorted(order.tolist()) == list(range(len(rows)))
    found = find_shared([packed(rows[i]) for i in order])
    as_sets = [(frozenset(order[g.start : g.stop].tolist()), g.num_pages) for g in found]
    assert len(set(as_sets)) == len(as_sets)
    assert set(as_sets) == groups_by_hand(rows)


@given(st.lists(few_pages, max_size=8), st.integers(1, 4))
def test_groups_nest_outer_first_and_each_adds_enough(rows: list[list[int]], min_pages: int) -> None:
    order = order_by_prefix([packed(row) for row in rows])
    in_order = [rows[i] for i in order]
    found = find_shared([packed(row) for row in in_order], min_pages=min_pages)
    everything = find_shared([packed(row) for row in in_order])
    assert set(found) <= set(everything)
    for index, group in enumerate(found):
        assert group.stop - group.start >= 2
        for earlier in found[:index]:
            assert earlier.stop <= group.start or (earlier.start <= group.start and group.stop <= earlier.stop)
    for group in everything:
        others = [g for g in found if g != group]
        around = [g.num_pages for g in others if g.start <= group.start and group.stop <= g.stop]
        shallower = max((n for n in around if n < group.num_pages), default=0)
        assert (group in found) == (group.num_pages - shallower >= min_pages)


def test_three_levels() -> None:
    rows = [[1, 2, 3, 4, 9], [1, 2, 5], [1, 2, 3, 4, 7], [8, 1], [1, 2, 3]]
    order = order_by_prefix([np.array(row, np.int32) for row in rows])
    found = find_shared([packed(rows[i]) for i in order])
    start = min(order.tolist().index(i) for i in (0, 1, 2, 4))
    assert [(g.stop - g.start, g.num_pages) for g in found] == [(4, 2), (3, 3), (2, 4)]
    assert found[0] == SharedPrefix(start, start + 4, 2)


def test_equal_sequences_keep_their_order_and_are_one_group() -> None:
    rows = [packed([5, 6])] * 4
    assert order_by_prefix(rows).tolist() == [0, 1, 2, 3]
    assert find_shared(rows) == (SharedPrefix(0, 4, 2),)


@pytest.mark.parametrize("rows", [[], [[1, 2]], [[], []], [[1], [2]], [[], [1]]])
def test_nothing_is_shared(rows: list[list[int]]) -> None:
    assert find_shared([packed(row) for row in rows]) == ()


def test_page_ids_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="32-bit"):
        order_by_prefix([np.array([1, 2], np.int64)])


def test_rows_of_a_wider_table_are_read_in_place() -> None:
    table = np.array([[1, 2, 0], [3, 4, 0], [1, 5, 0]], np.int32)
    order = order_by_prefix([table[0, :2], table[1, :2], table[2, ::2]])
    assert find_shared([table[i, :2] for i in order]) == find_shared([packed([1, 2]), packed([1, 5]), packed([3, 4])])


class IndexAgainstBatch(RuleBasedStateMachine):
    """The index after any changes is what the batch computation gives from scratch."""

    def __init__(self) -> None:
        super().__init__()
        self.index: SharingIndex[int] = SharingIndex()
        self.thrifty: SharingIndex[int] = SharingIndex(min_pages=2)
        self.rows: dict[int, list[int]] = {}
        self.next_name = 0

    @rule(pages=few_pages)
    def join(self, pages: list[int]) -> None:
        for index in (self.index, self.thrifty):
            index.join(self.next_name, packed(pages))
        self.rows[self.next_name] = pages
        self.next_name += 1

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        for index in (self.index, self.thrifty):
            index.leave(name)
        del self.rows[name]

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), pages=few_pages)
    def grow(self, data: st.DataObject, pages: list[int]) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        for index in (self.index, self.thrifty):
            index.grow(name, packed(pages))
        self.rows[name] = self.rows[name] + pages

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), pages=few_pages)
    def rewrite(self, data: st.DataObject, pages: list[int]) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        for index in (self.index, self.thrifty):
            index.rewrite(name, packed(pages))
        self.rows[name] = pages

    @invariant()
    def equals_the_batch_computation(self) -> None:
        names = list(self.rows)  # in the order they joined
        order = [names[i] for i in order_by_prefix([packed(self.rows[name]) for name in names])]
        in_order = [packed(self.rows[name]) for name in order]
        assert self.index.order() == self.thrifty.order() == tuple(order)
        assert self.index.shared() == find_shared(in_order)
        assert self.thrifty.shared() == find_shared(in_order, min_pages=2)
        assert len(self.index) == len(names) and all(name in self.index for name in names)


TestIndexAgainstBatch = IndexAgainstBatch.TestCase


def test_a_change_that_does_not_matter_recomputes_nothing() -> None:
    index: SharingIndex[str] = SharingIndex()
    for name, pages in (("a", [1, 2, 3]), ("b", [1, 2, 4]), ("c", [9])):
        index.join(name, packed(pages))
    order, shared = index.order(), index.shared()
    index.grow("a", packed([7]))
    index.rewrite("c", packed([9]))
    assert index.order() is order and index.shared() is shared


def test_names_are_unique_and_known() -> None:
    index: SharingIndex[str] = SharingIndex()
    index.join("a", packed([1]))
    with pytest.raises(ValueError, match="'a' has joined already"):
        index.join("a", packed([2]))
    for change in (
        index.leave,
        lambda name: index.grow(name, packed([1])),
        lambda name: index.rewrite(name, packed([])),
    ):
        with pytest.raises(KeyError):
            change("b")


def test_many_sequences_of_many_pages() -> None:
    """A real size, built one by one and all at once."""
    chance = random.Random(3)
    prompts = [[chance.randrange(1, 10**6) for _ in range(64)] for _ in range(4)]
    rows = [chance.choice(prompts) + [chance.randrange(1, 10**6) for _ in range(100)] for _ in range(120)]
    index: SharingIndex[int] = SharingIndex()
    for name, row in enumerate(rows):
        index.join(name, packed(row))
    order = order_by_prefix([packed(row) for row in rows])
    assert index.order() == tuple(order.tolist())
    assert index.shared() == find_shared([packed(rows[i]) for i in order])
    assert [g.num_pages for g in index.shared()] == [64] * 4
