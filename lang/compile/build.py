"""Compiles a function to a program: traces it, and optimises the recording."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Collection, Mapping
from itertools import zip_longest
from typing import Any, get_args, get_origin

from ...runtime.protocol.condition import Condition, Hole
from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.program import Op, walk
from ...runtime.protocol.template import (
    Result,
    ResultArgument,
    ResultConstant,
    ResultText,
    Template,
    refs_of,
    replace_leaves,
)
from ...runtime.templates.rewrite import Parts, joined, rewrite
from ..diagnostics.source_lines import Place
from ..types.annotations import annotations_of
from .compiled import CompiledProgram, Local
from .optimise import PASSES, optimise
from .placeholder import CompileError, Marks
from .result import returned_by
from .signature import open_parameters, parameters_of, stand_ins
from .tracing import Trace, telling, trace


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
    _check_passes(body, optimisations)
    names = [parameter.name for parameter in list(inspect.signature(body).parameters.values())[1:]]
    if strange := set(known).difference(names):
        raise RequestError(f"{body.__name__} has no parameter {min(strange)!r}", param=min(strange))
    title = name or body.__name__
    parameters, marks = tuple(parameters_of(body, known)), Marks(title)
    traced = trace(title, body, {**stand_ins(body, known, marks), **known}, defaults, marks)
    returned = returned_by(traced, marks)
    check_none(title, body, known, defaults, traced, returned.data)
    wanted = set(refs_of(returned.data))
    ops = telling(traced.ops, wanted)
    template = Template(
        name=title,
        description=inspect.getdoc(body) or "",
        parameters=parameters,
        ops=optimise(ops, wanted, optimisations) or ops,  # of what nobody reads from, all is what is meant
        result=returned.data,
    )
    given = {one.name: one.default for one in open_parameters(body, known) if one.default is not one.empty}
    return CompiledProgram(template, tools=traced.tools, local=Local(returned.texts, returned.make, given))


def _check_passes(body: Callable[..., Any], optimisations: Any) -> None:
    """Raises unless they are the names of passes: people give the first argument in this place, too."""
    there = ", ".join(PASSES)
    if isinstance(optimisations, Collection) and not isinstance(optimisations, str | bytes | Mapping):
        unknown = [name for name in optimisations if name not in PASSES]
        if not unknown:
            return
        wrong = f"there is no optimisation {unknown[0]!r}; the optimisations are {there}"
    elif optimisations is None:
        return
    else:
        wrong = f"compile takes a list of optimisations, of {there}, got {optimisations!r}"
    first = next(iter(list(inspect.signature(body).parameters)[1:]), "name")
    raise RequestError(
        f"{wrong}. Arguments are given by name: {body.__name__}.compile({first}=...)", param="optimisations"
    )


def check_none(
    title: str,
    body: Callable[..., Any],
    known: Mapping[str, Any],
    defaults: Mapping[str, Any],
    traced: Trace,
    found: Result,
) -> None:
    """Runs the body again with None for each argument that may be that: it must record what it has recorded, with
    "None" in the argument's place.

    Raises:
        CompileError: it does something else; it names the line.
    """
    kinds = annotations_of(body)
    for parameter in open_parameters(body, known):
        if parameter.default is None or _may_be_none(kinds.get(parameter.name, Any)):
            _check(parameter, title, body, known, defaults, traced, found)


def _check(
    parameter: inspect.Parameter,
    title: str,
    body: Callable[..., Any],
    known: Mapping[str, Any],
    defaults: Mapping[str, Any],
    traced: Trace,
    found: Result,
) -> None:
    name, marks = parameter.name, Marks(title)
    without = {**known, name: None}
    written = _Written(name)
    try:
        other = trace(title, body, {**stand_ins(body, without, marks), **without}, defaults, marks)
        result = returned_by(other, marks).data
    except CompileError as error:
        raise _refusal(title, name, error.place) from error
    except Exception:  # noqa: BLE001  the body takes no None after all
        return
    expected = rewrite(traced.ops, written)
    if expected != other.ops:
        raise _refusal(title, name, _first_difference(traced, expected, other))
    if written.result(found) != result:
        raise _refusal(title, name, None)


def _may_be_none(kind: Any) -> bool:
    if get_origin(kind) is typing.Annotated:
        return _may_be_none(get_args(kind)[0])
    return get_origin(kind) in (typing.Union, types.UnionType) and type(None) in get_args(kind)


def _refusal(title: str, name: str, place: Place | None) -> CompileError:
    return CompileError(
        f"the body depends on whether the argument {name!r} is None, which is not known when the program is "
        f"compiled: pass its value, {title}.compile({name}=...), or use a text that may be empty",
        place=place,
        param=name,
    )


def _first_difference(traced: Trace, expected: tuple[Op, ...], other: Trace) -> Place | None:
    index = other_index = 0
    for ours, its in zip_longest(expected, other.ops):
        if ours != its:
            break
        index += len(list(walk([ours])))
        other_index += len(list(walk([its])))
    return traced.places[index] if index < len(traced.places) else other.places[other_index]


class _Written:
    """Writes None for the argument `name`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def parts(self, parts: Parts) -> Parts:
        return joined("None" if part == Hole(self._name) else part for part in parts)

    def argument(self, parts: Parts) -> Parts:
        return ("null",) if parts == (Hole(self._name),) else self.parts(parts)

    def condition(self, condition: Condition) -> Condition:
        return condition

    def result(self, result: Result) -> Result:
        return replace_leaves(result, self._leaf)

    def _leaf(self, result: Result) -> Result:
        match result:
            case ResultText(parts=parts):
                parts = self.parts(parts)
                known = "".join(part for part in parts if isinstance(part, str))
                return ResultText(parts) if parts != (known,) else ResultConstant(json.dumps(known, ensure_ascii=False))
            case ResultArgument(hole=hole) if hole.name == self._name:
                return ResultConstant("null")
            case _:
                return result
