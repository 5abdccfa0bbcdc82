"""Walks the branches of programs: does what can be done now, in all of them, until each waits for something."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from ..engine.engine import Engine
from ..protocol.decide import NotYetError
from ..protocol.errors import BoughError, ErrorInfo, to_info
from ..protocol.program import BranchRestarted
from ..tools.registry import ToolRunner
from .branch import Barrier, Branch, Failure, Pending, Step
from .failures import CANCELLED, alive, begin_anew, end, isolated, may_begin_anew, num_given, subtree, within_isolated
from .instructions import Entered, Instructions, Slice
from .queues import enter
from .references import PausedError, lacks
from .state import RESTART_WORK, Run, State
from .tool_calls import Post
from .validate import COPIED, PARTS_OF_WORK

logger = logging.getLogger("bough.engine")

MAX_AT_ONCE = 1024
"""Work (see MAX_WORK) after which the engine makes a step before a program goes on."""
MAX_SLICE_S = 0.02
"""The same in seconds: what an instruction costs is not always known before."""
LOOKED = 64
"""Looking whether an instruction can go on takes as long as looking at so many branches that have nothing to do."""


class Walker:
    """Lives in the engine's thread. `finished` hears of stretches that are done, `failed` of programs that are over.

    Without `post` and `runner` there are no tools, and programs do not make way for the engine's steps.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float],
        *,
        finished: Callable[[State, Run], None],
        failed: Callable[[State, Step | None, int, ErrorInfo], None],
        post: Post | None,
        runner: ToolRunner | None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._finished = finished
        self._failed = failed
        self._post = post
        self._max_tokens = engine.info.max_request_tokens
        self._instructions = Instructions(
            engine,
            clock,
            ended=self._ended,
            failed=self._fail_and_walk,
            cancel=self.cancel,
            post=post,
            runner=runner,
        )
        self.calls, self.tools = self._instructions.calls, self._instructions.tools

    def close(self) -> None:
        """Waits for nothing that is beside the engine."""
        self._instructions.close()

    def walk(self, state: State) -> None:
        """Goes on in all branches. A program in which each waits for another fails.

        After so much work or time the engine makes a step first. Called from within a walk, it only says that there is
        more to look at.
        """
        state.stirred, state.certain = True, False
        if not state.in_walk:
            self._go_on(state)

    def _go_on(self, state: State) -> None:
        state.in_walk = True
        try:
            if not self._slice(state):
                self._go_on_later(state)
        finally:
            state.in_walk = False

    def _slice(self, state: State) -> bool:
        """Walks for a while; whether all was done that can be done."""
        if self._post is not None:
            self._instructions.slice = Slice(state.work + MAX_AT_ONCE, time.monotonic() + MAX_SLICE_S)
        self._check_time(state)
        while state.runs:
            if state.walking is None:
                state.walking = self._rounds(state)
            for _ in state.walking:
                if self._instructions.slice.over(state):
                    return False
            state.walking = None
            if not state.runs or any(branch.running for branch in state.branches.values()):
                return True
            if state.certain:
                self._fail_stuck(state)
            else:  # what was found before may be gone
                state.certain = True
                for branch in state.branches.values():
                    branch.pending = None
        return True

    def _fail_stuck(self, state: State) -> None:
        """Each of the branches waits for another: an isolated one fails if there is one, else the program does."""
        stuck, found = [b for b in state.branches.values() if b.ready], within_isolated(state)
        branch = next((each for each in stuck if each.id in found), stuck[0])
        step = branch.queue[0]
        assert isinstance(step, Step)  # a started branch passes barriers
        message = "the instruction waits for a branch that waits for it, or that never begins"
        self.fail(state, branch, step, ErrorInfo(code="invalid_program", message=message, param="ops"))

    def _go_on_later(self, state: State) -> None:
        if state.posted:
            return
        assert self._post is not None

        def go_on() -> None:
            state.posted = False
            self._go_on(state)

        state.posted = True
        self._post(go_on)

    def _check_time(self, state: State) -> None:
        """Ends a program whose time is over while it calls nobody, who would notice."""
        for run in list(state.runs):
            try:
                run.time_left(self._clock())
            except BoughError as error:
                if run in state.runs:
                    self._failed(state, None, 0, to_info(error))

    def cancel(self, state: State, run: Run, branch: Branch, index: int) -> None:
        """Ends a branch and those forked from it."""
        if branch.failure is None:
            info = ErrorInfo(code=CANCELLED, message=f"branch {branch.id} was cancelled")
            self._end(state, alive(state, branch), info, run, index)

    def fail(self, state: State, branch: Branch, step: Step, info: ErrorInfo) -> None:
        """An instruction has failed: ends the isolated branch around it, or has it begin anew, or ends the program."""
        run = step.stretch
        assert isinstance(run, Run)
        root = isolated(state, branch)
        if root is None or run.must_end(self._clock()):
            self._failed(state, step, branch.id, info)
            return
        members = subtree(state, root) if root.retries else []
        if not members or not may_begin_anew(members):
            self._end(state, alive(state, root), info, run, step.index)
            return
        try:
            state.spend(run, RESTART_WORK + len(members) + num_given(members) // PARTS_OF_WORK)
        except BoughError as error:
            self._failed(state, step, branch.id, to_info(error))
            return
        self.stop(members)
        event = BranchRestarted(branch=root.id, attempt=root.attempts[-1] + 1, error=info)
        concerned = begin_anew(state, members, run)
        state.stirred = True
        for each in [each for each in state.runs if each in concerned]:
            each.tell(event)
        self._finish_empty(state)

    def stop(self, branches: list[Branch]) -> None:
        """Aborts the requests of branches, and leaves their tools to themselves."""
        for branch in branches:
            running, branch.running = branch.running, set()
            for call_id in running:
                self._instructions.stop(call_id)

    def _end(self, state: State, members: list[Branch], info: ErrorInfo, run: Run, index: int | None) -> None:
        self.stop(members)
        state.work += len(members)
        run.work += len(members)
        failure = Failure(members[0].id, info)
        concerned = end(members, failure) | {run}
        state.stirred = True
        for each in list(state.runs):
            if each in concerned:
                each.tell_failure(failure, index if each is run else None)
        self._finish_empty(state)

    def _finish_empty(self, state: State) -> None:
        for run in list(state.runs):
            if run.num_left == 0:
                self._finished(state, run)

    # Walking

    def _rounds(self, state: State) -> Iterator[None]:
        """Tries the branches in turn until none can go on; after each attempt the caller may pause."""
        state.stirred = True
        while state.stirred and state.runs:
            state.stirred = False
            state.num_looked += len(state.branches)
            for branch in list(state.branches.values()):
                while state.runs and branch.ready:
                    if not self._advance(state, branch):
                        yield
                        break
                    state.stirred = True
                    yield

    def _advance(self, state: State, branch: Branch) -> bool:
        """Does a branch's next instruction; False if it has to wait, or has failed."""
        step = branch.queue[0]
        if isinstance(step, Barrier):
            step.reach(branch)
            branch.queue.popleft()
            return True
        if branch.pending is not None and self._waits(state, branch, branch.pending):
            return False
        num_tokens = len(branch.tokens)
        try:
            self._pay_looking(state, step)
            entered = self._instructions.do(state, branch, step)
            if branch.failure is not None:  # it has cancelled itself
                return False
            state.add_tokens(len(branch.tokens) - num_tokens, branch)
            branch.check_length(self._max_tokens)
        except NotYetError as error:
            if error.of:
                branch.pending = branch.pending or Pending(step)
                branch.pending.lacks = list(error.of)
            return False
        except PausedError:
            state.stirred, state.certain = True, False
            return False
        except BoughError as error:
            self.fail(state, branch, step, to_info(error))
            return False
        except Exception:
            logger.exception("an instruction of a program failed")
            self.fail(state, branch, step, ErrorInfo(code="internal_error", message="the instruction failed"))
            return False
        state.certain = False
        if not branch.running:
            self._done(state, branch, step, entered)
        return True

    def _waits(self, state: State, branch: Branch, pending: Pending) -> bool:
        """Whether the branch's next instruction still lacks something that it was found to lack."""
        state.num_looked += LOOKED
        while pending.lacks:
            if lacks(pending.lacks[-1], branch, state.branches):
                return True
            pending.lacks.pop()
        return False

    def _pay_looking(self, state: State, step: Step) -> None:
        """Raises EngineError: the program has its branches looked at too often."""
        assert isinstance(step.stretch, Run)
        work, state.num_looked = divmod(state.num_looked, COPIED)
        state.spend(step.stretch, work)

    def _ended(self, state: State, branch: Branch, step: Step) -> None:
        self._done(state, branch, step, None)
        self.walk(state)

    def _fail_and_walk(self, state: State, branch: Branch, step: Step, info: ErrorInfo) -> None:
        self.fail(state, branch, step, info)
        self.walk(state)

    def _done(self, state: State, branch: Branch, step: Step, entered: Entered) -> None:
        """An instruction has ended: goes on with its block or the next one, and ends the stretch if it was its last."""
        run = step.stretch
        assert isinstance(run, Run)
        branch.queue.popleft()
        branch.pending = None
        branch.num_ops += 1
        if entered is not None:
            block, again = entered
            enter(state, run, step, block, branch, again=again)
            state.stirred = True
        run.num_left -= 1
        if run.num_left == 0:
            self._finished(state, run)
