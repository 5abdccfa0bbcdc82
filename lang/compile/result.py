"""Result of a program's body in two forms: as data, and as a recipe that rebuilds it from the texts of a run."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...constrain.spec import JsonSchema
from ...runtime.protocol.condition import Hole, Ref
from ...runtime.protocol.program import Gen, walk
from ...runtime.protocol.template import (
    Reading,
    Result,
    ResultArgument,
    ResultConstant,
    ResultJoined,
    ResultList,
    ResultObject,
    ResultPart,
    ResultProbabilities,
    ResultShare,
    ResultText,
    ResultValue,
)
from ...runtime.templates.rewrite import Parts, joined
from ..record.reasoning import Separated
from ..record.variables import Derived, Entry, Fixed, Gathered, Kept, Passage, Slot, parts_of
from ..state.state import State
from ..state.values import read_as
from ..types.annotations import as_json
from ..types.schema import bare_options, typed
from .placeholder import ChoiceShare, CompileError, Marks, Placeholder, Probabilities, Unknown, has_marks
from .signature import Fields
from .tracing import Trace

_READINGS: Mapping[type, Reading] = {int: "int", float: "float", bool: "bool"}
_NOTHING = ResultConstant("null")

Arguments = Mapping[str, Any]
Make = Callable[[Any, Arguments], Any]


class Returned(NamedTuple):
    """A result, or a part of one.

    data    what any engine or server makes of it: a JSON value
    texts   the same with the texts of all values, as they are generated
    make    of what `texts` comes to, and the arguments: what the body would have returned
    """

    data: Result
    texts: Result
    make: Make


def returned_by(traced: Trace, marks: Marks) -> Returned:
    """Returns a body's result; of one that returns nothing, all its variables by name.

    Raises:
        CompileError: it is no JSON value.
    """
    reader = _ResultReader(traced, marks)
    return reader.of_variables(traced.variables) if traced.returned is None else reader.of(traced.returned)


class _ResultReader:
    def __init__(self, traced: Trace, marks: Marks) -> None:
        self._marks = marks
        repeated = (op for op in walk(traced.ops) if isinstance(op, Gen) and op.sampling.n > 1)
        self._sampled = {Ref(op.branch, op.name) for op in repeated}

    def of(self, value: object) -> Returned:
        match value:
            case Placeholder():
                source = value.unknown.source
                if isinstance(source, ChoiceShare):
                    return _as_it_is(_share(source))
                return _argument(source) if isinstance(source, Hole) else self._of_entry(source, value.unknown)
            case Probabilities(slot=slot):
                return _as_it_is(ResultProbabilities(Ref(slot.branch, slot.name), slot.choices or ()))
            case ChoiceShare():
                return _as_it_is(_share(value))
            case str():
                return self._of_text(value)
            case State():
                return self.of_variables(value._branch.variables)
            case Mapping():
                return self._of_fields(value, dict)
            case list() | tuple():
                rebuild = getattr(type(value), "_make", type(value))
                return self._of_items(map(self.of, value), rebuild)
            case Fields():
                return _argument(Hole(value._path))
            case _:
                return self._of_object(value)

    def of_variables(self, variables: Mapping[str, Entry]) -> Returned:
        return _object({name: self._of_entry(entry) for name, entry in variables.items()}, dict)

    def _of_object(self, value: Any) -> Returned:
        """Returns the form of an object with fields: the same with others in them. All else is a constant."""
        if isinstance(value, msgspec.Struct):
            return self._of_fields(
                {name: getattr(value, name) for name in value.__struct_fields__},
                lambda fields: msgspec.structs.replace(value, **fields),
            )
        if hasattr(type(value), "model_fields"):
            return self._of_fields(
                {name: getattr(value, name) for name in type(value).model_fields},
                lambda fields: value.model_copy(update=fields),
            )
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = (field.name for field in dataclasses.fields(value))
            return self._of_fields({name: getattr(value, name) for name in names}, lambda fields: _with(value, fields))
        return _constant(value)

    def _of_fields(self, fields: Mapping[Any, Any], rebuild: Callable[[dict[Any, Any]], Any]) -> Returned:
        if any(has_marks(str(name).encode(errors="ignore")) for name in fields):
            raise CompileError("the names of a result's fields must be known when the program is compiled")
        return _object({name: self.of(item) for name, item in fields.items()}, rebuild)

    def _of_items(self, items: Iterable[Returned], rebuild: Callable[[list[Any]], Any]) -> Returned:
        parts = tuple(items)

        def make(texts: Sequence[Any], arguments: Arguments) -> Any:
            return rebuild([part.make(text, arguments) for part, text in zip(parts, texts, strict=True)])

        data = ResultList(tuple(part.data for part in parts))
        return Returned(data, ResultList(tuple(part.texts for part in parts)), make)

    def _of_text(self, text: str) -> Returned:
        pieces = self._marks.with_shares(text)
        if any(isinstance(piece, ChoiceShare) for piece in pieces):
            items = (_share(piece) if isinstance(piece, ChoiceShare) else self._of_text(piece).data for piece in pieces)
            return _as_it_is(ResultJoined(tuple(items)))
        parts = self._marks.parts(text)
        return _as_it_is(ResultText(parts)) if any(not isinstance(part, str) for part in parts) else _constant(text)

    def _of_entry(self, entry: Entry | None, read_as: Unknown | None = None) -> Returned:
        kind = None if read_as is None else read_as.kind
        match entry:
            case None:
                return _constant(None)
            case Fixed(value=value):
                return self.of(value)
            case Gathered(entries=entries):
                return self._of_items(map(self._of_entry, entries), list)
            case Passage(marks=marks):
                return self._of_parts(joined(part for mark in marks for part in parts_of((mark,))))
            case Slot():
                return self._of_slot(entry, _form(entry, kind))
            case Kept():
                return self._of_kept(entry, kind)
            case Derived(slot=slot, convert=Separated() as separated):
                return self._of_slot(slot, _form(slot, kind, separated))
            case Derived(slot=slot):
                raise CompileError(f"only part of {slot.name!r} is a result: return the whole of it", place=slot.place)

    def _of_kept(self, kept: Kept, kind: object) -> Returned:
        """Returns the form of what a block may have set; None if it has not."""
        if kept.unchanged or not kept.name:
            return self._of_entry(kept.before)
        forms = {form.reading: form for form in (_form(slot, kind) for slot in kept.slots)}
        form = forms.popitem()[1] if len(forms) == 1 else _TEXT
        value = ResultValue(Ref(kept.branch, kept.name), form.reading, form.schema, assigned=True, part=form.part)
        return _read(value, form)

    def _of_parts(self, parts: Parts) -> Returned:
        return _as_it_is(
            ResultText(
                joined(p for part in parts for p in (self._marks.parts(part) if isinstance(part, str) else (part,)))
            )
        )

    def _of_slot(self, slot: Slot, form: _Form) -> Returned:
        ref = Ref(slot.branch, slot.name)
        return _read(ResultValue(ref, form.reading, form.schema, samples=ref in self._sampled, part=form.part), form)


class _Form(NamedTuple):
    """Reading of a value's text: as data, and by Python."""

    reading: Reading
    convert: Callable[[str], Any]
    schema: str = "{}"
    part: ResultPart | None = None


_TEXT = _Form("text", str)


def _form(slot: Slot, kind: object = None, convert: Callable[[str], Any] | None = None) -> _Form:
    """Returns the form of a value, read as `kind` or as its generation says; `convert` stands for the generation's."""
    convert = convert or slot.convert
    if kind is None or kind == slot.kind:
        form = _form_of(slot.kind, convert)
        return form if slot.choices is None else form._replace(schema=json.dumps({"enum": slot.choices}))
    if kind is Any:
        return _Form("json", msgspec.json.decode, _schema(slot.kind))
    form = _form_of(slot.kind if kind is str else kind, None)
    part = _part_of(convert) if isinstance(convert, Separated) else None
    return form._replace(convert=lambda text: read_as(convert(text), kind), part=part)


def _form_of(kind: Any, convert: Callable[[str], Any] | None) -> _Form:
    if isinstance(convert, Separated):
        inner = _TEXT if convert.which == "reasoning" else _form_of(kind, convert.convert)
        return inner._replace(convert=convert, part=_part_of(convert))
    convert = convert or str
    if kind is None or (convert is str and kind is str) or isinstance(kind, Mapping | str | JsonSchema):
        return _Form("text", convert)
    if isinstance(kind, type) and kind in _READINGS:
        return _Form(_READINGS[kind], convert)
    options = bare_options(kind)
    if options is None:
        return _Form("json", convert, _schema(kind))
    values = [getattr(item, "value", item) for item in options.values()]
    numbers = all(isinstance(value, int) for value in values)
    return _Form("int" if numbers else "text", convert, json.dumps({"enum": values if numbers else list(options)}))


def _schema(kind: Any) -> str:
    grammar = kind if kind is None or isinstance(kind, JsonSchema) else typed(kind).grammar
    return grammar.schema if isinstance(grammar, JsonSchema) else "{}"


def _part_of(separated: Separated) -> ResultPart:
    return ResultPart(separated.which, *separated.marks, separated.opened)


def _read(value: ResultValue, form: _Form) -> Returned:
    def make(text: Any, _: Arguments) -> Any:
        if text is None or isinstance(text, dict):  # it was not made, or its branch has failed
            return text
        try:
            return form.convert(text) if isinstance(text, str) else [form.convert(sample) for sample in text]
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{value.ref.name!r} is not of the type asked for: {error}; its text is {text!r}"
            ) from error

    texts = msgspec.structs.replace(value, reading="text", schema="{}", part=None)
    return Returned(value, texts, make)


def _argument(hole: Hole) -> Returned:
    name, *path = hole.name.split("/")

    def make(_: Any, arguments: Arguments) -> Any:
        value = arguments[name]
        for step in path:
            value = value[step] if isinstance(value, Mapping) else getattr(value, step)
        return value

    return Returned(ResultArgument(hole), _NOTHING, make)


def _share(share: ChoiceShare) -> ResultShare:
    slot = share.slot
    return ResultShare(Ref(slot.branch, slot.name), slot.choices or (), share.choice, share.format)


def _as_it_is(result: Result) -> Returned:
    return Returned(result, result, lambda value, _: value)


def _constant(value: Any) -> Returned:
    try:
        data = ResultConstant(json.dumps(as_json(value), ensure_ascii=False))
    except (TypeError, ValueError) as error:
        raise CompileError(f"the program returns {type(value).__name__}, which is not a JSON value: {error}") from error
    return Returned(data, _NOTHING, lambda *_: value)


def _object(parts: Mapping[Any, Returned], rebuild: Callable[[dict[Any, Any]], Any]) -> Returned:
    def make(texts: Mapping[str, Any], arguments: Arguments) -> Any:
        return rebuild({name: part.make(texts[str(name)], arguments) for name, part in parts.items()})

    data = ResultObject(tuple((str(name), part.data) for name, part in parts.items()))
    return Returned(data, ResultObject(tuple((str(name), part.texts) for name, part in parts.items())), make)


def _with(value: Any, fields: Mapping[str, Any]) -> Any:
    """A copy of a dataclass object with these fields; also of a frozen one."""
    made = copy.copy(value)
    for name, field in fields.items():
        object.__setattr__(made, name, field)
    return made
