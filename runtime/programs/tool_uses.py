"""Calls of tools beside an engine: they run on threads of their own, and their ends are heard on the engine's."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..protocol.errors import EngineError, EngineStoppedError, ErrorInfo, to_info
from ..tools.arguments import chars_of
from ..tools.quotas import Owner
from ..tools.registry import DEFAULT_TIMEOUT_S, Ticket, ToolCall, ToolRunner
from .costs import WAITING_CHARS_PER_TOKEN
from .interpreter import Post
from .machine import Returned
from .state import CallId, Frame


@dataclass(eq=False, slots=True)
class _RunningTool:
    """A call under way. `num_held`: the tokens that count for its arguments meanwhile."""

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
    """Makes the tool calls of one engine. Lives in its thread, on which it is heard what they bring.

    under_way   by id
    _look_at    no call is over before then
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
        """Begins a call, whose arguments count as held until it ends. Raises BoughError: nothing was begun."""
        now = self._clock()
        limit_s = frame.run.time_left(now, min(timeout_s or math.inf, tool.timeout_s or DEFAULT_TIMEOUT_S))
        assert limit_s is not None
        call_id = frame.state.new_call("tool")

        def done(outcome: str | ErrorInfo) -> None:
            with contextlib.suppress(EngineStoppedError):
                self._post(lambda: self._take(call_id, outcome))

        account, num_held = frame.state.account, 1 + chars_of(arguments) // WAITING_CHARS_PER_TOKEN
        account.add(num_held)
        try:
            account.check()
            ticket = self._runner.start(tool, arguments, done, Owner.of(frame.state.namespace, frame.state.id))
        except BaseException:
            account.add(-num_held)
            raise
        self.under_way[call_id] = _RunningTool(frame, returned, ticket, now, limit_s, num_held)
        self._look_at = min(self._look_at, now + limit_s)
        frame.branch.running.add(call_id)

    def stop(self, call_id: CallId) -> bool:
        """Leaves a call to itself; False if it is none of these."""
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
        """Fails the calls whose time is over."""
        now = self._clock()
        if now < self._look_at:
            return
        for call_id, flight in list(self.under_way.items()):
            if call_id in self.under_way and now >= flight.end:
                self.stop(call_id)
                self._tell(flight, call_id, _late(flight, now))
        self._look_at = min((flight.end for flight in self.under_way.values()), default=math.inf)

    def sleep_s(self) -> float | None:
        """Seconds until `expire` has to look, at the latest when the first of them is over; None: there is none."""
        return max(self._look_at - self._clock(), 0.0) if self.under_way else None

    def _take(self, call_id: CallId, outcome: str | ErrorInfo) -> None:
        flight = self._leave(call_id)
        if flight is None:  # nobody waits for it any more
            return
        self._tell(flight, call_id, outcome)

    def _tell(self, flight: _RunningTool, call_id: CallId, outcome: str | ErrorInfo) -> None:
        flight.frame.branch.running.discard(call_id)
        try:
            flight.returned(outcome)
        except Exception as error:  # noqa: BLE001  the instruction ends with it
            flight.frame.fail(error)


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
