"""The search for several texts at once agrees with a plain one; tokens are found by what they hold."""

from __future__ import annotations

import tracemalloc

import hypothesis
import hypothesis.strategies as st

from bough.constrain.vocabulary.triggers import FIRST_CONTROL, TokenIndex, Triggers, to_symbols

TEXTS = st.text("abé", min_size=1, max_size=4)


@hypothesis.given(st.lists(TEXTS, min_size=1, max_size=4, unique=True), st.text("abcé", max_size=12))
def test_a_walk_stops_where_a_text_first_appears(patterns: list[str], text: str) -> None:
    triggers = Triggers([pattern.encode() for pattern in patterns])
    data = text.encode()
    ends = [data.find(pattern.encode()) + len(pattern.encode()) for pattern in patterns if pattern in text]
    state, count = triggers.walk(0, data)
    assert count == min(ends, default=len(data))
    found = {triggers.patterns[index] for index in triggers.matched(state)}
    assert found == {tuple(p.encode()) for p in patterns if ends and data[:count].endswith(p.encode())}
    if not ends:
        expected = {
            tuple(pattern.encode()[length:])
            for pattern in patterns
            for length in range(1, len(pattern.encode()))
            if data.endswith(pattern.encode()[:length])
        }
        assert triggers.rests(state) == expected
        for index, pattern in enumerate(triggers.patterns):
            rest = triggers.rest(state, index)
            assert (*data, *rest)[-len(pattern) :] == pattern
            assert all(len(rest) <= len(other) for other in expected if pattern[-len(other) :] == other)


@hypothesis.given(st.lists(st.one_of(st.none(), st.binary(max_size=4)), max_size=20), TEXTS)
def test_tokens_by_what_they_hold(texts: list[bytes | None], part: str) -> None:
    index, data = TokenIndex(texts), part.encode()
    longer = [token for token, text in enumerate(texts) if text and text.startswith(data) and text != data]
    holding = [token for token, text in enumerate(texts) if text and data in text[:-1]]
    assert sorted(index.longer_than(data)) == longer
    assert sorted(index.holding(data)) == holding


def test_control_tokens_are_symbols_of_their_own() -> None:
    control = {"<a>": 7, "<a>b": 9}
    assert to_symbols("x<a>b<a>é", control) == (120, FIRST_CONTROL + 9, FIRST_CONTROL + 7, *"é".encode())


def test_memory_is_linear_in_what_is_looked_for() -> None:
    patterns = [to_symbols(chr(0x4E00 + number) + 1_000 * "é", {}) for number in range(30)]
    tracemalloc.start()
    triggers = Triggers(patterns)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 300 * sum(map(len, patterns))  # 18 MB; a copy of the text a state would take 500 MB
    assert 0.3 * taken < triggers.num_bytes < 3 * taken
    assert triggers.walk(0, patterns[7]) == (triggers.walk(0, patterns[7])[0], len(patterns[7]))
    assert triggers.matched(triggers.walk(0, patterns[7])[0]) == (7,)
