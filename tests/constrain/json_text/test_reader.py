"""A text is read alike however it is cut up; equal values are the same; a second one is noticed where it ends."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from bough.constrain.json_text.reader import DistinctPaths, DuplicateError, Mode, PathState, Reader, Scan, number_value

ITEMS = Reader(DistinctPaths((PathState(items=True),), ()))
KEYS = Reader(DistinctPaths((PathState(keys=True),), ()))
INNER = Reader(DistinctPaths((PathState(names=(("a", 1),)), PathState(items=True, rest=1)), ()))


def duplicate_at(reader: Reader, text: str) -> int | None:
    """Counts the bytes of `text` that are read before a repetition is complete; None if there is none."""
    scan: Scan = reader.start
    for position, byte in enumerate(text.encode()):
        try:
            scan = reader.feed(scan, bytes((byte,)))
        except DuplicateError:
            return position
    return None


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('["a", "b", "a"]', 13),
        ('["a", "\\u0061"]', 13),
        ('["\\ud83d\\ude00", "😀"]', 22),
        ('["é","\\u00e9"]', 13),
        ('["a\\nb","a\\u000ab"]', 17),
        ("[1, 10, 1]", 9),
        ("[1, 1.0]", 7),
        ("[100, 1e2]", 9),
        ("[0, -0.0]", 8),
        ("[0.5, 0.50]", 10),
        ("[9007199254740993, 9007199254740992]", None),
        ('[1, true, "1", "true", null, false]', None),
        ("[true, false, true]", 14),
        ("[[1, 2], [2, 1], [1, 2]]", 22),
        ("[[], {}, [[]], []]", 16),
        ('[{"a": 1, "b": 2}, {"b": 2, "a": 1}]', 34),
        ('[{"a": 2}, {"a": 1, "a": 2}]', 26),
        ('[{"a": 2}, {"a": 2, "a": 1}]', None),
        ('["]", "]]", "[1,1]"]', None),
    ],
)
def test_where_an_element_comes_again(text: str, position: int | None) -> None:
    assert duplicate_at(ITEMS, text) == position


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('{"a": 1, "b": 1}', None),
        ('{"a": 1, "a": 2}', 11),
        ('{"a": 1, "\\u0061": 2}', 16),
        ('{"a": {"b": 1, "b": 1}}', None),
        ('{"": 0, "b": [1, 1], "": 0}', 22),
    ],
)
def test_where_a_key_comes_again(text: str, position: int | None) -> None:
    assert duplicate_at(KEYS, text) == position


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('{"b": [1, 1], "a": [1, 2]}', None),
        ('{"b": [1, 1], "a": [1, 1]}', 24),
        ('{"\\u0061": [[2], [3, 3]]}', 22),
        ('{"c": {"a": [1, 1]}}', None),
        ("[1, 1]", None),
    ],
)
def test_only_where_the_path_asks_for_it(text: str, position: int | None) -> None:
    assert duplicate_at(INNER, text) == position


def test_at_most_so_many_elements() -> None:
    reader = Reader(DistinctPaths((PathState(items=True, most_items=2),), ()))
    assert duplicate_at(reader, "[1, 2]") is None
    assert duplicate_at(reader, "[1, 2, ") == 5


@pytest.mark.parametrize("seed", range(60))
def test_cuts_do_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    text = json.dumps(value(rng, 3), ensure_ascii=rng.random() < 0.5).encode()
    for reader in (ITEMS, KEYS, INNER):
        try:
            expected: Scan | None = reader.feed(reader.start, text)
        except DuplicateError:
            expected = None
        cuts = sorted(rng.sample(range(len(text) + 1), min(3, len(text))))
        scan: Scan | None = reader.start
        for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
            try:
                scan = None if scan is None else reader.feed(scan, text[start:stop])
            except DuplicateError:
                scan = None
        assert scan == expected
        if expected is not None and text[:1] in b"[{":
            assert expected.mode == Mode.AFTER
            assert expected.frame.below is None


@pytest.mark.parametrize("seed", range(40))
def test_agrees_with_python(seed: int) -> None:
    rng = random.Random(seed)
    elements = [value(rng, 2) for _ in range(rng.randrange(6))]
    different = [json.dumps(element, sort_keys=True) for element in map(plain, elements)]
    repeats = len(set(different)) < len(different)
    assert (duplicate_at(ITEMS, json.dumps(elements)) is not None) == repeats


def value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(6 if depth else 4)
    if kind == 4:
        return [value(rng, depth - 1) for _ in range(rng.randrange(3))]
    if kind == 5:
        return {rng.choice("ab"): value(rng, depth - 1) for _ in range(rng.randrange(3))}
    kinds: list[list[Any]] = [[1, 0, 1.0, 12, 1.5], ["", "a", "é", '"\\', "\n"], [True, False], [None]]
    return rng.choice(kinds[kind])


def plain(element: Any) -> Any:
    """The same value, with numbers written in one way."""
    if isinstance(element, list):
        return [plain(item) for item in element]
    if isinstance(element, dict):
        return {name: plain(item) for name, item in element.items()}
    return int(element) if isinstance(element, float) and element.is_integer() else element


def test_number_values() -> None:
    same = [b"1", b"1.0", b"1.00", b"10e-1", b"0.1e1", b"1E0", b"1e+0"]
    assert {number_value(text) for text in same} == {"1"}
    assert {number_value(text) for text in (b"0", b"-0", b"0.0", b"0e9", b"1e-999")} == {"0"}
    assert {number_value(text) for text in (b"-", b"1.", b"1e", b"1e-")} == {None}
    assert number_value(b"1e999999999") != number_value(b"1e999999998")
    assert number_value(b"0.1") == number_value(b"1e-1") != number_value(b"0.2")
    assert number_value(b"12345678901234567890") != number_value(b"12345678901234567891")
