"""Says in our words, with a place, what the grammar compiler objects to."""

from __future__ import annotations

import json

import regex
from llguidance import LLMatcher

from .errors import GrammarError, GrammarTooComplexError, InvalidSchemaError, UnsupportedKeywordError
from .schema import Schema, parse_schema, pointer_to, subschemas
from .spec import GrammarSpec, JsonSchema

_LIMITS = ("too complex", "limit", "fuel", "too many", "too large", "too deep", "too big")
_NO_AUTOMATON = ("look-around", "backreference", "not supported", "unsupported", "word boundar")
_KEYWORDS = regex.compile(
    r"\b(min/maxProperties|oneOf|patternPropert\w+|format|pattern|multipleOf|\$ref|allOf|enum|const)\b"
)
_UNIMPLEMENTED = regex.compile(r'Unimplemented keys: \["([^"]+)"')


def to_grammar_error(message: str, spec: GrammarSpec) -> GrammarError:
    """The error to raise for the compiler's `message` about `spec`."""
    text = " ".join(message.split())[:300]
    if not isinstance(spec, JsonSchema):
        kind = GrammarTooComplexError if any(word in text.lower() for word in _LIMITS) else GrammarError
        return kind(f"the grammar cannot be compiled: {text}")
    if "nsatisfiable" in text:
        return InvalidSchemaError(f"nothing can satisfy the schema: {text}")
    bad_pattern = _find_bad_pattern(parse_schema(spec.schema))
    if bad_pattern is not None:
        return bad_pattern
    unimplemented = _UNIMPLEMENTED.search(text)
    if unimplemented:
        return UnsupportedKeywordError(unimplemented[1])
    if any(word in text.lower() for word in _LIMITS):
        return GrammarTooComplexError(f"the schema cannot be compiled: {text}")
    keyword = _KEYWORDS.search(text)
    return UnsupportedKeywordError(keyword[1] if keyword else "schema", reason=text)


def _find_bad_pattern(root: Schema) -> GrammarError | None:
    """The first pattern of the schema that cannot be compiled by itself, as an error with its place."""
    stack: list[tuple[Schema, str]] = [(root, "")]
    while stack:
        node, pointer = stack.pop()
        if isinstance(node, bool):
            continue
        patterns = {pointer_to(pointer, "pattern"): node["pattern"]} if "pattern" in node else {}
        for pattern in node.get("patternProperties", ()):
            patterns[pointer_to(pointer, "patternProperties", pattern)] = pattern
        for where, pattern in patterns.items():
            problem = LLMatcher.validate_grammar(
                LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "pattern": pattern}))
            )
            if problem:
                reason = " ".join(problem.split())[:200]
                if any(word in problem for word in _NO_AUTOMATON):
                    return UnsupportedKeywordError("pattern", path=where, reason=reason)
                return InvalidSchemaError(f"the pattern is not a regular expression: {reason}", path=where)
        stack.extend((child, pointer_to(pointer, *steps)) for steps, child in subschemas(node))
    return None
