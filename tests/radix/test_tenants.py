"""Holdings of tenants: who gives pages up, and what nobody can take."""

from __future__ import annotations

from random import Random

import pytest

from bough.radix import PrefixCache, tenant_of
from bough.radix.tenants import IN_USE


def fill(cache: PrefixCache, tokens: list[int], namespace: str, *, spare: bool = True) -> bool:
    lease = cache.open(tokens, namespace)
    done = cache.reserve(lease, len(tokens), spare=spare)
    cache.close(lease, tokens, len(tokens) if done else 0)
    return done


def held(cache: PrefixCache) -> dict[str, int]:
    """The pages of each tenant, counted node by node."""
    found: dict[str, int] = {}
    for node in cache.tree.nodes():
        name = tenant_of(node.namespace)
        found[name] = found.get(name, 0) + len(node.pages)
    return found


def test_a_salt_makes_nobody_another_tenant() -> None:
    assert [tenant_of(namespace) for namespace in ("", "a", "a/b", "a/b/c")] == ["", "a", "a", "a"]


@pytest.mark.parametrize("flooders", [1, 3])
def test_a_flood_takes_nothing_of_who_has_less_than_its_part(flooders: int) -> None:
    cache = PrefixCache(1000, 1)
    own = [[key] * 50 for key in range(4)]
    for tokens in own:
        assert fill(cache, tokens, "quiet")
    for number in range(3000):
        assert fill(cache, [number, *range(number % 90)], f"flood{number % flooders}/{number % 7}")
        if number % 100 == 0:
            assert all(cache.cached_tokens([*tokens, 0], "quiet") == 50 for tokens in own)
            fill(cache, own[number // 100 % 4], "quiet")
    cache.check([])


def test_what_somebody_left_long_ago_is_given_first() -> None:
    cache = PrefixCache(101, 1)
    fill(cache, list(range(30)), "gone")
    for number in range(IN_USE):
        fill(cache, [number % 3], "busy")
    assert fill(cache, list(range(100, 190)), "busy")
    assert held(cache)["busy"] == 93 and cache.cached_tokens(list(range(30)), "gone") < 10


def test_without_spare_all_that_is_unlocked_can_be_had() -> None:
    cache = PrefixCache(101, 1)
    fill(cache, list(range(40)), "quiet")
    running = cache.open([], "busy")
    assert cache.reserve(running, 60)
    more = cache.open([], "busy")
    assert not cache.reserve(more, 30, spare=True)
    assert cache.cached_tokens(list(range(40)), "quiet") == 39
    assert cache.reserve(more, 30)
    cache.check([running, more])


def test_a_tenant_keeps_pages_by_its_weight() -> None:
    cache = PrefixCache(401, 1, weights={"heavy": 3})
    for number in range(2000):
        for name in ("heavy", "light"):
            fill(cache, [number, *range(9)], name, spare=False)
    assert held(cache) == pytest.approx({"heavy": 300, "light": 100}, abs=12)
    cache.check([])


@pytest.mark.parametrize("seed", range(10))
def test_nobody_in_use_is_brought_below_its_part(seed: int) -> None:
    """An equal part of all that is cached before, which takes no more than this one claim from anyone."""
    drawn = Random(seed)
    cache = PrefixCache(drawn.randrange(20, 80), drawn.choice([1, 4]))
    for _ in range(400):
        before, counts = held(cache), cache.counts()
        name = drawn.choice("abcd")
        tokens = [drawn.randrange(3) for _ in range(drawn.randrange(1, 40))]
        if fill(cache, tokens, name):
            after, part = held(cache), (counts.cached + counts.locked) // max(len(before), 1)
            short = len(tokens) // cache.page_size + 1
            for other, pages in before.items():
                assert other == name or after.get(other, 0) >= min(pages, part - short)
        cache.check([])


def test_the_cache_of_one_tenant_is_flushed_and_no_other() -> None:
    cache = PrefixCache(64, 1)
    fill(cache, [1, 2, 3], "one")
    fill(cache, [4, 5], "one/salt")
    fill(cache, [1, 2], "two")
    reader = cache.open([4, 5, 6], "one/salt")
    assert cache.flush("nobody") == 0
    assert cache.flush("one") == 3  # what somebody reads stays
    assert held(cache) == {"one": 2, "two": 2}
    assert cache.cached_tokens([1, 2, 3], "two") == 2
    cache.check([reader])
