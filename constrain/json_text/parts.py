"""Parts of a finished text that are governed by JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural, Tag

_DECODER = json.JSONDecoder()
_SPACE = " \n\r\t"


class Part(NamedTuple):
    """A part of a text, and schemas of which one must allow it. An empty set means that a required tag is missing."""

    schemas: tuple[JsonSchema, ...]
    text: str


def json_parts(spec: GrammarSpec, text: str) -> Iterator[Part]:
    """Finds the parts of `text` that schemas of `spec` govern; control tokens are spelt out in it."""
    if isinstance(spec, JsonSchema):
        yield Part((spec,), text)
    elif isinstance(spec, Structural):
        if spec.reasoning_end is not None:
            _, _, text = text.partition(spec.reasoning_end)
        if spec.then is not None:
            yield from json_parts(spec.then, text)
        else:
            yield from _tagged(spec, text)


def all_schemas(spec: GrammarSpec) -> tuple[JsonSchema, ...]:
    """Returns each schema in `spec`."""
    return tuple(part for part in all_parts(spec) if isinstance(part, JsonSchema))


def all_parts(spec: GrammarSpec) -> tuple[JsonSchema | Regex | Choice | Lark | Gbnf, ...]:
    """Returns each constraint in `spec` that has its own grammar."""
    if not isinstance(spec, Structural):
        return (spec,)
    contents = [tag.content for tag in spec.tags] + [spec.then]
    return tuple(content for content in contents if content is not None)


def _tagged(spec: Structural, text: str) -> Iterator[Part]:
    position, num_tags = 0, 0
    # An empty beginning matches everywhere, so at the end of the text the search stops.
    while position < len(text) and not (num_tags and spec.stop_after_first):
        start, tags = _next_tags(spec, text, position)
        if not tags:
            break
        before, position = position, start + len(tags[0].begin)
        schemas = tuple(tag.content for tag in tags if isinstance(tag.content, JsonSchema))
        if len(schemas) < len(tags):  # the text need not be a value: the mask has enforced it
            position = _end_of_text(tags, text, position)
        else:
            stop = _end_of_value(text, position)
            if stop is None:
                stop = min((end for tag in tags if (end := text.find(tag.end, position)) > position), default=len(text))
            ended = [tag for tag in tags if text.startswith(tag.end, stop)] or tags
            yield Part(tuple(tag.content for tag in ended if isinstance(tag.content, JsonSchema)), text[position:stop])
            position = stop + max((len(tag.end) for tag in ended if text.startswith(tag.end, stop)), default=0)
        num_tags += 1
        if position == before:
            break
    if spec.at_least_one and not num_tags:
        yield Part((), text)


def _next_tags(spec: Structural, text: str, position: int) -> tuple[int, list[Tag]]:
    """Finds the position at which the next tag begins, and the tags with the longest beginning that matches there."""
    places = [
        (start, -len(tag.begin)) for tag in spec.tags if tag.begin and (start := text.find(tag.begin, position)) >= 0
    ]
    first, length = min(places, default=(-1, 0))
    empty = [tag for tag in spec.tags if not tag.begin]
    if empty and (first < 0 or text[position:first].strip(_SPACE)):
        return position, empty
    begin = text[first : first - length]
    return first, [tag for tag in spec.tags if tag.begin == begin] if first >= 0 else []


def _end_of_text(tags: Sequence[Tag], text: str, start: int) -> int:
    """Returns the position at which a tag without JSON content ends: its first `end`, if it has any."""
    ends = [(found, -len(tag.end)) for tag in tags if tag.end and (found := text.find(tag.end, start)) >= 0]
    stop, length = min(ends, default=(start if any(not tag.end for tag in tags) else len(text), 0))
    return stop - length


def _end_of_value(text: str, start: int) -> int | None:
    """Returns the end of the JSON value that begins at `start`: a tag's end may also occur in one of its strings."""
    while start < len(text) and text[start] in _SPACE:
        start += 1
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None
