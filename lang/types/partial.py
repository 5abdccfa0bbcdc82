"""Partial typed values, while they are being written: objects with only their complete attributes set."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from ...constrain.json_text.partial import ABSENT, PLAIN, Shape
from ...constrain.spec import JsonSchema
from ...constrain.workers.decoders import json_decoder
from .annotations import is_model
from .texts import from_text

Convert = Callable[[Any], Any]
MakeConvert = Callable[[Any], Convert]
"""For a type, what turns a JSON value into it; raises ValueError."""


def shape_of(kind: object) -> Shape:
    """Returns how values of `kind` (as `schema.typed` takes it) are shown while they are written.

    a Pydantic model           an instance on which only those fields are set; its own validators have not run
    a dataclass, Struct        a `Partial`
    a TypedDict, dict          a dict
    list, tuple, set           a list of the complete items
    a JSON Schema              dicts and lists
    all else                   nothing before it is complete; so too where one of several types is possible
    """
    if isinstance(kind, Mapping | str | JsonSchema):
        return PLAIN
    return _shape(kind, _by_pydantic if is_model(kind) else _by_msgspec)


class Partial:
    """A dataclass or Struct of which only some fields are written yet. Reading another raises AttributeError.

    `name in partial` asks whether a field is there.
    """

    __slots__ = ("_bough_fields", "_bough_kind")

    def __init__(self, kind: type, fields: Mapping[str, Any]) -> None:
        self._bough_kind = kind
        self._bough_fields = fields

    def __getattr__(self, name: str) -> Any:
        try:
            return self._bough_fields[name]
        except KeyError:
            raise AttributeError(f"{self._bough_kind.__name__}.{name} is not written yet") from None

    def __contains__(self, name: object) -> bool:
        return name in self._bough_fields

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partial):
            return NotImplemented
        return self._bough_kind is other._bough_kind and self._bough_fields == other._bough_fields

    __hash__ = None  # type: ignore[assignment]  # as of other objects that are compared by value

    def __dir__(self) -> list[str]:
        return list(self._bough_fields)

    def __repr__(self) -> str:
        fields = [f"{name}={value!r}" for name, value in self._bough_fields.items()]
        return f"{self._bough_kind.__name__}({', '.join([*fields, '...'])})"


@dataclasses.dataclass(frozen=True, eq=False)
class _Atom:
    """Shown only once it is complete."""

    convert: Convert

    def member(self, name: str) -> Shape:
        return PLAIN

    def item(self, index: int) -> Shape:
        return PLAIN

    def whole(self, value: Any) -> Any:
        try:
            return self.convert(value)
        except ValueError:  # not right by itself: whether the finished object is, its own checks decide
            return ABSENT

    def begun(self, content: Any) -> Any:
        return ABSENT


@dataclasses.dataclass(frozen=True, eq=False)
class _Items(_Atom):
    """An array, shown as a list. `kinds` are its items' types; the last is that of all that follow."""

    kinds: tuple[Any, ...]
    make_convert: MakeConvert

    def item(self, index: int) -> Shape:
        return _shape(self.kinds[min(index, len(self.kinds) - 1)], self.make_convert)

    def begun(self, content: Any) -> Any:
        return content


@dataclasses.dataclass(frozen=True, eq=False)
class _Mapping(_Atom):
    """An object with any names, shown as a dict."""

    kind: Any
    make_convert: MakeConvert

    def member(self, name: str) -> Shape:
        return _shape(self.kind, self.make_convert)

    def begun(self, content: Any) -> Any:
        return content


@dataclasses.dataclass(frozen=True, eq=False)
class _Record(_Atom):
    """An object with known names.

    fields    by the name in JSON: the field's own name, and its type
    build     makes of some fields what is shown
    """

    fields: Mapping[str, tuple[str, Any]]
    build: Callable[[dict[str, Any]], Any]
    make_convert: MakeConvert

    def member(self, name: str) -> Shape:
        if name not in self.fields:
            return PLAIN
        return _shape(self.fields[name][1], self.make_convert)

    def begun(self, content: Any) -> Any:
        return self.build({self.fields[name][0]: value for name, value in content.items() if name in self.fields})


def _shape(kind: Any, make_convert: MakeConvert) -> Shape:
    try:
        return _cached_shape(kind, make_convert)
    except TypeError:  # it cannot be hashed, as some metadata of Annotated
        return _make_shape(kind, make_convert)


@functools.lru_cache(maxsize=4096)
def _cached_shape(kind: Any, make_convert: MakeConvert) -> Shape:
    return _make_shape(kind, make_convert)


def _make_shape(kind: Any, make_convert: MakeConvert) -> Shape:
    convert = make_convert(kind)
    bare = _bare(kind)
    origin, args = get_origin(bare) or bare, get_args(bare)
    if not isinstance(origin, type):
        return PLAIN if bare is Any else _Atom(convert)
    if is_model(origin):
        if getattr(origin, "__pydantic_root_model__", False):
            return _Atom(convert)
        fields = {key: (name, kind) for key, name, kind in _model_fields(origin)}
        return _Record(convert, fields, functools.partial(_model, origin), _by_pydantic)
    if typing.is_typeddict(origin):
        return _Record(convert, _same_names(_hints(bare)), dict, make_convert)
    if dataclasses.is_dataclass(origin) or hasattr(origin, "__attrs_attrs__"):
        return _Record(convert, _same_names(_hints(bare)), functools.partial(Partial, origin), make_convert)
    if issubclass(origin, msgspec.Struct):
        if origin.__struct_config__.array_like:
            return _Atom(convert)
        hints, names = _hints(bare), zip(origin.__struct_encode_fields__, origin.__struct_fields__, strict=True)
        renamed = {key: (name, hints[name]) for key, name in names}
        return _Record(convert, renamed, functools.partial(Partial, origin), make_convert)
    if issubclass(origin, tuple) and args and args[-1] is not Ellipsis:
        return _Items(convert, args, make_convert)
    if origin in (list, tuple, set, frozenset):
        return _Items(convert, (args[0] if args else Any,), make_convert)
    if origin is dict and (not args or args[0] is str):
        return _Mapping(convert, args[1] if args else Any, make_convert)
    return _Atom(convert)


def _bare(kind: Any) -> Any:
    """A type without what is written around it: Annotated, Required, a new name, `| None`."""
    while True:
        origin = get_origin(kind)
        if origin in (Annotated, typing.Required, typing.NotRequired):
            kind = get_args(kind)[0]
        elif origin in (Union, types.UnionType):
            others = [arg for arg in get_args(kind) if arg not in (None, type(None))]
            if len(others) != 1:
                return kind
            kind = others[0]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        else:
            return kind


def _hints(kind: Any) -> dict[str, Any]:
    """The types of a class's fields, in its own generic's arguments."""
    cls = get_origin(kind) or kind
    given = dict(zip(getattr(cls, "__parameters__", ()), get_args(kind), strict=False))

    def fill(hint: Any) -> Any:
        if isinstance(hint, typing.TypeVar):
            return given.get(hint, Any)
        parameters = getattr(hint, "__parameters__", ()) if get_origin(hint) is not None else ()
        return hint[tuple(given.get(parameter, Any) for parameter in parameters)] if parameters else hint

    return {name: fill(hint) for name, hint in typing.get_type_hints(cls, include_extras=True).items()}


def _same_names(hints: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    return {name: (name, kind) for name, kind in hints.items()}


def _by_msgspec(kind: Any) -> Convert:
    kind = get_args(kind)[0] if get_origin(kind) in (typing.Required, typing.NotRequired) else kind
    decode = json_decoder(kind, from_text).decode
    return lambda value: decode(json.dumps(value))


# Pydantic, which is not imported: its models bring all that is needed.


def _by_pydantic(kind: Any) -> Convert:
    from pydantic import TypeAdapter  # noqa: PLC0415  # it is there if a model of it was given

    validate = TypeAdapter(kind).validate_json
    return lambda value: validate(json.dumps(value))


def _model_fields(model: Any) -> list[tuple[str, str, Any]]:
    """Yields of each field its name in JSON, its own and its type."""
    fields = []
    for name, field in model.model_fields.items():
        alias = field.validation_alias or field.alias
        choices = getattr(alias, "choices", [alias])
        key = next((choice for choice in choices if isinstance(choice, str)), name)
        fields.append((key, name, field.rebuild_annotation()))
    return fields


def _model(model: Any, fields: dict[str, Any]) -> Any:
    """Does as `model_construct`, without defaults for missing fields and without `model_post_init`."""
    made = model.__new__(model)
    for name, value in {
        "__dict__": fields,
        "__pydantic_fields_set__": set(fields),
        "__pydantic_extra__": {} if model.model_config.get("extra") == "allow" else None,
        "__pydantic_private__": None,
    }.items():
        object.__setattr__(made, name, value)
    return made
