"""Says what a schema does not allow as a list of schemas, for `not`, `if` and overlapping `oneOf` branches."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from .references import Document
from .satisfiable import type_of, value_key, values_of
from .schema import TYPES, Schema

MAX_DEPTH = 8
MAX_EXCLUDED_NUMBERS = 32
MAX_EXCLUDED_CHARACTERS = 2_000

_COUNTS = (("string", "Length"), ("array", "Items"), ("object", "Properties"))
_LIMITS = (
    ("minimum", "exclusiveMaximum"),
    ("maximum", "exclusiveMinimum"),
    ("exclusiveMinimum", "maximum"),
    ("exclusiveMaximum", "minimum"),
)


def negate(node: Schema, document: Document, *, depth: int = 0) -> list[Schema]:
    """Schemas none of whose values satisfies `node`: their union is its complement or a part of it.

    What cannot be negated (a pattern, say) adds nothing to the union, so an empty list means that no value is known
    to fail `node`.
    """
    if isinstance(node, bool):
        return [] if node else [True]
    if depth > MAX_DEPTH:
        return []
    result: list[Schema] = []
    result.extend(_negate_type(node))
    result.extend(_negate_values(node))
    result.extend(_negate_bounds(node))
    for key in node.get("required", ()):
        result.append({"type": "object", "properties": {key: False}})
    for key, value in node.get("properties", {}).items():
        for alternative in negate(value, document, depth=depth + 1):
            result.append({"type": "object", "properties": {key: alternative}, "required": [key]})
    result.extend(_negate_items(node, document, depth))
    result.extend(_negate_applicators(node, document, depth))
    return result


def _negate_applicators(node: dict[str, Any], document: Document, depth: int) -> list[Schema]:
    result: list[Schema] = []
    if "$ref" in node:
        result.extend(negate(document.schema(node["$ref"]), document, depth=depth + 1))
    for branch in node.get("allOf", ()):
        result.extend(negate(branch, document, depth=depth + 1))
    for keyword in ("anyOf", "oneOf"):  # of oneOf: the values that satisfy no branch at all
        if keyword in node:
            parts = [negate(branch, document, depth=depth + 1) for branch in node[keyword]]
            if all(parts):
                result.append({"allOf": [part[0] if len(part) == 1 else {"anyOf": part} for part in parts]})
    if "not" in node:
        result.append(node["not"])
    return result


def _negate_type(node: dict[str, Any]) -> list[Schema]:
    if "type" not in node:
        return []
    names = node["type"] if isinstance(node["type"], list) else [node["type"]]
    taken = {*names, "integer", "number"} if {"integer", "number"} & set(names) else set(names)
    rest = [name for name in TYPES if name not in taken and name != "integer"]
    return [{"type": rest}] if rest else []


def _negate_values(node: dict[str, Any]) -> list[Schema]:
    values = values_of(node)
    if values is None:
        return []
    taken = {type_of(value) for value in values}
    result: list[Schema] = []
    numeric = bool(taken & {"integer", "fraction"})
    rest = [name for name in TYPES if name not in taken and name != "integer" and not (numeric and name == "number")]
    if rest:
        result.append({"type": rest})
    if "boolean" in taken:
        keys = set(map(value_key, values))
        result.extend({"const": value} for value in (False, True) if value_key(value) not in keys)
    numbers = sorted({value for value in values if type_of(value) in ("integer", "fraction")})
    if 0 < len(numbers) <= MAX_EXCLUDED_NUMBERS:
        result.append({"type": "number", "exclusiveMaximum": numbers[0]})
        result.append({"type": "number", "exclusiveMinimum": numbers[-1]})
        for low, high in pairwise(numbers):
            result.append({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high})
    strings = [value for value in values if isinstance(value, str)]
    if strings and sum(map(len, strings)) <= MAX_EXCLUDED_CHARACTERS:
        result.append({"type": "string", "pattern": f"^{pattern_excluding(strings)}$"})
    return result


def _negate_bounds(node: dict[str, Any]) -> list[Schema]:
    result: list[Schema] = []
    for keyword, opposite in _LIMITS:
        if keyword in node:
            result.append({"type": "number", opposite: node[keyword]})
    for name, what in _COUNTS:
        if node.get(f"min{what}", 0) > 0:
            result.append({"type": name, f"max{what}": int(node[f"min{what}"]) - 1})
        if f"max{what}" in node:
            result.append({"type": name, f"min{what}": int(node[f"max{what}"]) + 1})
    return result


def _negate_items(node: dict[str, Any], document: Document, depth: int) -> list[Schema]:
    result: list[Schema] = []
    prefix: list[Schema] = node.get("prefixItems", [])
    for index, item in enumerate([*prefix, *([node["items"]] if "items" in node else [])]):
        for alternative in negate(item, document, depth=depth + 1):
            items = [*[True] * index, alternative]
            result.append({"type": "array", "prefixItems": items, "minItems": index + 1})
    return result


def pattern_excluding(strings: list[str]) -> str:
    """A regular expression, without anchors, for every string but `strings`."""
    if not strings:
        return r"[\s\S]*"
    branches: dict[str, list[str]] = {}
    for text in strings:
        if text:
            branches.setdefault(text[0], []).append(text[1:])
    parts = [_literal(first) + pattern_excluding(rest) for first, rest in branches.items()]
    parts.append(f"[^{''.join(map(_in_class, branches))}][\\s\\S]*" if branches else r"[\s\S][\s\S]*")
    return f"(?:{'|'.join(parts)})" + ("" if "" in strings else "?")


def _literal(character: str) -> str:
    return re.escape(character) if character.isascii() and not character.isspace() else f"\\x{{{ord(character):x}}}"


def _in_class(character: str) -> str:
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"
