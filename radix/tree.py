"""Radix tree over token ids: maps cached prefixes to pages, locks those in use, and evicts the rest."""

from __future__ import annotations

import heapq
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .tenants import EQUAL, Holding, Holdings, Weights

_FIRST_CHUNK = 64

Key = int | tuple[int, ...]


class Node:
    """A run of whole pages below `parent`; the root of a namespace has no pages and no parent.

    tokens     page_size * len(pages) token ids: the edge from the parent
    pages      the page of each
    children   by the tokens of their first page, a plain int where a page holds one token
    lock       number of leases that end at this node or below it; only unlocked nodes are evicted
    last_used  tick at which `lock` last fell to zero
    queued     true while its holding's heap has an entry for it
    cuts       number of times pages were evicted from its end; other pages may have been appended since
    holding    its tenant's account
    serial     order of creation, which breaks ties in the heap
    """

    __slots__ = (
        "children", "cuts", "holding", "last_used", "lock", "namespace",
        "pages", "parent", "queued", "serial", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        namespace: str,
        parent: Node | None,
        tokens: array[int],
        pages: array[int],
        *,
        serial: int,
        holding: Holding,
    ) -> None:
        self.namespace = namespace
        self.holding = holding
        self.parent = parent
        self.tokens = tokens
        self.pages = pages
        self.serial = serial
        self.children: dict[Key, Node] = {}
        self.lock = 0
        self.last_used = 0
        self.queued = False
        self.cuts = 0


@dataclass(slots=True)
class Found:
    """Result of the last `match` of a sequence: its first `position` tokens were on the path that ends at `node`.

    The caller keeps it between calls, and `match` updates it. It locks nothing: if the path has been evicted by the
    next call, the match starts again from the root.

    cuts    `node.cuts` at that time
    """

    node: Node | None = None
    position: int = 0
    cuts: int = 0


class RadixTree:
    """Cached prefixes of token sequences, each page stored once, in namespaces that share nothing.

    The tree owns the pages it holds; `evict` and `evict_all` return those that leave it. `acquire` finds and locks a
    prefix in one call, so nothing can be evicted in between. A lock is identified by the last node of the locked path.
    It stays valid when edges are split, because a split inserts the new node above.

    Every ancestor of a locked node is locked, so all unlocked pages can be evicted, leaf by leaf.

    `evict` describes the order of eviction.
    """

    def __init__(self, page_size: int, weights: Weights = EQUAL) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1 token, got {page_size}")
        self.page_size = page_size
        self.roots: dict[str, Node] = {}
        self.num_cached = 0  # pages of unlocked nodes
        self.num_locked = 0  # pages of locked nodes
        self.holdings = Holdings(weights)
        self._tick = 0
        self._serial = 0

    def match(self, tokens: Sequence[int], stop: int, namespace: str, found: Found | None = None) -> int:
        """Returns how many of tokens[:stop] are cached, in whole pages. The tree stays as it is.

        found    of an earlier call with the same tokens and namespace: what it has matched is not compared again while
                 it is still cached. It is updated in place
        """
        root = self.roots.get(namespace)
        if root is None:
            return 0
        found = Found() if found is None else found
        node, start, position = _follow(found, root)
        rest = node.tokens[position - start :]
        position += common_prefix(rest, tokens, position, stop) // self.page_size * self.page_size
        if position == start + len(node.tokens):
            node, _, position = self._descend(node, tokens, position, stop)
        found.node, found.position, found.cuts = node, position, node.cuts
        return position

    def acquire(self, tokens: Sequence[int], stop: int, namespace: str) -> Node:
        """Locks the longest cached prefix of tokens[:stop], in whole pages; returns the node that `release` takes."""
        root = self.roots.get(namespace)
        if root is None:
            holding = self.holdings.enter(namespace, self._tick)
            root = self._new_node(namespace, None, array("i"), array("i"), holding)
            self.roots[namespace] = root
        node, num_pages, _ = self._descend(root, tokens, 0, stop)
        if num_pages < len(node.pages):
            node = self._split(node, num_pages)
        self._lock(node, None)
        return node

    def release(self, node: Node) -> None:
        """Unlocks the path that ends at `node`, which becomes the most recently used."""
        self._tick += 1
        node.holding.last_used = self._tick
        self._unlock(node)
        if node.lock == 0 and not node.children:
            self._became_candidate(node)

    def insert(self, below: Node, tokens: array[int], pages: array[int]) -> tuple[Node, int]:
        """Adds a run of whole pages below a node that the caller has locked, and moves that lock to its end.

        Returns the node that is locked now, and how many leading pages were cached already under other ids. The caller
        keeps those; the tree owns the others.
        """
        if below.lock == 1 and not below.children and below.parent is not None:
            below.tokens.extend(tokens)  # no other lease ends at this leaf: the usual case of a decoding sequence
            below.pages.extend(pages)
            below.holding.num_pages += len(pages)
            self.num_locked += len(pages)
            return below, 0
        node, num_pages, position = self._descend(below, tokens, 0, len(tokens))
        if num_pages < len(node.pages):
            node = self._split(node, num_pages)
        num_known = position // self.page_size
        if num_known < len(pages):
            leaf = self._new_node(below.namespace, node, tokens[position:], pages[num_known:], below.holding)
            node.children[self._key(tokens, position)] = leaf
            leaf.holding.num_pages += len(leaf.pages)
            leaf.holding.num_cached += len(leaf.pages)
            self.num_cached += len(leaf.pages)
            node = leaf
        self._lock(node, below)
        return node, num_known

    def pages(self, node: Node, below: Node | None = None) -> array[int]:
        """Returns the pages on the path from `below` (exclusive; None: from the root) down to `node`."""
        if node.parent is below:
            return node.pages[:]
        path = []
        end: Node | None = node
        while end is not None and end is not below:
            path.append(end.pages)
            end = end.parent
        pages = array("i")
        for edge in reversed(path):
            pages.extend(edge)
        return pages

    def evict(self, num_pages: int, tenant: str | None = None) -> array[int]:
        """Evicts up to `num_pages` unlocked pages on behalf of `tenant` (None: of no tenant) and returns them.

        Idle tenants give first, then those with more than their share (`tenants.Holdings.giver`), then `tenant`
        itself, then all others, least recently used first. Within a tenant, the least recently used leaf goes first,
        from its last page on.
        """
        if len(self.holdings.by_tenant) == 1:
            return self._evict_from(next(iter(self.holdings.by_tenant.values())), num_pages)
        evicted = array("i")
        while (missing := num_pages - len(evicted)) > 0:
            found = self.holdings.giver(self._tick, self.num_cached + self.num_locked)
            own = None if tenant is None else self.holdings.by_tenant.get(tenant)
            if found is not None:
                dropped = self._evict_from(found[0], min(missing, found[1]))
            elif own is not None and own.num_cached:
                dropped = self._evict_from(own, missing)
            elif (oldest := min(self._heads(), key=_first, default=None)) is not None:
                dropped = self._evict_from(oldest[1], 1)
            else:
                break
            if not dropped:
                break
            evicted.extend(dropped)
        return evicted

    def evict_all(self, tenant: str) -> array[int]:
        """Evicts all unlocked pages of a tenant and returns them."""
        holding = self.holdings.by_tenant.get(tenant)
        return array("i") if holding is None else self._evict_from(holding, holding.num_cached)

    def spare(self, tenant: str) -> int:
        """Returns how many pages can be evicted for a tenant without cutting into the share of another one."""
        if len(self.holdings.by_tenant) == 1:
            return self.num_cached
        return self.holdings.spare(tenant, self._tick, self.num_cached + self.num_locked)

    def _heads(self) -> Iterator[tuple[int, Holding]]:
        """Yields each tenant that has unlocked pages, after the tick at which its oldest leaf was last used."""
        for holding in self.holdings.by_tenant.values():
            head = self._head(holding)
            if head is not None:
                yield head.last_used, holding

    def _head(self, holding: Holding) -> Node | None:
        """Returns the least recently used leaf, after dropping and correcting stale entries at the heap's top."""
        heap = holding.heap
        while heap:
            node: Node
            last_used, serial, node = heap[0]
            if not self._evictable(node):
                heapq.heappop(heap)
                node.queued = False
            elif node.last_used != last_used:
                heapq.heapreplace(heap, (node.last_used, serial, node))
            else:
                return node
        return None

    def _evict_from(self, holding: Holding, num_pages: int) -> array[int]:
        evicted = array("i")
        while len(evicted) < num_pages and (node := self._head(holding)) is not None:
            keep = len(node.pages) - (num_pages - len(evicted))
            if keep > 0:
                evicted.extend(node.pages[keep:])
                del node.pages[keep:]
                del node.tokens[keep * self.page_size :]
                node.cuts += 1
            else:
                heapq.heappop(holding.heap)
                evicted.extend(node.pages)
                self._remove(node)
        holding.num_pages -= len(evicted)
        holding.num_cached -= len(evicted)
        self.num_cached -= len(evicted)
        return evicted

    def nodes(self) -> Iterator[Node]:
        """Yields all nodes, parents before children, roots included."""
        stack = list(self.roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _key(self, tokens: Sequence[int], position: int) -> Key:
        if self.page_size == 1:
            return tokens[position]
        return tuple(tokens[position : position + self.page_size])

    def _new_node(
        self, namespace: str, parent: Node | None, tokens: array[int], pages: array[int], holding: Holding
    ) -> Node:
        self._serial += 1
        return Node(namespace, parent, tokens, pages, serial=self._serial, holding=holding)

    def _descend(self, node: Node, tokens: Sequence[int], start: int, stop: int) -> tuple[Node, int, int]:
        """Follows tokens[start:stop] below the end of `node`, in whole pages.

        Returns the last node entered, how many pages of its edge match, and the position reached in `tokens`.
        """
        position = start
        num_pages = len(node.pages)
        while stop - position >= self.page_size:
            child = node.children.get(self._key(tokens, position))
            if child is None:
                break
            node = child
            num_pages = common_prefix(node.tokens, tokens, position, stop) // self.page_size
            position += num_pages * self.page_size
            if num_pages < len(node.pages):
                break
        return node, num_pages, position

    def _split(self, node: Node, num_pages: int) -> Node:
        """Splits the edge of `node` after `num_pages` pages; returns the new node above the cut.

        `node` itself stays below the cut, so locks and heap entries that refer to it still end at the same page.
        """
        parent = node.parent
        assert parent is not None
        cut = num_pages * self.page_size
        upper = self._new_node(node.namespace, parent, node.tokens[:cut], node.pages[:num_pages], node.holding)
        upper.lock = node.lock
        upper.last_used = node.last_used
        parent.children[self._key(upper.tokens, 0)] = upper
        del node.tokens[:cut]
        del node.pages[:num_pages]
        node.parent = upper
        upper.children[self._key(node.tokens, 0)] = node
        return upper

    def _lock(self, node: Node, above: Node | None) -> None:
        """Adds a lock to each node of the path from `node` up to `above`, exclusive."""
        moved = 0
        end: Node | None = node
        while end is not None and end is not above:
            end.lock += 1
            if end.lock == 1:
                moved += len(end.pages)
            end = end.parent
        self._move(node.holding, -moved)

    def _unlock(self, node: Node) -> None:
        moved = 0
        end: Node | None = node
        while end is not None:
            end.lock -= 1
            if end.lock == 0:
                end.last_used = self._tick
                moved += len(end.pages)
            end = end.parent
        self._move(node.holding, moved)

    def _move(self, holding: Holding, num_unlocked: int) -> None:
        """Moves pages from the locked count to the unlocked one, or back if `num_unlocked` is negative."""
        holding.num_cached += num_unlocked
        self.num_cached += num_unlocked
        self.num_locked -= num_unlocked

    def _evictable(self, node: Node) -> bool:
        return node.lock == 0 and not node.children

    def _became_candidate(self, node: Node) -> None:
        """Queues an unlocked node without children for eviction; drops it at once if it is a root."""
        if node.parent is None:
            del self.roots[node.namespace]
            self.holdings.leave(node.namespace)
        elif not node.queued:
            node.queued = True
            heapq.heappush(node.holding.heap, (node.last_used, node.serial, node))

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[self._key(node.tokens, 0)]
        node.parent = None
        if parent.lock == 0 and not parent.children:
            self._became_candidate(parent)


def _follow(found: Found, root: Node) -> tuple[Node, int, int]:
    """Returns the node in whose edge `found` ends, where that edge begins, and the position; the root if it is void.

    `found` is valid while its node is in the tree and has lost no pages. Edges on the path may have been split since.
    """
    path: list[Node] = []
    node = found.node
    while node is not None:
        path.append(node)
        node = node.parent
    if not path or path[-1] is not root or path[0].cuts != found.cuts:
        return root, 0, 0
    start = 0
    while start + len(path[-1].tokens) < found.position:
        start += len(path.pop().tokens)
    return path[-1], start, found.position


def _first(head: tuple[int, Holding]) -> int:
    return head[0]


def pack(tokens: Sequence[int]) -> array[int]:
    """Returns the tokens as int32. Raises OverflowError or struct.error if one does not fit."""
    if len(tokens) < _FIRST_CHUNK or isinstance(tokens, array):
        return array("i", tokens)
    packed = array("i")
    packed.frombytes(struct.pack(f"{len(tokens)}i", *tokens))  # half the time of array("i", tokens)
    return packed


def common_prefix(edge: array[int], tokens: Sequence[int], start: int, stop: int) -> int:
    """Returns how many leading tokens of `edge` equal those of tokens[start:stop].

    Compares chunks of doubling size, so that the cost depends on the length of the result, not of the arguments.
    """
    limit = max(min(len(edge), stop - start), 0)
    done, size = 0, _FIRST_CHUNK
    while done < limit:
        end = min(done + size, limit)
        theirs = pack(tokens[start + done : start + end])
        if edge[done:end] != theirs:
            return done + first_difference(edge[done:end], theirs)
        done, size = end, 2 * size
    return limit


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the first index at which two unequal sequences of one length differ, by bisection over slices."""
    low, high = 0, len(a)
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
