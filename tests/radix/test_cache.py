"""The prefix cache: ownership of pages, by small examples and by random histories (fuzz.py)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from bough.radix import CacheCounts, Found, Lease, PrefixCache, tree

from .fuzz import fuzz


def filled(cache: PrefixCache, tokens: list[int], namespace: str = "") -> None:
    """Leaves `tokens` in the cache, as a request that ran and ended does."""
    lease = cache.open(tokens, namespace)
    assert cache.reserve(lease, len(tokens))
    cache.close(lease, tokens, len(tokens))


def running(cache: PrefixCache, tokens: list[int], namespace: str = "") -> Lease:
    lease = cache.open(tokens, namespace)
    assert cache.reserve(lease, len(tokens))
    return lease


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_keep_every_promise(seed: int):
    counts = fuzz(seed, 10_000)
    assert counts["finished"] > 50


def test_same_seed_same_history():
    assert fuzz(3, 2_000) == fuzz(3, 2_000)


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
@pytest.mark.parametrize("pages", [1, 2, 3])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_repeated_prompt_leaves_one_token_to_compute(page_size: int, pages: int, extra: int):
    tokens = list(range(pages * page_size + extra))
    cache = PrefixCache(32, page_size)
    filled(cache, tokens)
    expected = max(len(tokens) - 1, 0) // page_size * page_size
    assert cache.cached_tokens(tokens) == expected
    lease = cache.open(tokens)
    assert lease.num_cached == expected
    assert len(lease.pages) == lease.num_shared == expected // page_size


def test_a_partly_filled_page_is_never_shared():
    cache = PrefixCache(16, 4)
    filled(cache, [1, 2, 3, 4, 5, 6])
    assert cache.cached_tokens([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 4
    assert cache.counts() == CacheCounts(num_pages=15, free=14, cached=1, locked=0, private=0, evicted_tokens_total=0)


def test_limit_stops_the_match():
    cache = PrefixCache(16, 2)
    filled(cache, list(range(8)))
    for limit, found in [(None, 8), (100, 8), (7, 6), (2, 2), (1, 0), (0, 0), (-1, 0)]:
        assert cache.cached_tokens([*range(8), 9], limit=limit) == found
        lease = cache.open([*range(8), 9], limit=limit)
        assert lease.num_cached == found
        cache.close(lease, [], 0)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("same", [0, 1, 64, 1000, 4095, 4096])
def test_long_prompts_match_up_to_where_they_differ(page_size: int, same: int):
    cache = PrefixCache(10_000 // page_size, page_size)
    first = list(range(4096))
    second = [*first[:same], *[-token for token in range(same + 1, 5000)]]
    filled(cache, first)
    filled(cache, second)
    shared = same // page_size
    assert cache.cached_tokens([*first, 0]) == 4096
    one, other = cache.open([*first, 0]), cache.open([*second, 0])
    assert one.pages[:shared] == other.pages[:shared]
    assert not set(one.pages[shared:]) & set(other.pages[shared:])
    cache.check([one, other])


def test_namespaces_never_share():
    cache = PrefixCache(16, 1)
    filled(cache, [1, 2, 3], "one")
    assert cache.cached_tokens([1, 2, 3, 4], "two") == cache.cached_tokens([1, 2, 3, 4]) == 0
    assert cache.cached_tokens([1, 2, 3, 4], "one") == 3


def test_empty_namespaces_are_dropped():
    cache = PrefixCache(8, 1)
    for i in range(100):
        filled(cache, [1, 2, 3], f"tenant {i}")
        cache.close(cache.open([5], f"nothing {i}"), [5], 0)
        assert len(cache.tree.roots) <= 7  # each has a page
    cache.flush()
    assert not cache.tree.roots
    assert not cache.tree.holdings.by_tenant


def test_committed_pages_are_found_while_their_owner_runs():
    cache = PrefixCache(16, 2)
    first = running(cache, [1, 2, 3, 4, 5])
    cache.commit(first, [1, 2, 3, 4, 5], 3)
    assert first.num_shared == 1
    second = cache.open([1, 2, 3, 4, 5])
    assert second.num_cached == 2
    assert second.pages[0] == first.pages[0]
    cache.check([first, second])


def test_a_growing_lease_extends_its_edge_in_place():
    cache = PrefixCache(64, 1)
    tokens = [7]
    lease = running(cache, tokens)
    for token in range(40):
        cache.commit(lease, tokens, len(tokens))
        tokens.append(token)
        assert cache.reserve(lease, len(tokens))
    assert sum(1 for _ in cache.tree.nodes()) == 2  # the root and one leaf
    cache.check([lease])


def test_forks_share_the_prefix_and_nothing_else():
    cache = PrefixCache(64, 2)
    prompt = list(range(10))
    parent = running(cache, prompt)
    cache.commit(parent, prompt, 10)
    branches = [[*prompt, 100 + i, 200 + i] for i in range(3)]
    leases = [running(cache, tokens) for tokens in branches]
    assert cache.counts().private == 3
    for lease, tokens in zip(leases, branches, strict=True):
        assert lease.pages[:5] == parent.pages
        cache.commit(lease, tokens, len(tokens))
    assert len({lease.pages[5] for lease in leases}) == 3
    cache.check([parent, *leases])


def test_who_publishes_second_gets_the_pages_of_who_was_first():
    cache = PrefixCache(16, 2)
    tokens = [1, 2, 3, 4, 5, 6]
    first, second = running(cache, tokens), running(cache, tokens)
    assert not set(first.pages) & set(second.pages)
    cache.commit(first, tokens, 4)
    cache.commit(second, tokens, 6)
    assert second.pages[:2] == first.pages[:2]
    assert second.num_shared == 3
    assert cache.counts() == CacheCounts(num_pages=15, free=11, cached=0, locked=3, private=1, evicted_tokens_total=0)
    cache.check([first, second])


def test_a_page_table_keeps_its_identity():
    cache = PrefixCache(16, 1)
    tokens = [1, 2, 3]
    first, second = running(cache, tokens), running(cache, tokens)
    table = second.pages
    cache.commit(first, tokens, 3)
    cache.commit(second, tokens, 3)
    assert second.pages is table
    assert table == first.pages


def test_closing_without_publishing_keeps_what_was_committed():
    cache = PrefixCache(16, 1)
    tokens = [1, 2, 3, 4]
    lease = running(cache, tokens)
    cache.commit(lease, tokens, 2)
    cache.close(lease, tokens, 0)
    assert cache.cached_tokens(tokens) == 2
    assert cache.counts().free == 13


def test_reserve_is_all_or_nothing():
    cache = PrefixCache(9, 1)
    filled(cache, [1, 2, 3])
    lease = running(cache, [7, 8, 9])
    before = cache.counts()
    assert not cache.reserve(lease, 9)
    assert cache.counts() == before
    assert cache.reserve(lease, 8)
    assert cache.counts().evicted_tokens_total == 3
    assert cache.reserve(lease, 2)  # fewer than it has
    assert len(lease.pages) == 8


def test_locked_pages_are_never_evicted():
    cache = PrefixCache(9, 1)
    filled(cache, [1, 2, 3, 4])
    reader = cache.open([1, 2, 3])  # locks two of the four
    greedy = cache.open([9])
    assert not cache.reserve(greedy, 7)
    assert cache.reserve(greedy, 6)
    assert cache.cached_tokens([1, 2, 3, 4, 5]) == 2
    cache.check([reader, greedy])


def test_flush_drops_what_nobody_uses():
    cache = PrefixCache(16, 1)
    filled(cache, [1, 2, 3])
    filled(cache, [4, 5])
    reader = cache.open([4, 5, 6])
    assert cache.flush() == 3
    assert cache.cached_tokens([4, 5, 6]) == 2
    assert cache.counts().evicted_tokens_total == 0  # nobody was short of pages
    cache.check([reader])


def test_without_sharing_nothing_is_matched_or_kept():
    cache = PrefixCache(16, 1, sharing=False)
    lease = running(cache, [1, 2, 3])
    cache.commit(lease, [1, 2, 3], 3)
    assert cache.cached_tokens([1, 2, 3, 4]) == 0
    assert cache.open([1, 2, 3, 4]).num_cached == 0
    cache.close(lease, [1, 2, 3], 3)
    assert cache.counts().free == 15


def test_a_closed_lease_can_do_nothing():
    cache = PrefixCache(8, 1)
    lease = running(cache, [1, 2])
    cache.close(lease, [1, 2], 2)
    for use in (cache.close, cache.commit):
        with pytest.raises(ValueError, match="the lease is closed"):
            use(lease, [1, 2], 2)
    with pytest.raises(ValueError, match="the lease is closed"):
        cache.reserve(lease, 1)
    cache.check([])


def test_what_is_not_there_cannot_be_published():
    cache = PrefixCache(8, 1)
    lease = running(cache, [1, 2])
    with pytest.raises(ValueError, match="got 3"):
        cache.commit(lease, [1, 2], 3)  # more than the tokens
    with pytest.raises(ValueError, match="got 3"):
        cache.commit(lease, [1, 2, 3], 3)  # more than the pages
    with pytest.raises(OverflowError):
        cache.commit(lease, [1, 1 << 40], 2)
    cache.check([lease])
    assert lease.num_shared == 0


def corrupt_owner(cache: PrefixCache, lease: Lease) -> None:
    cache.pool.free_pages.append(lease.pages[0])


def corrupt_conservation(cache: PrefixCache, lease: Lease) -> None:
    cache.pool.free_pages.pop()


def corrupt_lock(cache: PrefixCache, lease: Lease) -> None:
    assert lease.node is not None
    lease.node.lock += 1


def corrupt_table(cache: PrefixCache, lease: Lease) -> None:
    lease.pages[0], lease.pages[1] = lease.pages[1], lease.pages[0]


def corrupt_counter(cache: PrefixCache, lease: Lease) -> None:
    cache.tree.num_cached += 1


def corrupt_namespace(cache: PrefixCache, lease: Lease) -> None:
    assert lease.node is not None
    lease.node.namespace = "other"


def corrupt_edge(cache: PrefixCache, lease: Lease) -> None:
    assert lease.node is not None
    lease.node.tokens.append(1)


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (corrupt_owner, "more than one owner"),
        (corrupt_conservation, "without an owner"),
        (corrupt_lock, "a lock is 2"),
        (corrupt_table, "a page table differs"),
        (corrupt_counter, "num_cached is"),
        (corrupt_namespace, "between namespaces"),
        (corrupt_edge, "not whole pages"),
    ],
)
def test_check_finds_what_does_not_balance(corrupt, complaint: str):
    cache = PrefixCache(16, 1)
    filled(cache, [1, 2, 3])
    lease = cache.open([1, 2, 3, 4])
    cache.check([lease])
    corrupt(cache, lease)
    with pytest.raises(AssertionError, match=complaint):
        cache.check([lease])


def test_check_finds_a_lease_that_was_forgotten():
    cache = PrefixCache(16, 1)
    lease = running(cache, [1, 2])
    with pytest.raises(AssertionError, match="without an owner"):
        cache.check([])
    cache.close(lease, [1, 2], 2)
    cache.check([])


def test_page_tables_are_int32():
    lease = running(PrefixCache(8, 1), [1, 2])
    assert lease.pages == array("i", [1, 2])
    assert lease.pages.itemsize == 4


# -- Asking again ------------------------------------------------------------------------------------------------------


class FoundForever(PrefixCache):
    """A cache in which a prefix stays found, though its end was evicted and others have taken its place."""

    def cached_tokens(
        self, tokens: Sequence[int], namespace: str = "", *, limit: int | None = None, found: Found | None = None
    ) -> int:
        if found is not None and found.node is not None:
            found.cuts = found.node.cuts
        return super().cached_tokens(tokens, namespace, limit=limit, found=found)


def wrong_answers(cache: PrefixCache, random: Random, rounds: int = 3000) -> int:
    """Counts look-ups that go on from what was found before and differ from those that begin anew.

    Few pages and two tokens: ends of edges are evicted all the time, and grow on with other tokens.
    """
    asked = [([random.randrange(2) for _ in range(24)], Found()) for _ in range(8)]
    wrong = 0
    for _ in range(rounds):
        tokens = [random.randrange(2) for _ in range(24)]
        if random.random() < 0.7:
            tokens[:9] = random.choice(asked)[0][:9]
        lease = cache.open(tokens)
        length = random.randrange(len(lease.pages) * cache.page_size, 1 + len(tokens))
        cache.close(lease, tokens, length if cache.reserve(lease, length) else 0)
        for again, found in random.sample(asked, 2):
            wrong += cache.cached_tokens(again, found=found) != cache.cached_tokens(again)
    cache.check([])
    return wrong


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("seed", range(2))
def test_asking_again_finds_what_asking_anew_does(page_size: int, seed: int) -> None:
    assert wrong_answers(PrefixCache(40 // page_size, page_size), Random(seed)) == 0


@pytest.mark.parametrize("seed", range(3))
def test_what_others_put_in_its_place_is_not_what_was_found(seed: int) -> None:
    with pytest.raises((AssertionError, IndexError)):  # the test above would see this fault
        assert wrong_answers(FoundForever(40, 1), Random(seed)) == 0


def test_asking_again_for_nothing_finds_nothing() -> None:
    cache, found = PrefixCache(16, 1), Found()
    filled(cache, [1, 2, 3])
    assert cache.cached_tokens([], found=found) == 0
    assert cache.cached_tokens([1, 2, 3], limit=-2, found=found) == 0


def test_asking_again_does_not_compare_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, tokens, found = PrefixCache(5000, 1), list(range(4000)), Found()
    filled(cache, tokens[:3000])
    assert cache.cached_tokens(tokens, found=found) == 3000
    compared: list[int] = []
    whole = tree.common_prefix

    def count(edge: array[int], *more: Any) -> int:
        compared.append(whole(edge, *more))
        return compared[-1]

    monkeypatch.setattr(tree, "common_prefix", count)
    assert cache.cached_tokens(tokens, found=found) == 3000
    assert sum(compared) == 0
    filled(cache, tokens)
    assert cache.cached_tokens(tokens, found=found) == 3999
    assert sum(compared) < 2 * 3000, "filling compares once; asking only what is new"
