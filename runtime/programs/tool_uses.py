"""Tool calls of programs on an engine: they run on other threads, and their results are appended on the engine's."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..protocol.errors import EngineError, EngineStoppedError, ErrorInfo, to_info
from ..protocol.program import CallTools, Use
from ..tokenizer.tokenizer import LONG_TEXT, Tokenizer
from ..tools.arguments import chars_of, read_arguments
from ..tools.calls import READ_AT_ONCE, CallsReading, WrittenCall, said_of
from ..tools.quotas import Owner
from ..tools.registry import DEFAULT_TIMEOUT_S, Ticket, ToolCall, ToolRunner
from ..tools.turns import ToolTurn
from .costs import CHARS_OF_MESSAGE, ENCODED_PER_WORK, WAITING_CHARS_PER_TOKEN
from .interpreter import Post
from .machine import Machine, Returned, begin_turn, tell_returned
from .state import CallId, Frame
from .tokens import Encodings, append_later, append_tokens, content_of
from .tool_turns import form_of, write_results


@dataclass(eq=False, slots=True)
class _RunningTool:
    """A call in progress. `num_held`: tokens counted for its arguments meanwhile."""

    frame: Frame
    returned: Returned
    ticket: Ticket
    started: float
    limit_s: float
    num_held: int

    @property
    def end(self) -> float:
        return self.started + self.limit_s


class ToolUses:
    """Runs the tool calls of one engine. Used on the engine's thread, where results arrive.

    under_way   calls in progress, by id
    _look_at    time before which no call expires
    """

    def __init__(self, runner: ToolRunner, post: Post, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._post = post
        self._clock = clock
        self.under_way: dict[CallId, _RunningTool] = {}
        self._look_at = math.inf

    def begin(
        self, frame: Frame, tool: ToolCall, arguments: dict[str, Any], timeout_s: float | None, returned: Returned
    ) -> None:
        """Starts a call; its arguments count as held memory until it ends. Raises BoughError: nothing was started."""
        now = self._clock()
        limit_s = frame.run.time_left(now, min(timeout_s or math.inf, tool.timeout_s or DEFAULT_TIMEOUT_S))
        assert limit_s is not None
        call_id = frame.state.new_call("tool")

        def done(outcome: str | ErrorInfo) -> None:
            with contextlib.suppress(EngineStoppedError):
                self._post(lambda: self._take(call_id, outcome))

        account, num_held = frame.state.account, 1 + chars_of(arguments) // WAITING_CHARS_PER_TOKEN
        account.take(num_held)
        try:
            ticket = self._runner.start(tool, arguments, done, Owner.of(frame.state.namespace, frame.state.id))
        except BaseException:
            account.add(-num_held)
            raise
        self.under_way[call_id] = _RunningTool(frame, returned, ticket, now, limit_s, num_held)
        self._look_at = min(self._look_at, now + limit_s)
        frame.branch.running.add(call_id)

    def stop(self, call_id: CallId) -> bool:
        """Abandons a call; returns False if it is not one of these."""
        flight = self._leave(call_id)
        if flight is None:
            return False
        self._runner.abandon(flight.ticket)
        return True

    def _leave(self, call_id: CallId) -> _RunningTool | None:
        flight = self.under_way.pop(call_id, None)
        if flight is not None:
            flight.frame.state.account.add(-flight.num_held)
        return flight

    def expire(self) -> None:
        """Fails the calls whose time limit has passed."""
        now = self._clock()
        if now < self._look_at:
            return
        for call_id, flight in list(self.under_way.items()):
            if call_id in self.under_way and now >= flight.end:
                self.stop(call_id)
                self._tell(flight, call_id, _late(flight, now))
        self._look_at = min((flight.end for flight in self.under_way.values()), default=math.inf)

    def sleep_s(self) -> float | None:
        """Returns the seconds until `expire` must be called, at most until the first call expires; None: no call."""
        return max(self._look_at - self._clock(), 0.0) if self.under_way else None

    def _take(self, call_id: CallId, outcome: str | ErrorInfo) -> None:
        flight = self._leave(call_id)
        if flight is None:  # it has been abandoned
            return
        self._tell(flight, call_id, outcome)

    def _tell(self, flight: _RunningTool, call_id: CallId, outcome: str | ErrorInfo) -> None:
        flight.frame.branch.running.discard(call_id)
        try:
            flight.returned(outcome)
        except Exception as error:  # noqa: BLE001  the instruction fails with it
            flight.frame.fail(error)


def _late(flight: _RunningTool, now: float) -> ErrorInfo:
    """Returns the error of a call after its own time limit or its program's."""
    name = flight.ticket.tool.name
    try:
        flight.frame.run.time_left(now)
    except EngineError as error:
        return to_info(error)
    return ErrorInfo(
        code="tool_timeout", message=f"the tool {name!r} was not done within {flight.limit_s:g} s", param=name
    )


Written = tuple[str, list[int]]
"""A text with its tokens."""


class ToolInstructions:
    """Executes the instructions that call tools, by `uses`, and appends the results to the branch.

    machine     machine of the instructions, which knows how much text a branch may still take
    """

    def __init__(
        self,
        uses: ToolUses,
        encodings: Encodings,
        machine: Machine,
        clock: Callable[[], float],
        tokenizer: Tokenizer,
    ) -> None:
        self._uses = uses
        self._encodings = encodings
        self._machine = machine
        self._clock = clock
        self._tokenizer = tokenizer

    def use(self, frame: Frame, arguments: dict[str, str]) -> None:
        """Starts a Use."""
        op, started = frame.op, self._clock()
        assert isinstance(op, Use)

        def returned(outcome: str | ErrorInfo) -> None:
            if isinstance(outcome, ErrorInfo):
                frame.failed(outcome)
                return
            frame.spend(1 + len(outcome) // ENCODED_PER_WORK)
            tell = partial(self._tell, frame, op.name, outcome, [op.name], started)
            if op.append and outcome:
                self._append_returned(frame, len(outcome), partial(self._write, outcome), tell)
            else:
                tell()
            if not frame.branch.running:
                frame.ended()

        tool = frame.run.tools[op.tool]
        self._uses.begin(frame, tool, read_arguments(tool, arguments), op.timeout_s, returned)

    def call_tools(self, frame: Frame) -> None:
        """Starts a CallTools."""
        op, started = frame.op, self._clock()
        assert isinstance(op, CallTools)
        calls = self._read_calls(frame, op)

        def begin(tool: ToolCall, arguments: dict[str, Any], returned: Returned) -> None:
            def counted(outcome: str | ErrorInfo) -> None:
                if isinstance(outcome, str):  # it waits for the outcomes of the other calls
                    frame.state.add_tokens(len(outcome) // WAITING_CHARS_PER_TOKEN, frame.branch)
                returned(outcome)

            self._uses.begin(frame, tool, arguments, None, counted)

        def end(turn: ToolTurn) -> None:
            made = turn.made

            def tell() -> None:
                self._tell(frame, op.name, turn.text, [call.name for call in made], started)

            if not made:
                tell()
                return
            content, num_chars = content_of(frame.branch), sum(len(said_of(call)) for call in made)
            frame.spend(len(made) + num_chars // ENCODED_PER_WORK)
            write = partial(write_results, tuple(content.roles), content.suffix, content.turn, made, self._tokenizer)
            history = CHARS_OF_MESSAGE * len(content.roles)
            self._append_returned(frame, num_chars, write, tell, history=history, template=True, role="tool")

        begin_turn(frame, calls, begin, end)

    def _read_calls(self, frame: Frame, op: CallTools) -> list[WrittenCall]:
        """Reads the calls that the model has written. Raises PausedError: it continues when called again."""
        pending, text = frame.pending, frame.branch.values.get(op.of, "")
        if pending.begun is None:
            pending.begun = CallsReading(form_of(self._tokenizer), text, op.tools)
        reading: CallsReading = pending.begun
        while True:
            frame.spend(1 + min(len(text), READ_AT_ONCE) // ENCODED_PER_WORK)
            if not reading.read_on():
                return reading.calls
            frame.pause()

    def _tell(self, frame: Frame, name: str, text: str, tools: Sequence[str], started: float) -> None:
        """Keeps and reports a value that tools have produced, with their times."""
        frame.state.add_tokens(len(text), frame.branch)
        frame.state.add_values(1, frame.branch)
        tell_returned(frame, name, text, tools, started, self._clock())

    def _write(self, text: str) -> Written:
        return text, self._tokenizer.encode(text)

    def _append_returned(
        self,
        frame: Frame,
        num_chars: int,
        write: Callable[[], Written],
        tell: Callable[[], None],
        *,
        history: int = 0,
        **how: Any,
    ) -> None:
        """Appends results of tools, of `num_chars`, as formatted by `write`, then calls `tell`. Long ones are formatted
        on another thread, as are those for which the template renders a long `history`, in characters.

        Raises:
            EngineError: the branch has no room for them.
        """
        op, room = frame.op, self._machine.room(frame.branch)
        assert isinstance(op, Use | CallTools)
        if num_chars > room:
            who, param = (f"the tool {op.tool!r}", op.tool) if isinstance(op, Use) else ("the tools", op.name)
            message = f"{who} returned {num_chars} characters, but there is room for {room:g}; have it return less"
            raise EngineError(message, code="context_length_exceeded", param=param)

        def take(written: Written) -> None:
            append = partial(append_tokens, frame.branch, *written, self._tokenizer, **how)
            append_later(frame, append, self._machine.check_length)
            tell()

        def take_later(written: Written) -> None:
            take(written)
            frame.ended()

        if num_chars + history > LONG_TEXT:
            self._encodings.begin_writing(frame, num_chars + history, write, take_later)
        else:
            take(write())
