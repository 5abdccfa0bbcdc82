"""Walks the branches of programs: does what can be done now, in all of them, until each waits for something."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator

from .blocks import Block
from .branch import Barrier, Branch, Failure, Step
from .condition import Condition
from .decide import NotYetError, holds
from .engine import Engine
from .enqueue import enter, pass_over
from .errors import BoughError
from .isolation import CANCELLED, begin_anew, end, isolated, may_begin_anew, subtree
from .model_calls import ModelCalls
from .program import (
    Assign,
    BranchRestarted,
    Cancel,
    Fork,
    Gen,
    Join,
    Repeat,
    RoleBegin,
    RoleEnd,
    Select,
    Skipped,
    Text,
    Use,
    Value,
    When,
)
from .program_state import COPIED, MAX_STATE_TOKENS, RESTART_WORK, Run, State
from .references import ConditionValues, write
from .request import ErrorInfo
from .streams import to_info
from .tool_use import Post, ToolUses
from .tools import ToolRunner

logger = logging.getLogger("bough.engine")

_Entered = tuple[Block, Step | None] | None
"""The block that an instruction enters, and what comes after it in a loop."""

MAX_AT_ONCE = 1024
"""Work (see MAX_WORK) after which the engine makes a step before a program goes on."""
MAX_SLICE_S = 0.02
"""The same in seconds: what an instruction costs is not always known before."""


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
        # A text that is longer fits into no context. Some tokenizers write a few characters as one, hence the 4.
        longest = max((len(text) for text in engine.tokenizer.token_bytes if text is not None), default=1)
        self._max_tokens = engine.info.max_request_tokens
        self._max_text = 4 * longest * self._max_tokens
        self.calls = ModelCalls(engine, clock, self._ended, self._fail_and_walk)
        self.tools: ToolUses | None = None
        if runner is not None and post is not None:
            self.tools = ToolUses(
                runner,
                post,
                engine.tokenizer,
                clock,
                self._ended,
                self._fail_and_walk,
                max_text=self._max_text,
                max_tokens=self._max_tokens,
            )

    def walk(self, state: State) -> None:
        """Goes on in all branches. A program in which each waits for another fails.

        After so much work or time the engine makes a step first. Called from within a walk, it only says that there is
        more to look at.
        """
        state.stirred = True
        if state.in_walk:
            return
        state.in_walk = True
        try:
            if not self._slice(state):
                self._go_on_later(state)
        finally:
            state.in_walk = False

    def _slice(self, state: State) -> bool:
        """Walks for a while; whether all was done that can be done."""
        work, until = state.work + MAX_AT_ONCE, time.monotonic() + MAX_SLICE_S
        self._check_time(state)
        while state.runs:
            if state.walking is None:
                state.walking = self._rounds(state)
            for _ in state.walking:
                if self._post is not None and (state.work >= work or time.monotonic() >= until):
                    return False
            state.walking = None
            if not state.runs or any(branch.running for branch in state.branches.values()):
                return True
            stuck = [(b, b.queue[0]) for b in state.branches.values() if b.ready]
            branch, step = next((each for each in stuck if isolated(state, each[0]) is not None), stuck[0])
            assert isinstance(step, Step)  # a started branch passes barriers
            message = "the instruction waits for a branch that waits for it, or that never begins"
            self.fail(state, branch, step, ErrorInfo(code="invalid_program", message=message, param="ops"))
        return True

    def _go_on_later(self, state: State) -> None:
        if state.posted:
            return
        assert self._post is not None

        def go_on() -> None:
            state.posted = False
            self.walk(state)

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
            self._end(state, subtree(state, branch), info, run, index)

    def fail(self, state: State, branch: Branch, step: Step, info: ErrorInfo) -> None:
        """An instruction has failed: ends the isolated branch around it, or has it begin anew, or ends the program."""
        run = step.stretch
        assert isinstance(run, Run)
        root = isolated(state, branch)
        if root is None or run.must_end(self._clock()):
            self._failed(state, step, branch.id, info)
            return
        members = subtree(state, root)
        if not may_begin_anew(members):
            self._end(state, members, info, run, step.index)
            return
        try:
            run.spend(RESTART_WORK + len(members))
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
                if self.tools is None or not self.tools.stop(call_id):
                    self._engine.abort(call_id)

    def _end(self, state: State, members: list[Branch], info: ErrorInfo, run: Run, index: int | None) -> None:
        self.stop(members)
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
        num_tokens = len(branch.tokens)
        try:
            entered = self._do(state, branch, step)
            if branch.failure is not None:  # it has cancelled itself
                return False
            state.add_tokens(len(branch.tokens) - num_tokens, branch)
            branch.check_length(self._max_tokens)
        except NotYetError:
            return False
        except BoughError as error:
            self.fail(state, branch, step, to_info(error))
            return False
        except Exception:
            logger.exception("an instruction of a program failed")
            self.fail(state, branch, step, ErrorInfo(code="internal_error", message="the instruction failed"))
            return False
        if not branch.running:
            self._done(state, branch, step, entered)
        return True

    def _ended(self, state: State, branch: Branch, step: Step) -> None:
        self._done(state, branch, step, None)
        self.walk(state)

    def _fail_and_walk(self, state: State, branch: Branch, step: Step, info: ErrorInfo) -> None:
        self.fail(state, branch, step, info)
        self.walk(state)

    def _done(self, state: State, branch: Branch, step: Step, entered: _Entered) -> None:
        """An instruction has ended: goes on with its block or the next one, and ends the stretch if it was its last."""
        run = step.stretch
        assert isinstance(run, Run)
        branch.queue.popleft()
        branch.num_ops += 1
        if entered is not None:
            block, again = entered
            enter(state, run, step, block, branch, again=again)
            state.stirred = True
        run.num_left -= 1
        if run.num_left == 0:
            self._finished(state, run)

    def _do(self, state: State, branch: Branch, step: Step) -> _Entered:
        """Executes one instruction, or begins to; returns the block that it enters.

        Raises:
            NotYetError: nothing was done, it has to wait.
            BoughError: it has failed.
        """
        run, tokenizer = step.stretch, self._engine.tokenizer
        assert isinstance(run, Run)
        match step.item.op:
            case Text(parts=parts):
                branch.append_text(write(parts, branch, state.branches, max_length=self._max_text), tokenizer)
            case RoleBegin(role=role):
                branch.open_message(role, tokenizer)
            case RoleEnd():
                branch.close_message(tokenizer)
            case Assign(name=name, parts=parts, tell=tell):
                text = write(parts, branch, state.branches, max_length=MAX_STATE_TOKENS)
                state.add_tokens(len(text), branch)
                branch.keep(name, text)
                if tell:
                    run.listener(Value(branch=branch.id, name=name, text=text) if parts else Skipped(branch.id, name))
            case Fork() as op:
                self._fork(state, run, branch, op)
            case Join() as op:
                self._join(state, run, branch, step, op)
            case When(condition=condition):
                return self._when(state, run, branch, step, condition)
            case Repeat() as op:
                return self._repeat(state, run, branch, step, op)
            case Gen() | Select():
                self.calls.begin(state, branch, step)
            case Use():
                assert self.tools is not None
                self.tools.begin(state, branch, step)
            case Cancel():
                self.cancel(state, run, branch, step.item.index)
        self._spend(state, run, 1)
        return None

    def _fork(self, state: State, run: Run, branch: Branch, op: Fork) -> None:
        size = len(branch.tokens) + len(branch.texts) + len(branch.values)
        self._spend(state, run, len(op.children) * (1 + size // COPIED))
        for child in (state.branches[number] for number in op.children):
            if child.failure is None:
                state.add_tokens(size, child)
                child.start_from(branch)
                if child.retries:
                    child.forked_turns = {member.id: Counter(member.turns) for member in subtree(state, child)}
        state.stirred = True

    def _join(self, state: State, run: Run, branch: Branch, step: Step, op: Join) -> None:
        barriers = [step.barriers[step.item.index, child] for child in op.children]
        if not all(barrier.passed for barrier in barriers):
            raise NotYetError
        self._spend(state, run, len(barriers) + sum(len(barrier.values) for barrier in barriers) // COPIED)
        for barrier in barriers if op.mode == "append" else ():
            if not barrier.failed:
                assert barrier.child is not None
                branch.adopt(barrier.child, barrier)

    def _when(self, state: State, run: Run, branch: Branch, step: Step, condition: Condition) -> _Entered:
        then, otherwise = step.item.blocks
        holds_now = self._holds(state, run, branch, condition)
        entered, passed = (then, otherwise) if holds_now else (otherwise, then)
        pass_over(state, passed)
        for number, name in passed.values:
            run.tell(Skipped(number, name))
        return entered, None

    def _repeat(self, state: State, run: Run, branch: Branch, step: Step, op: Repeat) -> _Entered:
        item, body = step.item, step.item.blocks[0]
        if not step.turns:
            self._spend(state, run, len(body.values) // 16)
            branch.inside.append(item)
            for number, name in body.values:
                state.branches[number].looping.setdefault(name, []).append(item)
        elif step.turns >= op.at_most or self._holds(state, run, branch, op.until):
            branch.inside.remove(item)
            for number, name in body.values:
                state.branches[number].looping[name].remove(item)
            state.stirred = True
            return None
        self._spend(state, run, 1)
        return body, Step(run, item, step.barriers, step.turns + 1, step.known)

    def _holds(self, state: State, run: Run, branch: Branch, condition: Condition) -> bool:
        values = ConditionValues(run, branch, state.branches)
        found = holds(condition, values)
        self._spend(state, run, 1 + values.work)
        return found

    def _spend(self, state: State, run: Run, work: int) -> None:
        state.work += work
        run.spend(work)
