"""Random programs with control flow, as data: recorded through the language, and evaluated directly."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from typing import Any

from bough.lang.api import gen, select
from bough.lang.control import count, repeat_until, var, when
from bough.lang.record.condition import Condition
from bough.lang.tools.tool import tool, use

WORDS = ("red", "green", "blue", "7", "12", "-3.5", " red ")
CHOICES = ["yes", "no", "maybe"]
VARIABLES = ("a", "b", "c", "d")


def answer(prompt: str, name: str) -> str:
    """Text of the model, by the text before and the variable."""
    rng = random.Random(zlib.crc32(f"{prompt}|{name.partition('#')[0]}".encode()))
    return rng.choice(WORDS)


def answer_or_choice(prompt: str, name: str) -> str:
    return chosen(prompt) if name.partition("#")[0] in ("c", "d") else answer(prompt, name)


def chosen(prompt: str) -> str:
    return random.Random(zlib.crc32(prompt.encode())).choice(CHOICES)


@tool
def shout(text: str, times: int = 1) -> str:
    """Says it loudly."""
    return text.upper() * times


# What a program is made of


@dataclass
class Say:
    text: str


@dataclass
class Refer:
    name: str


@dataclass
class Make:
    """a and b are generated, c and d chosen."""

    name: str


@dataclass
class Put:
    name: str
    value: Any


@dataclass
class Alias:
    name: str
    other: str


@dataclass
class Shout:
    name: str
    of: str
    append: bool


@dataclass
class Message:
    inner: list[Any]


@dataclass
class If:
    condition: Any
    then: list[Any]
    otherwise: list[Any]


@dataclass
class Loop:
    body: list[Any]
    until: Any
    at_most: int


@dataclass
class Split:
    children: list[list[Any]]
    mode: str


@dataclass
class Is:
    """A comparison: `relation` is a method of the operand."""

    name: str
    relation: str
    value: Any


@dataclass
class Both:
    kind: str
    of: list[Any]


def assigned(block: list[Any]) -> set[str]:
    """The variables that a block sets."""
    found: set[str] = set()
    for part in block:
        match part:
            case Make(name) | Put(name, _) | Alias(name, _) | Shout(name, _, _):
                found.add(name)
            case Message(inner):
                found |= assigned(inner)
            case If(_, then, otherwise):
                found |= assigned(then) | assigned(otherwise)
            case Loop(body, _, _):
                found |= assigned(body)
            case Split(children, _):
                for child in children:
                    found |= assigned(child)
    return found


class Writer:
    """Makes programs that are right: they refer to what has been set, and to no lists."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.budget = 30

    def program(self) -> list[Any]:
        return [Say("Begin. "), *self.block(set(), set(), 0, in_message=False)]

    def block(self, known: set[str], lists: set[str], depth: int, *, in_message: bool) -> list[Any]:
        """Changes `known` and `lists` to what is known after it."""
        found: list[Any] = []
        for _ in range(self.rng.randrange(1, 6)):
            if self.budget <= 0:
                break
            self.budget -= 1
            found.append(self.part(known, lists, depth, in_message=in_message))
        return found

    def part(self, known: set[str], lists: set[str], depth: int, *, in_message: bool) -> Any:
        rng = self.rng
        usable = sorted(known - lists)
        kinds = ["say", "make", "make", "put"]
        if usable:
            kinds += ["refer", "alias", "shout"]
        if depth < 3:
            kinds += ["if", "if"] * bool(usable) + ["loop", "split"]
            kinds += ["message"] * (not in_message)
        kind = rng.choice(kinds)
        name = rng.choice(VARIABLES)
        match kind:
            case "say":
                return Say(rng.choice(["and ", "then ", "", "x"]))
            case "refer":
                return Refer(rng.choice(usable))
            case "message":
                return Message(self.block(known, lists, depth + 1, in_message=True))
            case "if":
                condition = self.condition(usable)
                one, two = (set(known), set(lists)), (set(known), set(lists))
                then = self.block(*one, depth + 1, in_message=in_message)
                otherwise = self.block(*two, depth + 1, in_message=in_message) if rng.random() < 0.6 else []
                known |= one[0] | two[0]
                lists |= one[1] | two[1]
                return If(condition, then, otherwise)
            case "loop":
                # what the body makes a list, it cannot refer to in the next turn
                for _attempt in range(20):
                    inner, made = set(known), set(lists)
                    budget = self.budget
                    body = self.block(inner, made, depth + 1, in_message=in_message)
                    if made <= lists and inner - made:
                        break
                    self.budget = budget
                else:
                    return Say("no loop ")
                known |= inner
                return Loop(body, self.condition(sorted(inner - made)), rng.randrange(1, 4))
            case "split":
                children = []
                size = rng.randrange(1, 4)
                for _ in range(size):
                    children.append(self.block(set(known), set(lists), depth + 1, in_message=in_message))
                for name in set().union(*map(assigned, children)):
                    known.add(name)
                    lists.add(name)
                return Split(children, rng.choice(["gather", "append"]))
            case _:
                known.add(name)
                lists.discard(name)
                return self.setting(kind, name, usable)

    def setting(self, kind: str, name: str, usable: list[str]) -> Any:
        match kind:
            case "alias":
                return Alias(name, self.rng.choice(usable))
            case "shout":
                return Shout(name, self.rng.choice(usable), self.rng.random() < 0.5)
            case "put":
                return Put(name, self.rng.choice(["red", "fixed", 7, 2.5, True]))
            case _:
                return Make(name)

    def condition(self, usable: list[str], depth: int = 0) -> Any:
        rng = self.rng
        if depth < 2 and rng.random() < 0.35:
            kind = rng.choice(["and", "or", "not", "count"])
            size = 1 if kind == "not" else rng.randrange(2, 4)
            return Both(kind, [self.condition(usable, depth + 1) for _ in range(size)])
        relation = rng.choice(["__eq__", "__ne__", "__lt__", "__ge__", "contains", "matches"])
        value: Any = rng.choice([*WORDS, "yes", "no", 7, 5.5, True])
        if relation == "contains":
            value = rng.choice(["e", "r", "1"])
        elif relation == "matches":
            value = rng.choice(["r.*", "[0-9]+", "(yes|no)", ".*e.*"])
        return Is(rng.choice(usable), relation, value)


# Recorded


def record(s: Any, block: list[Any]) -> None:
    for part in block:
        match part:
            case Say(text):
                s += text
            case Refer(name):
                s += "<" + s.ref(name) + ">"
            case Make(name):
                s += gen(name) if name in ("a", "b") else select(name, CHOICES)
            case Put(name, value):
                s[name] = value
            case Alias(name, other):
                s[name] = s.ref(other)
            case Shout(name, of, append):
                s += use(name, shout, text=["<", s.ref(of), ">"], times=2, append=append)
            case Message(inner):
                with s.user():
                    record(s, inner)
            case If(condition, then, otherwise):
                s += when(condition_of(condition), recorder(then), recorder(otherwise) if otherwise else None)
            case Loop(body, until, at_most):
                s += repeat_until(condition_of(until), recorder(body), at_most=at_most)
            case Split(children, mode):
                group = s.fork(len(children))
                for branch, child in zip(group, children, strict=True):
                    record(branch, child)
                group.join(mode)


def recorder(block: list[Any]) -> Any:
    return lambda s: record(s, block)


def condition_of(condition: Any) -> Condition:
    match condition:
        case Is(name, relation, value):
            return getattr(var(name), relation)(value)
        case Both("and", of):
            first, *others = map(condition_of, of)
            for other in others:
                first = first & other
            return first
        case Both("or", of):
            first, *others = map(condition_of, of)
            for other in others:
                first = first | other
            return first
        case Both("not", of):
            return ~condition_of(of[0])
        case Both("count", of):
            return count(*map(condition_of, of)) >= 2
    raise AssertionError


# Evaluated


@dataclass
class Line:
    """A branch: its text with the template's own, and its variables."""

    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    made: list[tuple[str, Any]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    plain: str = ""
    inside: bool = False

    def say(self, text: str) -> None:
        self.text += text
        self.plain += text
        if self.inside:
            self.messages[-1] += text


def evaluate(line: Line, block: list[Any]) -> None:
    for part in block:
        match part:
            case Say(text):
                line.say(text)
            case Refer(name):
                line.say(f"<{shown(line, name)}>")
            case Make(name):
                value = answer_or_choice(line.text, name)
                line.values[name] = value
                line.made.append((name, value))
                line.say(value)
            case Shout(name, of, append):
                value = f"<{shown(line, of)}>".upper() * 2
                line.values[name] = value
                line.made.append((name, value))
                line.say(value if append else "")
            case Put(name, value):
                line.values[name] = value
            case Alias(name, other):
                line.values[name] = line.values.get(other)
            case _:
                evaluate_block(line, part)


def evaluate_block(line: Line, part: Any) -> None:
    match part:
        case Message(inner):
            line.text += "<|user|>\n"
            line.messages.append("")
            line.inside = True
            evaluate(line, inner)
            line.inside = False
            line.text += "<|end|>\n"
        case If(condition, then, otherwise):
            evaluate(line, then if holds(line, condition) else otherwise)
        case Loop(body, until, at_most):
            for _ in range(at_most):
                evaluate(line, body)
                if holds(line, until):
                    break
        case Split(children, mode):
            split(line, children, mode)


def split(line: Line, children: list[list[Any]], mode: str) -> None:
    lines = []
    for child in children:
        one = Line(line.text, dict(line.values), list(line.made), list(line.messages), line.plain, line.inside)
        evaluate(one, child)
        lines.append(one)
    for name in set().union(*map(assigned, children)):
        line.values[name] = [
            one.values.get(name) if name in assigned(child) else None
            for one, child in zip(lines, children, strict=True)
        ]
    generated = {name for one in lines for name, _ in one.made[len(line.made) :]}
    line.made += [(name, line.values[name]) for name in generated]
    if mode == "append":
        start, start_plain, start_messages = len(line.text), len(line.plain), len(line.messages)
        inside = len(line.messages[-1]) if line.inside else 0
        for one in lines:
            line.text += one.text[start:]
            line.plain += one.plain[start_plain:]
            if line.inside:
                line.messages[-1] += one.messages[start_messages - 1][inside:]
            line.messages += one.messages[start_messages:]


def shown(line: Line, name: str) -> str:
    value = line.values.get(name)
    return "" if value is None else str(value)


def holds(line: Line, condition: Any) -> bool:
    import regex

    match condition:
        case Is(name, relation, value):
            text = shown(line, name)
            if relation == "contains":
                return value in text
            if relation == "matches":
                return regex.fullmatch(value, text, flags=regex.DOTALL) is not None
            left: Any = text.strip()
            right: Any = str(value).strip()
            if isinstance(value, int | float) and not isinstance(value, bool):
                try:
                    left, right = float(left), float(value)
                except ValueError:
                    return relation == "__ne__"
            return bool(getattr(left, relation)(right))
        case Both("and", of):
            return all(holds(line, one) for one in of)
        case Both("or", of):
            return any(holds(line, one) for one in of)
        case Both("not", of):
            return not holds(line, of[0])
        case Both("count", of):
            return sum(holds(line, one) for one in of) >= 2
    raise AssertionError


__all__ = ["Line", "Writer", "answer_or_choice", "evaluate", "record"]
