"""The port between programs and whatever makes their values: an engine in this process, or the API of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..protocol.errors import BoughError, ErrorInfo
from ..protocol.program import Op
from .costs import Budget
from .state import Branch, Content, Run, State, Step


class Outcome(Protocol):
    """Hears of instructions that took their time, on the thread of its program."""

    def ended(self, frame: Frame) -> None: ...

    def failed(self, frame: Frame, info: ErrorInfo) -> None: ...

    def pause(self, state: State) -> None:
        """Makes way for the engine: raises PausedError if the slice of time is over."""


@dataclass(slots=True, eq=False)
class Frame:
    """An instruction as its branch carries it out. `outcome` hears of its end if it takes its time."""

    state: State
    branch: Branch
    step: Step
    outcome: Outcome

    @property
    def op(self) -> Op:
        return self.step.item.op

    @property
    def run(self) -> Run:
        return self.step.run

    def spend(self, work: int) -> None:
        """Counts work. Raises EngineError: the submission has done too much."""
        self.state.work += work
        self.step.run.spend(work)

    def pause(self) -> None:
        """Makes way for the engine: raises PausedError if the program's slice of time is over."""
        self.outcome.pause(self.state)

    def ended(self) -> None:
        self.outcome.ended(self)

    def failed(self, info: ErrorInfo) -> None:
        self.outcome.failed(self, info)


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

    def append_text(self, frame: Frame, text: str) -> None: ...

    def open_message(self, frame: Frame, role: str) -> None: ...

    def close_message(self, frame: Frame) -> None: ...

    def call(self, frame: Frame) -> None:
        """Begins a Gen or Select."""

    def use(self, frame: Frame, arguments: dict[str, str]) -> None:
        """Begins a Use."""

    def cancel(self, call_id: str) -> None:
        """Ends something in flight, of which nothing is to be heard any more."""

    def check_length(self, branch: Branch) -> None:
        """Checks a branch. Raises RequestError: it has more than fits into a request."""

    def forget(self, state: State, run: Run) -> None:
        """Hears that a program is over, whose last submission was `run`."""

    def close(self) -> None:
        """Waits for nothing that is still in flight."""

    def describe(self, error: BoughError) -> ErrorInfo:
        """Returns what a listener is told of an error."""
