"""Compiled programs as data: instructions with holes for the arguments, and the recipe of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from .condition import Hole, Name, Ref
from .program import Op, Part

Reading = Literal["text", "json", "int", "float", "bool"]


class Parameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An argument that the program takes. `schema` and `default` are JSON texts; without a default it is required."""

    name: Name
    schema: str = "{}"
    default: str | None = None
    description: str = ""


class ResultPart(msgspec.Struct, frozen=True):
    """The reasoning in a model's text, or the answer alone. `begin` and `end` enclose the reasoning; `opened` means
    that `begin` was already written before the text."""

    which: Literal["reasoning", "answer"]
    begin: str
    end: str
    opened: bool = False


class ResultValue(msgspec.Struct, frozen=True, tag="value", omit_defaults=True):
    """A value, read from its text. `turns`: the list of all those made by a Repeat. `samples`: the list of a Gen's n.
    `assigned`: it is made by an Assign, which may skip it. `part`: only this part of a text with reasoning."""

    ref: Ref
    reading: Reading = "text"
    schema: str = "{}"
    turns: bool = False
    samples: bool = False
    assigned: bool = False
    part: ResultPart | None = None


class ResultProbabilities(msgspec.Struct, frozen=True, tag="probabilities"):
    """Probabilities of the choices of a Select, as an object."""

    ref: Ref
    choices: tuple[str, ...]


class ResultShare(msgspec.Struct, frozen=True, tag="share", omit_defaults=True):
    """Probability of one choice of a Select: a number, or a text in Python's `format`."""

    ref: Ref
    choices: tuple[str, ...]
    choice: str
    format: str | None = None


class ResultJoined(msgspec.Struct, frozen=True, tag="joined"):
    """A text joined from others."""

    items: tuple[Result, ...]


class ResultText(msgspec.Struct, frozen=True, tag="text"):
    """A text with values in it."""

    parts: tuple[Part, ...]


class ResultConstant(msgspec.Struct, frozen=True, tag="constant"):
    """A constant part, as JSON text."""

    json: str


class ResultArgument(msgspec.Struct, frozen=True, tag="argument"):
    """An argument, as given."""

    hole: Hole


class ResultList(msgspec.Struct, frozen=True, tag="list"):
    """A list."""

    items: tuple[Result, ...]


class ResultObject(msgspec.Struct, frozen=True, tag="object"):
    """An object with these fields, in this order."""

    fields: tuple[tuple[str, Result], ...]


Result = (
    ResultValue
    | ResultProbabilities
    | ResultShare
    | ResultText
    | ResultJoined
    | ResultConstant
    | ResultArgument
    | ResultList
    | ResultObject
)


def walk_result(result: Result) -> Iterator[Result]:
    """Yields the result and all its parts."""
    yield result
    match result:
        case ResultList(items=items) | ResultJoined(items=items):
            for item in items:
                yield from walk_result(item)
        case ResultObject(fields=fields):
            for _, field in fields:
                yield from walk_result(field)


def refs_of(result: Result) -> Iterator[Ref]:
    """Yields the values that a result is made of."""
    for part in walk_result(result):
        match part:
            case ResultValue(ref=ref) | ResultProbabilities(ref=ref) | ResultShare(ref=ref):
                yield ref
            case ResultText(parts=parts):
                yield from (each for each in parts if isinstance(each, Ref))


def replace_leaves(result: Result, change: Callable[[Result], Result]) -> Result:
    """Rebuilds lists and objects, with everything else in them passed through `change`."""
    match result:
        case ResultList(items=items):
            return ResultList(tuple(replace_leaves(item, change) for item in items))
        case ResultJoined(items=items):
            return ResultJoined(tuple(replace_leaves(item, change) for item in items))
        case ResultObject(fields=fields):
            return ResultObject(tuple((name, replace_leaves(field, change)) for name, field in fields))
        case _:
            return change(result)


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A program that any engine or server can run once its holes are filled.

    >>> ops, result = fill(template, {"country": "France"})

    version   version of this format; others are refused
    ops       instructions of branch 0 and of the branches forked from it
    """

    name: Name
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    ops: tuple[Op, ...]
    result: Result
    version: Literal[1] = 1
