"""The port between programs and whatever makes their values: an engine in this process, or the API of a model."""

from __future__ import annotations

from typing import Protocol

from ..protocol.errors import BoughError, ErrorInfo
from .costs import Budget
from .state import Branch, Content, Frame, Run, State


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

    def cancel(self, call_id: str) -> None:
        """Ends something in flight, of which nothing is to be heard any more."""

    def check_length(self, branch: Branch) -> None:
        """Checks a branch. Raises RequestError: it has more than fits into a request."""

    def forget(self, state: State, run: Run) -> None:
        """Hears that a program has ended by itself, whose last submission was `run`, and is not kept."""

    def close(self) -> None:
        """Waits for nothing that is still in flight."""

    def describe(self, error: BoughError) -> ErrorInfo:
        """Returns what a listener is told of an error."""
