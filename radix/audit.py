"""The full recount: every page has one owner, every lock a lease."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from .pool import PagePool
from .tree import Node, RadixTree


class Claim(Protocol):
    """The claim of an open lease: where its lock ends, its page table, how many of these pages are shared."""

    node: Node | None
    pages: array[int]
    num_shared: int


def audit(tree: RadixTree, pool: PagePool, claims: Sequence[Claim]) -> None:
    """Raises AssertionError, naming what is wrong, unless tree, pool and open leases fit together."""
    nodes = list(tree.nodes())
    _check_shape(tree, nodes)
    _check_owners(nodes, pool, claims)
    _check_locks(tree, nodes, claims)


def _require(holds: bool, message: str) -> None:
    if not holds:  # not `assert`: these checks are asked for by name, with python -O too
        raise AssertionError(message)


def _check_shape(tree: RadixTree, nodes: list[Node]) -> None:
    for node in nodes:
        _require(len(node.tokens) == len(node.pages) * tree.page_size, "an edge is not whole pages")
        if node.parent is None:
            _require(tree.roots.get(node.namespace) is node and not node.pages, "a root is not its namespace's root")
            _require(bool(node.children) or node.lock > 0, f"the empty namespace {node.namespace!r} was not dropped")
        else:
            _require(len(node.pages) > 0, "a node has no pages")
        if not node.children and node.lock == 0:
            _require(node.queued, "an unlocked leaf can never be evicted")
        for key, child in node.children.items():
            first = child.tokens[: tree.page_size]
            _require(child.parent is node, "a child does not know its parent")
            _require(child.namespace == node.namespace, "a page is shared between namespaces")
            _require(key == (first[0] if tree.page_size == 1 else tuple(first)), "a child has the wrong key")


def _check_owners(nodes: list[Node], pool: PagePool, claims: Sequence[Claim]) -> None:
    """Free, cached and private pages are disjoint, and together they are all pages but the null page."""
    owned = pool.free_pages[:]
    for node in nodes:
        owned.extend(node.pages)
    for claim in claims:
        owned.extend(claim.pages[claim.num_shared :])
    counted = set(owned)
    if len(counted) != len(owned):
        twice = [page for page, count in Counter(owned).items() if count > 1]
        raise AssertionError(f"pages with more than one owner: {twice}")
    if len(counted) != pool.num_pages - 1 or min(counted) != 1 or max(counted) != pool.num_pages - 1:
        lost = sorted(set(range(1, pool.num_pages)) - counted)
        foreign = sorted(counted - set(range(1, pool.num_pages)))
        raise AssertionError(f"pages without an owner: {lost}; unknown pages: {foreign}")


def _check_locks(tree: RadixTree, nodes: list[Node], claims: Sequence[Claim]) -> None:
    """The lock of a node is the number of leases that end there or below, and a lease's shared pages are its path."""
    locks: dict[Node, int] = dict.fromkeys(nodes, 0)
    for claim in claims:
        node = claim.node
        _require(node in locks, "an open lease ends at a node that is not in the tree")
        path = array("i")
        while node is not None:
            locks[node] += 1
            path[:0] = node.pages
            node = node.parent
        _require(path == claim.pages[: claim.num_shared], "a page table differs from the path that it locks")
    num_cached = num_locked = 0
    for node, lock in locks.items():
        _require(node.lock == lock, f"a lock is {node.lock}, but {lock} leases end there or below")
        if lock:
            num_locked += len(node.pages)
        else:
            num_cached += len(node.pages)
    _require(tree.num_cached == num_cached, f"num_cached is {tree.num_cached}, but {num_cached} pages are unlocked")
    _require(tree.num_locked == num_locked, f"num_locked is {tree.num_locked}, but {num_locked} pages are locked")
