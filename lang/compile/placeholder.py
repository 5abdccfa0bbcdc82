"""What stands for a value that is not known while a program is compiled: it can be written, not looked at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from ...runtime.condition import Hole
from ...runtime.program import Part
from ...runtime.rewrite import Parts
from ..condition import Condition, Operand
from ..entry import Kept, parts_of
from ..errors import ProgramError
from ..place import caller
from ..stretch import Slot

_OPEN, _CLOSE = "\ue0b0", "\ue0b1"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_TRACES = (_OPEN.encode(), rb"\ue0b0")
"""What is left of a mark in encoded text: as it is, or escaped in JSON within JSON."""


class CompileError(ProgramError):
    """The program cannot be compiled: what it does depends on a value that is known only when it runs."""

    code = "cannot_compile"


@dataclass(frozen=True, eq=False)
class Unknown:
    """Something that is not known yet: an argument or a variable, as `what` names it for people.

    writable   its text is what `str` gives of the value, so that it can stand in text
    """

    source: Hole | Slot | Kept
    what: str
    writable: bool = True

    def parts(self) -> Parts:
        """It as parts of an instruction, once the instructions are made."""
        return (self.source,) if isinstance(self.source, Hole) else tuple(parts_of((self.source,)))


class Probabilities:
    """The probabilities of a select's choices: they can be returned."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._unknown()

    def _unknown(self) -> CompileError:
        return CompileError(
            f"the probabilities of {self.slot.name!r} are not known when the program is compiled: they can be returned",
            place=caller(),
        )

    def __getitem__(self, choice: str) -> Any:
        raise self._unknown()

    def __iter__(self) -> Iterator[str]:
        raise self._unknown()

    def __format__(self, spec: str) -> str:
        raise self._unknown()


class Marks:
    """The unknown values of one compilation. In text, each is a mark: two characters of private use, and its number."""

    def __init__(self) -> None:
        self._unknown: list[Unknown] = []

    def placeholder(self, unknown: Unknown) -> Placeholder:
        """A text that stands for `unknown`."""
        self._unknown.append(unknown)
        return Placeholder(f"{_OPEN}{len(self._unknown) - 1}{_CLOSE}", unknown, self)

    def parts(self, text: str) -> Parts:
        """`text` with its marks replaced by what they stand for.

        Raises:
            CompileError: one of them cannot stand in text.
        """
        return tuple(self._parts(text))

    def _parts(self, text: str) -> Iterator[Part]:
        for index, piece in enumerate(_MARK.split(text)):
            if index % 2:
                unknown = self._unknown[int(piece)]
                if not unknown.writable:
                    raise CompileError(
                        f"{unknown.what} is generated in another form than `str` writes it, and cannot stand in text: "
                        "append s.ref(name) for the text as it was generated"
                    )
                yield from unknown.parts()
            elif piece:
                yield piece


def has_marks(encoded: bytes) -> bool:
    """A mark is left in it."""
    return any(trace in encoded for trace in _TRACES)


@dataclass(frozen=True, slots=True, eq=False)
class _Marked(Operand):
    """A mark as an operand of a condition."""

    text: str

    def lowered(self) -> str:
        return self.text


class Placeholder(str):
    """A text of which only where it goes is known. It can be appended, joined and formatted; whatever would look at it
    raises CompileError. Compared, it makes a Condition for `bough.when` and `bough.repeat_until`."""

    __slots__ = ("marks", "unknown")

    unknown: Unknown
    marks: Marks

    def __new__(cls, text: str, unknown: Unknown, marks: Marks) -> Placeholder:
        self = super().__new__(cls, text)
        self.unknown, self.marks = unknown, marks
        return self

    def refuse(self, what: str) -> NoReturn:
        raise CompileError(
            f"{what} {self.unknown.what} needs its value, which is not known when the program is compiled: "
            "use bough.when or bough.repeat_until, or give it to compile()",
            place=caller(),
        )

    def __format__(self, spec: str) -> str:
        if not spec:
            return str.__str__(self)
        if not isinstance(self.unknown.source, Hole):
            self.refuse(f"formatting with {spec!r}")
        hole = Hole(self.unknown.source.name, spec)
        return str.__str__(self.marks.placeholder(Unknown(hole, self.unknown.what)))

    def contains(self, text: str | Operand) -> Condition:
        """Its text contains `text`."""
        return self._operand.contains(text)

    def matches(self, pattern: str) -> Condition:
        """Its whole text matches a regular expression."""
        return self._operand.matches(pattern)

    @property
    def _operand(self) -> Operand:
        return _Marked(str.__str__(self))

    def __repr__(self) -> str:
        self.refuse("the repr of")

    def __hash__(self) -> int:
        self.refuse("looking up by")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse(f"the attribute {name!r} of")


def _refusing(what: str) -> Callable[..., Any]:
    def refused(self: Placeholder, *_: object, **__: object) -> NoReturn:
        self.refuse(what)

    return refused


def _comparing(name: str) -> Callable[[Placeholder, object], Condition]:
    def compared(self: Placeholder, other: object) -> Condition:
        condition: Condition = getattr(self._operand, name)(other)
        return condition

    return compared


_LOOKING = {
    "bool": "deciding by",
    "len": "the length of",
    "iter": "a loop over",
    "contains": "looking into",
    "getitem": "an element of",
    **dict.fromkeys(("int", "float", "index", "complex"), "a number made of"),
    **dict.fromkeys(("mul", "rmul", "mod", "rmod", "sub", "rsub", "truediv", "floordiv"), "calculating with"),
}
for _name, _what in _LOOKING.items():
    setattr(Placeholder, f"__{_name}__", _refusing(_what))
for _name in dir(str):
    if not _name.startswith("_"):
        setattr(Placeholder, _name, _refusing(f"{_name}() of"))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Placeholder, _name, _comparing(_name))
