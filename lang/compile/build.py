"""Makes a compiled program of a function: traces it, optimises what it recorded, says what its result is made of."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

from ...constrain.spec import JsonSchema
from ...runtime.condition import Hole, Ref
from ...runtime.errors import RequestError
from ...runtime.program import Gen, walk
from ...runtime.rewrite import Parts, joined
from ...runtime.template import (
    Reading,
    Result,
    ResultArgument,
    ResultConstant,
    ResultList,
    ResultObject,
    ResultProbabilities,
    ResultText,
    ResultValue,
    Template,
    walk_result,
)
from ..entry import Derived, Entry, Fixed, Gathered, Kept, Passage, parts_of
from ..schema import bare_options, typed
from ..state import State
from ..stretch import Slot
from .compiled import CompiledProgram
from .optimise import PASSES, optimise
from .placeholder import CompileError, Marks, Placeholder, Probabilities
from .signature import Fields, hints_of, parameters_of, stand_in
from .tracing import Trace, telling, trace

_READINGS: Mapping[Any, Reading] = {None: "text", int: "int", float: "float", bool: "bool"}


def compile_body(
    body: Callable[..., Any],
    known: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    name: str | None = None,
    optimisations: Collection[str] | None = None,
) -> CompiledProgram:
    """Traces a program's body with the arguments in `known`, and placeholders for the others.

    defaults        sampling options of all generations, as `clean_options` gives them
    name            of the program; None: the body's
    optimisations   names of those to apply (see `optimise`); None: all

    Raises:
        CompileError: the body does something that depends on values known only when it runs; it names the line.
        RequestError: there is no such parameter, or no such optimisation.
    """
    if unknown := set(optimisations or ()) - PASSES.keys():
        there = ", ".join(PASSES)
        raise RequestError(f"there is no optimisation {min(unknown)!r}; there are {there}", param="optimisations")
    hints = hints_of(body)
    names = [parameter.name for parameter in list(inspect.signature(body).parameters.values())[1:]]
    if strange := set(known).difference(names):
        raise RequestError(f"{body.__name__} has no parameter {min(strange)!r}", param=min(strange))
    parameters = tuple(parameters_of(body, known))
    marks = Marks()
    arguments = {one.name: stand_in(hints.get(one.name, str), one.name, marks) for one in parameters}
    title = name or body.__name__
    traced = trace(title, body, {**arguments, **known}, defaults, marks)
    result = _Reader(traced, marks).of_returned()
    wanted = set(refs_of(result))
    template = Template(
        name=title,
        description=inspect.getdoc(body) or "",
        parameters=parameters,
        ops=optimise(telling(traced.ops, wanted), wanted, optimisations),
        result=result,
    )
    returns = hints.get("return")
    kind = returns if traced.returned is not None and returns not in (None, Any, type(None)) else None
    return CompiledProgram(template, tools=traced.tools, kind=kind)


def refs_of(result: Result) -> Iterator[Ref]:
    """The values that a result is made of."""
    for part in walk_result(result):
        match part:
            case ResultValue(ref=ref) | ResultProbabilities(ref=ref):
                yield ref
            case ResultText(parts=parts):
                yield from (each for each in parts if isinstance(each, Ref))


class _Reader:
    """Turns what a body returned into a Result."""

    def __init__(self, traced: Trace, marks: Marks) -> None:
        self._traced = traced
        self._marks = marks
        repeated = (op for op in walk(traced.ops) if isinstance(op, Gen) and op.sampling.n > 1)
        self._sampled = {Ref(op.branch, op.name) for op in repeated}

    def of_returned(self) -> Result:
        """What was returned; of a body that returns nothing, all its variables by name."""
        returned = self._traced.returned
        return self._of_variables(self._traced.variables) if returned is None else self.of(returned)

    def of(self, value: object) -> Result:
        match value:
            case Placeholder():
                source = value.unknown.source
                return ResultArgument(source) if isinstance(source, Hole) else self._of_entry(source)
            case Probabilities(slot=slot):
                return ResultProbabilities(Ref(slot.branch, slot.name), slot.choices or ())
            case str():
                return self._of_text(value)
            case State():
                return self._of_variables(value._branch.variables)
            case Mapping():
                return ResultObject(tuple((str(name), self.of(item)) for name, item in value.items()))
            case list() | tuple():
                return ResultList(tuple(map(self.of, value)))
            case Fields():
                return ResultArgument(Hole(value._path))
            case msgspec.Struct():
                return ResultObject(tuple((name, self.of(getattr(value, name))) for name in value.__struct_fields__))
            case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
                names = (field.name for field in dataclasses.fields(value))
                return ResultObject(tuple((name, self.of(getattr(value, name))) for name in names))
            case _:
                return _constant(value)

    def _of_text(self, text: str) -> Result:
        parts = self._marks.parts(text)
        return ResultText(parts) if any(not isinstance(part, str) for part in parts) else _constant(text)

    def _of_variables(self, variables: Mapping[str, Entry]) -> Result:
        return ResultObject(tuple((name, self._of_entry(entry)) for name, entry in variables.items()))

    def _of_entry(self, entry: Entry | None) -> Result:
        match entry:
            case None:
                return _constant(None)
            case Fixed(value=value):
                return self.of(value)
            case Gathered(entries=entries):
                return ResultList(tuple(map(self._of_entry, entries)))
            case Passage(marks=marks):
                return self._of_parts(joined(part for mark in marks for part in parts_of((mark,))))
            case Slot():
                return self._of_slot(entry)
            case Kept():
                return self._of_kept(entry)
            case Derived(slot=slot):
                raise CompileError(
                    f"only a part of {slot.name!r} is a result: return the whole of it", place=slot.place
                )

    def _of_kept(self, kept: Kept) -> Result:
        """What a block may have set; None if it has not."""
        if kept.unchanged or not kept.name:
            return self._of_entry(kept.before)
        return ResultValue(Ref(kept.branch, kept.name), _common_reading(kept), assigned=True)

    def _of_parts(self, parts: Parts) -> Result:
        return ResultText(
            joined(p for part in parts for p in (self._marks.parts(part) if isinstance(part, str) else (part,)))
        )

    def _of_slot(self, slot: Slot) -> Result:
        ref = Ref(slot.branch, slot.name)
        reading = _reading(slot.kind)
        schema = _schema(slot.kind) if reading == "json" else "{}"
        return ResultValue(ref, reading, schema, samples=ref in self._sampled)


def _common_reading(kept: Kept) -> Reading:
    """How what may be kept is read: as what all of it is, if all of it is the same."""
    readings = {_reading(slot.kind) for slot in kept.slots}
    return readings.pop() if len(readings) == 1 else "text"


def _reading(kind: Any) -> Reading:
    """How a value's text is read. Members of an Enum or a Literal are written bare: as numbers, or as texts."""
    try:
        if kind in _READINGS:
            return _READINGS[kind]
    except TypeError:  # not hashable: a JSON Schema as a dict
        return "json"
    options = bare_options(kind)
    if options is None:
        return "json"
    return "int" if all(isinstance(getattr(item, "value", item), int) for item in options.values()) else "text"


def _schema(kind: Any) -> str:
    """The JSON Schema of a value that is written as JSON."""
    grammar = kind if isinstance(kind, JsonSchema) else typed(kind).grammar
    return grammar.schema if isinstance(grammar, JsonSchema) else "{}"


def _constant(value: object) -> ResultConstant:
    try:
        return ResultConstant(json.dumps(msgspec.to_builtins(value), ensure_ascii=False))
    except (TypeError, ValueError) as error:
        raise CompileError(f"the program returns {type(value).__name__}, which is no JSON value: {error}") from error
