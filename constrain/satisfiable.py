"""Proves that no value satisfies several schemas at once: how branches of a `oneOf` are shown to exclude each other."""

from __future__ import annotations

import json
import math
from typing import Any

from .references import Document
from .schema import Schema

MAX_DEPTH = 8
MAX_STEPS = 4_000

_ALL_TYPES = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
_TYPE_OF = {bool: "boolean", str: "string", list: "array", dict: "object", type(None): "null"}
_BOUNDS = (
    ({"integer", "fraction"}, "minimum", "maximum"),
    ({"string"}, "minLength", "maxLength"),
    ({"array"}, "minItems", "maxItems"),
    ({"object"}, "minProperties", "maxProperties"),
)


def type_of(value: Any) -> str:
    """The type of a JSON value, with numbers split into "integer" and "fraction"."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "integer" if value == math.floor(value) else "fraction"
    return _TYPE_OF[type(value)]


def value_key(value: Any) -> str:
    """Equal for values that JSON Schema calls equal: 1 and 1.0 are, 1 and true are not, key order is nothing."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return "[" + ",".join(map(value_key, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{value_key(value[name])}" for name in sorted(value)) + "}"
    return json.dumps(value)


def values_of(node: dict[str, Any]) -> list[Any] | None:
    """The values that `enum` and `const` leave, or None if they leave any."""
    if "const" in node:
        if "enum" in node and value_key(node["const"]) not in set(map(value_key, node["enum"])):
            return []
        return [node["const"]]
    values: list[Any] | None = node.get("enum")
    return values


def types_of(node: dict[str, Any]) -> frozenset[str]:
    """The types that `type` allows, with "number" as "integer" and "fraction"."""
    names = node.get("type")
    if names is None:
        return _ALL_TYPES
    names = names if isinstance(names, list) else [names]
    return frozenset(names) - {"number"} | ({"integer", "fraction"} if "number" in names else frozenset())


class Prover:
    """Looks for proofs with bounded effort: False means no more than that none was found."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._steps = 0

    def contradict(self, schemas: list[Schema]) -> bool:
        """Whether no value can satisfy all of `schemas`."""
        self._steps = 0
        return self._contradict(schemas, 0)

    def _contradict(self, schemas: list[Schema], depth: int) -> bool:
        self._steps += 1
        if depth > MAX_DEPTH or self._steps > MAX_STEPS:
            return False
        nodes = self._flatten(schemas)
        if nodes is None:
            return True
        types = frozenset.intersection(_ALL_TYPES, *map(types_of, nodes))
        lists = [values for values in map(values_of, nodes) if values is not None]
        if lists:
            keys = set.intersection(*({value_key(value) for value in values} for values in lists))
            types &= {type_of(value) for value in lists[0] if value_key(value) in keys}
        if all(self._excludes(nodes, name, depth) for name in types):
            return True
        return self._cases_contradict(nodes, depth)

    def _flatten(self, schemas: list[Schema]) -> list[dict[str, Any]] | None:
        """The schemas that hold in place, references and allOf opened; None if one of them is false."""
        result: list[dict[str, Any]] = []
        stack, seen = list(schemas), set()
        while stack:
            node = stack.pop()
            if node is False:
                return None
            if isinstance(node, dict):
                result.append(node)
                stack.extend(node.get("allOf", ()))
                if "$ref" in node and node["$ref"] not in seen:
                    seen.add(node["$ref"])
                    stack.append(self._document.schema(node["$ref"]))
        return result

    def _excludes(self, nodes: list[dict[str, Any]], name: str, depth: int) -> bool:
        """Whether no value of type `name` satisfies all of `nodes`."""
        for types, lower, upper in _BOUNDS:
            if name in types:
                low = max((node[lower] for node in nodes if lower in node), default=-math.inf)
                high = min((node[upper] for node in nodes if upper in node), default=math.inf)
                if low > high or (lower == "minimum" and _open_range_empty(nodes, low, high)):
                    return True
        if name != "object":
            return False
        required = {key for node in nodes for key in node.get("required", ())}
        return any(self._contradict(_property(nodes, key), depth + 1) for key in sorted(required))

    def _cases_contradict(self, nodes: list[dict[str, Any]], depth: int) -> bool:
        for node in nodes:
            for keyword in ("anyOf", "oneOf"):
                if keyword in node:
                    rest = [{name: value for name, value in node.items() if name != keyword}]
                    others: list[Schema] = [*(other for other in nodes if other is not node), *rest]
                    if all(self._contradict([*others, branch], depth + 1) for branch in node[keyword]):
                        return True
        return False


def _open_range_empty(nodes: list[dict[str, Any]], low: float, high: float) -> bool:
    above = max((node["exclusiveMinimum"] for node in nodes if "exclusiveMinimum" in node), default=-math.inf)
    below = min((node["exclusiveMaximum"] for node in nodes if "exclusiveMaximum" in node), default=math.inf)
    return bool(above >= high or low >= below or above >= below)


def _property(nodes: list[dict[str, Any]], key: str) -> list[Schema]:
    """What `nodes` ask of the property `key`."""
    result: list[Schema] = []
    for node in nodes:
        if key in node.get("properties", ()):
            result.append(node["properties"][key])
        elif "patternProperties" not in node and "additionalProperties" in node:
            result.append(node["additionalProperties"])
    return result
