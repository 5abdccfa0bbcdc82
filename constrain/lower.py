"""Writes each kind of constraint as a grammar for the grammar compiler (llguidance)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import regex
from llguidance import LLMatcher

from .errors import GrammarError, InvalidSchemaError
from .extent import Extent
from .normalise import normalise
from .schema import Schema, parse_schema, subschemas
from .spec import Choice, GrammarSpec, JsonSchema, Lark, Regex

MAX_PATTERN_LENGTH = 16_384
MAX_LARK_BYTES = 1_000_000
MAX_OPTIONS = 10_000
MAX_HINTS = 200

_JSON_OPTIONS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""One fixed layout, that of `json.dumps`: its separators are forced, and no run of white space can eat the budget."""

_WORDS = regex.compile(r"[A-Za-z0-9_]{2,}:?")
_LARK_TOKENS = regex.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|(?://|#)[^\n]*|(?P<control><)')


@dataclass(frozen=True)
class Lowered:
    """A grammar's source.

    json      its words are JSON texts
    growth    about how many characters one token can add to what must still be written
    names     keys that objects are likely to need
    words     texts that strings are likely to need
    """

    source: str
    json: bool = False
    growth: int = 64
    names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def lower(spec: GrammarSpec) -> Lowered:
    """The grammar of `spec`. Raises GrammarError."""
    match spec:
        case JsonSchema():
            return lower_schema(normalise(parse_schema(spec.schema)))
        case Regex():
            return Lowered(LLMatcher.grammar_from_regex(_whole(spec.pattern)))
        case Choice():
            return _lower_choice(spec)
        case Lark():
            return _lower_lark(spec)


def lower_schema(schema: Schema) -> Lowered:
    """The grammar of a normalised schema."""
    extent = Extent(schema)
    if extent.shortest == math.inf:
        raise InvalidSchemaError("no finite value satisfies the schema")
    text = json.dumps({} if schema is True else schema)
    source = LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS)  # type: ignore[arg-type]
    names, words = _hints(schema)
    return Lowered(source, json=True, growth=int(3 * extent.largest), names=names, words=words)


def _hints(schema: Schema) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of required properties and words in patterns."""
    names: dict[str, None] = {}
    words: dict[str, None] = {}
    stack: list[Any] = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            names.update(dict.fromkeys(node.get("required", ())))
            words.update(dict.fromkeys(_WORDS.findall(node.get("pattern", ""))))
            for pattern in node.get("patternProperties", ()):
                words.update(dict.fromkeys(_WORDS.findall(pattern)))
            stack.extend(child for _, child in subschemas(node))
    return tuple(names)[:MAX_HINTS], tuple(words)[:MAX_HINTS]


def _whole(pattern: str) -> str:
    """`pattern` without the anchors at its ends, which say nothing about a whole match."""
    if not pattern:
        raise GrammarError("the regular expression is empty")
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise GrammarError(f"the regular expression is longer than {MAX_PATTERN_LENGTH} characters")
    if "\0" in pattern:
        raise GrammarError("the regular expression contains a NUL character")
    body = pattern[1:] if pattern.startswith("^") else pattern
    num_backslashes = len(body[:-1]) - len(body[:-1].rstrip("\\"))
    if body.endswith("$") and num_backslashes % 2 == 0:
        body = body[:-1]
    if not body:
        raise GrammarError("the regular expression matches the empty text only")
    return body


def _lower_choice(spec: Choice) -> Lowered:
    if not spec.options:
        raise GrammarError("a choice needs at least one option")
    if len(spec.options) > MAX_OPTIONS:
        raise GrammarError(f"a choice has at most {MAX_OPTIONS} options, got {len(spec.options)}")
    for index, option in enumerate(spec.options):
        if not option:
            raise GrammarError("an option must not be empty", path=f"/options/{index}")
        if "\0" in option:
            raise GrammarError("an option contains a NUL character", path=f"/options/{index}")
    literals = (_quote(option) for option in dict.fromkeys(spec.options))
    return Lowered(
        LLMatcher.grammar_from_lark("start: CHOICE\nCHOICE: " + "\n  | ".join(literals)),
        growth=max(map(len, spec.options)),
    )


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _lower_lark(spec: Lark) -> Lowered:
    if "\0" in spec.grammar:
        raise GrammarError("the grammar contains a NUL character")
    if len(spec.grammar) > MAX_LARK_BYTES:
        raise GrammarError(f"the grammar is longer than {MAX_LARK_BYTES} characters")
    if any(match["control"] for match in _LARK_TOKENS.finditer(spec.grammar)):
        raise GrammarError("a grammar cannot name control tokens (<...>)")
    return Lowered(LLMatcher.grammar_from_lark(spec.grammar))
