"""Room for typed values: refuses token limits within which no value can be completed, before a program runs."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable
from typing import Any, Protocol

from ...constrain.lower import MAX_LOWERED_CHARS, lower_if_plain
from ...constrain.spec import Choice, GrammarSpec, JsonSchema
from ..protocol.errors import RequestError
from ..protocol.program import Gen, Op, walk
from ..protocol.sampling_params import SamplingParams

MAX_OPTION_CHARS = 4096

MAX_LOOKED_AT_CHARS = 1 << 15
"""Most characters of a program's constraints that are checked; the rest is left to the engine."""

MAX_COUNTED_CHARS = 1 << 13
"""Most characters of a program's texts whose tokens are counted, the last text excepted: up to 30 us per character."""


class Counter(Protocol):
    """Tokenizer that counts the fewest tokens that spell a text; `most` + 1 if there are more than `most`."""

    def fewest_tokens(self, text: str, most: int | None = None) -> int: ...


class _Bounded:
    """Counts tokens of up to `MAX_COUNTED_CHARS`; later texts count as empty."""

    def __init__(self, tokenizer: Counter) -> None:
        self._tokenizer = tokenizer
        self._num_left = MAX_COUNTED_CHARS

    def fewest_tokens(self, text: str, most: int | None = None) -> int:
        if self._num_left <= 0:
            return 0
        self._num_left -= len(text)
        return self._tokenizer.fewest_tokens(text, most)


def check_room(ops: Iterable[Op], tokenizer: Counter) -> None:
    """Checks the limits of all generations of a program.

    Raises:
        RequestError: a limit has no room for any value; the message has the number of the instruction, as in `walk`.
    """
    num_chars, seen, counter = 0, set[tuple[GrammarSpec, int]](), _Bounded(tokenizer)
    for index, op in enumerate(walk(ops)):
        if not isinstance(op, Gen) or op.grammar is None or op.sampling.max_tokens is None:
            continue
        if (op.grammar, op.sampling.max_tokens) in seen:
            continue
        seen.add((op.grammar, op.sampling.max_tokens))
        num_chars += _num_chars(op.grammar)
        if num_chars > MAX_LOOKED_AT_CHARS:
            return
        reason = too_small(op.grammar, op.sampling, counter)
        if reason is not None:
            message = f"instruction {index}: {refusal(op.sampling, 'its constraint', reason)}"
            raise RequestError(message, param="max_tokens")


def _num_chars(grammar: GrammarSpec) -> int:
    """Returns the number of characters that `too_small` examines."""
    match grammar:
        case JsonSchema(schema=schema):
            return len(schema)
        case Choice(options=options):
            return len(options) + sum(map(len, options))
    return 0


def refusal(sampling: SamplingParams, kind: str, reason: str) -> str:
    """Returns the message of a refusal: no value of `kind` has room, for a `reason` from `too_small`."""
    return (
        f"max_tokens={sampling.max_tokens} is too small for any value of {kind}: {reason}; give at least that, and "
        "more for longer values"
    )


def too_small(grammar: GrammarSpec | None, sampling: SamplingParams, tokenizer: Counter) -> str | None:
    """Describes the shortest value of `grammar` if none can be completed within `max_tokens`; None: one may be.

    Returns None where the answer would take long to find. Numbers and contents of strings are counted at their minimum,
    without a search for the shortest ones.
    """
    max_tokens, found = sampling.max_tokens, _shortest(grammar)
    if found is None or max_tokens is None or not is_tight(grammar, max_tokens) or sampling.token_healing:
        return None
    texts = grammar.options if isinstance(grammar, Choice) else (_bare(found),)
    if any(tokenizer.fewest_tokens(text, max_tokens) <= max_tokens for text in texts):
        return None
    return _described(found, max(tokenizer.fewest_tokens(found), max_tokens + 1))


def is_tight(grammar: GrammarSpec | None, max_tokens: int | None) -> bool:
    """Returns True if the shortest value, if found soon, has more characters than `max_tokens`: then count tokens."""
    found = _shortest(grammar)
    return found is not None and max_tokens is not None and len(found) > max_tokens


def _shortest(grammar: GrammarSpec | None) -> str | None:
    match grammar:
        case Choice(options=options) if 0 < sum(map(len, options)) <= MAX_OPTION_CHARS:
            return min(options, key=len)
        case JsonSchema(schema=schema) if len(schema) <= MAX_LOWERED_CHARS:
            return _shortest_value(grammar)
    return None


@functools.lru_cache(maxsize=1024)  # of short schemas and values, since clients' texts stay in memory
def _shortest_value(schema: JsonSchema) -> str | None:
    with contextlib.suppress(ValueError, RecursionError):  # reported by the compiler
        lowered = lower_if_plain(schema)
        if lowered is not None and lowered.witness is not None and len(lowered.witness) <= MAX_OPTION_CHARS:
            return lowered.witness
    return None


def _described(text: str, num_tokens: int) -> str:
    shown = text if len(text) <= 100 else text[:97] + "..."
    return f"the shortest, {shown}, takes {num_tokens} tokens"


def _bare(text: str) -> str:
    """Returns the JSON text with empty strings and one-digit numbers."""

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
