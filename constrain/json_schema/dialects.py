"""The drafts of JSON Schema: which keywords each has, and how its forms are written in those of draft 2020-12."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .parse import ABSENT, Schema, draft_year


@dataclass(frozen=True, slots=True)
class Draft:
    """What one draft means by its keywords.

    year                what the draft is called: 4, 6, 7, 2019 or 2020
    contains_evaluates  items that match `contains` count as evaluated
    """

    year: int

    @property
    def id_keyword(self) -> str:
        return "id" if self.year == 4 else "$id"

    @property
    def ref_stands_alone(self) -> bool:
        """Keywords beside `$ref` mean nothing."""
        return self.year <= 7

    @property
    def has_anchors(self) -> bool:
        return self.year >= 2019

    @property
    def has_recursion(self) -> bool:
        return self.year == 2019

    @property
    def contains_evaluates(self) -> bool:
        return self.year >= 2020

    @property
    def absent(self) -> frozenset[str]:
        """Keywords of other drafts, which mean nothing in this one."""
        return ABSENT[self.year]

    def modern(self, node: Any) -> Schema:
        """`node` in the keywords of draft 2020-12. Forms of older drafts that no later one gives a meaning are read."""
        if isinstance(node, bool):
            return node
        if "$ref" in node and self.ref_stands_alone:
            return {"$ref": node["$ref"]}
        if node.keys().isdisjoint(_UNLIKE_MODERN[self.year]):
            return node  # type: ignore[no-any-return]
        left_out = self.absent | _REWRITTEN
        result = {keyword: value for keyword, value in node.items() if keyword not in left_out}
        if isinstance(node.get("items"), list):
            result["prefixItems"] = At(("items",), node["items"])
            if "additionalItems" in node:
                result["items"] = At(("additionalItems",), node["additionalItems"])
        elif "items" in node:
            result["items"] = node["items"]
        _set_dependencies(result, node.get("dependencies", {}))
        _set_limits(result)
        if isinstance(result.get("required"), bool):
            del result["required"]  # draft 3 put it beside the property
        return result


@dataclass(frozen=True, slots=True)
class At:
    """The value of a keyword that stands elsewhere in the document: at `steps` from the schema's own place."""

    steps: tuple[str | int, ...]
    value: Any


_REWRITTEN = frozenset({"items", "additionalItems", "dependencies"})
_RETYPED = frozenset({"exclusiveMinimum", "exclusiveMaximum", "required"})
"""Keywords that a draft wrote as a boolean."""
_UNLIKE_MODERN = {year: absent | _REWRITTEN | _RETYPED for year, absent in ABSENT.items()}
"""A schema without these stands as in draft 2020-12."""


def draft_of(root: Schema) -> Draft:
    """The draft that `$schema` names; 2020-12 if it names none that is known."""
    return Draft(draft_year(root))


def _set_dependencies(result: dict[str, Any], value: dict[str, Any]) -> None:
    for name, item in value.items():
        keyword = "dependentRequired" if isinstance(item, list) else "dependentSchemas"
        if name not in result.get(keyword, {}):
            entry = item if isinstance(item, list) else At(("dependencies", name), item)
            result[keyword] = {**result.get(keyword, {}), name: entry}


def _set_limits(schema: dict[str, Any]) -> None:
    """Draft 4 wrote `exclusiveMinimum: true` beside `minimum`."""
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            del schema[exclusive]
            if flag and inclusive in schema:
                schema[exclusive] = schema.pop(inclusive)
