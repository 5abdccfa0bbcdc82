"""Placeholders for values that are unknown while a program is compiled: they can be written, but not inspected."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Number
from typing import Any, NoReturn

from ...runtime.protocol import condition as conditions
from ...runtime.protocol.condition import Hole
from ...runtime.protocol.program import Part
from ...runtime.templates.fill import SHARE_FORMAT
from ...runtime.templates.rewrite import Parts
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import place
from ..record.condition import Comparison, Condition, Operand
from ..record.variables import Derived, Kept, Slot, parts_of

_OPEN, _CLOSE = "\ue0b0", "\ue0b1"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_TRACES = (_OPEN.encode(), rb"\ue0b0")
"""Forms of a mark in encoded text: as it is, or escaped in JSON within JSON."""


class CompileError(ProgramError):
    """The program cannot be compiled: what it does depends on a value that is known only when it runs."""

    code = "cannot_compile"


@dataclass(frozen=True, eq=False)
class Unknown:
    """Something that is not known yet: an argument or a variable.

    kind       what it is read as; of a variable, None: as its generation says
    writable   its text is what `str` gives of the value, so that it can stand in text
    plain      so it is with a format, too
    """

    source: Hole | Slot | Kept | Derived | ChoiceShare
    kind: Any = None
    writable: bool = True
    plain: bool = True

    @property
    def what(self) -> str:
        """Its name for people."""
        match self.source:
            case Hole(name=name):
                return f"the argument {name!r}"
            case Slot(variable=name) | Kept(variable=name) | Derived(slot=Slot(variable=name)):
                return f"the value {name!r}"
            case ChoiceShare(choice=choice):
                return f"the probability of {choice!r}"

    def parts(self) -> Parts:
        """Returns it as parts of an instruction, once the instructions are made."""
        match self.source:
            case Hole():
                return (self.source,)
            case Slot() | Kept():
                return tuple(parts_of((self.source,)))
            case Derived() | ChoiceShare():
                raise AssertionError("a part of a value is not writable")


class Probabilities:
    """The probabilities of a select's choices: they can be returned, all or one, and one in a text that is."""

    def __init__(self, slot: Slot, marks: Marks) -> None:
        self.slot = slot
        self._marks = marks

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._unknown()

    def _unknown(self) -> CompileError:
        return CompileError(
            f"the probabilities of {self.slot.name!r} are not known when the program is compiled: they can be returned",
            place=place(),
        )

    def __getitem__(self, choice: str) -> ChoiceShare:
        if choice not in (self.slot.choices or ()):
            raise KeyError(choice)
        return ChoiceShare(self.slot, choice, self._marks)

    def __iter__(self) -> Iterator[str]:
        raise self._unknown()

    def __format__(self, spec: str) -> str:
        raise self._unknown()


class ChoiceShare:
    """The probability of one choice. `format` is that in which it stands in a text; None: it is a number."""

    def __init__(self, slot: Slot, choice: str, marks: Marks, form: str | None = None) -> None:
        self.slot = slot
        self.choice = choice
        self.format = form
        self._marks = marks

    def __format__(self, spec: str) -> str:
        if SHARE_FORMAT.fullmatch(spec) is None:
            raise CompileError(f"a probability cannot be written in the format {spec!r}", place=place())
        written = ChoiceShare(self.slot, self.choice, self._marks, spec)
        return str(self._marks.placeholder(Unknown(written, None, writable=False)))

    def __str__(self) -> str:
        return format(self, "")

    def _refuse(self, *_: object) -> Any:
        raise CompileError(
            f"the probability of {self.choice!r} is not known when the program is compiled: it can be returned, alone "
            "or in a text, and nothing can depend on it",
            place=place(),
        )

    __bool__ = __float__ = __int__ = __round__ = __neg__ = __abs__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __hash__ = None  # type: ignore[assignment]  # as of other values that are not known


class Marks:
    """The unknown values of one compilation. In text, each is a mark: two characters of private use, and its number.

    title   of the program, for messages
    """

    def __init__(self, title: str = "f") -> None:
        self.title = title
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
                    raise CompileError(self._not_written(unknown))
                yield from unknown.parts()
            elif piece:
                yield piece

    def with_shares(self, text: str) -> list[str | ChoiceShare]:
        """`text`, cut where probabilities stand in it."""
        found: list[str | ChoiceShare] = [""]
        for index, piece in enumerate(_MARK.split(text)):
            source = self._unknown[int(piece)].source if index % 2 else None
            if isinstance(source, ChoiceShare):
                found += (source, "")
            else:
                found[-1] = f"{found[-1]}{_OPEN}{piece}{_CLOSE}" if index % 2 else f"{found[-1]}{piece}"
        return [piece for piece in found if isinstance(piece, ChoiceShare) or piece]

    def operand(self, text: str) -> conditions.Operand:
        """The same of an operand of a condition. An argument is compared by its JSON."""
        only = _MARK.fullmatch(text)
        source = self._unknown[int(only[1])].source if only is not None else None
        if isinstance(source, Hole):
            return source
        parts = self.parts(text)
        return parts[0] if len(parts) == 1 else text

    def _not_written(self, unknown: Unknown) -> str:
        match unknown.source:
            case Hole():
                return (
                    f"{unknown.what} has a text that differs from its `str`, so it cannot appear in text: use a str "
                    f"instead, or {self.advice(unknown)}"
                )
            case ChoiceShare():
                return f"{unknown.what} can be returned, alone or in a text, but cannot be part of the prompt"
            case Derived():
                return f"{unknown.what} is part of a generated value: it can be returned, but cannot appear in text"
            case _:
                return (
                    f"{unknown.what} has a text that differs from its `str`, so it cannot appear in text: append "
                    "s.ref(name) for the generated text"
                )

    def advice(self, unknown: Unknown) -> str:
        """Advises what to do instead of looking at it."""
        if not isinstance(unknown.source, Hole):
            return "use bough.when or bough.repeat_until"
        name = unknown.source.name.partition("/")[0]
        return f"pass its value, {self.title}.compile({name}=...)"


def clean(text: str) -> str:
    """`text` for people: with `...` for marks."""
    return re.sub(rf"{_OPEN}[0-9]+{_CLOSE}", "...", text)


def has_marks(encoded: bytes) -> bool:
    """A mark is left in it."""
    return any(trace in encoded for trace in _TRACES)


@dataclass(frozen=True, slots=True, eq=False)
class _Marked(Operand):
    """A mark as an operand of a condition."""

    text: str

    def lowered(self) -> str:
        return self.text


class _AskedCondition(Comparison):
    """A comparison with a placeholder. Python cannot decide by it."""

    __slots__ = ("placeholder",)

    placeholder: Placeholder

    def __init__(self, compared: Comparison, placeholder: Placeholder) -> None:
        super().__init__(compared.left, compared.relation, compared.right)
        object.__setattr__(self, "placeholder", placeholder)

    def __bool__(self) -> bool:
        self.placeholder.refuse("deciding by")


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
            f"{self.marks.advice(self.unknown)}",
            place=place(),
        )

    def __format__(self, spec: str) -> str:
        if not spec:
            return str.__str__(self)
        if not isinstance(self.unknown.source, Hole) or not self.unknown.plain:
            self.refuse(f"formatting with {spec!r}")
        hole = Hole(self.unknown.source.name, spec)
        return str.__str__(self.marks.placeholder(Unknown(hole)))

    def __add__(self, other: Any) -> Any:
        if isinstance(other, str):
            return str.__str__(self) + str.__str__(other)
        return self._beside(other, "__radd__")

    def __radd__(self, other: Any) -> Any:
        if isinstance(other, str):
            return str.__str__(other) + str.__str__(self)
        return self._beside(other, "__add__")

    def _beside(self, other: Any, method: str) -> Any:
        """Adds something that is no text: expressions know what to do with a placeholder, numbers and lists do not."""
        if isinstance(other, Number | list | tuple) or not hasattr(other, method):
            self.refuse("calculating with")
        return NotImplemented

    def __rmod__(self, template: Any) -> Any:
        """`"%s" % placeholder`."""
        if not isinstance(template, str):
            self.refuse("calculating with")
        try:
            return template % (str.__str__(self),)
        except TypeError:
            self.refuse("formatting with % of")

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
        kind = self.unknown.kind
        if name == "value" and isinstance(kind, type) and issubclass(kind, enum.Enum):
            return self.marks.placeholder(Unknown(self.unknown.source))  # it is what the argument's JSON is
        self.refuse(f"the attribute {name!r} of")


def _refusing(what: str) -> Callable[..., Any]:
    def refused(self: Placeholder, *_: object, **__: object) -> NoReturn:
        self.refuse(what)

    return refused


def _comparing(name: str) -> Callable[[Placeholder, object], Condition]:
    def compared(self: Placeholder, other: object) -> Condition:
        return _AskedCondition(getattr(self._operand, name)(other), self)

    return compared


_OPERATORS = ("sub", "mul", "matmul", "truediv", "floordiv", "divmod", "pow", "lshift", "rshift", "and", "xor", "or")
_LOOKING = {
    "bool": "deciding by",
    "len": "the length of",
    "iter": "a loop over",
    "reversed": "a loop over",
    "contains": "looking into",
    "getitem": "an element of",
    **dict.fromkeys(("int", "float", "index", "complex", "round", "trunc", "floor", "ceil"), "a number made of"),
    **dict.fromkeys(("mod", "neg", "pos", "abs", "invert", *_OPERATORS), "calculating with"),
    **dict.fromkeys((f"r{name}" for name in _OPERATORS), "calculating with"),
}
for _name, _what in _LOOKING.items():
    setattr(Placeholder, f"__{_name}__", _refusing(_what))
for _name in dir(str):
    if not _name.startswith("_"):
        setattr(Placeholder, _name, _refusing(f"{_name}() of"))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Placeholder, _name, _comparing(_name))
