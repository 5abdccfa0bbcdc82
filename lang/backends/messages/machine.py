"""Machine of programs over an API: keeps the content of each branch as messages, and starts calls for its values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Literal, Protocol

import msgspec

from ....runtime.programs.costs import Budget
from ....runtime.programs.machine import Returned, begin_turn, tell_returned
from ....runtime.programs.state import Branch, CallId, Frame, Run, State
from ....runtime.protocol.errors import BoughError, ErrorInfo, RequestError
from ....runtime.protocol.program import CallTools, Delta, Gen, Op, Piece, Select, Use
from ....runtime.protocol.request import PREFILLED, SAMPLED
from ....runtime.tools.arguments import read_arguments
from ....runtime.tools.registry import ToolCall
from ....runtime.tools.turns import ToolTurn
from ...diagnostics.errors import to_caused_info
from .surplus import Answer, Surplus, after, match, take
from .transcript import Begin, Calls, End, Mark, Prompt, Results, open_role, prompt_of, text_of, words, written

MAX_STATES = 1024


@dataclass(eq=False, slots=True)
class ModelCall:
    """A generation, a choice or a tool's use in flight.

    arguments   of a Use: values by name
    ahead       in a message, what follows this generation, as far as it is recorded: texts and generations
    timeout_s   what is left of the program's time
    emit        is told of text as it comes
    finish      is told the answer or the error, once
    """

    op: Gen | Select | Use
    prompt: Prompt
    run: Run
    timeout_s: float | None
    emit: Callable[[str], None]
    finish: Callable[[Answer | BoughError], None]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ahead: tuple[Op, ...] = ()


class Caller(Protocol):
    """Makes values. `begin` may answer at once, or later on the same thread; `cancel` is for a call that has begun."""

    def begin(self, call: ModelCall) -> None: ...

    def cancel(self, call: ModelCall) -> None: ...


@dataclass(eq=False, slots=True)
class MarkContent:
    """Marks of text and of messages. `surplus`: what the model has written beyond them."""

    marks: list[Mark] = field(default_factory=list)
    num_forked: int = 0
    surplus: Surplus | None = None

    @property
    def size(self) -> int:
        return len(self.marks)

    @property
    def length(self) -> int:
        return len(self.marks)

    @property
    def num_pieces(self) -> int:
        return 0

    @property
    def text(self) -> str:
        return written(self.marks)

    def fork(self) -> MarkContent:
        return MarkContent(list(self.marks), len(self.marks))

    def restart(self) -> None:
        del self.marks[self.num_forked :]
        self.surplus = None

    def place(self) -> int:
        return len(self.marks)

    def adopt(self, child: MarkContent, place: int) -> None:
        self.marks += child.marks[child.num_forked : place]
        self.surplus = None

    def untold(self) -> None:
        """Returns None: marks are told as soon as they are appended."""


class MessageMachine:
    """`Machine` whose values `caller` makes. Programs have no bounds, since they hold up nobody else's."""

    budget = Budget()
    calls_tools = True

    def __init__(self, caller: Caller, clock: Callable[[], float] = time.monotonic) -> None:
        self._caller = caller
        self._clock = clock
        self._calls: dict[str | CallId, ModelCall] = {}

    def blank(self) -> MarkContent:
        return MarkContent()

    def room(self, branch: Branch) -> float:
        return math.inf

    def num_tokens(self, branch: Branch) -> int | None:
        """Returns None: only the API could tell."""

    def append_text(self, frame: Frame, text: str) -> None:
        self._append(frame, text, "text")

    def open_message(self, frame: Frame, role: str) -> None:
        inside = open_role(_content_of(frame.branch).marks)
        if inside is not None:
            raise RequestError(f"a {role} message cannot be opened inside a {inside} message", param="role")
        self._append(frame, Begin(role), "role")

    def close_message(self, frame: Frame) -> None:
        role = open_role(_content_of(frame.branch).marks)
        if role is None:
            raise RequestError("there is no open message to close", param="role")
        self._append(frame, End(role), "role")

    def call(self, frame: Frame) -> None:
        self._begin(frame, {})

    def use(self, frame: Frame, arguments: dict[str, str]) -> None:
        assert isinstance(frame.op, Use)
        self._begin(frame, read_arguments(frame.run.tools[frame.op.tool], arguments))

    def call_tools(self, frame: Frame) -> None:
        op, started = frame.op, self._clock()
        assert isinstance(op, CallTools)
        marks = _content_of(frame.branch).marks

        def end(turn: ToolTurn) -> None:
            if turn.made:
                self._append(frame, Results(tuple(turn.made)), "role")
            tell_returned(frame, op.name, turn.text, [call.name for call in turn.made], started, self._clock())

        written = marks[-1].calls if marks and isinstance(marks[-1], Calls) else ()
        begin_turn(frame, written, partial(self._begin_call, frame, op.name), end)

    def _begin_call(
        self, frame: Frame, name: str, tool: ToolCall, arguments: Mapping[str, Any], returned: Returned
    ) -> None:
        """Begins a call that the model has written, as a use of its tool."""
        call_id = frame.state.new_id()

        def finish(result: Answer | BoughError) -> None:
            if self._calls.pop(call_id, None) is not None:
                frame.branch.running.discard(call_id)
                returned(self.describe(result) if isinstance(result, BoughError) else result.value.text)

        use, timeout_s = Use(frame.branch.id, name, tool.name), frame.run.time_left(self._clock())
        call = ModelCall(use, prompt_of(()), frame.run, timeout_s, lambda _: None, finish, arguments)
        self._calls[call_id] = call
        frame.branch.running.add(call_id)
        self._caller.begin(call)

    def cancel(self, call_id: str | CallId) -> None:
        call = self._calls.pop(call_id, None)
        if call is not None:
            self._caller.cancel(call)

    def expire(self) -> None:
        """Leaves calls to whoever makes them: each ends there when its time is over."""

    def sleep_s(self) -> float | None:
        return None

    def check_length(self, branch: Branch) -> None:
        """Checks nothing: the API says when a prompt is too long."""

    def forget(self, state: State, run: Run) -> Iterable[None]:
        """Does nothing: a program has nothing here besides its state."""
        return ()

    def close(self) -> None:
        """Does nothing: calls end with their programs."""

    def describe(self, error: BoughError) -> ErrorInfo:
        return to_caused_info(error)

    def _begin(self, frame: Frame, arguments: Mapping[str, Any]) -> None:
        """Takes a value from what was written too much before, or begins a call for it. Raises BoughError."""
        branch, run, op = frame.branch, frame.run, frame.op
        assert isinstance(op, Gen | Select | Use)
        content, started = _content_of(branch), self._clock()
        answer = None if content.surplus is None else take(content.surplus, op)
        if answer is not None:
            self._take(frame, answer, started)
            return
        call_id = frame.state.new_id()
        begins, answers = True, list[Answer | BoughError]()

        def emit(text: str) -> None:
            if text and call_id in self._calls:
                run.listener(Delta(branch.id, op.name, text))

        def finish(result: Answer | BoughError) -> None:
            """Takes the answer, before `begin` has returned or later."""
            if self._calls.pop(call_id, None) is None:
                return
            branch.running.discard(call_id)
            if begins:
                answers.append(result)
            elif isinstance(result, BoughError):
                frame.failed(self.describe(result))
            else:
                self._take(frame, result, started)
                frame.ended()

        ahead = after(islice(branch.queue, 1, None), op.branch) if run.program.spec_tokens else ()
        prompt = prompt_of(content.marks)
        call = ModelCall(op, prompt, run, run.time_left(started), emit, finish, arguments, ahead)
        self._calls[call_id] = call
        branch.running.add(call_id)
        self._caller.begin(call)
        begins = False
        for result in answers:
            if isinstance(result, BoughError):
                raise result
            self._take(frame, result, started)

    def _take(self, frame: Frame, answer: Answer, started: float) -> None:
        """Appends the value of a call that began at `started`, and tells of it."""
        branch, run, op, value = frame.branch, frame.run, frame.op, answer.value
        content = _content_of(branch)
        content.surplus = None
        if isinstance(op, Use):
            tell_returned(frame, op.name, value.text, (op.name,), started, self._clock())
            if op.append:
                self._append(frame, value.text, "text")
            return
        turn = branch.turns[value.name]
        branch.keep(value.name, value.text)
        run.usage += value.usage
        run.num_requests += answer.num_requests
        run.listener(value if turn == 0 else msgspec.structs.replace(value, turn=turn))
        if answer.calls:
            self._append(frame, answer.said, "gen", value.name, started)
            calls = Calls(answer.calls, value.text.removeprefix(answer.said))
            self._append(frame, calls, "gen", value.name, started)
        else:
            self._append(frame, value.text, "gen" if isinstance(op, Gen) else "select", value.name, started)
            content.surplus = answer.surplus

    def _times(self, frame: Frame, started: float) -> tuple[float, float]:
        """Seconds from the program's begin to `started`, and until now."""
        born = frame.state.born
        return started - born, self._clock() - born

    def _append(
        self,
        frame: Frame,
        mark: Mark,
        kind: Literal["text", "role", "gen", "select"],
        name: str = "",
        started: float | None = None,
    ) -> None:
        """Appends to a branch, and tells the trace. `started`: when the call began that has made it."""
        branch, content = frame.branch, _content_of(frame.branch)
        if content.surplus is not None:
            content.surplus = match(content.surplus, mark)
        if mark == "":
            return
        content.marks.append(mark)
        if not frame.run.program.trace:
            return
        start_s, stop_s = (0.0, 0.0) if started is None else self._times(frame, started)
        chunks = tuple(words(text_of(mark)))
        frame.run.listener(
            Piece(
                branch=branch.id,
                op=branch.num_ops,
                kind=kind,
                name=name,
                role=mark.role if isinstance(mark, Begin | End) else "tool" if kind == "role" else "",
                texts=chunks,
                origins=(PREFILLED if started is None else SAMPLED,) * len(chunks),
                start_s=start_s,
                stop_s=stop_s,
            )
        )


def _content_of(branch: Branch) -> MarkContent:
    assert isinstance(branch.content, MarkContent)
    return branch.content
