"""Says in a schema which texts are times: where a type takes them with an offset or without, msgspec says nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import inspect

_FORMATS = {inspect.DateTimeType: "date-time", inspect.TimeType: "time"}


def name_times(schema: dict[str, Any], kind: Any) -> None:
    """Gives each date-time and time of day in msgspec's `schema` of `kind` its format: then it is one, with an offset.

    Otherwise any text would do, which hardly ever can be read back.
    """
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    left: list[tuple[Any, Any]] = [(inspect.type_info(kind), schema)]
    seen: set[str] = set()
    while left:
        node, found = left.pop()
        if isinstance(node, inspect.Metadata):
            node = node.type
        if not isinstance(found, dict):
            continue
        if "$ref" in found:
            name = found["$ref"].rpartition("/")[2]
            if name in seen:
                continue
            seen.add(name)
            found = definitions[name]
        if type(node) in _FORMATS and getattr(node, "tz", None) is None:
            found.setdefault("format", _FORMATS[type(node)])
        left += _parts(node, found)


def _parts(node: Any, schema: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The types that a type is made of, each with its schema."""
    match node:
        case inspect.UnionType(types=types):
            texts = [option for option in schema.get("anyOf", ()) if option == {"type": "string"}]
            times = [one for one in types if type(one) in _FORMATS]
            others = [one for one in types if type(one) not in _FORMATS]
            if len(texts) == len(times) == 1:
                yield times[0], texts[0]
            refs = [option for option in schema.get("anyOf", ()) if "$ref" in option or "items" in option]
            if len(refs) == 1:
                yield from ((one, refs[0]) for one in others if list(_children(one)))
        case inspect.DictType(value_type=inner):
            yield inner, schema.get("additionalProperties")
        case inspect.TupleType(item_types=types):
            yield from zip(types, schema.get("prefixItems", ()), strict=False)
        case inspect.NamedTupleType(fields=fields):
            yield from zip((field.type for field in fields), schema.get("prefixItems", ()), strict=False)
        case _:
            properties = schema.get("properties", {})
            yield from ((field.type, properties.get(field.encode_name)) for field in getattr(node, "fields", ()))
            if hasattr(node, "item_type"):
                yield node.item_type, schema.get("items")


def _children(node: Any) -> Iterator[Any]:
    yield from (field.type for field in getattr(node, "fields", ()))
    yield from (getattr(node, name) for name in ("item_type", "value_type") if hasattr(node, name))
