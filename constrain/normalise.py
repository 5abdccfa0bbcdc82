"""Rewrites a JSON Schema into the keywords that the grammar compiler enforces, or refuses it by keyword and place."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from . import objects
from .errors import GrammarTooComplexError, UnsupportedKeywordError
from .formats import NATIVE, PATTERNS, SYNONYMS
from .negate import negate
from .references import Document, check_cycles
from .satisfiable import Prover, value_key, values_of
from .schema import Schema, pointer_to

MAX_REWRITES = 50_000
MAX_ONE_OF_OVERLAPS = 128
MAX_UNIQUE_VALUES = 4

_COPIED = frozenset(
    {"type", "enum", "const", "required", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "pattern", "minItems", "maxItems"}
)
_SCHEMAS = frozenset({"additionalProperties", "items"})
_LISTS = frozenset({"prefixItems", "allOf", "anyOf"})
_MAPS = frozenset({"properties", "patternProperties"})


def normalise(root: Schema) -> Schema:
    """A schema of the same meaning that uses the compiler's keywords only; references lead to its own `$defs`.

    It may allow less where a rewrite is narrower than the keyword (see `negate`), never more.

    Raises:
        UnsupportedKeywordError: a keyword could not be enforced.
        InvalidSchemaError: a reference leads nowhere, out of the document or back to itself.
        GrammarTooComplexError: the rewritten schema would be too large.
    """
    document = Document(root)
    return _Normaliser(document).run()


class _Normaliser:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._prover = Prover(document)
        self._names: dict[str, str] = {}
        self._pending: list[str] = []
        self._num_rewrites = 0

    def run(self) -> Schema:
        check_cycles(self._document)
        root = self._rewrite(self._document.schema(""), "")
        definitions: dict[str, Schema] = {}
        while self._pending:
            pointer = self._pending.pop()
            check_cycles(self._document, pointer)
            definitions[self._names[pointer]] = self._rewrite(self._document.schema(pointer), pointer)
        if not definitions:
            return root
        return {**root, "$defs": definitions} if isinstance(root, dict) else root

    def _rewrite(self, node: Schema, pointer: str) -> Schema:
        self._num_rewrites += 1
        if self._num_rewrites > MAX_REWRITES:
            raise GrammarTooComplexError(
                "the schema grows too large when its combinations are written out", path=pointer
            )
        if isinstance(node, bool):
            return node
        result: dict[str, Any] = {}
        extra: list[Schema] = []
        for keyword, value in node.items():
            where = pointer_to(pointer, keyword)
            if keyword in _COPIED:
                result[keyword] = value
            elif keyword == "$ref":
                result[keyword] = self._reference(value)
            elif keyword in _SCHEMAS:
                result[keyword] = self._rewrite(value, where)
            elif keyword in _LISTS:
                result[keyword] = [self._rewrite(child, pointer_to(where, i)) for i, child in enumerate(value)]
            elif keyword in _MAPS:
                result[keyword] = {name: self._rewrite(child, pointer_to(where, name)) for name, child in value.items()}
            elif keyword == "format":
                _add_format(result, extra, value)
            elif keyword in _REWRITES:
                rewritten = _REWRITES[keyword](self, node, where)
                extra.extend(self._rewrite(schema, where) for schema in rewritten if schema is not True)
            elif keyword in ("minProperties", "maxProperties"):
                extra.extend(objects.count(node, keyword, result, where))
        if extra:
            result["allOf"] = [*result.get("allOf", ()), *extra]
        return result

    def _reference(self, pointer: str) -> str:
        if pointer not in self._names:
            self._names[pointer] = f"d{len(self._names)}"
            self._pending.append(pointer)
        return f"#/$defs/{self._names[pointer]}"

    def _negated(self, node: Schema, keyword: str, pointer: str) -> Schema:
        parts = negate(node, self._document)
        if not parts and node not in (True, {}):
            raise UnsupportedKeywordError(
                keyword, path=pointer, reason="what it excludes cannot be written as a grammar"
            )
        return parts[0] if len(parts) == 1 else {"anyOf": parts} if parts else False

    def _one_of(self, node: dict[str, Any], pointer: str) -> list[Schema]:
        """A union of the branches, each without what overlaps it in another."""
        branches: list[Schema] = node["oneOf"]
        siblings = {keyword: value for keyword, value in node.items() if keyword != "oneOf"}
        parts: list[list[Schema]] = [[branch] for branch in branches]
        num_overlaps = 0
        for i, first in enumerate(branches):
            for j, second in enumerate(branches[:i]):
                if self._prover.contradict([siblings, first, second]):
                    continue
                num_overlaps += 1
                if num_overlaps > MAX_ONE_OF_OVERLAPS:
                    raise UnsupportedKeywordError("oneOf", path=pointer, reason="too many of its branches overlap")
                parts[i].append(self._negated(second, "oneOf", pointer))
                parts[j].append(self._negated(first, "oneOf", pointer))
        return [{"anyOf": [part[0] if len(part) == 1 else {"allOf": part} for part in parts]}]

    def _not(self, node: dict[str, Any], pointer: str) -> list[Schema]:
        return [self._negated(node["not"], "not", pointer)]

    def _if(self, node: dict[str, Any], pointer: str) -> list[Schema]:
        condition = node["if"]
        if "then" not in node:
            return [{"anyOf": [condition, node["else"]]}] if "else" in node else []
        otherwise = [self._negated(condition, "if", pointer), *([node["else"]] if "else" in node else [])]
        return [{"anyOf": [{"allOf": [condition, node["then"]]}, {"allOf": otherwise}]}]

    def _unique_items(self, node: dict[str, Any], pointer: str) -> list[Schema]:
        if not node["uniqueItems"] or node.get("maxItems", 2) <= 1:
            return []
        items = node.get("items", True)
        values = (
            [False, True] if items == {"type": "boolean"} else values_of(items) if isinstance(items, dict) else None
        )
        if items is False and len(node.get("prefixItems", ())) <= 1:
            return []
        if values is None or len(values) > MAX_UNIQUE_VALUES or "prefixItems" in node or node.get("type") != "array":
            raise UnsupportedKeywordError("uniqueItems", path=pointer, reason="its items are not a few known values")
        values = list({value_key(value): value for value in values}.values())
        low, high = int(node.get("minItems", 0)), int(min(node.get("maxItems", len(values)), len(values)))
        return [{"enum": [list(order) for size in range(low, high + 1) for order in permutations(values, size)]}]

    def _contains(self, node: dict[str, Any], pointer: str) -> list[Schema]:
        if node.get("minContains", 1) == 0 and "maxContains" not in node:
            return []
        raise UnsupportedKeywordError("contains", path=pointer)

    def _dependent_required(self, node: dict[str, Any], pointer: str) -> list[Schema]:
        pairs = node["dependentRequired"].items()
        return [{"anyOf": [{"properties": {name: False}}, {"required": keys}]} for name, keys in pairs if keys]

    def _dependent_schemas(self, node: dict[str, Any], pointer: str) -> list[Schema]:
        return [{"anyOf": [{"properties": {name: False}}, schema]} for name, schema in node["dependentSchemas"].items()]

    def _property_names(self, node: dict[str, Any], pointer: str) -> list[Schema]:
        return objects.names(node["propertyNames"], self._document, pointer)

    def _unevaluated_properties(self, node: dict[str, Any], pointer: str) -> list[Schema]:
        return objects.unevaluated(node, self._document, pointer)

    def _unevaluated_items(self, node: dict[str, Any], pointer: str) -> list[Schema]:
        value = node["unevaluatedItems"]
        if value is True or "items" in node:
            return []
        if any(keyword in node for keyword in (*objects.APPLICATORS, "$ref", "allOf", "contains")):
            raise UnsupportedKeywordError("unevaluatedItems", path=pointer, reason="beside other applicators")
        return [{"prefixItems": [True] * len(node.get("prefixItems", ())), "items": value}]


_REWRITES = {
    "oneOf": _Normaliser._one_of,
    "not": _Normaliser._not,
    "if": _Normaliser._if,
    "uniqueItems": _Normaliser._unique_items,
    "contains": _Normaliser._contains,
    "dependentRequired": _Normaliser._dependent_required,
    "dependentSchemas": _Normaliser._dependent_schemas,
    "propertyNames": _Normaliser._property_names,
    "unevaluatedProperties": _Normaliser._unevaluated_properties,
    "unevaluatedItems": _Normaliser._unevaluated_items,
}


def _add_format(result: dict[str, Any], extra: list[Schema], name: str) -> None:
    name = SYNONYMS.get(name, name)
    if name in NATIVE:
        result["format"] = name
    elif name in PATTERNS:
        extra.append({"pattern": PATTERNS[name]})
