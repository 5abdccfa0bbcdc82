"""Prefix caches with one planted bug each, of kinds that serving engines have had. The fuzzer must find them all."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from bough.radix import EQUAL, Found, Lease, PrefixCache, RadixTree, Weights
from bough.radix.tree import Node, pack


class LockSkipsSelfTree(RadixTree):
    """A lock holds the ancestors of a node and not the node."""

    def _lock(self, node: Node, above: Node | None) -> None:
        if node.parent is not None and node is not above:
            super()._lock(node.parent, above)


class SplitLosesLockTree(RadixTree):
    """The upper half of a locked edge comes out of a split unlocked."""

    def _split(self, node: Node, num_pages: int) -> Node:
        upper = super()._split(node, num_pages)
        if upper.lock:
            upper.lock = 0
            self.num_locked -= len(upper.pages)
            self.num_cached += len(upper.pages)
        return upper


class MatchOnePageMoreTree(RadixTree):
    """A page of which only a part matches counts as a match."""

    def _descend(self, node: Node, tokens: Sequence[int], start: int, stop: int) -> tuple[Node, int, int]:
        node, num_pages, position = super()._descend(node, tokens, start, stop)
        if num_pages < len(node.pages) and position < stop:
            return node, num_pages + 1, position + self.page_size
        return node, num_pages, position


class EvictLockedTree(RadixTree):
    """Eviction does not look at locks."""

    def _lock(self, node: Node, above: Node | None) -> None:
        super()._lock(node, above)
        if node.parent is not None and not node.children:
            self._became_candidate(node)

    def _evictable(self, node: Node) -> bool:
        return not node.children


class TreeMutant(PrefixCache):
    """A cache whose tree is the broken part."""

    tree_type: type[RadixTree]

    def __init__(self, num_pages: int, page_size: int, *, sharing: bool = True, weights: Weights = EQUAL) -> None:
        super().__init__(num_pages, page_size, sharing=sharing, weights=weights)
        self.tree = self.tree_type(page_size, weights)


class LockSkipsSelf(TreeMutant):
    tree_type = LockSkipsSelfTree


class SplitLosesLock(TreeMutant):
    tree_type = SplitLosesLockTree


class MatchOnePageMore(TreeMutant):
    tree_type = MatchOnePageMoreTree


class EvictLocked(TreeMutant):
    tree_type = EvictLockedTree


class DuplicatePagesLeak(PrefixCache):
    """Pages that another lease published first are replaced, and never freed."""

    def commit(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        before, first = lease.pages[:], lease.num_shared
        super().commit(lease, tokens, num_computed)
        swapped = {before[i] for i in range(first, lease.num_shared) if before[i] != lease.pages[i]}
        self.pool.free_pages = array("i", [page for page in self.pool.free_pages if page not in swapped])


class DuplicatePagesFreedTwice(PrefixCache):
    """Pages that another lease published first are freed, and stay in the page table."""

    def commit(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        below, first, last = lease.node, lease.num_shared, num_computed // self.page_size
        if below is None or last <= first or not self.sharing:
            return
        pages = lease.pages[first:last]
        run = pack(tokens[first * self.page_size : last * self.page_size])
        lease.node, num_known = self.tree.insert(below, run, pages)
        lease.num_shared = last
        self.pool.free(pages[:num_known])


class AbortFreesTreePages(PrefixCache):
    """Closing without publishing frees the whole page table, with what is the tree's."""

    def close(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        shared = lease.pages[: lease.num_shared]
        super().close(lease, tokens, num_computed)
        if num_computed == 0:
            self.pool.free(shared)


class ReleaseKeepsLock(PrefixCache):
    """Closing without publishing frees the private pages, and forgets the lock."""

    def close(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        if num_computed:
            super().close(lease, tokens, num_computed)
            return
        self.pool.free(lease.pages[lease.num_shared :])
        lease.node = None
        lease.pages = array("i")
        lease.num_shared = 0


class NamespaceIgnored(PrefixCache):
    """Equal tokens match, whosever they are."""

    def cached_tokens(
        self, tokens: Sequence[int], namespace: str = "", *, limit: int | None = None, found: Found | None = None
    ) -> int:
        return super().cached_tokens(tokens, "", limit=limit, found=found)

    def open(self, tokens: Sequence[int], namespace: str = "", *, limit: int | None = None) -> Lease:
        return super().open(tokens, "", limit=limit)


MUTANTS: tuple[type[PrefixCache], ...] = (
    LockSkipsSelf,
    SplitLosesLock,
    MatchOnePageMore,
    EvictLocked,
    DuplicatePagesLeak,
    DuplicatePagesFreedTwice,
    AbortFreesTreePages,
    ReleaseKeepsLock,
    NamespaceIgnored,
)
