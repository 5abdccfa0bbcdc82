"""Parameters of a program's body: as JSON, and their placeholders while it is compiled."""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import json
import types
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NoReturn, get_args, get_origin

from ...runtime.protocol.condition import Hole
from ...runtime.protocol.template import Parameter
from ..diagnostics.source_lines import place
from ..types.annotations import annotations_of, as_json, described, fields_of
from .placeholder import CompileError, Marks, Unknown

_PLAIN = (str, int, float, bool, type(None), Any, object)
_WRITABLE = (*_PLAIN, decimal.Decimal, uuid.UUID, datetime.date, datetime.time)
_MIXED = (enum.StrEnum, enum.IntEnum)


def open_parameters(body: Callable[..., Any], known: Mapping[str, Any]) -> list[inspect.Parameter]:
    """The parameters after the state that are not `known`."""
    after_state = list(inspect.signature(body).parameters.values())[1:]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one for one in after_state if one.name not in known and one.kind not in several]


def parameters_of(body: Callable[..., Any], known: Mapping[str, Any]) -> Iterator[Parameter]:
    """The same as data.

    Raises:
        CompileError: one cannot be given as JSON.
    """
    kinds = annotations_of(body)
    for parameter in open_parameters(body, known):
        yield Parameter(
            name=parameter.name,
            schema=_schema_of(kinds.get(parameter.name, Any), parameter.name),
            default=None if parameter.default is parameter.empty else _default(parameter),
        )


def _schema_of(kind: Any, name: str) -> str:
    try:
        return json.dumps(described(kind).schema)
    except TypeError as error:
        raise CompileError(f"the parameter {name!r} cannot be given as JSON: {error}", param=name) from error


def _default(parameter: inspect.Parameter) -> str:
    try:
        return json.dumps(as_json(parameter.default), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise CompileError(
            f"the default of {parameter.name!r} is not a JSON value: pass the argument to compile()",
            param=parameter.name,
        ) from error


def stand_ins(body: Callable[..., Any], known: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
    """Returns what the body gets for the arguments that are not `known`."""
    kinds = annotations_of(body)
    return {one.name: _stand_in(kinds.get(one.name, Any), one.name, marks) for one in open_parameters(body, known)}


def _stand_in(kind: Any, path: str, marks: Marks) -> Any:
    """A placeholder, or an object with one for each field."""
    fields = fields_of(kind)
    if fields is None:
        plain = _is_written(kind, _PLAIN)
        writable = plain or _is_written(kind, _WRITABLE)
        return marks.placeholder(Unknown(Hole(path), kind, writable=writable, plain=plain))
    inner = {name: _stand_in(one, f"{path}/{name}", marks) for name, one in fields.items()}
    return Fields(path, kind, inner, marks)


def _is_written(kind: Any, kinds: tuple[Any, ...]) -> bool:
    """Tells whether `str` gives the same of such a value as of its JSON: so of numbers, not of an Enum."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        return _is_written(inner[0], kinds)
    if origin is Literal:
        return all(isinstance(value, str | int) for value in inner)
    if origin in (typing.Union, types.UnionType):
        return all(_is_written(one, kinds) for one in inner)
    if origin in (list, dict):  # what is in them is written by `repr`
        return all(_is_written(one, _PLAIN) for one in inner)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return issubclass(kind, _MIXED)
    return kind in kinds or kind in (list, dict)


class Fields:
    """An argument with fields, none of which is known. `path` is where it is."""

    def __init__(self, path: str, kind: Any, fields: Mapping[str, Any], marks: Marks) -> None:
        self.__dict__["_path"] = path
        self.__dict__["_kind"] = kind
        self.__dict__["_fields"] = fields
        self.__dict__["_marks"] = marks

    def __getattr__(self, name: str) -> Any:
        if name in self._fields and not typing.is_typeddict(self._kind):
            return self._fields[name]
        if not name.startswith("__") and hasattr(dict if typing.is_typeddict(self._kind) else self._kind, name):
            self._refuse(f"{name!r} of")  # a method or a property
        raise AttributeError(f"{getattr(self._kind, '__name__', self._kind)!r} object has no attribute {name!r}")

    def __getitem__(self, name: str) -> Any:
        if not typing.is_typeddict(self._kind):
            self._refuse("an element of")
        return self._fields[name]

    def __format__(self, spec: str) -> str:
        self._refuse("the whole text of")

    def __bool__(self) -> bool:
        kind = dict if typing.is_typeddict(self._kind) else self._kind
        if hasattr(kind, "__bool__") or hasattr(kind, "__len__"):
            self._refuse("deciding by")
        return True

    def _refuse(self, what: str) -> NoReturn:
        unknown = Unknown(Hole(self._path))
        raise CompileError(
            f"{what} {unknown.what} needs its value, which is not known when the program is compiled: use its fields "
            f"one by one, or {self._marks.advice(unknown)}",
            place=place(),
        )


def _refusing(what: str) -> Callable[..., Any]:
    def refused(self: Fields, *_: object) -> NoReturn:
        self._refuse(what)

    return refused


for _name, _what in {
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), "comparing"),
    **dict.fromkeys(("str", "repr"), "the whole text of"),
    "hash": "looking up by",
    "len": "the length of",
    "iter": "a loop over",
    "contains": "looking into",
}.items():
    setattr(Fields, f"__{_name}__", _refusing(_what))
