"""Executes programs: keeps their states, starts submissions, and tells when they are over."""

from __future__ import annotations

import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping

from ...radix import tenant_of
from ..protocol.errors import EngineStoppedError, ErrorInfo, RequestError
from ..protocol.patterns import PatternCache
from ..protocol.program import Cancel, Done, Failed, Program
from ..tools.registry import ToolCall, ToolRegistry
from .interpreter import Interpreter, Post
from .machine import Machine
from .state import ProgramListener, Run, State, Step, enqueue
from .validate import SubmissionReader

logger = logging.getLogger("bough.engine")

LOOK_S = 30.0
"""Time between two looks for states that are too old."""


class Executor:
    """Executes programs on `machine`, on one thread; a program's listener is called from within `run`, or when what the
    machine has begun comes to an end.

    max_states  programs that wait for another submission
    post        has a function called on that thread soon; without it, programs do not make way for anything
    tools       those that every program may call
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
        self._patterns = PatternCache()
        self._interpreter = Interpreter(machine, clock, finished=self._finish, failed=self._fail, post=post)
        self._states: OrderedDict[str, State] = OrderedDict()
        self._closed = False
        self._look_at = -math.inf
        self._expire_at = math.inf  # no submission's time is over before
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
        """Starts (or, with `resume`, continues) a program. `tools` go before those that every program may call. By its
        `key`, `drop` knows this submission.

        Raises:
            RequestError: the program is not well-formed, or the state to continue is gone. Nothing was started.
        """
        if self._closed:
            raise EngineStoppedError("the engine has stopped")
        now = self._clock()
        state = self._find(program, now)
        known = {branch.id: branch.origin.scope == 0 for branch in state.branches.values()}
        usable = {**self._tools.tools, **(tools or {})} if self._machine.calls_tools else {}
        reader = SubmissionReader(known, usable, self._patterns)
        block = reader.read(program.ops)  # raises before anything has changed
        run = Run(program, listener, now, state.budget.work, tools=usable, patterns=reader.patterns, key=key)
        self._expire_at = min(self._expire_at, run.deadline)
        self.num_programs += 1
        state.used = now
        state.runs.append(run)
        self._states[program.id] = state
        self._states.move_to_end(program.id)
        run.work += block.work
        with self._interpreter.contained(state):
            enqueue(state, run, block)
            run.num_left += 1  # so that it does not end before its cancels are done
            for item in block.items:
                if isinstance(item.op, Cancel):
                    self._interpreter.cancel(state, run, state.branches[item.op.branch], item.index)
            run.num_left -= 1
            if run.num_left == 0:
                self._finish(state, run)
            self._interpreter.walk(state)
        self._trim(now)

    def expire(self) -> None:
        """Ends the programs whose time is over, and drops the idle states that are old; to be called as time passes, at
        the latest after `sleep_s`."""
        now = self._clock()
        if now >= self._expire_at:
            for state in list(self._states.values()):
                if any(now >= run.deadline for run in state.runs):
                    with self._interpreter.contained(state):
                        self._interpreter.check_time(state)
            deadlines = (run.deadline for state in self._states.values() for run in state.runs)
            self._expire_at = min(deadlines, default=math.inf)
        if self._states and now >= self._look_at:
            self._look_at = now + LOOK_S
            self._trim(now)

    def sleep_s(self) -> float | None:
        """Seconds until `expire` has something to do; None: there are no states."""
        return max(min(self._look_at, self._expire_at) - self._clock(), 0.0) if self._states else None

    def drop(self, program_id: str, key: object = None) -> None:
        """Stops a program and forgets its state, kept or not; its submissions in flight fail. Unknown ids are ignored.

        This is also what happens when a client leaves: see `runtime.client.streams.aiterate`. It gives the `key` of its
        submission, without which the program goes on: that may have been refused, and the program be another's.
        """
        state = self._states.get(program_id)
        if state is not None and (key is None or any(run.key == key for run in state.runs)):
            self._fail(state, None, 0, ErrorInfo(code="aborted", message="the program was dropped"))

    def drop_all(self) -> None:
        """Stops all programs."""
        for program_id in list(self._states):
            self.drop(program_id)

    def close(self) -> None:
        """Fails whatever is running and forgets every state; no more is taken."""
        self._closed = True
        error = ErrorInfo(code="engine_dead", message="the engine has stopped")
        for state in list(self._states.values()):
            try:
                self._fail(state, None, 0, error)
            except Exception:
                logger.exception("program %s did not end in order", state.id)
        self._machine.close()

    def _find(self, program: Program, now: float) -> State:
        state = self._states.get(program.id)
        if state is not None and not state.runs and now - state.used >= self._machine.budget.life_s:
            del self._states[program.id]
            state = None
        if program.resume:
            if state is None or state.namespace != program.namespace or not state.kept:
                life_s = self._machine.budget.life_s
                after = "" if math.isinf(life_s) else f"after {life_s / 60:g} minutes, or "
                raise RequestError(
                    f"the program's state is gone (dropped {after}when too many were kept, or the engine was started "
                    "again)",
                    code="state_not_found",
                    param="id",
                )
            return state
        if state is not None:
            raise RequestError(f"a program with id {program.id!r} exists already", param="id")
        return State(program.id, program.namespace, now, self._machine.blank(), self._machine.budget)

    def _trim(self, now: float) -> None:
        """Drops idle states that are old; while there are too many, the least recently used of who has the most."""
        idle = [state for state in self._states.values() if not state.runs]
        budget = self._machine.budget
        while idle and now - idle[0].used >= budget.life_s:
            del self._states[idle.pop(0).id]
        num_tokens = sum(state.num_tokens for state in idle)
        while len(idle) > self._max_states or num_tokens > budget.kept_tokens:
            shares: Counter[str] = Counter()
            for state in idle:
                shares[tenant_of(state.namespace)] += state.num_tokens if num_tokens > budget.kept_tokens else 1
            most = max(shares.values())
            dropped = next(state for state in idle if shares[tenant_of(state.namespace)] == most)
            idle.remove(dropped)
            num_tokens -= dropped.num_tokens
            del self._states[dropped.id]

    def _finish(self, state: State, run: Run) -> None:
        """A submission has done all its instructions."""
        now = self._clock()
        run.over = True
        state.runs.remove(run)
        state.used = now
        self._states.move_to_end(state.id)  # the least recently used comes first
        state.kept = state.kept and run.program.keep
        if not state.kept and not state.runs:
            del self._states[state.id]
            self._machine.forget(state, run)
        opened = [branch for branch in state.branches.values() if branch.started]
        texts = {branch.id: branch.content.text for branch in opened}
        counts = {branch.id: self._machine.num_tokens(branch) for branch in opened}
        run.tell(
            Done(
                usage=run.usage,
                requests=run.num_requests,
                texts=texts,
                num_tokens={branch_id: count for branch_id, count in counts.items() if count is not None},
                elapsed_s=now - run.started,
            )
        )

    def _fail(self, state: State, step: Step | None, branch_id: int, info: ErrorInfo) -> None:
        """The program has failed: all its branches stop, every submission in flight hears why."""
        self._states.pop(state.id, None)
        runs, state.runs = state.runs, []
        try:
            self._interpreter.stop(list(state.branches.values()))
        finally:  # whatever becomes of the engine, who waits is told
            for run in runs:
                run.over = True
                index = step.index if step is not None and run is step.run else None
                run.tell(Failed(error=info, branch=branch_id, index=index, usage=run.usage))
