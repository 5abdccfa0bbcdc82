"""Random histories of the prefix cache, checked against brute force after every operation.

A fake model stores in each slot a hash of all tokens up to it, and reads the one before through the page table. So a
wrong, stale, shared or foreign page changes what it generates. The same seed gives the same history:

    python tests/radix/fuzz.py --operations 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from bough.radix import Found, Lease, PrefixCache
from bough.radix.tree import Node

VOCABULARY = 3  # so small that prefixes collide all the time
NAMESPACES = ("", "a", "b", "a/salt")
PAGE_SIZES = (1, 2, 4, 16)
MAX_LIVE = 8
UNWRITTEN = -1

CacheFactory = Callable[..., PrefixCache]


class ViolationError(Exception):
    """The cache broke a promise. The message is what it takes to see it again."""


def chain(previous: int, token: int) -> int:
    """The content of a slot: a 61-bit hash of the content of the slot before it and of its own token."""
    mixed = (previous ^ (token + 0x9E3779B97F4A7C15)) * 0xD6E8FEB86659FD93
    return (mixed ^ (mixed >> 32)) % ((1 << 61) - 1)


def origin(namespace: str) -> int:
    """Value that is read at the position before the first."""
    return zlib.crc32(b"namespace " + namespace.encode())


def next_token(content: int) -> int:
    return (content >> 7) % VOCABULARY


def reference(namespace: str, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Generates without any cache, up to `num_tokens` in all."""
    tokens = list(prompt)
    content = origin(namespace)
    for token in prompt:
        content = chain(content, token)
    while len(tokens) < num_tokens:
        tokens.append(next_token(content))
        content = chain(content, tokens[-1])
    return tokens


@dataclass(eq=False)
class Generation:
    """One request. `contents` is what its slots must hold, from its tokens alone."""

    namespace: str
    prompt: list[int]
    max_tokens: int  # prompt included
    tokens: list[int] = field(default_factory=list)
    contents: list[int] = field(default_factory=list)
    num_computed: int = 0
    lease: Lease | None = None
    found: Found = field(default_factory=Found)  # when the cache was asked for its tokens last

    def __post_init__(self) -> None:
        for token in self.prompt:
            self.append(token)

    def append(self, token: int) -> None:
        previous = self.contents[-1] if self.contents else origin(self.namespace)
        self.tokens.append(token)
        self.contents.append(chain(previous, token))

    @property
    def open_lease(self) -> Lease:
        assert self.lease is not None
        return self.lease


class Episode:
    """One cache from empty to empty, under a random subset of the operations."""

    def __init__(self, random: Random, make_cache: CacheFactory, counts: Counter[str]) -> None:
        self.random = random
        self.counts = counts
        self.page_size = random.choice(PAGE_SIZES)
        self.num_pages = random.choice((random.randint(2, 6), random.randint(6, 64), random.randint(20, 64)))
        self.sharing = random.random() < 0.97
        self.cache = make_cache(self.num_pages, self.page_size, sharing=self.sharing)
        self.slots = [UNWRITTEN] * (self.num_pages * self.page_size)
        self.live: list[Generation] = []
        self.history: list[Generation] = []  # prompts to begin like
        self.page_contents: dict[tuple[int, tuple[int, ...]], int] = {}
        self.prefixes: dict[int, int] = {}  # content at the end of each page in the tree -> that page
        self.common = [self.start, self.admit, *[self.prefill] * 2, *[self.decode] * 5]
        rare = [self.publish, self.retract, self.abort, self.fork, self.press, self.flush]
        self.rare = random.sample(rare, random.randint(1, len(rare)))
        self.rarity = random.choice((0.02, 0.1, 0.3))

    def step(self) -> None:
        """One random operation, and the full check after it."""
        operation = self.random.choice(self.rare if self.random.random() < self.rarity else self.common)
        operation()
        self.counts[operation.__name__] += 1
        self.check()

    def finish(self) -> None:
        """Ends all requests: then a flush must leave every page free and no namespace behind."""
        for generation in list(self.live):
            self._end(generation, self.random.random() < 0.5)
        self.check()
        self.flush()
        counts = self.cache.counts()
        assert counts.free == counts.num_pages == self.num_pages - 1, f"pages lost at the end: {counts}"
        assert not self.cache.tree.roots, "namespaces left behind"

    # Operations. Each does nothing where it does not apply.

    def start(self) -> None:
        capacity = (self.num_pages - 1) * self.page_size
        if len(self.live) >= MAX_LIVE:
            return
        namespace = self.random.choice(NAMESPACES)
        prompt = [self.random.randrange(VOCABULARY) for _ in range(self.random.randint(1, 43))]
        if self.history and self.random.random() < 0.7:
            earlier = self.random.choice(self.history)
            namespace = earlier.namespace if self.random.random() < 0.8 else namespace
            prompt = earlier.tokens[: self.random.randint(1, len(earlier.tokens))] + prompt[: self.random.randint(0, 8)]
        del prompt[min(capacity, 62) :]
        self._add(Generation(namespace, prompt, min(capacity, len(prompt) + self.random.randint(0, 19))))

    def admit(self) -> None:
        if (generation := self._pick(running=False)) is not None:
            limit = self.random.randint(-1, len(generation.tokens) + 1)
            self._admit(generation, limit if self.random.random() < 0.2 else None)

    def prefill(self) -> None:
        """A chunk of what is known already, but not its last token: that is `decode`'s."""
        generation = self._pick(running=True)
        if generation is None or generation.num_computed >= len(generation.tokens) - 1:
            return
        stop = min(len(generation.tokens) - 1, generation.num_computed + self.random.randint(1, 24))
        self._compute(generation, stop)
        if self.random.random() < 0.5:
            self._publish(generation, generation.num_computed)

    def decode(self) -> None:
        """The next token of one request; it ends at its limit, and its output must be the reference's."""
        generation = self._pick(running=True)
        if generation is None or generation.num_computed < len(generation.tokens) - 1:
            return
        lease = generation.open_lease
        if not self._reserve(lease, len(generation.tokens)):
            self._retract(self.random.choice([other for other in self.live if other.lease is not None]))
            return
        self._compute(generation, len(generation.tokens))
        if len(generation.tokens) < generation.max_tokens:
            generation.append(next_token(self.slots[self._slot(lease, generation.num_computed - 1)]))
            return
        expected = reference(generation.namespace, generation.prompt, generation.max_tokens)
        assert generation.tokens == expected, "the output differs from that without a cache"
        self.counts["finished"] += 1
        self._end(generation, True)

    def publish(self) -> None:
        if (generation := self._pick(running=True)) is not None:
            self._publish(generation, self.random.randint(0, generation.num_computed))

    def retract(self) -> None:
        if (generation := self._pick(running=True)) is not None:
            self._retract(generation)

    def abort(self) -> None:
        if self.live:
            self._end(self.random.choice(self.live), self.random.random() < 0.5)

    def fork(self) -> None:
        """Several requests over the tokens of one, admitted at once."""
        if not self.live:
            return
        parent = self.random.choice(self.live)
        for _ in range(min(self.random.randint(1, 4), MAX_LIVE - len(self.live))):
            prompt = parent.tokens + [self.random.randrange(VOCABULARY) for _ in range(self.random.randint(0, 2))]
            if len(prompt) <= parent.max_tokens:
                self._admit(self._add(Generation(parent.namespace, prompt, parent.max_tokens)), None)
                self.check()

    def press(self) -> None:
        """A claim on many pages at once, given up at once: evicts if it can be met, and changes nothing if not."""
        before = self.cache.counts()
        wanted = self.random.randint(1, self.num_pages)
        lease = self.cache.open([], "")
        reserved = self._reserve(lease, wanted * self.page_size)
        self.cache.close(lease, [], 0)
        evicted = max(wanted - before.free, 0) if reserved else 0
        after = self.cache.counts()
        assert after.cached == before.cached - evicted, f"evicted other than {evicted} pages"
        assert after.evicted_tokens_total == before.evicted_tokens_total + evicted * self.page_size

    def flush(self) -> None:
        cached = self.cache.counts().cached
        assert self.cache.flush() == cached, "flush freed something other than what was cached"
        assert self.cache.counts().cached == 0

    def _pick(self, *, running: bool) -> Generation | None:
        choice = [generation for generation in self.live if (generation.lease is not None) == running]
        return self.random.choice(choice) if choice else None

    def _add(self, generation: Generation) -> Generation:
        self.live.append(generation)
        self.history = [*self.history[-15:], generation]
        return generation

    def _admit(self, generation: Generation, limit: int | None) -> None:
        tokens, namespace = generation.tokens, generation.namespace
        before = self.cache.counts()
        found = self.cache.cached_tokens(tokens, namespace)
        assert self.cache.counts() == before, "cached_tokens changed something"
        assert found == self._longest_prefix(generation, None), f"cached_tokens says {found}"
        lease = self.cache.open(tokens, namespace, limit=limit)
        expected = self._longest_prefix(generation, limit)
        assert lease.num_cached == expected, f"open found {lease.num_cached} tokens, and not {expected}"
        if self._reserve(lease, len(tokens)):
            generation.lease = lease
            generation.num_computed = lease.num_cached
        else:
            self.cache.close(lease, tokens, 0)

    def _reserve(self, lease: Lease, num_tokens: int) -> bool:
        before = self.cache.counts()
        missing = -(-num_tokens // self.page_size) - len(lease.pages)
        reserved = self.cache.reserve(lease, num_tokens)
        assert reserved == (missing <= before.free + before.cached), "reserve is not all or nothing"
        assert reserved or self.cache.counts() == before, "reserve failed, but evicted"
        assert not reserved or len(lease.pages) * self.page_size >= num_tokens, "reserve gave too few pages"
        return reserved

    def _slot(self, lease: Lease, position: int) -> int:
        return lease.pages[position // self.page_size] * self.page_size + position % self.page_size

    def _compute(self, generation: Generation, stop: int) -> None:
        """The model: each slot from the one before it, which is read through the page table."""
        lease = generation.open_lease
        start = generation.num_computed
        content = self.slots[self._slot(lease, start - 1)] if start else origin(generation.namespace)
        for position in range(start, stop):
            content = chain(content, generation.tokens[position])
            self.slots[self._slot(lease, position)] = content
        generation.num_computed = stop

    def _publish(self, generation: Generation, num_computed: int) -> None:
        lease = generation.open_lease
        before = lease.num_shared
        self.cache.commit(lease, generation.tokens, num_computed)
        published = num_computed // self.page_size if self.sharing else 0
        assert lease.num_shared == max(before, published), "commit published something else"

    def _retract(self, generation: Generation) -> None:
        self.cache.close(generation.open_lease, generation.tokens, generation.num_computed)
        generation.lease = None
        generation.num_computed = 0
        self.counts["retracted"] += 1

    def _end(self, generation: Generation, keep: bool) -> None:
        self.live.remove(generation)
        if generation.lease is not None:
            self.cache.close(generation.lease, generation.tokens, generation.num_computed if keep else 0)

    # The check: everything recounted from the tree's nodes, the free list, the open leases and the slots.

    def _longest_prefix(self, generation: Generation, limit: int | None) -> int:
        """Returns what a match must find, from the set of all prefixes that are in the tree."""
        size = self.page_size
        stop = len(generation.tokens) - 1
        stop = stop if limit is None else min(stop, limit)
        found = 0
        while found + size <= stop and generation.contents[found + size - 1] in self.prefixes:
            found += size
        return found

    def check(self) -> None:
        owners: dict[int, str] = dict.fromkeys(self.cache.pool.free_pages, "free")
        num_owned = len(self.cache.pool.free_pages)
        nodes = self._check_tree()
        for node in nodes:
            owners.update(dict.fromkeys(node.pages, "tree"))
            num_owned += len(node.pages)
        locks: dict[Node, int] = dict.fromkeys(nodes, 0)
        for generation in self.live:
            if generation.lease is not None:
                self._check_lease(generation, generation.lease, locks)
                private = generation.lease.pages[generation.lease.num_shared :]
                owners.update(dict.fromkeys(private, "private"))
                num_owned += len(private)
        assert num_owned == len(owners), "a page has two owners"
        assert len(owners) == self.num_pages - 1 and 0 not in owners, "a page has no owner"
        locked = 0
        for node, lock in locks.items():
            assert node.lock == lock, f"a lock is {node.lock} and not {lock}"
            locked += len(node.pages) if lock else 0
        counts, by_owner = self.cache.counts(), Counter(owners.values())
        assert (counts.locked, counts.locked + counts.cached) == (locked, by_owner["tree"]), f"wrong: {counts}"
        assert (counts.free, counts.private) == (by_owner["free"], by_owner["private"]), f"wrong: {counts}"
        for generation in (*self.live, *self.history):
            if self.random.random() < 0.03:  # others grow and are evicted meanwhile
                self._check_found(generation)
        if self.random.random() < 0.1:
            self.cache.check(generation.lease for generation in self.live if generation.lease is not None)

    def _check_found(self, generation: Generation) -> None:
        """Asking again finds what asking for the first time does."""
        tokens, namespace = generation.tokens, generation.namespace
        again = self.cache.cached_tokens(tokens, namespace, found=generation.found)
        first = self.cache.cached_tokens(tokens, namespace)
        assert again == first, f"{first} tokens are cached, and {again} by what was found before"

    def _check_tree(self) -> list[Node]:
        """Shape and content of the tree; notes which prefixes it holds."""
        size, slots, known = self.page_size, self.slots, self.page_contents
        self.prefixes = prefixes = {}
        nodes = []
        num_pages = 0
        stack = [(root, origin(namespace)) for namespace, root in self.cache.tree.roots.items()]
        for root, _ in stack:
            assert root.parent is None and not root.pages and (root.children or root.lock), "a bad root"
        while stack:
            node, content = stack.pop()
            nodes.append(node)
            tokens = node.tokens
            assert len(tokens) == size * len(node.pages), "an edge is not whole pages"
            num_pages += len(node.pages)
            for index, page in enumerate(node.pages):
                run = (content, tuple(tokens[index * size : (index + 1) * size]))
                if (after := known.get(run)) is None:
                    after = content
                    for token in run[1]:
                        after = chain(after, token)
                    known[run] = after
                content = after
                assert slots[page * size + size - 1] == content, "a cached page holds something else"
                prefixes[content] = page
            for key, child in node.children.items():
                first = child.tokens[0] if size == 1 else tuple(child.tokens[:size])
                assert key == first and child.parent is node and child.pages, "a bad child"
                stack.append((child, content))
        assert len(prefixes) == num_pages, "a prefix is in the tree twice"
        return nodes

    def _check_lease(self, generation: Generation, lease: Lease, locks: dict[Node, int]) -> None:
        """Its locked path is the start of its page table, and every computed slot holds what it must."""
        size, slots, contents = self.page_size, self.slots, generation.contents
        path: list[int] = []
        node = lease.node
        assert node is not None
        while node.parent is not None:
            assert node in locks, "a lease ends outside the tree"
            locks[node] += 1
            path[:0] = node.pages
            node = node.parent
        assert self.cache.tree.roots.get(generation.namespace) is node, "a lease ends in another namespace"
        locks[node] += 1
        shared = lease.num_shared
        assert path == lease.pages[:shared].tolist(), "the page table differs from the locked path"
        # What the tree holds along a path is checked already, so the end of it speaks for all of it.
        assert not shared or self.prefixes.get(contents[shared * size - 1]) == path[-1], "the path is another prefix's"
        for position in range(shared * size, generation.num_computed):
            assert slots[self._slot(lease, position)] == contents[position], "a private page holds something else"


def fuzz(seed: int, num_operations: int, make_cache: CacheFactory = PrefixCache) -> Counter[str]:
    """Runs episodes until there were `num_operations`; returns how often what happened. Raises ViolationError."""
    random = Random(seed)
    counts: Counter[str] = Counter()
    done = 0
    while done < num_operations:
        length = min(random.choice((60, 300, 1500)), num_operations - done)
        try:
            episode = Episode(random, make_cache, counts)
            for _ in range(length):
                done += 1
                episode.step()
            episode.finish()
        except (AssertionError, ArithmeticError, AttributeError, LookupError, ValueError) as error:
            raise ViolationError(f"seed={seed} operations={done} {type(error).__name__}: {error}") from error
        counts["episodes"] += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    start = time.perf_counter()
    try:
        counts = fuzz(arguments.seed, arguments.operations)
    except ViolationError as violation:
        print(violation)
        return 1
    print(f"{arguments.operations} operations in {time.perf_counter() - start:.1f} s, no violation: {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
