"""The radix tree: matching, splitting, and the order of eviction."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from bough.radix import RadixTree
from bough.radix.tree import Node


def add(tree: RadixTree, tokens: list[int], pages: list[int], namespace: str = "") -> None:
    """Leaves tokens and pages in the tree, unlocked and most recently used."""
    root = tree.acquire([], 0, namespace)
    node, _ = tree.insert(root, array("i", tokens), array("i", pages))
    tree.release(node)


def touch(tree: RadixTree, tokens: list[int]) -> None:
    tree.release(tree.acquire(tokens, len(tokens), ""))


def shape(tree: RadixTree) -> list[tuple[list[int], list[int], int]]:
    """Tokens, pages and lock of each edge."""
    return sorted((n.tokens.tolist(), n.pages.tolist(), n.lock) for n in tree.nodes() if n.parent is not None)


def test_match_is_read_only_and_whole_pages():
    tree = RadixTree(2)
    add(tree, [1, 2, 3, 4], [10, 11])
    before = shape(tree)
    assert tree.match([1, 2, 3, 4, 5], 5, "") == 4
    assert tree.match([1, 2, 3, 9], 4, "") == 2
    assert tree.match([1, 2, 3, 4], 3, "") == 2
    assert tree.match([1, 9], 2, "") == 0
    assert tree.match([1, 2], 2, "nowhere") == 0
    assert shape(tree) == before
    assert set(tree.roots) == {""}


def test_acquire_splits_where_the_match_ends_and_keeps_locks():
    tree = RadixTree(1)
    add(tree, [1, 2, 3, 4], [10, 11, 12, 13])
    whole = tree.acquire([1, 2, 3, 4], 4, "")
    half = tree.acquire([1, 2, 9], 3, "")
    assert shape(tree) == [([1, 2], [10, 11], 2), ([3, 4], [12, 13], 1)]
    assert tree.pages(whole).tolist() == [10, 11, 12, 13]
    assert tree.pages(half).tolist() == [10, 11]
    assert tree.pages(whole, half).tolist() == [12, 13]
    assert (tree.num_cached, tree.num_locked) == (0, 4)
    tree.release(whole)
    assert (tree.num_cached, tree.num_locked) == (2, 2)


def test_insert_keeps_what_was_there_first():
    tree = RadixTree(1)
    add(tree, [1, 2, 3], [10, 11, 12])
    root = tree.acquire([], 0, "")
    node, num_known = tree.insert(root, array("i", [1, 2, 7, 8]), array("i", [20, 21, 22, 23]))
    assert num_known == 2
    assert tree.pages(node).tolist() == [10, 11, 22, 23]
    assert shape(tree) == [([1, 2], [10, 11], 1), ([3], [12], 0), ([7, 8], [22, 23], 1)]


def test_insert_of_a_part_of_an_edge_locks_that_part():
    tree = RadixTree(1)
    add(tree, [1, 2, 3], [10, 11, 12])
    node, num_known = tree.insert(tree.acquire([], 0, ""), array("i", [1]), array("i", [20]))
    assert num_known == 1
    assert shape(tree) == [([1], [10], 1), ([2, 3], [11, 12], 0)]
    assert tree.pages(node).tolist() == [10]


def test_a_leaf_of_two_leases_is_not_extended_in_place():
    tree = RadixTree(1)
    add(tree, [1], [10])
    first, second = tree.acquire([1], 1, ""), tree.acquire([1], 1, "")
    node, _ = tree.insert(first, array("i", [2]), array("i", [11]))
    assert node is not second
    assert shape(tree) == [([1], [10], 2), ([2], [11], 1)]


def test_eviction_takes_the_least_recently_used_leaf_from_its_end():
    tree = RadixTree(1)
    add(tree, [1, 2, 3], [10, 11, 12])
    add(tree, [4, 5], [13, 14])
    touch(tree, [1, 2, 3])
    assert tree.evict(1).tolist() == [14]
    assert tree.match([4, 5], 2, "") == 1
    assert tree.evict(2).tolist() == [13, 12]
    assert tree.match([1, 2, 3], 3, "") == 2
    assert tree.num_cached == 2


def test_a_parent_becomes_a_leaf_when_its_children_are_gone():
    tree = RadixTree(1)
    add(tree, [1, 2], [10, 11])
    add(tree, [1, 3], [0, 12])
    add(tree, [7], [13])
    assert tree.evict(3).tolist() == [11, 12, 10]  # [1] was last used by the second
    assert tree.evict(9).tolist() == [13]
    assert not tree.roots


def test_eviction_skips_what_is_locked():
    tree = RadixTree(2)
    add(tree, [1, 2, 3, 4], [10, 11])
    node = tree.acquire([1, 2], 2, "")
    assert tree.evict(5).tolist() == [11]
    assert tree.evict(5).tolist() == []
    tree.release(node)
    assert tree.evict(5).tolist() == [10]


def test_the_heap_does_not_grow_with_use():
    tree = RadixTree(1)
    for i in range(10):
        add(tree, [i, i], [2 * i, 2 * i + 1])
    for i in range(1000):
        touch(tree, [i % 10, i % 10])
    assert len(tree.holdings.by_tenant[""].heap) <= 10


def test_page_size_is_checked():
    with pytest.raises(ValueError, match="page_size must be at least 1"):
        RadixTree(0)


def oldest_leaf(tree: RadixTree) -> Node | None:
    leaves = [n for n in tree.nodes() if n.parent is not None and not n.children and n.lock == 0]
    return min(leaves, key=lambda n: n.last_used, default=None)


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_eviction_is_that_of_a_full_scan(seed: int):
    """Against the definition: the last page of the unlocked leaf that was used least recently, over all nodes."""
    random = Random(seed)
    tree = RadixTree(1)
    locked: list[Node] = []
    next_page = 1
    for _ in range(300):
        action = random.random()
        tokens = [random.randrange(3) for _ in range(random.randint(1, 6))]
        if action < 0.4:
            known = tree.match(tokens, len(tokens), "")
            fresh = range(next_page, next_page + len(tokens) - known)
            next_page += len(fresh)
            add(tree, tokens, [0] * known + list(fresh))
        elif action < 0.6:
            locked.append(tree.acquire(tokens, len(tokens), ""))
        elif action < 0.75 and locked:
            tree.release(locked.pop(random.randrange(len(locked))))
        else:
            leaf = oldest_leaf(tree)
            expected = [] if leaf is None else [leaf.pages[-1]]
            assert tree.evict(1).tolist() == expected
