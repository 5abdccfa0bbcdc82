"""Says whether a constraint is so small and plain that lowering it here costs less than asking another process."""

from __future__ import annotations

import json
from typing import Any

from ..spec import Choice, Gbnf, JsonSchema, Lark, Regex

MAX_LIGHT_CHARS = 512
MAX_LIGHT_DEPTH = 16

_LIGHT_KEYWORDS = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"type", "enum", "const", "properties", "required", "items", "minimum", "maximum", "additionalProperties"}
)
"""Those that say something about one place each: lowering a schema of them takes time in proportion to its size."""


def is_light(spec: JsonSchema | Regex | Choice | Lark | Gbnf) -> bool:
    """Whether lowering `spec` is certain to take no time."""
    match spec:
        case JsonSchema(schema=text):
            return len(text) <= MAX_LIGHT_CHARS and _is_light_schema(text)
        case Choice(options=options):
            return sum(map(len, options)) <= MAX_LIGHT_CHARS
        case Regex(pattern=text) | Lark(grammar=text):
            return len(text) <= MAX_LIGHT_CHARS
        case Gbnf():  # how its terminals clash takes a search, which a few repetitions make long
            return False


def _is_light_schema(text: str) -> bool:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return True  # it is refused at once
    stack: list[tuple[Any, int]] = [(schema, 0)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, dict):
            if depth > MAX_LIGHT_DEPTH or not node.keys() <= _LIGHT_KEYWORDS:
                return False
            properties = node.get("properties")
            children = list(properties.values()) if isinstance(properties, dict) else []
            children += [node.get("items"), node.get("additionalProperties")]
            stack.extend((child, depth + 1) for child in children)
    return True
