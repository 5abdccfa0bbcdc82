"""A compiled program as data: instructions with holes for the arguments, and what its result is made of."""

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
    """The text of a model before its answer, or the answer alone: `begin` and `end` are around the reasoning, `opened`
    says that `begin` was written before."""

    which: Literal["reasoning", "answer"]
    begin: str
    end: str
    opened: bool = False


class ResultValue(msgspec.Struct, frozen=True, tag="value", omit_defaults=True):
    """A value, read from its text. `turns`: the list of all that a Repeat made. `samples`: the list of a Gen's n.
    `assigned`: an Assign makes it, which may make nothing of it. `part`: of a text with reasoning in it, only that."""

    ref: Ref
    reading: Reading = "text"
    schema: str = "{}"
    turns: bool = False
    samples: bool = False
    assigned: bool = False
    part: ResultPart | None = None


class ResultProbabilities(msgspec.Struct, frozen=True, tag="probabilities"):
    """The probability of each choice of a Select, as an object."""

    ref: Ref
    choices: tuple[str, ...]


class ResultShare(msgspec.Struct, frozen=True, tag="share", omit_defaults=True):
    """The probability of one choice of a Select: a number, or in Python's `format` a text."""

    ref: Ref
    choices: tuple[str, ...]
    choice: str
    format: str | None = None


class ResultJoined(msgspec.Struct, frozen=True, tag="joined"):
    """A text made of others, one after the other."""

    items: tuple[Result, ...]


class ResultText(msgspec.Struct, frozen=True, tag="text"):
    """A text with values in it."""

    parts: tuple[Part, ...]


class ResultConstant(msgspec.Struct, frozen=True, tag="constant"):
    """The part that does not depend on any value, as JSON text."""

    json: str


class ResultArgument(msgspec.Struct, frozen=True, tag="argument"):
    """An argument, as it was given."""

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
    """The result and all that it is made of."""
    yield result
    match result:
        case ResultList(items=items) | ResultJoined(items=items):
            for item in items:
                yield from walk_result(item)
        case ResultObject(fields=fields):
            for _, field in fields:
                yield from walk_result(field)


def refs_of(result: Result) -> Iterator[Ref]:
    """The values that a result is made of."""
    for part in walk_result(result):
        match part:
            case ResultValue(ref=ref) | ResultProbabilities(ref=ref) | ResultShare(ref=ref):
                yield ref
            case ResultText(parts=parts):
                yield from (each for each in parts if isinstance(each, Ref))


def replace_leaves(result: Result, change: Callable[[Result], Result]) -> Result:
    """Rebuilds lists and objects, with all else in them passed through `change`."""
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

    version   of this format: another one is refused
    ops       instructions of branch 0 and of what it forks
    """

    name: Name
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    ops: tuple[Op, ...]
    result: Result
    version: Literal[1] = 1
