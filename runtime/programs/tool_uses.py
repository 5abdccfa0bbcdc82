"""Calls of tools by programs: begun on the threads of an engine's tools, and taken in on its own thread."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from ..protocol.errors import BoughError, EngineError, EngineStoppedError, ErrorInfo, to_info
from ..protocol.program import Piece, Use, Value
from ..tools.arguments import read_arguments
from ..tools.quotas import Owner
from ..tools.registry import DEFAULT_TIMEOUT_S, Ticket, ToolRunner
from .interpreter import Post
from .state import Frame

logger = logging.getLogger("bough.engine")


@dataclass(eq=False, slots=True)
class _RunningTool:
    frame: Frame
    op: Use
    ticket: Ticket
    started: float
    limit_s: float

    @property
    def end(self) -> float:
        return self.started + self.limit_s


class ToolUses:
    """Makes the tool calls of one engine. Lives in its thread; `append` puts what they return into a branch there."""

    def __init__(
        self,
        runner: ToolRunner,
        post: Post,
        clock: Callable[[], float],
        append: Callable[[Frame, Use, str], None],
    ) -> None:
        self._runner = runner
        self._post = post
        self._clock = clock
        self._append = append
        self._flights: dict[str, _RunningTool] = {}

    def begin(self, frame: Frame, op: Use, texts: dict[str, str]) -> None:
        """Begins a call. Raises BoughError: nothing was begun."""
        tool = frame.run.tools[op.tool]
        arguments = read_arguments(tool, texts)
        now = self._clock()
        limit_s = frame.run.time_left(now, min(op.timeout_s or math.inf, tool.timeout_s or DEFAULT_TIMEOUT_S))
        assert limit_s is not None
        call_id = frame.state.new_id("tool/")

        def done(outcome: str | ErrorInfo) -> None:
            with contextlib.suppress(EngineStoppedError):
                self._post(lambda: self._take(call_id, outcome))

        owner = Owner.of(frame.state.namespace, frame.state.id)
        ticket = self._runner.start(tool, arguments, done, owner)
        self._flights[call_id] = _RunningTool(frame, op, ticket, now, limit_s)
        frame.branch.running.add(call_id)

    def stop(self, call_id: str) -> bool:
        """Leaves a call to itself; False if it is none of these."""
        flight = self._flights.pop(call_id, None)
        if flight is None:
            return False
        self._runner.abandon(flight.ticket)
        return True

    def expire(self) -> None:
        """Fails the calls whose time is over."""
        now = self._clock()
        for call_id, flight in list(self._flights.items()):
            if call_id in self._flights and now >= flight.end:
                self.stop(call_id)
                flight.frame.branch.running.discard(call_id)
                flight.frame.failed(_late(flight, now))

    def sleep_s(self) -> float | None:
        """Seconds until the first of them is over; None: there is none."""
        first = min((flight.end for flight in self._flights.values()), default=None)
        return None if first is None else max(first - self._clock(), 0.0)

    def _take(self, call_id: str, outcome: str | ErrorInfo) -> None:
        flight = self._flights.pop(call_id, None)
        if flight is None:  # nobody waits for it any more
            return
        flight.frame.branch.running.discard(call_id)
        if isinstance(outcome, ErrorInfo):
            flight.frame.failed(outcome)
            return
        try:
            self._end(flight, outcome)
        except BoughError as error:
            flight.frame.failed(to_info(error))
        except Exception:
            logger.exception("a program failed")
            flight.frame.failed(ErrorInfo(code="internal_error", message="the program failed"))
        else:
            flight.frame.ended()

    def _end(self, flight: _RunningTool, text: str) -> None:
        frame, name = flight.frame, flight.op.name
        state, branch, run = frame.state, frame.branch, frame.run
        self._append(frame, flight.op, text)
        state.add_tokens(len(text), branch)
        state.add_values(1, branch)
        turn = branch.turns[name]
        branch.keep(name, text)
        run.listener(Value(branch=branch.id, name=name, text=text, turn=turn))
        if run.program.trace:
            start_s, stop_s = flight.started - state.born, self._clock() - state.born
            run.listener(
                Piece(branch=branch.id, op=branch.num_ops, kind="tool", name=name, start_s=start_s, stop_s=stop_s)
            )


def _late(flight: _RunningTool, now: float) -> ErrorInfo:
    """Returns the error of a call whose time is over, or its program's."""
    name = flight.ticket.tool.name
    try:
        flight.frame.run.time_left(now)
    except EngineError as error:
        return to_info(error)
    return ErrorInfo(
        code="tool_timeout", message=f"the tool {name!r} was not done within {flight.limit_s:g} s", param=name
    )
