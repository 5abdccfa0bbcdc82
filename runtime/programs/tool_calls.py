"""Tool calls in flight: begun beside the engine, limited in time, and brought back to its thread."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from ..protocol.errors import BoughError, EngineError, EngineStoppedError, ErrorInfo, to_info
from ..protocol.program import Piece, Use, Value
from ..tokenizer.tokenizer import Tokenizer
from ..tools.arguments import MAX_ARGUMENT_CHARS, read_arguments
from ..tools.quotas import Owner
from ..tools.registry import DEFAULT_TIMEOUT_S, Ticket, ToolRunner
from .branch import Branch, Step
from .model_calls import Ended, FailedCall
from .references import write
from .state import Run, State

logger = logging.getLogger("bough.engine")

Post = Callable[[Callable[[], None]], None]
"""Has a function called on the engine's thread, soon."""


@dataclass(eq=False, slots=True)
class _Flight:
    state: State
    branch: Branch
    step: Step
    ticket: Ticket
    started: float
    limit_s: float


class ToolUses:
    """Makes the tool calls of one engine. Lives in the engine's thread; `ended` and `failed` hear of each there."""

    def __init__(
        self,
        runner: ToolRunner,
        post: Post,
        tokenizer: Tokenizer,
        clock: Callable[[], float],
        ended: Ended,
        failed: FailedCall,
        *,
        max_text: int,
        max_tokens: int,
    ) -> None:
        self._runner = runner
        self._post = post
        self._tokenizer = tokenizer
        self._clock = clock
        self._ended = ended
        self._failed = failed
        self._max_text = max_text
        self._max_tokens = max_tokens
        self._flights: dict[str, _Flight] = {}

    def begin(self, state: State, branch: Branch, step: Step) -> None:
        """Raises NotYetError or BoughError: nothing was begun."""
        run, op = step.stretch, step.item.op
        assert isinstance(run, Run) and isinstance(op, Use)
        tool = run.tools[op.tool]
        texts: dict[str, str] = {}
        room = MAX_ARGUMENT_CHARS
        for name, parts in op.arguments:
            texts[name] = write(parts, branch, state.branches, max_length=room)
            room -= len(texts[name])
        arguments = read_arguments(tool, texts)
        now = self._clock()
        own_s = min(op.timeout_s or math.inf, tool.timeout_s or DEFAULT_TIMEOUT_S)
        limit_s = run.time_left(now, own_s)
        assert limit_s is not None
        call_id = f"{state.id}/tool/{state.num_requests}"
        state.num_requests += 1

        def done(outcome: str | ErrorInfo) -> None:
            with contextlib.suppress(EngineStoppedError):
                self._post(lambda: self._take(call_id, outcome))

        ticket = self._runner.start(tool, arguments, done, Owner.of(state.namespace, state.id))
        self._flights[call_id] = _Flight(state, branch, step, ticket, now, limit_s)
        branch.running.add(call_id)

    def stop(self, call_id: str) -> bool:
        """Leaves a call to itself; False if it is none of ours."""
        flight = self._flights.pop(call_id, None)
        if flight is None:
            return False
        self._runner.abandon(flight.ticket)
        return True

    def expire(self) -> None:
        """Fails the calls whose time is over."""
        now = self._clock()
        for call_id, flight in list(self._flights.items()):
            if call_id in self._flights and now >= flight.started + flight.limit_s:
                self.stop(call_id)
                flight.branch.running.discard(call_id)
                self._failed(flight.state, flight.branch, flight.step, _late(flight, now))

    def sleep_s(self) -> float | None:
        """Seconds until the first of them is over; None: there is none."""
        ends = [flight.started + flight.limit_s for flight in self._flights.values()]
        return max(min(ends) - self._clock(), 0.0) if ends else None

    def _take(self, call_id: str, outcome: str | ErrorInfo) -> None:
        flight = self._flights.pop(call_id, None)
        if flight is None:  # nobody waits for it any more
            return
        state, branch, step = flight.state, flight.branch, flight.step
        branch.running.discard(call_id)
        if isinstance(outcome, ErrorInfo):
            self._failed(state, branch, step, outcome)
            return
        try:
            self._end(flight, outcome)
        except BoughError as error:
            self._failed(state, branch, step, to_info(error))
        except Exception:
            logger.exception("a program failed")
            self._failed(state, branch, step, ErrorInfo(code="internal_error", message="the program failed"))
        else:
            self._ended(state, branch, step)

    def _end(self, flight: _Flight, text: str) -> None:
        state, branch, step = flight.state, flight.branch, flight.step
        run, op = step.stretch, step.item.op
        assert isinstance(run, Run) and isinstance(op, Use)
        if op.append:
            if len(text) > self._max_text:
                message = f"the tool {op.tool!r} returned {len(text)} characters, which no context holds"
                raise EngineError(message, code="context_length_exceeded", param=op.tool)
            num_tokens = len(branch.tokens)
            branch.append_text(text, self._tokenizer)
            state.add_tokens(len(branch.tokens) - num_tokens, branch)
            branch.check_length(self._max_tokens)
        state.add_tokens(len(text), branch)
        turn = branch.turns[op.name]
        branch.keep(op.name, text)
        run.listener(Value(branch=branch.id, name=op.name, text=text, turn=turn))
        if run.program.trace:
            start_s, stop_s = flight.started - state.born, self._clock() - state.born
            run.listener(
                Piece(branch=branch.id, op=branch.num_ops, kind="tool", name=op.name, start_s=start_s, stop_s=stop_s)
            )


def _late(flight: _Flight, now: float) -> ErrorInfo:
    """Whose time is over: the program's, or the tool's."""
    run, name = flight.step.stretch, flight.ticket.tool.name
    assert isinstance(run, Run)
    try:
        run.time_left(now)
    except EngineError as error:
        return to_info(error)
    return ErrorInfo(
        code="tool_timeout", message=f"the tool {name!r} was not done within {flight.limit_s:g} s", param=name
    )
