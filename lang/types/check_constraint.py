"""Finds what is wrong with a constraint when it is recorded, on every backend alike: nothing is compiled for that."""

from __future__ import annotations

import functools
from typing import Any

from ...constrain.spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural
from ...runtime.protocol.errors import RequestError

MAX_CHECKED_CHARS = 16_384
"""Of a grammar in Lark's notation or a list of choices: longer ones take over 30 ms, and are left to the engine."""

MAX_LOWERED_CHARS = 4096
MAX_LOWERED_DEPTH = 16
MAX_LOWERED_PATTERN_CHARS = 256
MAX_LOWERED_COUNT = 1024

_LOWERED = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"type", "enum", "const", "properties", "required", "items", "prefixItems", "additionalProperties", "anyOf"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems"}
    | {"pattern", "format", "$defs", "definitions", "$ref"}
)
"""Keywords of schemas of types. Each is about one place only: writing its grammar takes no search."""


def check_constraint(spec: GrammarSpec | None, param: str) -> None:
    """Refuses a constraint that no engine takes. What only compiling would tell is left to the engine.

    Raises:
        RequestError: with the code and the message that the engine would give.
    """
    wrong = None if spec is None else _wrong(spec)
    if wrong is not None:
        raise RequestError(wrong[1], code=wrong[0], param=param)


@functools.lru_cache(maxsize=1024)
def _wrong(spec: GrammarSpec) -> tuple[str, str] | None:
    """The code and the message of what is wrong."""
    from ...constrain.errors import GrammarError, GrammarTooComplexError  # noqa: PLC0415  once there is a constraint

    try:
        for part in _parts(spec):
            _check(part)
    except GrammarTooComplexError:
        return None
    except GrammarError as error:
        return error.code, str(error)
    return None


def _parts(spec: GrammarSpec) -> list[JsonSchema | Regex | Choice | Lark | Gbnf]:
    if not isinstance(spec, Structural):
        return [spec]
    contents = (*(tag.content for tag in spec.tags), spec.then)
    return [content for content in contents if content is not None]


def _check(spec: JsonSchema | Regex | Choice | Lark | Gbnf) -> None:
    """Raises GrammarError."""
    from llguidance import LLMatcher  # noqa: PLC0415

    from ...constrain.errors import GrammarError  # noqa: PLC0415
    from ...constrain.lower import lower, to_grammar_error  # noqa: PLC0415

    match spec:
        case JsonSchema():
            _check_schema(spec)
            return
        case Gbnf():
            return
        case Lark(grammar=grammar) if len(grammar) > MAX_CHECKED_CHARS:
            return
        case Choice(options=options) if sum(map(len, options)) > MAX_CHECKED_CHARS:
            return
    message = LLMatcher.validate_grammar(lower(spec).source)
    if message and isinstance(spec, Regex):
        raise GrammarError(f"the regular expression {spec.pattern!r} cannot be used: {_reason(message)}")
    if message:
        raise to_grammar_error(message, spec)


def _reason(message: str) -> str:
    """Extracts what the parser of regular expressions says is wrong, without the picture that it draws of it."""
    reason = message.rpartition("error: ")[2].partition("\n")[0]
    return reason.strip() or " ".join(message.split())[:300]


def _check_schema(spec: JsonSchema) -> None:
    from ...constrain.errors import UnsupportedKeywordError  # noqa: PLC0415
    from ...constrain.json_schema.parse import parse_schema  # noqa: PLC0415
    from ...constrain.lower import lower  # noqa: PLC0415

    schema = parse_schema(spec.schema)
    if len(spec.schema) <= MAX_LOWERED_CHARS and _is_plain(schema):
        try:
            lower(spec)
        except UnsupportedKeywordError:
            if spec.policy == "exact":
                raise


def _is_plain(schema: Any) -> bool:
    """Tells whether writing its grammar is certain to take little time."""
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
