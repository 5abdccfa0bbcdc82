"""Reading JSON while it is written: at every prefix just what is complete, compared with reading the prefix anew."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.constrain.json_text.partial import ABSENT, PartialReader

_DECODER = json.JSONDecoder()


def complete_part(text: str) -> Any:
    """Returns the complete part of the first value in `text`, by decoding again each value that could be."""
    return _part(text, 0)[0]


def _part(text: str, at: int) -> tuple[Any, int | None]:
    """Returns the part shown of the value at `at`, and its end; None: it is not complete."""
    at = _after_space(text, at)
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, IndexError):
        value, end = ABSENT, None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if end is not None and (not is_number or text[end : end + 1] in tuple(" \t\n,]}")):
        return value, end
    if text[at : at + 1] == "[":
        return _items(text, at + 1) or ABSENT, None
    if text[at : at + 1] == "{":
        return _members(text, at + 1) or ABSENT, None
    return ABSENT, None


def _items(text: str, at: int) -> list[Any]:
    items: list[Any] = []
    while True:
        value, end = _part(text, at)
        if end is None:
            return items
        items.append(value)
        at = _after_space(text, end) + 1  # the comma
        if at > len(text):
            return items


def _members(text: str, at: int) -> dict[str, Any]:
    members: dict[str, Any] = {}
    while True:
        name, end = _part(text, at)
        if end is None:
            return members
        at = _after_space(text, end) + 1  # the colon
        value, end = _part(text, at)
        if value is not ABSENT:
            members[name] = value
        if end is None:
            return members
        at = _after_space(text, end) + 1


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)
texts = st.builds(
    json.dumps,
    values,
    ensure_ascii=st.booleans(),
    separators=st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", "\t: ")]),
)


@settings(max_examples=150, deadline=None)
@given(texts)
def test_every_prefix_shows_what_is_complete(text: str) -> None:
    reader, shown = PartialReader(), ABSENT
    for stop, char in enumerate(text, start=1):
        more = reader.feed(char)
        assert reader.value == complete_part(text[:stop])
        assert more or reader.value == shown
        shown = reader.value
    assert reader.finish() == json.loads(text)


@settings(max_examples=150, deadline=None)
@given(texts, st.data())
def test_how_the_text_is_cut_does_not_matter(text: str, data: st.DataObject) -> None:
    reader, start = PartialReader(), 0
    while start < len(text):
        stop = data.draw(st.integers(start + 1, len(text)))
        before, more = reader.value, reader.feed(text[start:stop])
        assert reader.value == complete_part(text[:stop])
        assert more or reader.value == before
        start = stop


def test_what_was_shown_does_not_change() -> None:
    reader = PartialReader()
    reader.feed('{"a": [1, ')
    shown = reader.value
    reader.feed('2, 3], "b": {"c": 1}}')
    assert shown == {"a": [1]}
    assert reader.value == {"a": [1, 2, 3], "b": {"c": 1}}


def test_a_name_given_twice_counts_as_the_last() -> None:
    reader = PartialReader()
    reader.feed('{"a": 1, "a": "x')
    assert reader.value == {"a": 1}
    reader.feed('"}')
    assert reader.value == {"a": "x"}


@pytest.mark.parametrize(
    "text",
    [
        "{,",
        "[1,]",
        '{"a" 1',
        '{"a":}',
        "[1 2",
        "}",
        "nul ",
        "truth",
        "[01, ",
        '"\\x"',
        "1 2",
        "{} x",
        "{1: 2}",
        "[}",
        "-,",
    ],
)
def test_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        PartialReader().feed(text)


@pytest.mark.parametrize("text", ["", "[1", '"a', "tru", "-"])
def test_an_early_end_is_an_error(text: str) -> None:
    reader = PartialReader()
    reader.feed(text)
    with pytest.raises(ValueError, match=r".+"):
        reader.finish()


def test_the_time_is_in_proportion_to_the_length() -> None:
    def seconds(count: int) -> float:
        pieces = ["[", *('{"name": "some text", "value": 12.5}, ' for _ in range(count)), "1]"]
        text = "".join(pieces)
        started = time.perf_counter()
        reader = PartialReader()
        for start in range(0, len(text), 5):
            reader.feed(text[start : start + 5])
        assert len(reader.finish()) == count + 1
        return time.perf_counter() - started

    short = min(seconds(250) for _ in range(3))
    assert seconds(4_000) < 16 * 4 * short  # quadratic would be 16 times more than that
