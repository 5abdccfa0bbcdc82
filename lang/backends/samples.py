"""Texts that conform to a constraint, made up without a model, and whether a given text does."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import regex

from ...constrain.spec import Choice, GrammarSpec, JsonSchema, Regex
from ...runtime.errors import RequestError

_MAX_DEPTH = 32
_GUESSES = (
    "0",
    "1",
    "True",
    "true",
    "yes",
    "text",
    '"text"',
    "a",
    "A",
    "00",
    "0000",
    "0.5",
    "2024-01-01",
    "a@b.example",
)
"""What common patterns match; tried in this order."""


def make_text(spec: GrammarSpec | None, name: str) -> str:
    """A text for the value `name` that conforms to `spec`; the same one each time.

    Raises:
        RequestError: none could be made up.
    """
    match spec:
        case None:
            return f"({name})"
        case Choice(options=options):
            return options[0]
        case Regex():
            candidates = [text for text in _GUESSES if conforms(text, spec)]
        case JsonSchema(schema=schema):
            root = json.loads(schema)
            candidates = [text for text in [json.dumps(_instance(root, root, 0))] if conforms(text, spec)]
        case _:
            candidates = []
    if not candidates:
        raise RequestError(
            f"no answer to {name!r} could be made up that its {type(spec).__name__} allows: give one", param="answers"
        )
    return candidates[0]


def conforms(text: str, spec: GrammarSpec | None) -> bool:
    """Whether `text` is what `spec` asks for. Grammars and marked parts are taken on trust."""
    match spec:
        case Choice(options=options):
            return text in options
        case Regex(pattern=pattern):
            return regex.fullmatch(pattern, text) is not None
        case JsonSchema(schema=schema):
            try:
                jsonschema.validate(json.loads(text), json.loads(schema))
            except (ValueError, jsonschema.ValidationError):
                return False
    return True


def _instance(schema: Any, root: Any, depth: int) -> Any:
    """A small value for a schema: right for the common keywords; the caller checks it."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return _instance(_resolve(schema["$ref"], root), root, depth + 1)
    for keyword in ("const", "default"):
        if keyword in schema:
            return schema[keyword]
    if "enum" in schema:
        return schema["enum"][0]
    for keyword in ("anyOf", "oneOf", "allOf"):
        if schema.get(keyword):
            return _instance(schema[keyword][0], root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        return {name: _instance(properties[name], root, depth + 1) for name in properties}
    if kind == "array":
        return [_instance(schema.get("items", {}), root, depth + 1) for _ in range(max(1, schema.get("minItems", 0)))]
    if kind == "string":
        return "text".ljust(schema.get("minLength", 0), "t")[: schema.get("maxLength")]
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
    return kind == "boolean" or None


def _resolve(reference: str, root: Any) -> Any:
    node = root
    for step in reference.removeprefix("#").split("/")[1:]:
        node = node.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(node, dict) else {}
    return node
