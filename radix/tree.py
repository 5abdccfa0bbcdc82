"""The radix tree: which runs of tokens are cached, in which pages, and which of them are in use."""

from __future__ import annotations

import heapq
import struct
from array import array
from collections.abc import Iterator, Sequence

_FIRST_CHUNK = 64

Key = int | tuple[int, ...]


class Node:
    """A run of whole pages below `parent`; the root of a namespace has an empty one and no parent.

    tokens     page_size * len(pages) token ids: the edge from the parent
    pages      the page of each
    children   by the tokens of their first page, a plain int where a page holds one token
    lock       how many leases end at this node or below it; only what nobody locks is evicted
    last_used  tick at which `lock` last fell to zero
    queued     whether the eviction heap has an entry for it
    """

    __slots__ = ("children", "last_used", "lock", "namespace", "pages", "parent", "queued", "serial", "tokens")

    def __init__(
        self, namespace: str, parent: Node | None, tokens: array[int], pages: array[int], *, serial: int
    ) -> None:
        self.namespace = namespace
        self.parent = parent
        self.tokens = tokens
        self.pages = pages
        self.serial = serial
        self.children: dict[Key, Node] = {}
        self.lock = 0
        self.last_used = 0
        self.queued = False


class RadixTree:
    """Prefixes of token sequences, each page once, in namespaces that never share.

    The tree owns the pages it holds; those that leave it are returned by `evict`. Whoever matches gets a lock in the
    same call, so nothing can be evicted in between. A lock is named by a node: the last of the locked path. It stays
    valid when edges are split, because a split makes the new node the upper one.

    Every ancestor of a locked node is locked. So all unlocked pages can be evicted, leaf by leaf.
    """

    def __init__(self, page_size: int) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1 token, got {page_size}")
        self.page_size = page_size
        self.roots: dict[str, Node] = {}
        self.num_cached = 0  # pages of unlocked nodes
        self.num_locked = 0  # pages of locked nodes
        self._tick = 0
        self._serial = 0
        # Candidates for eviction as (last_used, serial, node). At most one entry per node. An entry may be out of
        # date: its node was locked or got children since. That is found out when it comes to the top.
        self._heap: list[tuple[int, int, Node]] = []

    def match(self, tokens: Sequence[int], stop: int, namespace: str) -> int:
        """Returns how many of tokens[:stop] are here, in whole pages. Changes nothing."""
        root = self.roots.get(namespace)
        return 0 if root is None else self._descend(root, tokens, 0, stop)[2]

    def acquire(self, tokens: Sequence[int], stop: int, namespace: str) -> Node:
        """Finds the longest cached prefix of tokens[:stop], in whole pages, and locks it; `release` undoes this."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = self._new_node(namespace, None, array("i"), array("i"))
        node, num_pages, _ = self._descend(root, tokens, 0, stop)
        if num_pages < len(node.pages):
            node = self._split(node, num_pages)
        self._lock(node, None)
        return node

    def release(self, node: Node) -> None:
        """Gives back the lock on the path that ends at `node`; it is now the most recently used."""
        self._tick += 1
        self._unlock(node)
        if node.lock == 0 and not node.children:
            self._became_candidate(node)

    def insert(self, below: Node, tokens: array[int], pages: array[int]) -> tuple[Node, int]:
        """Adds a run of whole pages below a node that the caller has locked, and moves that lock to its end.

        Returns the node that is locked now, and how many of the leading pages were here already, under other ids:
        these stay the caller's. The others are the tree's.
        """
        if below.lock == 1 and not below.children and below.parent is not None:
            below.tokens.extend(tokens)  # nobody else knows this leaf: a decoding sequence ends here each time
            below.pages.extend(pages)
            self.num_locked += len(pages)
            return below, 0
        node, num_pages, position = self._descend(below, tokens, 0, len(tokens))
        if num_pages < len(node.pages):
            node = self._split(node, num_pages)
        num_known = position // self.page_size
        if num_known < len(pages):
            leaf = self._new_node(below.namespace, node, tokens[position:], pages[num_known:])
            node.children[self._key(tokens, position)] = leaf
            self.num_cached += len(leaf.pages)
            node = leaf
        self._lock(node, below)
        return node, num_known

    def pages(self, node: Node, below: Node | None = None) -> array[int]:
        """The pages on the path from `below` (None: from the root), not included, down to `node`."""
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

    def evict(self, num_pages: int) -> array[int]:
        """Drops up to `num_pages` unlocked pages, least recently used leaves first, each from its end; returns them."""
        evicted = array("i")
        heap = self._heap
        while heap and len(evicted) < num_pages:
            last_used, serial, node = heap[0]
            if not self._evictable(node):
                heapq.heappop(heap)
                node.queued = False
            elif node.last_used != last_used:
                heapq.heapreplace(heap, (node.last_used, serial, node))
            elif (keep := len(node.pages) - (num_pages - len(evicted))) > 0:
                evicted.extend(node.pages[keep:])
                del node.pages[keep:]
                del node.tokens[keep * self.page_size :]
            else:
                heapq.heappop(heap)
                evicted.extend(node.pages)
                self._remove(node)
        self.num_cached -= len(evicted)
        return evicted

    def nodes(self) -> Iterator[Node]:
        """All nodes, parents before children, roots included."""
        stack = list(self.roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _key(self, tokens: Sequence[int], position: int) -> Key:
        if self.page_size == 1:
            return tokens[position]
        return tuple(tokens[position : position + self.page_size])

    def _new_node(self, namespace: str, parent: Node | None, tokens: array[int], pages: array[int]) -> Node:
        self._serial += 1
        return Node(namespace, parent, tokens, pages, serial=self._serial)

    def _descend(self, node: Node, tokens: Sequence[int], start: int, stop: int) -> tuple[Node, int, int]:
        """Follows tokens[start:stop] below the end of `node`, in whole pages.

        Returns the last node entered, how many pages of its edge match, and the position in `tokens` reached.
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
        """Cuts the edge of `node` after `num_pages` pages; returns the new node above the cut.

        `node` itself is what is below, so that locks and heap entries that name it still mean the same pages.
        """
        parent = node.parent
        assert parent is not None
        cut = num_pages * self.page_size
        upper = self._new_node(node.namespace, parent, node.tokens[:cut], node.pages[:num_pages])
        upper.lock = node.lock
        upper.last_used = node.last_used
        parent.children[self._key(upper.tokens, 0)] = upper
        del node.tokens[:cut]
        del node.pages[:num_pages]
        node.parent = upper
        upper.children[self._key(node.tokens, 0)] = node
        return upper

    def _lock(self, node: Node, above: Node | None) -> None:
        """One more lock on each node of the path from `node` up to `above`, which is not included."""
        end: Node | None = node
        while end is not None and end is not above:
            end.lock += 1
            if end.lock == 1:
                self.num_cached -= len(end.pages)
                self.num_locked += len(end.pages)
            end = end.parent

    def _unlock(self, node: Node) -> None:
        end: Node | None = node
        while end is not None:
            end.lock -= 1
            if end.lock == 0:
                end.last_used = self._tick
                self.num_cached += len(end.pages)
                self.num_locked -= len(end.pages)
            end = end.parent

    def _evictable(self, node: Node) -> bool:
        return node.lock == 0 and not node.children

    def _became_candidate(self, node: Node) -> None:
        """An unlocked node without children: to be evicted some time, or if it is a root, dropped at once."""
        if node.parent is None:
            del self.roots[node.namespace]
        elif not node.queued:
            node.queued = True
            heapq.heappush(self._heap, (node.last_used, node.serial, node))

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[self._key(node.tokens, 0)]
        node.parent = None
        if parent.lock == 0 and not parent.children:
            self._became_candidate(parent)


def pack(tokens: Sequence[int]) -> array[int]:
    """The tokens as int32. Raises OverflowError, or struct.error, for what is no int32."""
    if len(tokens) < _FIRST_CHUNK or isinstance(tokens, array):
        return array("i", tokens)
    packed = array("i")
    packed.frombytes(struct.pack(f"{len(tokens)}i", *tokens))  # half the time of array("i", tokens)
    return packed


def common_prefix(edge: array[int], tokens: Sequence[int], start: int, stop: int) -> int:
    """Returns how many leading tokens of `edge` equal those of tokens[start:stop].

    Compares chunks that double, so that the cost follows the length of the answer and not that of the arguments.
    """
    limit = min(len(edge), stop - start)
    done, size = 0, _FIRST_CHUNK
    while done < limit:
        end = min(done + size, limit)
        theirs = pack(tokens[start + done : start + end])
        if edge[done:end] != theirs:
            return done + first_difference(edge[done:end], theirs)
        done, size = end, 2 * size
    return limit


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """The first index at which two unequal runs of one length differ, by bisection over slices."""
    low, high = 0, len(a)
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
