"""Places found by runs of tokens are those that a plain search finds, however the sequence grew."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from bough.runtime.engine.speculation import SIZES, Repeats


def find_plainly(tokens: Sequence[int], more: Sequence[int] = (), first: int = 0) -> tuple[int, int] | None:
    """The latest place after the longest run; places are looked for from token `first` on."""
    last = [*tokens, *more]
    for size in SIZES:
        for position in range(len(tokens) - 1, first + size - 1, -1):
            if len(last) >= size and list(tokens[position - size : position]) == last[-size:]:
                return position, size
    return None


@settings(deadline=None, max_examples=300)
@given(st.lists(st.lists(st.integers(0, 2), max_size=24), min_size=1, max_size=8), st.data())
def test_places_are_those_of_a_plain_search(parts: list[list[int]], data: st.DataObject) -> None:
    repeats, tokens = Repeats(), []
    for part in parts:
        tokens += part
        more = data.draw(st.lists(st.integers(0, 2), max_size=10))
        assert repeats.find(tokens, more) == find_plainly(tokens, more)
        assert repeats.find(tokens) == find_plainly(tokens)


def test_few_tokens_repeat_nothing() -> None:
    for count in range(2 * min(SIZES)):
        assert Repeats().find([1, 2, 3, 4][:count]) is None


def test_the_longest_run_comes_before_the_latest() -> None:
    run = list(range(10, 16))
    tokens = [*run, 1, 5, *run[-3:], 2, 7, *run]
    assert Repeats().find(tokens) == (6, 6)
    assert Repeats().find(tokens[6:]) == (5, 3)


def test_memory_is_bounded_and_what_is_late_is_still_found() -> None:
    generator = random.Random(0)
    repeats, tokens = Repeats(max_tokens=64), []
    first = 0
    for _ in range(1000):
        tokens.append(generator.randrange(3))
        if len(tokens) - first > 64:
            first = len(tokens) - 32
        assert repeats.find(tokens) == find_plainly(tokens, first=first)
        assert all(len(after) <= 64 for after in repeats._after)


def test_a_token_costs_the_same_however_many_there_are() -> None:
    def seconds(count: int) -> float:
        repeats, tokens = Repeats(), [index * index % 1009 for index in range(count)]
        repeats.find(tokens)
        started = time.process_time()
        for index in range(2000):
            tokens.append(index % 7)
            repeats.find(tokens)
        return time.process_time() - started

    assert min(seconds(12_000) for _ in range(3)) < 4 * min(seconds(100) for _ in range(3))
