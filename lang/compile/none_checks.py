"""Arguments that may be None: whether a body asks for that, which nothing of an argument can notice (`x is None`)."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any, get_args, get_origin

from ...runtime.protocol.condition import Condition, Hole
from ...runtime.protocol.program import Op, walk
from ...runtime.protocol.template import Result, ResultArgument, ResultConstant, ResultText, replace_leaves
from ...runtime.templates.rewrite import Parts, joined, rewrite
from ..diagnostics.source_lines import Place
from ..types.annotations import annotations_of
from .placeholder import CompileError, Marks
from .result import returned_by
from .signature import open_parameters, stand_ins
from .tracing import Trace, trace


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
        f"what is done depends on whether the argument {name!r} is None, which is not known when the program is "
        f"compiled: pass it as known, {title}.compile({name}=...), or let it be a text that may be empty",
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
