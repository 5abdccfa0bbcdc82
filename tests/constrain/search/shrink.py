"""Makes a schema and a text that disagree about something as small as they stay in disagreement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

Check = Callable[[Any, Any], bool]
"""Tells whether a schema and a value still show what was found. It must bear schemas that are none."""


def shrink(schema: Any, value: Any, shows: Check, *, most: int = 2_000) -> tuple[Any, Any]:
    """The smallest pair found by leaving out and simplifying one part at a time, in at most `most` trials."""
    pair = [schema, value]
    assert shows(schema, value)
    trials, improved = 0, True
    while improved:
        improved = False
        for candidate in _simpler(pair):
            trials += 1
            if trials > most:
                return pair[0], pair[1]
            if len(candidate) == 2 and shows(candidate[0], candidate[1]):
                pair, improved = candidate, True
                break
    return pair[0], pair[1]


def _simpler(value: Any) -> Iterator[Any]:
    """Values with one part less or one part simpler, the simplest first; never the value itself."""
    if isinstance(value, dict):
        for key in value:
            yield {other: child for other, child in value.items() if other != key}
        for key, child in value.items():
            if isinstance(child, dict | list):  # a part may do in place of the whole
                yield from (part for part in _parts(child) if isinstance(part, dict))
            for simpler in _simpler(child):
                yield value | {key: simpler}
    elif isinstance(value, list):
        for index in range(len(value)):
            yield value[:index] + value[index + 1 :]
        for index, child in enumerate(value):
            for simpler in _simpler(child):
                yield [*value[:index], simpler, *value[index + 1 :]]
    elif value not in (0, "", True, None) or isinstance(value, float):
        yield from (other for other in (True, 0, "") if json.dumps(other) != json.dumps(value))


def _parts(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, list):
        yield from value
