"""The prefix cache: leases of KV pages that share cached prefixes; `reserve` evicts when pages run short."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .tenants import EQUAL, Weights, tenant_of
from .tree import Found, Node, RadixTree, pack

NULL_PAGE = 0
"""Never handed out, so that padding in a page table can point at it."""


class PagePool:
    """Hands out the page ids 1 .. num_pages - 1.

    Last freed, first out; a run of pages is handed out again in the order in which it was freed. A fresh pool hands
    out 1, 2, 3, ... So the pages of a sequence are mostly adjacent, and equal calls get equal pages.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 2:
            raise ValueError(f"num_pages must be at least 2 (page {NULL_PAGE} is never used), got {num_pages}")
        self.num_pages = num_pages
        self.free_pages = array("i", range(num_pages - 1, NULL_PAGE, -1))  # a stack: the next page is its last

    @property
    def num_free(self) -> int:
        return len(self.free_pages)

    def allocate(self, count: int) -> array[int]:
        """Takes `count` pages out of the pool. Raises ValueError if it has fewer."""
        if not 0 <= count <= len(self.free_pages):
            raise ValueError(f"count must be 0 .. {len(self.free_pages)} (the free pages), got {count}")
        start = len(self.free_pages) - count
        pages = self.free_pages[start:]
        del self.free_pages[start:]
        pages.reverse()
        return pages

    def free(self, pages: array[int]) -> None:
        """Takes back pages that `allocate` handed out, each of them once."""
        self.free_pages.extend(pages[::-1])
        assert len(self.free_pages) < self.num_pages, "a page was freed twice"


@dataclass(eq=False, slots=True)
class Lease:
    """One sequence's claim on pages, from `PrefixCache.open` to `PrefixCache.close`.

    pages       the page table: index i holds the page of tokens i * page_size .. (i + 1) * page_size. It grows and is
                rewritten in place, so copy it and keep no buffer over it
    num_shared  number of leading pages that the tree owns, locked for this lease and read only; the rest are private
    num_cached  tokens found in the cache when the lease was opened
    node        end of the locked path in the tree; None once the lease is closed
    rewrites    number of changes to `pages` other than by growing, by which a copy is known to be stale
    """

    namespace: str
    pages: array[int]
    num_shared: int
    num_cached: int
    node: Node | None = field(repr=False)
    rewrites: int = 0


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Pages by owner: num_pages = free + cached + locked + private.

    cached   in the tree and in no lease: reused on a hit, evicted when pages run short
    locked   in the tree and in at least one lease
    private  in one lease only
    """

    num_pages: int
    free: int
    cached: int
    locked: int
    private: int
    evicted_tokens_total: int


class PrefixCache:
    """Pages shared by prefix: each is free in the pool, cached in the tree, or private to one lease.

        lease.pages    [0 ........ num_shared)[num_shared ......... len(pages))
        owner           the tree, locked       this lease alone
        content         full, read only        being written; the last page may be partly filled

    `commit` moves the border to the right, across full pages only; `close` gives up both sides. Not thread-safe. No
    clock and no randomness: equal calls give equal pages.
    """

    def __init__(self, num_pages: int, page_size: int, *, sharing: bool = True, weights: Weights = EQUAL) -> None:
        """Creates an empty cache.

        num_pages    with the null page, 0, which is never used
        sharing      False: nothing is cached or matched
        weights      share of the cached pages that each tenant may keep, relative to the others'; 1 if not given
        """
        self.pool = PagePool(num_pages)
        self.tree = RadixTree(page_size, weights)
        self.page_size = page_size
        self.sharing = sharing
        self.evicted_tokens_total = 0

    def cached_tokens(
        self, tokens: Sequence[int], namespace: str = "", *, limit: int | None = None, found: Found | None = None
    ) -> int:
        """Returns how many tokens `open` would find. Neither the cache nor the order of eviction changes.

        found    kept by a caller that asks for the same tokens repeatedly, and updated: see RadixTree.match
        """
        return self.tree.match(tokens, self._match_stop(tokens, limit), namespace, found)

    def open(self, tokens: Sequence[int], namespace: str = "", *, limit: int | None = None) -> Lease:
        """Finds and locks the longest cached prefix, in whole pages.

        It has at most `limit` tokens, and never the last of `tokens`, which is always left to compute.
        """
        node = self.tree.acquire(tokens, self._match_stop(tokens, limit), namespace)
        pages = self.tree.pages(node)
        return Lease(namespace, pages, len(pages), len(pages) * self.page_size, node)

    def reserve(self, lease: Lease, num_tokens: int, *, spare: bool = False) -> bool:
        """Makes the lease's pages cover `num_tokens` tokens, evicting unlocked pages where necessary.

        With `spare`, nothing is taken from other tenants in use that have no more than their share. All or nothing:
        returns False, and evicts nothing, if there are not enough pages.
        """
        missing = -(-num_tokens // self.page_size) - len(lease.pages)
        if missing <= 0:
            return True
        if lease.node is None:
            raise ValueError("the lease is closed")
        shortage = missing - self.pool.num_free
        if shortage > 0:
            tenant = tenant_of(lease.namespace)
            if shortage > (self.tree.spare(tenant) if spare else self.tree.num_cached):
                return False
            self.evicted_tokens_total += self._evict(shortage, tenant) * self.page_size
        lease.pages.extend(self.pool.allocate(missing))
        return True

    def commit(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        """Publishes the pages that tokens[:num_computed] fill, so that others find them at once.

        `tokens` are those of the whole sequence; those already published must not have changed. Where another lease
        has published the same tokens first, its pages replace ours in `lease.pages`, and ours are freed.
        """
        below = lease.node
        if below is None:
            raise ValueError("the lease is closed")
        first, last = lease.num_shared, num_computed // self.page_size
        if last <= first or not self.sharing:
            return
        if num_computed > len(tokens) or last > len(lease.pages):
            raise ValueError(
                f"num_computed must be within the {len(tokens)} tokens and the {len(lease.pages)} pages of "
                f"{self.page_size} that the lease has, got {num_computed}"
            )
        pages = lease.pages[first:last]
        run = pack(tokens[first * self.page_size : last * self.page_size])
        node, num_known = self.tree.insert(below, run, pages)
        if num_known:
            self.pool.free(pages[:num_known])
            lease.pages[first:last] = self.tree.pages(node, below)
            lease.rewrites += 1
        lease.node = node
        lease.num_shared = last

    def close(self, lease: Lease, tokens: Sequence[int], num_computed: int) -> None:
        """Publishes as `commit` does, unlocks the shared pages and frees the private ones.

        With `num_computed` 0 nothing more is published; what `commit` has published stays. Raises ValueError if the
        lease is already closed.
        """
        self.commit(lease, tokens, num_computed)
        assert lease.node is not None
        self.tree.release(lease.node)
        self.pool.free(lease.pages[lease.num_shared :])
        lease.node = None
        lease.pages = array("i")
        lease.num_shared = 0

    def flush(self, tenant: str | None = None) -> int:
        """Evicts all unlocked pages, or those of one tenant; returns how many."""
        if tenant is None:
            return self._evict(self.tree.num_cached)
        pages = self.tree.evict_all(tenant)
        self.pool.free(pages)
        return len(pages)

    def counts(self) -> CacheCounts:
        num_pages, free = self.pool.num_pages - 1, self.pool.num_free
        cached, locked = self.tree.num_cached, self.tree.num_locked
        private = num_pages - free - cached - locked
        return CacheCounts(num_pages, free, cached, locked, private, self.evicted_tokens_total)

    def check(self, leases: Iterable[Lease]) -> None:
        """Audits the cache, given all open leases; raises AssertionError if an account does not balance."""
        audit(self.tree, self.pool, list(leases))

    def _match_stop(self, tokens: Sequence[int], limit: int | None) -> int:
        if not self.sharing:
            return 0
        stop = len(tokens) - 1
        return stop if limit is None else min(stop, limit)

    def _evict(self, num_pages: int, tenant: str | None = None) -> int:
        pages = self.tree.evict(num_pages, tenant)
        self.pool.free(pages)
        return len(pages)


def audit(tree: RadixTree, pool: PagePool, claims: Sequence[Lease]) -> None:
    """Raises AssertionError, naming the fault, unless tree, pool and open leases are consistent."""
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


def _check_owners(nodes: list[Node], pool: PagePool, claims: Sequence[Lease]) -> None:
    """Requires free, cached and private pages to be disjoint, and together to be all pages but the null page."""
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


def _check_locks(tree: RadixTree, nodes: list[Node], claims: Sequence[Lease]) -> None:
    """Requires each lock to count the leases that end there or below, and shared pages to be those of the path."""
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
    for name, holding in tree.holdings.by_tenant.items():
        own = [node for node in nodes if tenant_of(node.namespace) == name]
        counted = sum(len(node.pages) for node in own), sum(len(node.pages) for node in own if not locks[node])
        _require((holding.num_pages, holding.num_cached) == counted, f"the account of {name!r} does not balance")
        _require(holding.num_roots == sum(node.parent is None for node in own), f"the roots of {name!r} are miscounted")
    _require(tree.num_cached == num_cached, f"num_cached is {tree.num_cached}, but {num_cached} pages are unlocked")
    _require(tree.num_locked == num_locked, f"num_locked is {tree.num_locked}, but {num_locked} pages are locked")
