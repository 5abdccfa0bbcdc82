"""The port between programs and whatever makes their values: an engine in this process, or the API of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from ..protocol.errors import BoughError, ErrorInfo
from ..protocol.program import CallTools, Piece, Value
from ..tools.calls import WrittenCall, fault_of
from ..tools.registry import ToolCall
from ..tools.turns import TOLD_TO_MODEL, ToolTurn
from .costs import Budget
from .state import Branch, CallId, Content, Frame, Run, State


class Machine(Protocol):
    """Makes what instructions append to their branches, and the values that they ask for.

    An instruction is done when its method returns, unless there are ids in its branch's `running` then: it is done when
    they are gone, and `frame.ended` or `frame.failed` says so. Every method may raise BoughError: it has failed. One
    that raises PausedError or NotYetError is called again.
    """

    @property
    def budget(self) -> Budget:
        """Bounds of programs that begin now."""

    @property
    def calls_tools(self) -> bool: ...

    def blank(self) -> Content:
        """Returns the content of a program's first branch: nothing."""

    def room(self, branch: Branch) -> float:
        """Returns how many characters of text the branch may still take."""

    def num_tokens(self, branch: Branch) -> int | None:
        """Returns the number of tokens of the branch; None: it is not known."""

    def append_text(self, frame: Frame, text: str) -> None: ...

    def open_message(self, frame: Frame, role: str) -> None: ...

    def close_message(self, frame: Frame) -> None: ...

    def call(self, frame: Frame) -> None:
        """Begins a Gen or Select."""

    def use(self, frame: Frame, arguments: dict[str, str]) -> None:
        """Begins a Use."""

    def call_tools(self, frame: Frame) -> None:
        """Begins a CallTools."""

    def cancel(self, call_id: str | CallId) -> None:
        """Ends something in flight, of which nothing is to be heard any more."""

    def expire(self) -> None:
        """Fails the calls whose time is over."""

    def sleep_s(self) -> float | None:
        """Returns seconds until `expire` has something to do; None: there is nothing to wait for."""

    def check_length(self, branch: Branch) -> None:
        """Checks a branch. Raises RequestError: it has more than fits into a request."""

    def forget(self, state: State, run: Run) -> Iterable[None]:
        """Hears that a program has ended by itself, whose last submission was `run`, and is not kept: step by step,
        between which others have a turn."""

    def close(self) -> None:
        """Waits for nothing that is still in flight."""

    def describe(self, error: BoughError) -> ErrorInfo:
        """Returns what a listener is told of an error."""


# What all machines do alike

Returned = Callable[[str | ErrorInfo], None]
"""Hears what a call of a tool has brought, or why it failed."""


def begin_turn(
    frame: Frame,
    calls: Sequence[WrittenCall],
    begin: Callable[[ToolCall, dict[str, Any], Returned], None],
    end: Callable[[ToolTurn], None],
) -> None:
    """Has `begin` make the calls that a model has written in a turn; `end` is told once all have come to something, and
    may begin what the instruction waits for.

    One that cannot be made has its error at once. Calls may return before `begin` does.
    """
    assert isinstance(frame.op, CallTools)
    tools = {name: frame.run.tools[name] for name in frame.op.tools}
    turn, begins = ToolTurn(calls), True

    def returned(index: int, outcome: str | ErrorInfo) -> None:
        if isinstance(outcome, ErrorInfo) and outcome.code not in TOLD_TO_MODEL:
            frame.failed(outcome)
            return
        turn.take(index, outcome)
        if turn.over and not begins:
            end(turn)
            if not frame.branch.running:
                frame.ended()

    for index, call in enumerate(calls):
        fault = fault_of(call, tools)
        if fault is not None or isinstance(call.arguments, str):
            turn.take(index, fault or "")
        else:
            begin(tools[call.name], call.arguments, partial(returned, index))
    begins = False
    if turn.over:
        end(turn)


def tell_returned(frame: Frame, name: str, text: str, tools: Sequence[str], started: float, now: float) -> None:
    """Keeps a value that tools have brought since `started`, and tells of it, and of their times."""
    branch, run, start_s, stop_s = frame.branch, frame.run, started - frame.state.born, now - frame.state.born
    turn = branch.turns[name]
    branch.keep(name, text)
    run.listener(Value(branch=branch.id, name=name, text=text, turn=turn))
    for tool in tools if run.program.trace else ():
        piece = Piece(branch=branch.id, op=branch.num_ops, kind="tool", name=tool, start_s=start_s, stop_s=stop_s)
        run.listener(piece)
