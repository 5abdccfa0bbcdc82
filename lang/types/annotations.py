"""What annotations say, in one reading for all who need it: as JSON Schema, and how JSON becomes a value."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import msgspec.inspect

from .dates import name_times


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
    """How a type is written as JSON.

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
    schema = msgspec.json.schema(kind)
    _restore_order(schema, {cls.__name__: cls for cls in _typed_dicts(kind)})
    name_times(schema, kind)
    return Described(schema, functools.partial(msgspec.convert, type=kind), msgspec.json.Decoder(kind).decode)


def is_model(kind: Any) -> bool:
    """It is a Pydantic model."""
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
