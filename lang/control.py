"""The words for control flow that the engine decides: `when`, `repeat_until`, and what conditions are made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..runtime.protocol.errors import RequestError
from .diagnostics.check_options import refuse_unknown
from .diagnostics.errors import ProgramError
from .diagnostics.source_lines import caller
from .function import Function
from .record.condition import Condition, CountOf, Operand, TimesOf
from .record.expression import Expression
from .session.blocks import Record, RepeatBlock, WhenBlock
from .session.branch import Branch, Variable
from .state.state import State

MAX_TURNS = 10_000

Body = str | Expression | State[Any] | Callable[[State[Any]], object]
"""What a block holds: text, an expression, or a function that records into it."""


def when(condition: Condition, then: Body, otherwise: Body | None = None) -> Expression:
    """Does `then` if the condition holds, else `otherwise`. The engine decides: the program stays one request.

    Each is text, an expression, or a function that is called once, while the program is recorded, with the state that
    records into the block. If such a function records nothing, and returns text or an expression, that is appended. A
    variable that only the block sets which was not done is None.

    >>> s += bough.when(s.ref("language") == "de", "Antworte auf Deutsch.", "Answer in English.")
    >>> s += bough.when(bough.var("answer").contains("?"), lambda s: ask_again(s))
    """
    _check(condition)
    return WhenBlock(condition, _recording(then, "then"), _recording(otherwise, "otherwise"))


def repeat_until(condition: Condition, body: Body, at_most: int = 8) -> Expression:
    """Does `body`, and again until the condition holds after it, `at_most` times in all. The program stays one request.

    The body is recorded once. What it refers to before it sets it anew is what the turn before has set. Afterwards
    `s[name]` is the last value, and `s.history(name)` are those of all turns.

    >>> s += bough.repeat_until(bough.var("action") == "finish", step, at_most=6)

    Raises:
        RequestError: `at_most` is out of range.
    """
    _check(condition)
    refuse_unknown("at_most", at_most)
    if not isinstance(at_most, int) or isinstance(at_most, bool) or not 1 <= at_most <= MAX_TURNS:
        raise RequestError(f"at_most must be 1 to {MAX_TURNS}, got {at_most!r}", param="at_most")
    return RepeatBlock(_recording(body, "body"), condition, at_most)


def var(name: str) -> Variable:
    """A variable, looked up where this is used: in the condition of a loop, what its body sets. It can be compared for
    conditions, and appended like `s.ref(name)`.

    >>> bough.repeat_until((bough.var("score") >= 8) | (bough.times("score") == 3), improve)
    """
    return Variable(name)


def times(name: str) -> Operand:
    """How often the generation called `name` has been done."""
    return TimesOf(name)


def count(*conditions: Condition) -> Operand:
    """How many of the conditions hold.

    >>> bough.when(bough.count(*(s.ref("vote", i) == "yes" for i in range(5))) >= 3, "Accepted.")
    """
    for condition in conditions:
        _check(condition)
    return CountOf(conditions)


def _check(condition: object) -> None:
    if not isinstance(condition, Condition):
        raise ProgramError(
            f"this needs a condition, such as s.ref('x') == 'yes' or bough.times('x') >= 3; got "
            f"{type(condition).__name__}",
            code="invalid_program",
            place=caller(),
        )


def _recording(body: Body | None, name: str) -> Record:
    """How to record what a block holds."""
    if body is None:
        return lambda branch: None
    if isinstance(body, str | Expression):
        return lambda branch: branch.append(body)
    if isinstance(body, State):
        return lambda branch: _append(branch, body)
    if not callable(body):
        raise ProgramError(
            f"{name} must be text, an expression, or a function that takes the state; got {type(body).__name__}",
            code="invalid_program",
            place=caller(),
        )

    def record(branch: Branch) -> None:
        result = body(State(branch))
        if inspect.iscoroutine(result):
            result.close()
            raise ProgramError(
                f"{name} is a coroutine function: a block is recorded by plain functions, which have nothing to wait "
                "for",
                code="invalid_program",
                place=caller(),
            )
        if not branch.recorder.block_is_empty or isinstance(body, Function):  # what it returns is for its caller
            return
        if isinstance(result, str | Expression):
            branch.append(result)
        elif isinstance(result, State) and type(result) is not State:
            _append(branch, result)

    return record


def _append(branch: Branch, called: State[Any]) -> None:
    state = State[Any](branch)
    state += called
