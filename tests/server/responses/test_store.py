"""The store: what a key may see, and how much is kept of it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bough.server.errors import ApiError
from bough.server.responses.store import ENTRY_BYTES, ITEM_BYTES, Store, Stored


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def stored(name: str, size: int = 0, *, previous: str | None = None, events: bool = False) -> Stored:
    return Stored(
        name,
        previous=previous,
        input=b"[]",
        response=b" " * size,
        item_ids=(f"item-{name}",),
        events=[] if events else None,
    )


def store(clock: Clock | None = None, **settings: Any) -> Store:
    return Store(**{"max_bytes": 1 << 20, "max_count": 100, "ttl_s": 60.0, **settings}, clock=clock or Clock())


SMALL = stored("s").num_bytes


def busy(response: Stored) -> None:
    """Has it being made, as far as the store can tell."""
    response.task = cast("asyncio.Task[None]", object())


def missing(kept: Store, key: str, name: str) -> bool:
    try:
        kept.get(key, name)
    except ApiError as error:
        return (error.status, error.code) == (404, "response_not_found")
    return False


def test_what_is_kept_is_there_for_its_key_alone() -> None:
    kept = store()
    assert kept.put("a", stored("r"))
    assert kept.get("a", "r").id == "r"
    assert missing(kept, "b", "r")
    with pytest.raises(ApiError):
        kept.drop("b", "r")
    with pytest.raises(ApiError) as caught:
        kept.conversation("b", "r")
    assert (caught.value.status, caught.value.code) == (400, "previous_response_not_found")
    assert kept.holders("b", ["item-r"]) == {}
    assert list(kept.holders("a", ["item-r", "other"])) == ["item-r"]


def test_what_is_dropped_is_gone_with_its_bytes() -> None:
    kept = store()
    kept.put("a", stored("r"))
    assert kept.num_bytes("a") == SMALL == ENTRY_BYTES + ITEM_BYTES + 2
    kept.drop("a", "r")
    assert missing(kept, "a", "r")
    assert kept.num_bytes("a") == 0
    assert kept.holders("a", ["item-r"]) == {}


def test_the_least_recently_used_goes_when_there_are_too_many() -> None:
    kept = store(max_count=2)
    for name in ("r1", "r2"):
        kept.put("a", stored(name))
    kept.get("a", "r1")
    kept.put("a", stored("r3"))
    assert [missing(kept, "a", name) for name in ("r1", "r2", "r3")] == [False, True, False]


def test_bytes_are_bounded_for_each_key() -> None:
    kept = store(max_bytes=3 * SMALL + 100)
    for index in range(9):
        assert kept.put("a", stored(f"r{index}"))
        assert kept.num_bytes("a") <= 3 * SMALL + 100
    kept.put("b", stored("other"))
    assert kept.put("a", stored("large", size=2 * SMALL))
    assert missing(kept, "a", "r8")
    assert not kept.put("a", stored("larger", size=3 * SMALL))
    assert not missing(kept, "a", "large")
    assert not missing(kept, "b", "other")


def test_it_is_kept_for_some_time_after_its_last_use() -> None:
    clock = Clock()
    kept = store(clock)
    kept.put("a", stored("r1"))
    kept.put("b", stored("r2"))
    clock.now += 50
    kept.get("a", "r1")
    clock.now += 50
    assert not missing(kept, "a", "r1")
    assert kept.num_bytes("b") == 0
    clock.now += 61
    assert missing(kept, "a", "r1")


def test_a_conversation_is_told_from_its_beginning_and_loses_its_end_first() -> None:
    kept = store(max_count=3)
    kept.put("a", stored("r1"))
    kept.put("a", stored("r2", previous="r1"))
    kept.put("a", stored("r3", previous="r2"))
    assert [each.id for each in kept.conversation("a", "r3")] == ["r1", "r2", "r3"]
    assert kept.conversation("a", None) == []
    kept.put("a", stored("other"))
    assert [each.id for each in kept.conversation("a", "r2")] == ["r1", "r2"]
    kept.drop("a", "r1")
    with pytest.raises(ApiError, match="'r1', which r2 follows on, not found") as caught:
        kept.conversation("a", "r2")
    assert caught.value.param == "previous_response_id"


def test_what_is_being_made_stays_and_cannot_be_followed_on() -> None:
    kept = store(max_count=2)
    made = stored("made")
    busy(made)
    kept.put("a", made)
    for name in ("r1", "r2"):
        assert kept.put("a", stored(name))
    assert not missing(kept, "a", "made")
    assert missing(kept, "a", "r1")
    with pytest.raises(ApiError) as caught:
        kept.conversation("a", "made")
    assert caught.value.code == "response_in_progress"
    assert kept.holders("a", ["item-made"]) == {}
    second = stored("second")
    busy(second)
    assert kept.put("a", second)
    assert not kept.put("a", stored("third"))
    kept.settle("a", made, b"{}", ("item-made",))
    assert [each.id for each in kept.conversation("a", "made")] == ["made"]
    assert kept.put("a", stored("third"))


def test_events_count_and_are_given_up_when_they_have_no_room() -> None:
    kept = store(max_bytes=2 * SMALL + 1000)
    made = stored("made", events=True)
    busy(made)
    kept.put("a", stored("old"))
    kept.put("a", made)
    kept.grow("a", made, b"x" * 500)
    assert made.events == [b"x" * 500]
    assert kept.num_bytes("a") > 2 * SMALL + 500
    kept.grow("a", made, b"x" * 500)
    assert missing(kept, "a", "old")
    for _ in range(9):
        kept.grow("a", made, b"x" * 500)
    assert made.events is None
    assert kept.num_bytes("a") == SMALL
    kept.settle("a", made, b"{}", ())
    assert kept.num_bytes("a") == ENTRY_BYTES + 4


def test_what_was_dropped_while_it_was_made_does_not_come_back() -> None:
    kept = store()
    made = stored("made", events=True)
    busy(made)
    kept.put("a", made)
    kept.drop("a", "made")
    kept.grow("a", made, b"x")
    kept.settle("a", made, b"{}", ())
    assert missing(kept, "a", "made")
    assert (made.task, made.response, kept.num_bytes("a")) == (None, b"{}", 0)


def test_what_becomes_larger_than_its_room_is_dropped() -> None:
    kept = store(max_bytes=2 * SMALL)
    made = stored("made")
    busy(made)
    kept.put("a", made)
    kept.settle("a", made, b" " * 3 * SMALL, ())
    assert missing(kept, "a", "made")
    assert kept.num_bytes("a") == 0
