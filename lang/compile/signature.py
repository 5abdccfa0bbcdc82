"""The parameters of a program's body as JSON: for compiled programs and for the tools that people register."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_origin

import msgspec

from ...runtime.condition import Hole
from ...runtime.template import Parameter
from .placeholder import CompileError, Marks, Unknown


def hints_of(body: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, resolved as far as they can be."""
    try:
        return typing.get_type_hints(body)
    except (NameError, TypeError):  # of names that exist for type checkers only
        return {name: value for name, value in body.__annotations__.items() if not isinstance(value, str)}


def parameters_of(body: Callable[..., Any], known: Mapping[str, Any]) -> Iterator[Parameter]:
    """The parameters after the state that are not `known`.

    Raises:
        CompileError: one cannot be given as JSON.
    """
    hints = hints_of(body)
    for parameter in list(inspect.signature(body).parameters.values())[1:]:
        if parameter.name in known:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        yield Parameter(
            name=parameter.name,
            schema=schema_of(hints.get(parameter.name, Any), parameter.name),
            default=None if parameter.default is parameter.empty else _default(parameter),
        )


def schema_of(kind: Any, name: str) -> str:
    """The JSON Schema of a type.

    Raises:
        CompileError: it has none.
    """
    try:
        return json.dumps(msgspec.json.schema(kind))
    except TypeError as error:
        if (pydantic := sys.modules.get("pydantic")) is not None:  # a model, or a type that holds some
            with contextlib.suppress(pydantic.PydanticUserError):
                return json.dumps(pydantic.TypeAdapter(kind).json_schema())
        raise CompileError(f"the parameter {name!r} cannot be given as JSON: {error}", param=name) from error


def _default(parameter: inspect.Parameter) -> str:
    try:
        return json.dumps(msgspec.to_builtins(parameter.default), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise CompileError(
            f"the default of {parameter.name!r} is no JSON value: give the argument to compile()", param=parameter.name
        ) from error


def stand_in(kind: Any, path: str, marks: Marks) -> Any:
    """What the body gets for an argument that is not known: a placeholder, or an object with one for each field."""
    fields = _fields(kind)
    if fields is None:
        return marks.placeholder(Unknown(Hole(path), f"the argument {path!r}"))
    return Fields(path, {name: stand_in(inner, f"{path}/{name}", marks) for name, inner in fields.items()})


def _fields(kind: Any) -> dict[str, Any] | None:
    """The fields of a dataclass, Pydantic model, msgspec Struct or TypedDict, with their types."""
    if get_origin(kind) in (typing.Union, types.UnionType) or not isinstance(kind, type):
        return None
    if hasattr(kind, "model_fields"):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or issubclass(kind, msgspec.Struct):
        return typing.get_type_hints(kind)
    return None


class Fields:
    """An argument with fields, none of which is known. `path` is where it is."""

    def __init__(self, path: str, fields: Mapping[str, Any]) -> None:
        self.__dict__["_path"] = path
        self.__dict__["_fields"] = fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._fields:
            raise AttributeError(f"{self._path} has no {name!r}")
        return self._fields[name]

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __format__(self, spec: str) -> str:
        raise CompileError(f"{self._path} can be written field by field only while the program is compiled")

    __str__ = __repr__ = lambda self: self.__format__("")
