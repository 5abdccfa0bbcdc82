"""Room that a typed value needs: limits of tokens in which none can be finished are refused when they are recorded."""

from __future__ import annotations

import functools
import json
from typing import Any, Protocol

from ...constrain.spec import Choice, GrammarSpec, JsonSchema
from .schema import lowered_if_plain

MAX_OPTIONS = 64


class Counter(Protocol):
    """A tokenizer that knows the fewest tokens that say a text."""

    def fewest_tokens(self, text: str) -> int: ...


def too_small(grammar: GrammarSpec | None, max_tokens: int, tokenizer: Counter) -> str | None:
    """Describes the shortest value of `grammar`, if no value can be finished within `max_tokens`; None: one may be.

    Nothing is said where that would take long to find out. Numbers and the contents of strings count least: which of
    them takes the fewest tokens is not looked for.
    """
    if isinstance(grammar, Choice) and len(grammar.options) <= MAX_OPTIONS:
        counts = {option: tokenizer.fewest_tokens(option) for option in grammar.options if len(option) > max_tokens}
        if len(counts) < len(grammar.options):
            return None
        shortest = min(counts, key=counts.__getitem__)
        return _described(shortest, counts[shortest]) if counts[shortest] > max_tokens else None
    if not isinstance(grammar, JsonSchema):
        return None
    found = _shortest(grammar)
    if found is None or len(found) <= max_tokens or tokenizer.fewest_tokens(_bare(found)) <= max_tokens:
        return None
    return _described(found, tokenizer.fewest_tokens(found))


def _described(text: str, num_tokens: int) -> str:
    shown = text if len(text) <= 100 else text[:97] + "..."
    return f"the shortest, {shown}, takes {num_tokens} tokens"


@functools.lru_cache(maxsize=1024)
def _shortest(spec: JsonSchema) -> str | None:
    lowered = lowered_if_plain(spec)
    return None if lowered is None else lowered.witness


def _bare(text: str) -> str:
    """The JSON text with nothing in its strings, and numbers of one digit."""

    def empty(value: Any) -> Any:
        match value:
            case dict():
                return {name: empty(inner) for name, inner in value.items()}
            case list():
                return [empty(inner) for inner in value]
            case str():
                return ""
            case int() | float() if not isinstance(value, bool):
                return 0
            case _:
                return value

    return json.dumps(empty(json.loads(text)), ensure_ascii=False)
