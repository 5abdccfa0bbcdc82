"""Rewriting of instructions and conditions: rebuilds them with their parts replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Protocol, cast

from msgspec.structs import replace

from ..protocol.condition import Compare, Condition, Count, Either, Every, Matches, Negation, Operand, Ref, Times
from ..protocol.program import Assign, CallTools, Op, Part, Repeat, Text, Use, When

Parts = tuple[Part, ...]


class Rewriter(Protocol):
    """Replacement of parts: texts, arguments of tools, conditions."""

    def parts(self, parts: Parts) -> Parts: ...

    def argument(self, parts: Parts) -> Parts: ...

    def condition(self, condition: Condition) -> Condition: ...


def rewrite(ops: Iterable[Op], rewriter: Rewriter) -> tuple[Op, ...]:
    """Rebuilds instructions, including those in blocks, with their parts passed through `rewriter`."""
    return tuple(_rewrite(op, rewriter) for op in ops)


def _rewrite(op: Op, rewriter: Rewriter) -> Op:
    match op:
        case Text() | Assign():
            return replace(op, parts=rewriter.parts(op.parts))
        case Use():
            return replace(op, arguments=tuple((name, rewriter.argument(value)) for name, value in op.arguments))
        case When():
            then, otherwise = rewrite(op.then, rewriter), rewrite(op.otherwise, rewriter)
            return replace(op, condition=rewriter.condition(op.condition), then=then, otherwise=otherwise)
        case Repeat():
            return replace(op, body=rewrite(op.body, rewriter), until=rewriter.condition(op.until))
        case _:
            return op


def with_operands(condition: Condition, operand: Callable[[Operand], Operand]) -> Condition:
    """Returns `condition` with each operand passed through `operand`; the operand of a Matches must remain a text."""
    match condition:
        case Compare(left=left, right=right):
            return replace(condition, left=_inside(left, operand), right=_inside(right, operand))
        case Matches(text=text):
            changed = operand(text)
            return replace(condition, text=f"{changed:g}" if isinstance(changed, int | float) else changed)
        case Every(of=of) | Either(of=of):
            return replace(condition, of=tuple(with_operands(inner, operand) for inner in of))
        case Negation(of=inner):
            return replace(condition, of=with_operands(inner, operand))


def _inside(value: Operand, operand: Callable[[Operand], Operand]) -> Operand:
    if isinstance(value, Count):
        return Count(tuple(with_operands(inner, operand) for inner in value.of))
    return operand(value)


def operands(condition: Condition) -> Iterator[Operand]:
    """Yields all operands of a condition."""
    match condition:
        case Compare(left=left, right=right):
            for side in (left, right):
                if isinstance(side, Count):
                    for inner in side.of:
                        yield from operands(inner)
                else:
                    yield side
        case Matches(text=text):
            yield text
        case Every(of=of) | Either(of=of):
            for inner in of:
                yield from operands(inner)
        case Negation(of=inner):
            yield from operands(inner)


def parts_in(op: Op) -> Iterator[Part]:
    """Yields the parts of an instruction's own texts, without its blocks."""
    match op:
        case Text(parts=parts) | Assign(parts=parts):
            yield from parts
        case Use(arguments=arguments):
            for _, parts in arguments:
                yield from parts


def condition_of(op: Op) -> Condition | None:
    """Returns the condition of a When or a Repeat."""
    return op.condition if isinstance(op, When) else op.until if isinstance(op, Repeat) else None


def refs_in(op: Op) -> Iterator[Ref]:
    """Yields the values that an instruction itself needs, without its blocks."""
    yield from (part for part in parts_in(op) if isinstance(part, Ref))
    if isinstance(op, CallTools):
        yield Ref(op.branch, op.of)
    condition = condition_of(op)
    if condition is not None:
        for operand in operands(condition):
            if isinstance(operand, Ref | Times):
                yield Ref(operand.branch, operand.name)


def joined(parts: Iterable[Part]) -> Parts:
    """Joins adjacent texts, and omits empty ones."""
    found: list[Part] = []
    for is_text, run in groupby(parts, lambda part: isinstance(part, str)):
        if not is_text:
            found += run
        elif text := "".join(cast("Iterator[str]", run)):
            found.append(text)
    return tuple(found)
