"""Packed runs of tokens."""

from __future__ import annotations

from array import array

import pytest

from bough.radix.tree import common_prefix, pack


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 1000])
def test_pack_is_array(length: int):
    tokens = list(range(length))
    assert pack(tokens) == pack(tuple(tokens)) == pack(array("i", tokens)) == array("i", tokens)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 191, 192, 193, 500])
def test_common_prefix_finds_every_first_difference(length: int):
    edge = array("i", range(length))
    assert common_prefix(edge, list(edge), 0, length) == length
    for position in range(length):
        other = list(edge)
        other[position] = -1
        assert common_prefix(edge, other, 0, length) == position


def test_common_prefix_stays_within_its_bounds():
    edge = array("i", [5, 6, 7])
    assert common_prefix(edge, [0, 5, 6, 7, 8], 1, 5) == 3
    assert common_prefix(edge, [0, 5, 6, 7, 8], 1, 3) == 2
    assert common_prefix(edge, [0, 5, 6], 1, 3) == 2
    assert common_prefix(edge, [0], 1, 1) == 0
