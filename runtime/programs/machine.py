"""Interface between programs and the source of their values: an engine in this process, or the API of a model."""

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
    """Produces the text that instructions append to their branches, and the values that they ask for.

    An instruction is done when its method returns, unless its branch's `running` then holds ids: it is done when they
    are gone, reported by `frame.ended` or `frame.failed`. Every method may raise BoughError to fail the instruction. A
    method that raises PausedError or NotYetError is called again.
    """

    @property
    def budget(self) -> Budget:
        """Limits for programs that begin now."""

    @property
    def calls_tools(self) -> bool: ...

    def blank(self) -> Content:
        """Returns empty content, for a program's first branch."""

    def room(self, branch: Branch) -> float:
        """Returns how many characters of text the branch may still take."""

    def num_tokens(self, branch: Branch) -> int | None:
        """Returns the number of tokens of the branch; None if it is not known."""

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
        """Cancels a call in flight; nothing more is reported for it."""

    def expire(self) -> None:
        """Fails the calls whose deadline has passed."""

    def sleep_s(self) -> float | None:
        """Returns the seconds until `expire` has something to do; None: no call has a deadline."""

    def check_length(self, branch: Branch) -> None:
        """Checks the length of a branch. Raises RequestError: it is longer than a request may be."""

    def forget(self, state: State, run: Run) -> Iterable[None]:
        """Cleans up after a program that has ended by itself and is not kept; `run` was its last submission. Yields
        between steps so that other programs have a turn."""

    def close(self) -> None:
        """Closes the machine without waiting for calls in flight."""

    def describe(self, error: BoughError) -> ErrorInfo:
        """Returns the error as it is reported to a listener."""


# Shared by all machines

Returned = Callable[[str | ErrorInfo], None]
"""Receiver of a tool call's result, or of the error with which it failed."""


def begin_turn(
    frame: Frame,
    calls: Sequence[WrittenCall],
    begin: Callable[[ToolCall, dict[str, Any], Returned], None],
    end: Callable[[ToolTurn], None],
) -> None:
    """Makes the calls that a model has written in a turn, by `begin`. Calls `end` once all have a result or an error;
    it may begin further calls that the instruction waits for.

    A call that cannot be made gets its error at once. Calls may return before `begin` does.
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
    """Keeps and reports a value that tool calls begun at `started` have produced; with a trace, also their times."""
    branch, run, start_s, stop_s = frame.branch, frame.run, started - frame.state.born, now - frame.state.born
    turn = branch.turns[name]
    branch.keep(name, text)
    run.listener(Value(branch=branch.id, name=name, text=text, turn=turn))
    for tool in tools if run.program.trace else ():
        piece = Piece(branch=branch.id, op=branch.num_ops, kind="tool", name=tool, start_s=start_s, stop_s=stop_s)
        run.listener(piece)
