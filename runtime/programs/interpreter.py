"""Interpreter of programs: executes instructions in all branches until each branch waits for something.

It alone defines the control flow: the order of instructions, branches, conditions, loops, references and failures. How
text, values and tool calls come about is the machine's (`machine.Machine`).
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from ...constrain.workers.turns import FairQueue
from ...radix import tenant_of
from ..protocol.condition import Condition, Hole, NotYetError, Ref, Times, holds, search_cost
from ..protocol.errors import BoughError, EngineError, ErrorInfo, RequestError
from ..protocol.patterns import Matching, PatternCache
from ..protocol.program import (
    Assign,
    BranchRestarted,
    CallTools,
    Cancel,
    Fork,
    Gen,
    Join,
    Part,
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
from .costs import (
    COPIED_PER_WORK,
    ENCODED_PER_WORK,
    LOOKS_PER_RETRY,
    MATCHING_TOKENS,
    MAX_GIVEN_AGAIN,
    MAX_SLICE_S,
    MAX_SLICE_WORK,
    NAME_TOKENS,
    PARTS_PER_WORK,
    PATTERN_CHARS_PER_WORK,
    RESTART_WORK,
    SEARCHED_PER_WORK,
)
from .failures import CANCELLED, alive, begin_anew, end, isolated, may_begin_anew, num_given, subtree, within_isolated
from .machine import Machine
from .state import NEVER, Barrier, Branch, Failure, Frame, Pending, Run, Slice, State, Step, enter, pass_over
from .validate import Block

logger = logging.getLogger("bough.engine")

Entered = tuple[Block, Step | None] | None
"""The block that an instruction enters, and the step that follows it in a loop."""

Post = Callable[[Callable[[], None]], None]
"""Schedules a function on the interpreter's thread."""


class Interpreter:
    """Executes programs on `machine`, on one thread. Branches take turns, each until it has to wait; the order is
    deterministic if the machine's values come in a fixed order.

    With `post`, programs run only in a slice of time before each step of the engine, which they share, by tenants in
    turn; nothing runs while the engine sends the outputs of a step.

    finished    called with a submission whose instructions are done
    failed      called with a program that has failed, and the step, branch and error
    post        schedules a function before the engine's next step, or after it if called from such a function; None:
                programs run without pausing for the engine
    """

    def __init__(
        self,
        machine: Machine,
        clock: Callable[[], float],
        patterns: PatternCache,
        *,
        finished: Callable[[State, Run], None],
        failed: Callable[[State, Step | None, int, ErrorInfo], None],
        post: Post | None,
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._patterns = patterns
        self._finished = finished
        self._failed = failed
        self._post = post
        self._slice = Slice()
        self._later: FairQueue[Callable[[], None]] = FairQueue()
        self._posted = self._in_turn = False

    def walk(self, state: State) -> None:
        """Executes all branches as far as possible. A program whose branches all wait for each other fails.

        With `post` this pauses at the end of the slice, or is left to the next turn. Called from within a walk, it only
        marks that there is more to do.
        """
        state.walk.stirred, state.walk.certain = True, False
        if state.walk.active or state.walk.held:
            return
        if self._post is None or self._in_turn:
            self._go_on(state)
        else:
            self._go_on_later(state)

    def cancel(self, state: State, run: Run, branch: Branch, index: int) -> None:
        """Cancels a branch and those forked from it."""
        if branch.failure is None:
            info = ErrorInfo(code=CANCELLED, message=f"branch {branch.id} was cancelled")
            self._end(state, alive(state, branch), info, run, index)

    def stop(self, branches: list[Branch]) -> None:
        """Cancels the requests and calls that branches wait for."""
        for branch in branches:
            running, branch.running = branch.running, set()
            for call_id in running:
                self._machine.cancel(call_id)

    # Ends of instructions that waited for a call

    def ended(self, frame: Frame) -> None:
        with self.contained(frame.state):
            self._done(frame, None)
            self.walk(frame.state)

    def failed(self, frame: Frame, info: ErrorInfo) -> None:
        with self.contained(frame.state):
            self._fail(frame.state, frame.branch, frame.step, info)
            self.walk(frame.state)

    @contextmanager
    def contained(self, state: State) -> Iterator[None]:
        """Fails only this program on an unexpected exception, which is a bug."""
        try:
            yield
        except Exception:
            logger.exception("a program failed")
            self._failed(state, None, 0, ErrorInfo(code="internal_error", message="the program failed"))

    def pause(self, state: State) -> None:
        if self._slice.over(state):
            raise PausedError

    # Walking

    def _go_on(self, state: State) -> None:
        """Walks for a slice of time, then leaves the rest for after the engine's next step."""
        if self._post is not None:
            self._slice = Slice(state.work + MAX_SLICE_WORK, time.monotonic() + MAX_SLICE_S)
        state.walk.active = True
        try:
            self.check_time(state)
            while state.runs:
                if state.walk.attempts is None:
                    state.walk.attempts = self._attempts(state)
                for _ in state.walk.attempts:
                    if self._slice.over(state):
                        self._go_on_later(state)
                        return
                state.walk.attempts = None
                if not state.runs or any(branch.running for branch in state.branches.values()):
                    return
                if state.walk.certain:
                    self._fail_stuck(state)
                else:  # before that, try everything once more from its beginning: known results may be out of date
                    state.walk.certain = True
                    for branch in state.branches.values():
                        branch.pending = None
        finally:
            state.walk.active = False

    def _go_on_later(self, state: State) -> None:
        if not state.walk.posted:
            state.walk.posted = True
            self.later(state.namespace, partial(self._go_on_now, state))

    def _go_on_now(self, state: State) -> None:
        state.walk.posted = False
        if not state.walk.held:
            with self.contained(state):
                self._go_on(state)

    def later(self, namespace: str, work: Callable[[], None]) -> None:
        """Schedules `work`, which takes a slice of time at most, for its tenant's turn; without `post`, does it now."""
        if self._post is None:
            work()
            return
        self._later.push(tenant_of(namespace), work)
        self._post_turn(self._post)

    def _post_turn(self, post: Post) -> None:
        if not self._posted:
            self._posted = True
            post(partial(self._take_turn, post))

    def _take_turn(self, post: Post) -> None:
        """Runs scheduled work until the slice is over, but one piece in any case."""
        self._posted, self._in_turn = False, True
        began = before = time.monotonic()
        try:
            for _ in range(len(self._later)):
                if before - began >= MAX_SLICE_S or (taken := self._later.pop()) is None:
                    break
                tenant, work = taken
                try:
                    work()
                finally:
                    now = time.monotonic()
                    self._later.end(tenant, now - before)
                    before = now
        finally:
            self._in_turn = False
            if len(self._later):
                self._post_turn(post)

    def check_time(self, state: State) -> None:
        """Fails a program whose deadline has passed; without a call in flight, nothing else would notice."""
        for run in list(state.runs):
            try:
                run.time_left(self._clock())
            except BoughError as error:
                if run in state.runs:
                    self._failed(state, None, 0, self._machine.describe(error))

    def _fail_stuck(self, state: State) -> None:
        """Resolves a deadlock of all branches: fails an isolated one if there is one, else the program."""
        stuck, found = [b for b in state.branches.values() if b.ready], within_isolated(state)
        branch = next((each for each in stuck if each.id in found), stuck[0])
        step = branch.queue[0]
        assert isinstance(step, Step)  # a started branch passes barriers
        message = "the instruction waits for a branch that waits for it, or that never begins"
        self._fail(state, branch, step, ErrorInfo(code="invalid_program", message=message, param="ops"))

    def _attempts(self, state: State) -> Iterator[None]:
        """Tries the branches in turn until none can go on; yields after each attempt, so that the caller may pause."""
        walk = state.walk
        walk.stirred = True
        while walk.stirred and state.runs:
            walk.stirred = False
            walk.num_looked += len(state.branches)
            for branch in [branch for branch in state.branches.values() if branch.started]:
                while branch.queue and branch.ready and state.runs:
                    if not self._advance(state, branch):
                        yield
                        break
                    walk.stirred = True
                    yield

    def _advance(self, state: State, branch: Branch) -> bool:
        """Executes a branch's next instruction; returns False if it has to wait, or has cancelled its own branch."""
        step = branch.queue[0]
        if isinstance(step, Barrier):
            step.reach(branch)
            branch.queue.popleft()
            return True
        if branch.pending is not None and self._waits(state, branch, branch.pending):
            return False
        walk, num_tokens = state.walk, branch.content.length
        frame = Frame(state, branch, step, self)
        try:
            if walk.num_looked >= COPIED_PER_WORK:
                work, walk.num_looked = divmod(walk.num_looked, COPIED_PER_WORK)
                frame.spend(work)
            try:
                entered = self._do(frame)
            except PausedError:
                self._count_added(frame, num_tokens)
                raise
            if branch.failure is not None:  # it has cancelled itself
                return False
            self._count_added(frame, num_tokens)
        except NotYetError as error:
            if error.of:
                branch.pending = branch.pending or Pending(step)
                branch.pending.lacks = list(error.of)
            return False
        except PausedError:
            walk.stirred, walk.certain = True, False
            return False
        except BoughError as error:
            self._fail(state, branch, step, self._machine.describe(error))
            return True
        except Exception:
            logger.exception("an instruction of a program failed")
            self._fail(state, branch, step, ErrorInfo(code="internal_error", message="the instruction failed"))
            return True
        walk.certain = False
        if not branch.running:
            self._done(frame, entered)
        return True

    def _count_added(self, frame: Frame, num_before: int) -> None:
        """Counts what an instruction has appended after the first `num_before` tokens."""
        num_added = frame.branch.content.length - num_before
        if num_added:
            frame.state.add_tokens(num_added, frame.branch)
            self._machine.check_length(frame.branch)

    def _waits(self, state: State, branch: Branch, pending: Pending) -> bool:
        """True if the branch's next instruction still lacks one of the values that it lacked when it was tried."""
        state.walk.num_looked += LOOKS_PER_RETRY
        while pending.lacks:
            if lacks(pending.lacks[-1], branch, state.branches):
                return True
            pending.lacks.pop()
        return False

    def _done(self, frame: Frame, entered: Entered) -> None:
        """Completes an instruction: queues the block it enters, and ends the submission if it was the last one."""
        state, branch, run = frame.state, frame.branch, frame.run
        branch.queue.popleft()
        branch.pending = None
        branch.num_ops += 1
        if entered is not None:
            block, again = entered
            enter(state, frame.step, block, branch, again=again)
            state.walk.stirred = True
        run.num_left -= 1
        if run.num_left == 0:
            self._finished(state, run)

    # Ends

    def _fail(self, state: State, branch: Branch, step: Step, info: ErrorInfo) -> None:
        """Handles a failed instruction: restarts the isolated branch around it, or ends it, or fails the program."""
        run, root = step.run, isolated(state, branch)
        if root is None or run.must_end(self._clock()):
            self._failed(state, step, branch.id, info)
            return
        members = subtree(state, root) if root.origin.retries else []
        if not members or not may_begin_anew(members):
            self._end(state, alive(state, root), info, run, step.index)
            return
        if num_given(members) > MAX_GIVEN_AGAIN:
            message = f"branch {root.id} has failed, but more than {MAX_GIVEN_AGAIN} instructions cannot begin anew"
            again = ErrorInfo(code="program_too_long", message=f"{message}: {info.message}", param="ops")
            self._failed(state, step, branch.id, again)
            return
        try:
            state.spend(run, RESTART_WORK + len(members) + num_given(members) // PARTS_PER_WORK)
        except BoughError as error:
            self._failed(state, step, branch.id, self._machine.describe(error))
            return
        self.stop(members)
        concerned = begin_anew(state, members, run)
        kept = {member.id: dict(member.turns) for member in members if member.turns}
        event = BranchRestarted(branch=root.id, attempt=root.origin.attempts[-1], error=info, kept=kept)
        state.walk.stirred = True
        for each in [each for each in state.runs if each in concerned]:
            each.tell(event)
        self._finish_empty(state)

    def _end(self, state: State, members: list[Branch], info: ErrorInfo, run: Run, index: int | None) -> None:
        self.stop(members)
        state.work += len(members)
        run.work += len(members)
        failure = Failure(members[0].id, info)
        concerned = end(members, failure) | {run}
        state.walk.stirred = True
        for each in list(state.runs):
            if each in concerned:
                each.tell_failure(failure, index if each is run else None)
        self._finish_empty(state)

    def _finish_empty(self, state: State) -> None:
        for run in list(state.runs):
            if run.num_left == 0:
                self._finished(state, run)

    # Instructions

    def _do(self, frame: Frame) -> Entered:
        """Executes one instruction, or starts it; returns the block that it enters.

        Raises:
            NotYetError: it has to wait for a value or a join.
            PausedError: the slice is over; it continues in the next one.
            BoughError: it has failed.
        """
        match frame.op:
            case Text() as op:
                self._text(frame, op)
            case RoleBegin(role=role):
                self._machine.open_message(frame, role)
            case RoleEnd():
                self._machine.close_message(frame)
            case Assign() as op:
                self._assign(frame, op)
            case Fork() as op:
                self._fork(frame, op)
            case Join() as op:
                self._join(frame, op)
            case When(condition=condition):
                return self._when(frame, condition)
            case Repeat() as op:
                return self._repeat(frame, op)
            case Gen() | Select():
                self._machine.call(frame)
            case Use() as op:
                self._use(frame, op)
            case CallTools():
                self._machine.call_tools(frame)
            case Cancel():
                self.cancel(frame.state, frame.run, frame.branch, frame.step.item.index)
        frame.spend(1)
        return None

    def _text(self, frame: Frame, op: Text) -> None:
        frame.spend(frame.step.item.work)
        room = self._machine.room(frame.branch)
        text = write(op.parts, frame.branch, frame.state.branches, max_length=room)
        frame.spend(len(text) // ENCODED_PER_WORK)
        if text:
            self._machine.append_text(frame, text)

    def _assign(self, frame: Frame, op: Assign) -> None:
        state, branch = frame.state, frame.branch
        frame.spend(frame.step.item.work)
        text = write(op.parts, branch, state.branches, max_length=state.budget.tokens)
        frame.spend(len(text) // (ENCODED_PER_WORK if op.tell else COPIED_PER_WORK))
        state.add_tokens(len(text), branch)
        state.add_values(1, branch)
        branch.keep(op.name, text)
        if op.tell:
            told = Value(branch=branch.id, name=op.name, text=text) if op.parts else Skipped(branch.id, op.name)
            frame.run.listener(told)

    def _use(self, frame: Frame, op: Use) -> None:
        frame.spend(frame.step.item.work)
        texts: dict[str, str] = {}
        room = frame.state.budget.argument_chars
        for name, parts in op.arguments:
            texts[name] = write(parts, frame.branch, frame.state.branches, max_length=room)
            room -= len(texts[name])
            frame.spend(len(texts[name]) // COPIED_PER_WORK)
        self._machine.use(frame, texts)

    def _fork(self, frame: Frame, op: Fork) -> None:
        """Starts the children with the parent's tokens, which they share.

        Their requests share the prefix's pages when they are admitted, as any requests with equal tokens do:
        `Scheduler._awaits_prefix`, `PrefixCache.open`.
        """
        state, branch = frame.state, frame.branch
        pending, size = branch.pending_of(frame.step), branch.content.size
        if num_names := branch.values.num_to_merge:
            frame.spend(num_names // COPIED_PER_WORK)
            state.add_tokens(num_names * NAME_TOKENS, branch)
        for number in op.children[pending.num_done :]:
            if pending.num_done:
                frame.pause()
            pending.num_done += 1
            frame.spend(1)
            child = state.branches[number]
            if child.failure is not None:
                continue
            state.add_tokens(size, child, shared=True)
            child.start_from(branch)
            state.branches[number] = state.branches.pop(number)  # branches take turns in the order in which they start
            state.walk.stirred = True
            if child.origin.retries:
                members = subtree(state, child)
                frame.spend(sum(1 + len(member.turns) for member in members) // PARTS_PER_WORK)
                child.origin.turns = {member.id: Counter(member.turns) for member in members if member.turns}
                num_names = sum(map(len, child.origin.turns.values()))
                state.add_tokens(num_names * NAME_TOKENS, child)

    def _join(self, frame: Frame, op: Join) -> None:
        branch, step = frame.branch, frame.step
        pending, index = branch.pending_of(step), step.item.index
        for number in op.children[pending.num_done :]:
            if not step.barriers[index, number].passed:
                raise NotYetError
            pending.num_done += 1
        for number in op.children[pending.num_appended :] if op.mode == "append" else ():
            if pending.num_appended:
                frame.pause()
            pending.num_appended += 1
            frame.spend(1)
            barrier = step.barriers[index, number]
            if barrier.failed:
                continue
            assert barrier.child is not None
            frame.spend((barrier.child.content.num_pieces + barrier.child.values.size) // COPIED_PER_WORK)
            num_tokens, num_values = branch.content.length, branch.values.num_made
            branch.adopt(barrier.child, barrier)
            self._machine.check_length(branch)
            frame.spend((branch.content.length - num_tokens) // COPIED_PER_WORK)
            frame.state.add_values(branch.values.num_made - num_values, branch)

    def _when(self, frame: Frame, condition: Condition) -> Entered:
        then, otherwise = frame.step.item.blocks
        pending = frame.pending
        if pending.holds is None:
            found = self._holds(frame, condition)
            pending.holds, pending.matches, pending.found = found, {}, {}
        entered, passed = (then, otherwise) if pending.holds else (otherwise, then)
        for number, name in passed.values[pending.num_done :]:
            if pending.num_done:
                frame.pause()
            pending.num_done += 1
            frame.spend(1)
            frame.run.tell(Skipped(number, name))
        frame.spend(1 + entered.work + passed.work)
        pass_over(frame.state, passed)
        return entered, None

    def _repeat(self, frame: Frame, op: Repeat) -> Entered:
        state, branch, step = frame.state, frame.branch, frame.step
        item, body = step.item, step.item.blocks[0]
        if not step.turns:
            frame.spend(len(body.values) // PARTS_PER_WORK)
            branch.inside.append(item)
            for number, name in body.values:
                state.branches[number].looping.setdefault(name, []).append(item)
        elif step.turns >= op.at_most or self._holds(frame, op.until):
            frame.spend(1 + len(body.values) // PARTS_PER_WORK)
            branch.inside.remove(item)
            for number, name in body.values:
                state.branches[number].looping[name].remove(item)
            state.walk.stirred = True
            return None
        frame.spend(1 + body.work)
        return body, Step(step.run, item, step.barriers, step.turns + 1, step.known)

    def _holds(self, frame: Frame, condition: Condition) -> bool:
        state, run = frame.state, frame.run
        values = ConditionValues(self._patterns, frame, until=self._slice.until)
        try:
            found = holds(condition, values)
        finally:
            state.work += values.work
            run.work += values.work
        frame.spend(1 + frame.step.item.work)
        return found


# Values that instructions refer to


def look_up(ref: Ref, reader: Branch, branches: Mapping[int, Branch]) -> str:
    """Returns the value that `ref` has for an instruction of `reader`: the latest one of that name.

    If a loop makes the value, readers inside it get the latest one; those outside wait until the loop is over.

    Raises:
        NotYetError: the value is still to come.
        EngineError: its branch has failed or was cancelled.
        RequestError: it will never come.
    """
    source = branches.get(ref.branch)
    if source is not None and ref.name in source.values:
        looping = source.looping.get(ref.name)
        if looping and source.failure is None and not all(loop in reader.inside for loop in looping):
            raise NotYetError(ref)
        return source.values[ref.name]
    if source is not None and source.failure is not None:
        message = f"there is no value {ref.name!r}: branch {ref.branch} has failed: {source.failure.error.message}"
        raise EngineError(message, code="branch_failed", param="ops")
    if source is None or source.origin.scope == NEVER or source.settled or source is reader:
        raise RequestError(f"there is no value named {ref.name!r} in branch {ref.branch}", param="ops")
    raise NotYetError(ref)


def count(name: Times, reader: Branch, branches: Mapping[int, Branch]) -> int:
    """Returns how many values of a name a branch has made.

    Raises:
        NotYetError: another branch may still make more.
    """
    source = branches.get(name.branch)
    if source is None or source.origin.scope == NEVER:
        return 0
    if source is not reader and not source.settled:
        raise NotYetError(name)
    return source.values.made[name.name]


def lacks(of: Ref | Times, reader: Branch, branches: Mapping[int, Branch]) -> bool:
    """True if an instruction of `reader` that needs `of` still has to wait for it."""
    try:
        look_up(of, reader, branches) if isinstance(of, Ref) else count(of, reader, branches)
    except NotYetError:
        return True
    except BoughError:
        pass
    return False


def write(
    parts: tuple[Part, ...], reader: Branch, branches: Mapping[int, Branch], *, max_length: float = math.inf
) -> str:
    """Returns the text of `parts`, with references replaced by their values.

    Raises:
        NotYetError: a value is still to come; the error names all that are.
        EngineError, RequestError: see `look_up`; or the text has more than `max_length` characters.
    """
    texts: list[str] = []
    room = max_length
    for index, part in enumerate(parts):
        assert not isinstance(part, Hole)
        try:
            text = part if isinstance(part, str) else look_up(part, reader, branches)
        except NotYetError as error:
            later = (each for each in parts[index + 1 :] if isinstance(each, Ref))
            raise NotYetError(*error.of, *(each for each in later if lacks(each, reader, branches))) from None
        room -= len(text)
        if room < 0:  # references can name a long value many times
            message = f"the text has more than {max_length:g} characters, more than there is room for"
            raise RequestError(message, code="context_length_exceeded", param="ops")
        texts.append(text)
    return "".join(texts)


class ConditionValues:
    """Values, counts and comparisons for a condition of the instruction `frame`, which is charged for the work.

    The results of searches and pattern matches are kept in `Pending`, so that an instruction that is tried again does
    not repeat them. A match pauses at the time `until`, and any but the first comparison where the frame has to pause.
    """

    def __init__(self, patterns: PatternCache, frame: Frame, *, until: float) -> None:
        self._patterns = patterns
        self._frame = frame
        self._pending = frame.pending
        self._until = until
        self._max_chars = frame.state.budget.compared_chars
        self._num_begun = 0
        self._num_asked = 0
        self._num_compared = 0

    @property
    def work(self) -> int:
        """Units of work for the values and counts read so far."""
        return self._num_asked // PARTS_PER_WORK + self._num_compared // COPIED_PER_WORK

    def text(self, ref: Ref) -> str:
        self._num_asked += 1
        text = look_up(ref, self._frame.branch, self._frame.state.branches)
        self._num_compared += len(text)
        if self._num_compared > self._max_chars:
            message = f"the condition compares more than {self._max_chars} characters, which is the limit"
            raise EngineError(message, code="condition_too_complex", param="ops")
        return text

    def times(self, name: Times) -> int:
        self._num_asked += 1
        return count(name, self._frame.branch, self._frame.state.branches)

    def contains(self, text: str, part: str) -> bool:
        """True if `text` contains `part`. Raises PausedError if the slice is over before the search."""
        found = self._pending.found.get((text, part))
        if found is None:
            self._begin()
            self._frame.spend(search_cost(text, part) // SEARCHED_PER_WORK)
            found = self._pending.found[text, part] = part in text
        return found

    def _begin(self) -> None:
        """Pauses before each comparison but the first, so that each slice makes progress."""
        if self._num_begun:
            self._frame.pause()
        self._num_begun += 1

    def matches(self, pattern: str, text: str) -> bool:
        """True if `text` matches `pattern`. Raises PausedError if the slice is over before that is known."""
        matching = self._pending.matches.get((pattern, text))
        if matching is None:
            self._begin()
            matching = Matching(self._patterns.get(pattern), text)
            self._frame.spend(1 + len(text) // PATTERN_CHARS_PER_WORK)
            self._pending.matches[pattern, text] = matching
        found = matching.done_by(self._until)
        if found is None:
            if matching.release is None:  # counted as memory until the match is done or given up
                hold = self._frame.state.account.add
                hold(MATCHING_TOKENS)
                matching.release = weakref.finalize(matching, hold, -MATCHING_TOKENS)
            raise PausedError
        if matching.release is not None:
            matching.release()
        return found


class PausedError(Exception):
    """Raised by an instruction that does not fit into the program's slice of time and continues in the next one."""
