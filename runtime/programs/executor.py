"""Executor of programs: keeps their states, starts submissions, and reports their ends."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from ...radix import tenant_of
from ..protocol.errors import BoughError, EngineError, EngineStoppedError, ErrorInfo, RequestError
from ..protocol.patterns import PatternCache
from ..protocol.program import Cancel, Done, EndTexts, Failed, Program
from ..tools.registry import ToolCall, ToolRegistry
from .costs import MAX_SLICE_S, TOLD_AT_ONCE, TOLD_CHARS
from .interpreter import Interpreter, Post
from .machine import Machine
from .memory import Account, Memory
from .state import ProgramListener, Run, State, Step, enqueue
from .validate import OPS_PER_LOOK, SubmissionReader

logger = logging.getLogger("bough.engine")

LOOK_S = 30.0
"""Time between two searches for states that are too old."""


@dataclass(eq=False)
class _Arrival:
    """A submission that is being read and put into its program's queues.

    steps       this work as an iterator; other programs have a turn between its steps; None: it has not begun
    state       state of its program, once the submission is accepted; None: it may still be refused
    """

    run: Run
    steps: Iterator[None] | None = None
    state: State | None = None


class Executor:
    """Executes programs on `machine`, on one thread, from which their listeners are called.

    All programs together hold a bounded number of tokens, of which each key has a share: see Memory.

    max_states  most idle states, of programs that wait for another submission
    post        schedules a function on that thread before the engine's next step, or after it if called from such a
                function; None: programs run to their next call without pausing for the engine
    tools       tools that every program may call
    """

    def __init__(
        self,
        machine: Machine,
        clock: Callable[[], float],
        *,
        max_states: int,
        post: Post | None = None,
        tools: ToolRegistry | None = None,
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._max_states = max_states
        self._tools = tools or ToolRegistry()
        self._slices = post is not None
        self._patterns = PatternCache()
        self._memory = Memory(lambda: machine.budget.held_tokens)
        self._memory.make_room = self._make_room
        self._interpreter = Interpreter(
            machine, clock, self._patterns, finished=self._finish, failed=self._fail, post=post
        )
        self._states: OrderedDict[str, State] = OrderedDict()
        self._arrivals: dict[str, deque[_Arrival]] = {}  # by the program's id, in the order of their arrival
        self._closed = False
        self._look_at = -math.inf
        self._expire_at = math.inf  # no submission has an earlier deadline
        self.num_programs = 0

    @property
    def num_states(self) -> int:
        return len(self._states)

    def run(
        self,
        program: Program,
        listener: ProgramListener,
        tools: Mapping[str, ToolCall] | None = None,
        key: object = None,
    ) -> None:
        """Starts a program, or with `resume` continues it.

        With `post` the submission is read when it is its tenant's turn, a long one in slices, and a refusal is an event
        for the listener.

        tools   take precedence over those that every program may call
        key     identifies this submission to `drop`

        Raises:
            RequestError: the program is invalid, or the state to continue is gone. Nothing was started.
            OverloadedError: there is no memory for it. Nothing was started.
            EngineStoppedError: after `close`.
        """
        if self._closed:
            raise EngineStoppedError("the engine has stopped")
        usable = {**self._tools.tools, **(tools or {})} if self._machine.calls_tools else {}
        run = Run(program, listener, self._clock(), self._machine.budget.work, usable, key=key)
        arrival = _Arrival(run)
        before = self._arrivals.get(program.id)
        if before is not None:
            before.append(arrival)
        else:
            self._arrivals[program.id] = deque([arrival])
            if self._slices:
                self._go_on_later(arrival)
            else:
                self._take_in(arrival)

    def _take_in(self, arrival: _Arrival) -> None:
        """Reads a submission for one slice of time; begins to execute it once all of it is read.

        Raises:
            BoughError: the submission cannot be started.
        """
        run, ends = arrival.run, time.monotonic() + MAX_SLICE_S if self._slices else math.inf
        if arrival.steps is None:
            arrival.steps = self._start(arrival)
        try:
            if arrival.state is None:
                run.time_left(self._clock())
            for _ in arrival.steps:
                if time.monotonic() >= ends:
                    self._go_on_later(arrival)
                    return
        except BaseException:
            self._remove_arrivals(run.program.id, lambda each: each is arrival)
            raise
        self._remove_arrivals(run.program.id, lambda each: each is arrival)
        if arrival.state is not None and not run.over:
            self._enter(arrival.state, run)

    def _go_on_later(self, arrival: _Arrival) -> None:
        self._interpreter.later(arrival.run.program.namespace, partial(self._go_on_with, arrival))

    def _go_on_with(self, arrival: _Arrival) -> None:
        waiting = self._arrivals.get(arrival.run.program.id)
        if not waiting or waiting[0] is not arrival:
            return  # it was dropped
        try:
            self._take_in(arrival)
        except Exception as error:
            if not isinstance(error, BoughError):
                logger.exception("a program could not be started")
                error = EngineError("the program could not be started", code="internal_error")
            arrival.run.tell(Failed(error=self._machine.describe(error)))

    def _remove_arrivals(self, program_id: str, gone: Callable[[_Arrival], bool]) -> list[_Arrival]:
        """Removes and returns the submissions that are `gone`. If that makes another one the first, reads it next."""
        waiting = self._arrivals.pop(program_id, None)
        if waiting is None:
            return []
        removed: list[_Arrival] = []
        left: deque[_Arrival] = deque()
        for arrival in waiting:
            (removed if gone(arrival) else left).append(arrival)
        if left:
            self._arrivals[program_id] = left
            if left[0] is not waiting[0]:
                self._go_on_later(left[0])
        return removed

    def _start(self, arrival: _Arrival) -> Iterator[None]:
        """Reads a submission and puts it into the queues of its program; yields where other programs may have a turn.

        Raises:
            BoughError: the submission cannot be started; nothing has changed.
        """
        run, program = arrival.run, arrival.run.program
        state = self._find(program, run.started)
        known = {branch.id: branch.origin.scope == 0 for branch in state.branches.values()}
        reader = SubmissionReader(known, run.tools, self._patterns)
        try:
            block = yield from reader.reading(program.ops)
            if program.resume and self._states.get(program.id) is not state:
                raise _gone(self._machine.budget.life_s)
            state.account.take(reader.num_tokens)
        except BaseException:
            if not program.resume:
                state.account.close()
            raise
        arrival.state, run.num_tokens = state, reader.num_tokens
        self._expire_at = min(self._expire_at, run.deadline)
        self.num_programs += 1
        state.used = run.started
        state.in_flight.append(run)
        self._states[program.id] = state
        self._states.move_to_end(program.id)
        run.work += block.work
        run.num_left += 1  # keeps it from ending before its cancels are done
        state.walk.held = True
        with self._interpreter.contained(state):
            for first in range(0, len(block.items), OPS_PER_LOOK):
                if first:  # a short submission is queued without a pause
                    yield
                if run.over:
                    return
                enqueue(state, run, block.items[first : first + OPS_PER_LOOK])
            cancels = [item for item in block.items if isinstance(item.op, Cancel)]
            for index, item in enumerate(cancels, start=1):
                if index % OPS_PER_LOOK == 0:
                    yield
                if run.over:
                    return
                self._interpreter.cancel(state, run, state.branches[item.op.branch], item.index)

    def _enter(self, state: State, run: Run) -> None:
        """Begins to execute a submission whose instructions are all in the queues."""
        state.walk.held = False
        with self._interpreter.contained(state):
            run.num_left -= 1
            if run.num_left == 0:
                self._finish(state, run)
            self._interpreter.walk(state)
        self._trim(self._clock())

    def expire(self) -> None:
        """Ends calls and programs whose deadline has passed, and drops old idle states. Call it within `sleep_s`."""
        if not self._states:
            return
        self._machine.expire()
        now = self._clock()
        if now >= self._expire_at:
            for state in list(self._states.values()):
                if any(now >= run.deadline for run in state.runs):
                    with self._interpreter.contained(state):
                        self._interpreter.check_time(state)
            deadlines = (run.deadline for state in self._states.values() for run in state.runs)
            self._expire_at = min(deadlines, default=math.inf)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._trim(now)

    def sleep_s(self) -> float | None:
        """Returns the seconds until `expire` has something to do; None: there are no states."""
        if not self._states:
            return None
        own_s, calls_s = max(min(self._look_at, self._expire_at) - self._clock(), 0.0), self._machine.sleep_s()
        return own_s if calls_s is None else min(own_s, calls_s)

    def drop(self, program_id: str, key: object = None) -> None:
        """Stops a program and forgets its state, kept or not; its submissions in flight fail. Unknown ids are ignored.

        With a `key`, as when a client leaves (`runtime.client.streams`), only if the submission with that key is still
        in flight or being read: by now the id may belong to another program. Then all submissions of the program that
        have begun end as well; those that wait to be read fail if they need its state.
        """
        self._drop(program_id, ErrorInfo(code="aborted", message="the program was dropped"), key)

    def _drop(self, program_id: str, error: ErrorInfo, key: object = None) -> None:
        state = self._states.get(program_id)
        if state is not None and (key is None or any(run.key == key for run in state.in_flight)):
            self._fail(state, None, 0, error)
        for arrival in self._remove_arrivals(program_id, lambda each: key is None or each.run.key == key):
            if arrival.state is None:
                arrival.run.tell(Failed(error=error))

    def drop_all(self) -> None:
        """Stops all programs."""
        for program_id in [*self._states, *self._arrivals]:
            self.drop(program_id)

    def close(self) -> None:
        """Fails all submissions and forgets every state; further ones are refused."""
        self._closed = True
        error = ErrorInfo(code="engine_dead", message="the engine has stopped")
        for program_id in [*self._states, *self._arrivals]:
            try:
                self._drop(program_id, error)
            except Exception:
                logger.exception("program %s did not end in order", program_id)
        self._machine.close()

    def _find(self, program: Program, now: float) -> State:
        state = self._states.get(program.id)
        if state is not None and not state.in_flight and now - state.used >= self._machine.budget.life_s:
            self._forget(state)
            state = None
        if program.resume:
            if state is None or state.namespace != program.namespace or not state.kept:
                raise _gone(self._machine.budget.life_s)
            return state
        if state is not None:
            raise RequestError(f"a program with id {program.id!r} exists already", param="id")
        account = Account(self._memory, tenant_of(program.namespace))
        return State(program.id, program.namespace, now, self._machine.blank(), self._machine.budget, account)

    def _forget(self, state: State) -> None:
        del self._states[state.id]
        state.account.close()
        state.release()

    def _trim(self, now: float) -> None:
        """Drops idle states that are too old, then, while there are more than `max_states`, the least recently used one
        of the tenant with the most; frees memory if it is full."""
        idle = self._idle()
        while idle and now - idle[0].used >= self._machine.budget.life_s:
            self._forget(idle.pop(0))
        self._drop_of_largest(idle, lambda _: 1, lambda: len(idle) > self._max_states)
        if self._memory.full:
            self._make_room("")

    def _make_room(self, tenant: str) -> None:
        """Drops idle states, least recently used first: those of `tenant` while it has more than its share, then, while
        the memory is full, those of the tenant that holds the most tokens in idle states."""
        idle = self._idle()
        own = iter([state for state in idle if tenant and state.account.tenant == tenant])
        while self._memory.over(tenant) and (dropped := next(own, None)) is not None:
            idle.remove(dropped)
            self._forget(dropped)
        self._drop_of_largest(idle, lambda state: state.account.num_held, lambda: self._memory.full)

    def _drop_of_largest(self, idle: list[State], size: Callable[[State], int], too_many: Callable[[], bool]) -> None:
        """While there are `too_many`, drops the least recently used idle state of the tenant with most in `size`."""
        if not too_many():
            return
        had: Counter[str] = Counter()
        for state in idle:
            had[state.account.tenant] += size(state)
        while idle and too_many():
            most = max(had.values())
            dropped = next(state for state in idle if had[state.account.tenant] == most)
            had[dropped.account.tenant] -= size(dropped)
            idle.remove(dropped)
            self._forget(dropped)

    def _idle(self) -> list[State]:
        """Returns the states that wait for another submission, the least recently used first."""
        return [state for state in self._states.values() if not state.in_flight and state.id not in self._arrivals]

    def _finish(self, state: State, run: Run) -> None:
        """Ends a submission whose instructions are all done, and reports it, for a large program in slices."""
        run.over = True
        state.used = self._clock()
        self._states.move_to_end(state.id)  # the least recently used comes first
        state.kept = state.kept and run.program.keep
        steps = self._tell_end(state, run, state.used - run.started)
        if self._slices and state.num_tokens > TOLD_AT_ONCE:
            self._end_later(state, run, steps)
        else:
            for _ in steps:
                pass

    def _end_later(self, state: State, run: Run, steps: Iterator[None]) -> None:
        def go_on() -> None:
            ends = time.monotonic() + MAX_SLICE_S
            with self._interpreter.contained(state):
                while run in state.in_flight:
                    next(steps, None)
                    if time.monotonic() >= ends:
                        self._end_later(state, run, steps)
                        return

        self._interpreter.later(state.namespace, go_on)

    def _tell_end(self, state: State, run: Run, elapsed_s: float) -> Iterator[None]:
        """Reports the end of a submission, a branch at a time, and forgets a program that is not kept."""
        texts: dict[int, str] = {}
        num_tokens: dict[int, int] = {}
        num_chars = 0
        for branch in [branch for branch in state.branches.values() if branch.started]:
            text = texts[branch.id] = branch.content.text
            if (count := self._machine.num_tokens(branch)) is not None:
                num_tokens[branch.id] = count
            num_chars += len(text)
            if num_chars > TOLD_CHARS and self._slices:
                run.tell(EndTexts(texts=texts, num_tokens=num_tokens))
                texts, num_tokens, num_chars = {}, {}, 0
            yield
        if not state.kept and state.in_flight == [run]:
            yield from self._machine.forget(state, run)
        state.in_flight.remove(run)
        if not state.kept and not state.in_flight:
            self._forget(state)
        elif not any(branch.origin.given for branch in state.branches.values()):
            state.account.add(-run.num_tokens)  # no branch that restarts needs its instructions again
        run.tell(
            Done(usage=run.usage, requests=run.num_requests, texts=texts, num_tokens=num_tokens, elapsed_s=elapsed_s)
        )

    def _fail(self, state: State, step: Step | None, branch_id: int, info: ErrorInfo) -> None:
        """Fails a program: stops all its branches and reports the error to every submission in flight."""
        self._states.pop(state.id, None)
        state.account.close()
        runs, state.in_flight = state.in_flight, []
        try:
            self._interpreter.stop(list(state.branches.values()))
        finally:  # even if the engine fails here, the listeners get the end
            state.release()
            for run in runs:
                run.over = True
                index = step.index if step is not None and run is step.run else None
                run.tell(Failed(error=info, branch=branch_id, index=index, usage=run.usage))


def _gone(life_s: float) -> RequestError:
    after = "" if math.isinf(life_s) else f"after {life_s / 60:g} minutes, or "
    message = f"the program's state is gone (dropped {after}when too many were kept, or the engine was started again)"
    return RequestError(message, code="state_not_found", param="id")
