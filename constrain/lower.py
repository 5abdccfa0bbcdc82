"""Lowering of each kind of constraint to a grammar for llguidance, and translation of its error messages."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import regex
from llguidance import LLMatcher

from .context_free.gbnf import to_lark
from .context_free.lark_words import has_word
from .errors import GrammarError, GrammarTooComplexError, InvalidSchemaError, cut
from .json_schema.parse import parse_schema
from .lowered import Lowered, Tabulate
from .receipt import Receipt
from .regex.automaton import Conjunction
from .spec import MAX_OPTIONS, Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural

MAX_PATTERN_LENGTH = 16_384
MAX_LARK_BYTES = 1_000_000

_LARK_TOKENS = regex.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|(?://|#)[^\n]*|(?P<control><)')


def lower(spec: GrammarSpec) -> Lowered:
    """Returns the grammar of `spec`. Raises GrammarError."""
    match spec:
        case JsonSchema():
            from .json_schema.lower import lower_schema  # noqa: PLC0415  forty modules, which not every engine needs

            return lower_schema(spec)
        case Regex():
            body = _whole(spec.pattern)
            return Lowered(LLMatcher.grammar_from_regex(body), table=Tabulate(parts=(Conjunction((body,)),)))
        case Choice():
            return _lower_choice(spec)
        case Lark():
            return _lower_lark(spec)
        case Gbnf():
            return Lowered(LLMatcher.grammar_from_lark(to_lark(spec.grammar)), ambiguous=True)
        case Structural():
            raise TypeError("a text with tags has several grammars")


def _whole(pattern: str) -> str:
    """Returns `pattern` without the anchors at its ends, which are redundant in a whole match."""
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
        raise GrammarError("the regular expression matches only the empty text")
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
        table=Tabulate(words=spec.options),
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
    if has_word(spec.grammar) is False:
        raise GrammarError("the grammar matches no text: the rule 'start' never ends")
    return Lowered(LLMatcher.grammar_from_lark(spec.grammar), ambiguous=True)


_LIMITS = ("too complex", "limit", "fuel", "too many", "too large", "too deep", "too big")


def to_grammar_error(message: str, spec: GrammarSpec) -> GrammarError:
    """Returns the error to raise for the compiler's `message` about `spec`.

    For a JSON Schema the compiler sees only our grammar, which is correct but may be too large for it.
    """
    text = cut(" ".join(message.split()))
    if isinstance(spec, JsonSchema):
        if "nsatisfiable" in text:
            return InvalidSchemaError(f"nothing can satisfy the schema: {text}")
        return GrammarTooComplexError(f"the schema cannot be compiled: {text}")
    kind = GrammarTooComplexError if any(word in text.lower() for word in _LIMITS) else GrammarError
    return kind(f"the grammar cannot be compiled: {text}")


def lower_loosely(spec: JsonSchema) -> Lowered:
    """Returns the grammar of the schema's type alone; the rest is left to the check of the value.

    Raises:
        GrammarError: the schema is not valid, or exceeds a size limit.
    """
    schema = parse_schema(spec.schema)
    kept = {"type": schema["type"]} if isinstance(schema, dict) and "type" in schema else {}
    lowered = lower(msgspec.structs.replace(spec, schema=json.dumps(kept)))
    receipt = Receipt(mode="best_effort", enforced=tuple(kept), checked=("",))
    return msgspec.structs.replace(lowered, receipt=receipt)


# Plain schemas, which any thread may lower

MAX_LOWERED_CHARS = 4096
MAX_LOWERED_DEPTH = 16
MAX_LOWERED_PATTERN_CHARS = 256
MAX_LOWERED_COUNT = 1024

_LOWERED = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"type", "enum", "const", "properties", "required", "items", "prefixItems", "additionalProperties", "anyOf"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems"}
    | {"pattern", "format", "contentEncoding", "$defs", "definitions", "$ref"}
)
"""Keywords of plain schemas. Each concerns one place only, so that lowering it takes no search."""


def lower_if_plain(spec: JsonSchema) -> Lowered | None:
    """Returns the schema's grammar if lowering it is certain to be quick, about 5 ms per 1,000 characters; else None.
    Raises GrammarError."""
    schema = parse_schema(spec.schema)
    return lower(spec) if len(spec.schema) <= MAX_LOWERED_CHARS and _is_plain(schema) else None


def _is_plain(schema: Any) -> bool:
    """Returns True if lowering the schema is certain to be quick."""
    stack: list[tuple[Any, int]] = [(schema, 0)]
    while stack:
        node, depth = stack.pop()
        if not isinstance(node, dict):
            continue
        if depth > MAX_LOWERED_DEPTH or not node.keys() <= _LOWERED:
            return False
        pattern = node.get("pattern", "")
        if len(pattern) > MAX_LOWERED_PATTERN_CHARS or "(?" in pattern:
            return False
        if any(node.get(name, 0) > MAX_LOWERED_COUNT for name in ("minLength", "maxLength", "minItems", "maxItems")):
            return False
        for name in ("properties", "$defs", "definitions"):
            stack += ((child, depth + 1) for child in node.get(name, {}).values())
        for name in ("anyOf", "prefixItems"):
            stack += ((child, depth + 1) for child in node.get(name, ()))
        items = node.get("items")
        stack += ((child, depth + 1) for child in (items if isinstance(items, list) else [items]))
        stack.append((node.get("additionalProperties"), depth + 1))
    return True
