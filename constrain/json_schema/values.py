"""JSON values as JSON Schema sees them: their types, when two are equal, and the schema of one value alone."""

from __future__ import annotations

import json
from typing import Any

from .parse import Schema

_KIND_OF = {bool: "boolean", str: "string", list: "array", dict: "object", int: "number", float: "number"}
ALL_KINDS = frozenset({"null", "boolean", "number", "string", "array", "object"})


def kind_of(value: Any) -> str:
    """The type of a JSON value; integers are numbers."""
    return _KIND_OF.get(type(value), "null")


def value_key(value: Any) -> str:
    """Equal for values that JSON Schema calls equal: 1 and 1.0 are, 1 and true are not, key order is nothing."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return "[" + ",".join(map(value_key, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{value_key(value[name])}" for name in sorted(value)) + "}"
    return json.dumps(value)


def values_of(schema: dict[str, Any]) -> list[Any] | None:
    """The values that `enum` and `const` leave, each once, or None if they leave any."""
    if "enum" not in schema:
        return [schema["const"]] if "const" in schema else None
    values = list({value_key(value): value for value in schema["enum"]}.values())
    if "const" in schema:
        values = [value for value in values if value_key(value) == value_key(schema["const"])]
    return values


def kinds_of(schema: dict[str, Any]) -> frozenset[str]:
    """The types that `type` allows, with "integer" as "number"."""
    names = schema.get("type")
    if names is None:
        return ALL_KINDS
    if isinstance(names, str):
        return frozenset({"number" if names == "integer" else names})
    return frozenset("number" if name == "integer" else name for name in names)


def only_integers(schema: dict[str, Any]) -> bool:
    """Whether `type` allows integers but no other numbers."""
    names = schema.get("type", ())
    return "integer" in names if isinstance(names, list) and "number" not in names else names == "integer"


def structure(value: Any) -> Schema:
    """A schema that only `value`, an array or object, satisfies, in terms of its elements."""
    if isinstance(value, list):
        items = [{"const": item} for item in value]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items), "maxItems": len(items)}
    properties = {name: {"const": item} for name, item in value.items()}
    return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
