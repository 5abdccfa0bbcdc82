"""The free list."""

from __future__ import annotations

from array import array

import pytest

from bough.radix import PagePool


def test_hands_out_every_page_but_the_null_page_in_order():
    pool = PagePool(6)
    assert pool.allocate(2).tolist() == [1, 2]
    assert pool.allocate(3).tolist() == [3, 4, 5]
    assert pool.num_free == 0
    assert pool.allocate(0).tolist() == []


def test_a_run_that_was_given_back_is_handed_out_in_its_order():
    pool = PagePool(10)
    pages = pool.allocate(5)
    pool.free(pages)
    assert pool.allocate(5) == pages


def test_no_more_than_there_is():
    pool = PagePool(4)
    with pytest.raises(ValueError, match=r"count must be 0 \.\. 3"):
        pool.allocate(4)
    with pytest.raises(ValueError, match="got -1"):
        pool.allocate(-1)
    assert pool.num_free == 3


def test_needs_a_page_beside_the_null_page():
    with pytest.raises(ValueError, match="num_pages must be at least 2"):
        PagePool(1)


def test_overfull_is_noticed():
    pool = PagePool(3)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(array("i", [1]))
