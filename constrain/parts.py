"""Finds the JSON values in a finished text that a schema speaks of."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .spec import GrammarSpec, JsonSchema, Structural

_DECODER = json.JSONDecoder()


def json_parts(spec: GrammarSpec, text: str) -> Iterator[tuple[JsonSchema, str]]:
    """Each schema of `spec` that governs a stretch of `text`, with the stretch."""
    if isinstance(spec, JsonSchema):
        yield spec, text
    elif isinstance(spec, Structural):
        if spec.reasoning_end is not None:
            _, _, text = text.partition(spec.reasoning_end)
        if spec.then is not None:
            yield from json_parts(spec.then, text)
        else:
            yield from _tagged(spec, text)


def _tagged(spec: Structural, text: str) -> Iterator[tuple[JsonSchema, str]]:
    position = 0
    while True:
        found = [(text.find(tag.begin, position), -len(tag.begin), index) for index, tag in enumerate(spec.tags)]
        start, length, index = min((place for place in found if place[0] >= 0), default=(-1, 0, 0))
        if start < 0:
            return
        tag = spec.tags[index]
        position = start - length
        if isinstance(tag.content, JsonSchema):
            stop = _end_of_value(text, position)
            if stop is None:
                stop = text.find(tag.end, position) if tag.end in text[position:] else len(text)
            yield tag.content, text[position:stop]
            position = stop


def _end_of_value(text: str, start: int) -> int | None:
    """Where the JSON value that begins at `start` ends: what closes a tag may also stand in a string of it."""
    while start < len(text) and text[start] in " \n\r\t":
        start += 1
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None
