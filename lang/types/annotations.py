"""Annotations as JSON Schema, and the conversion of JSON into their values, in one place."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import msgspec.inspect

from ...constrain.workers.decoders import json_decoder
from .texts import add_patterns, from_text, schema_of_text


class Described(NamedTuple):
    """A type as JSON. `convert` makes it of a JSON value and `read` of a JSON text; they raise ValueError.

    What is nowhere annotated is `Any`: every JSON value.
    """

    schema: dict[str, Any]
    convert: Callable[[Any], Any]
    read: Callable[[str], Any]


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's parameters (and of "return"), each as far as it can be resolved: names that exist for
    type checkers only, or in another function, are as if they were not there."""
    body = inspect.unwrap(function)
    found: dict[str, Any] = {}
    for name, annotation in getattr(body, "__annotations__", {}).items():
        one = SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= typing.get_type_hints(one, getattr(body, "__globals__", {}), include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError):
            continue
    return found


def described(kind: Any) -> Described:
    """Returns how a type is written as JSON.

    Raises:
        TypeError: it has no form in JSON.
    """
    if kind is Any or kind is inspect.Parameter.empty:
        return Described({}, _same, msgspec.json.decode)
    if is_model(kind):
        return Described(dict(kind.model_json_schema()), kind.model_validate, kind.model_validate_json)
    if _holds_model(kind, set()):
        adapter = sys.modules["pydantic"].TypeAdapter(kind)
        return Described(dict(adapter.json_schema()), adapter.validate_python, adapter.validate_json)
    schema = msgspec.json.schema(kind, schema_hook=schema_of_text)
    _restore_order(schema, {cls.__name__: cls for cls in _typed_dicts(kind)})
    name_times(schema, kind)
    add_patterns(schema)
    convert = functools.partial(msgspec.convert, type=kind, dec_hook=from_text)
    return Described(schema, convert, json_decoder(kind, from_text).decode)


def is_model(kind: Any) -> bool:
    """Tells whether it is a Pydantic model."""
    return isinstance(kind, type) and hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate_json")


def fields_of(kind: Any) -> dict[str, Any] | None:
    """The fields of a dataclass, Pydantic model, msgspec Struct or TypedDict, with their types; None: it is none."""
    if not isinstance(kind, type):
        return None
    if is_model(kind):
        model: Any = kind
        return {name: field.annotation for name, field in model.model_fields.items()}
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or issubclass(kind, msgspec.Struct):
        return typing.get_type_hints(kind, include_extras=True)
    return None


def as_json(value: object) -> Any:
    """A value as JSON: of models, dataclasses, Enums, dates, ... at any depth.

    Raises:
        TypeError, ValueError: it has no form in JSON.
    """
    return msgspec.to_builtins(value, enc_hook=_dumped, str_keys=True)


def _holds_model(kind: Any, seen: set[Any]) -> bool:
    """A Pydantic model is part of it: then Pydantic has to read it."""
    if is_model(kind):
        return True
    if isinstance(kind, type):
        if kind in seen:
            return False
        seen.add(kind)
    inner = (*typing.get_args(kind), *(fields_of(kind) or {}).values())
    return any(_holds_model(one, seen) for one in inner)


def _dumped(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, pathlib.PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _same(value: Any) -> Any:
    return value


def _typed_dicts(kind: Any) -> Iterator[Any]:
    """The TypedDicts that a type is made of."""
    seen: set[int] = set()
    left: list[Any] = [msgspec.inspect.type_info(kind)]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, msgspec.inspect.TypedDictType):
            yield node.cls
        if isinstance(node, msgspec.Struct):
            left += (getattr(node, name) for name in node.__struct_fields__)
        elif isinstance(node, tuple | list):
            left += node


def _restore_order(schema: dict[str, Any], classes: Mapping[str, Any]) -> None:
    """Puts the properties of TypedDicts back into the order in which they are declared: msgspec sorts them."""
    for definition in schema.get("$defs", {}).values():
        cls = classes.get(definition.get("title", ""))
        properties = definition.get("properties", {})
        names = list(typing.get_type_hints(cls)) if cls is not None else []
        if names and set(names) == set(properties) and not dataclasses.is_dataclass(cls):
            definition["properties"] = {name: properties[name] for name in names}


_FORMATS = {msgspec.inspect.DateTimeType: "date-time", msgspec.inspect.TimeType: "time"}


def name_times(schema: dict[str, Any], kind: Any) -> None:
    """Gives each date-time and time of day in msgspec's `schema` of `kind` its format: then it is one, with an offset.

    Otherwise any text would do, which hardly ever can be read back.
    """
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    left: list[tuple[Any, Any]] = [(msgspec.inspect.type_info(kind), schema)]
    seen: set[str] = set()
    while left:
        node, found = left.pop()
        if isinstance(node, msgspec.inspect.Metadata):
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
        case msgspec.inspect.UnionType(types=types):
            texts = [option for option in schema.get("anyOf", ()) if option == {"type": "string"}]
            times = [one for one in types if type(one) in _FORMATS]
            others = [one for one in types if type(one) not in _FORMATS]
            if len(texts) == len(times) == 1:
                yield times[0], texts[0]
            refs = [option for option in schema.get("anyOf", ()) if "$ref" in option or "items" in option]
            if len(refs) == 1:
                yield from ((one, refs[0]) for one in others if list(_children(one)))
        case msgspec.inspect.DictType(value_type=inner):
            yield inner, schema.get("additionalProperties")
        case msgspec.inspect.TupleType(item_types=types):
            yield from zip(types, schema.get("prefixItems", ()), strict=False)
        case msgspec.inspect.NamedTupleType(fields=fields):
            yield from zip((field.type for field in fields), schema.get("prefixItems", ()), strict=False)
        case _:
            properties = schema.get("properties", {})
            yield from ((field.type, properties.get(field.encode_name)) for field in getattr(node, "fields", ()))
            if hasattr(node, "item_type"):
                yield node.item_type, schema.get("items")


def _children(node: Any) -> Iterator[Any]:
    yield from (field.type for field in getattr(node, "fields", ()))
    yield from (getattr(node, name) for name in ("item_type", "value_type") if hasattr(node, name))
