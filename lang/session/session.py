"""Session of one run of a program: sends recorded segments, keeps the results, and lets threads and tasks wait."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from ...runtime.protocol.errors import BoughError
from ...runtime.protocol.patterns import PatternCache
from ...runtime.protocol.program import (
    BranchFailed,
    BranchRestarted,
    Cancel,
    Delta,
    Done,
    Failed,
    Fork,
    Op,
    Program,
    ProgramEvent,
    Skipped,
    Value,
    named_tools,
    walk,
)
from ...runtime.protocol.request import TokenLogprob, Usage
from ...runtime.tools.registry import ToolCall
from ..backend import Backend
from ..diagnostics.errors import BackendError, ProgramError, UnsupportedError, explain, refused
from ..diagnostics.source_lines import Place, place
from ..observe.otel import RunSpans
from ..record.recorder import Recorder
from ..record.variables import Entry, Kept, Slot, Submission
from .body import Body, inside, spawn
from .replay import Replay


class Monitor:
    """Lock whose `threading.Condition` is made when the first thread waits: most programs are waited for by tasks."""

    __slots__ = ("_condition", "_lock", "_waiters")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._condition: threading.Condition | None = None
        self._waiters: list[Waiter] = []

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def wait(self) -> None:
        """Gives the lock away until another thread notifies. It must be held."""
        if self._condition is None:
            self._condition = threading.Condition(self._lock)
        self._condition.wait()

    def add_waiter(self, done: Callable[[], bool]) -> Waiter:
        """Has the task that calls it woken once `notify` finds it done. The lock must be held."""
        self._waiters.append(waiter := Waiter(done))
        return waiter

    def remove_waiter(self, waiter: Waiter) -> None:
        with self:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def notify(self, *, all_tasks: bool) -> None:
        """Wakes all threads that wait, and the tasks whose wait is over, or `all_tasks`. The lock must be held."""
        if self._condition is not None:
            self._condition.notify_all()
        if self._waiters:
            over = [waiter for waiter in self._waiters if all_tasks or waiter.done()]
            self._waiters = [waiter for waiter in self._waiters if waiter not in over]
            for waiter in over:
                waiter.wake()


class Waiter:
    """A task that waits until `done`."""

    __slots__ = ("_loop", "_thread", "done", "future")

    def __init__(self, done: Callable[[], bool]) -> None:
        self.done = done
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        if threading.get_ident() == self._thread:
            self._resolve()
        else:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Arrivals:
    """The values of a program, by branch and name. Guarded by the session's lock."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._slots: dict[tuple[int, str], Slot] = {}
        self._parents: dict[int, int] = {}
        self._isolated: set[int] = set()
        self._restarted: set[int] = set()
        self._scored: dict[Slot, list[Delta]] = {}
        self._failures: dict[int, ProgramError] = {}
        self.texts: dict[int, str] = {}
        self.num_tokens: dict[int, int] = {}
        self._told_at: dict[int, int] = {}
        self._num_events = 0
        self._patterns: PatternCache | None = None
        self._replay: tuple[tuple[int, int], Replay] | None = None

    def expect(self, slots: Iterable[Slot], submission: Submission) -> None:
        """These are made by `submission`, which is sent now."""
        for slot in slots:
            slot.submission = submission
            slot.failure = self.failure_of(slot.branch)
            self._slots[slot.branch, slot.name] = slot

    def add_branches(
        self, parent: int, children: Iterable[int], *, isolated: bool = False, restart: bool = False
    ) -> None:
        """Takes note of a fork; `isolated`: one of these fails alone; `restart`: one that fails begins anew."""
        self._parents.update(dict.fromkeys(children, parent))
        self._isolated.update(children if isolated else ())
        self._restarted.update(children if restart else ())

    def failing_alone(self, branch: int) -> int | None:
        """Returns which branch a failure of this one ends: it, or one that it was forked from. None: the program."""
        return next((line for line in self._ancestry(branch) if line in self._isolated), None)

    def may_restart(self, branch: int) -> bool:
        """Tells whether the branch, or one that it was forked from, may begin anew."""
        return any(line in self._restarted for line in self._ancestry(branch))

    def take(self, event: ProgramEvent) -> None:
        """Takes in what is about a value."""
        if not isinstance(event, Delta | Value | Skipped):
            return
        slot = self._slots.get((event.branch, event.name))
        if slot is None:
            return
        match event:
            case Delta(text=text):
                slot.add_text(text)
                if event.logprobs:
                    self._scored.setdefault(slot, []).append(event)
            case Value():
                self._scored.pop(slot, None)
                slot.add_value(event)
                self._num_events += 1
            case Skipped():
                slot.skipped = True

    def logprobs_of(self, slot: Slot) -> tuple[Sequence[TokenLogprob], Mapping[int, str]]:
        """The log-probabilities of the tokens of its value that have come so far, and these tokens' texts."""
        if slot.value is not None and not self._scored.get(slot):
            return slot.value.logprobs or (), slot.value.token_texts
        deltas = self._scored.get(slot, [])
        texts = {token: text for delta in deltas for token, text in delta.token_texts.items()}
        return [entry for delta in deltas for entry in delta.logprobs], texts

    def take_end(self, index: int, done: Done) -> None:
        """Takes what the submission `index` says branches hold at its end, unless a later one has said it already."""
        for branch, text in done.texts.items():
            if index >= self._told_at.get(branch, 0):
                self.texts[branch], self._told_at[branch] = text, index
                if branch in done.num_tokens:
                    self.num_tokens[branch] = done.num_tokens[branch]

    def fail(self, branch: int, error: ProgramError) -> None:
        """A branch has ended early, and so have those forked from it."""
        self._num_events += 1
        self._failures.setdefault(branch, error)
        for slot in self._below(branch):
            if not slot.complete:
                slot.failure = error

    def restart(self, branch: int, kept: Mapping[int, Mapping[str, int]]) -> None:
        """A branch begins anew: its values are void, but for so many of each as `kept` says."""
        self._num_events += 1
        for slot in self._below(branch):
            self._scored.pop(slot, None)
            slot.restart(kept.get(slot.branch, {}).get(slot.name, 0))

    def failure_of(self, branch: int) -> ProgramError | None:
        """Returns why a branch has ended early, if it has."""
        if not self._failures:
            return None
        return next((self._failures[line] for line in self._ancestry(branch) if line in self._failures), None)

    def used_in(self, submission: Submission) -> Usage:
        """The tokens of the values that have come of a submission."""
        values = (value for slot in self._slots.values() if slot.submission is submission for value in slot.values)
        return sum((value.usage for value in values), Usage())

    def replay(self) -> Replay:
        """Returns what has happened so far."""
        nodes = self._recorder.nodes
        version = self._num_events, len(nodes)
        if self._replay is None or self._replay[0] != version:
            self._patterns = self._patterns or PatternCache()
            has_failed = {branch: True for branch in self._parents if self.failure_of(branch) is not None}
            self._replay = version, Replay(nodes, has_failed.__contains__, self._patterns)
        return self._replay[1]

    def _below(self, branch: int) -> Iterator[Slot]:
        """The slots of a branch and of those forked from it."""
        return (slot for slot in self._slots.values() if branch in self._ancestry(slot.branch))

    def _ancestry(self, branch: int) -> Iterator[int]:
        line: int | None = branch
        while line is not None:
            yield line
            line = self._parents.get(line)


class Reading(Protocol):
    """The way in which values are read that only a run makes. A program that is being compiled has one of its own.

    `branch` is the `Branch` that is read, `entry` what a variable of it holds.
    """

    def value(self, branch: Any, entry: Entry, convert: Callable[[str], Any] | None) -> Any:
        """Returns the value, converted by `convert` or as its generation says."""

    def of_kind(self, branch: Any, name: str, value: Any, kind: Any) -> Any:
        """Returns the value of the variable `name`, which was read as `value`, as one of the type `kind`."""

    def text(self, branch: Any, entry: Slot | Kept) -> str:
        """Returns the text that was appended for it."""
        ...

    def waits(self, branch: Any, entry: Entry) -> Iterator[Any]:
        """Yields what has to be waited for before."""
        ...

    def probabilities(self, branch: Any, name: str, entry: Entry) -> dict[str, float]:
        """Returns the probability of each choice of a select."""
        ...

    def is_final(self, value: object) -> bool:
        """Tells whether a value of the program will be the same in each run."""
        ...


class Driver(Protocol):
    """Brings the events of submissions to their session."""

    def start(self, session: Session, submission: Submission) -> None:
        """Called with `session.changed` held. Does not wait."""

    def wait(self, session: Session, done: Callable[[], bool], submission: Callable[[], Submission | None]) -> None:
        """Blocks until `done`; `submission` says what the caller is waiting for, once it is known."""

    def stop(self, session: Session) -> None:
        """Aborts what is running. Does not wait."""


class Wait(NamedTuple):
    """Something is not known before `done`; `slot` is whose value has to come for it, if one's has."""

    done: Callable[[], bool]
    slot: Slot | None = None


class Settings(NamedTuple):
    """Settings of a run: `log` keeps every event, for streams of them; `timeout_s` is of the whole program."""

    title: str = "program"
    trace: bool = False
    log: bool = False
    namespace: str = ""
    timeout_s: float | None = None
    spec_tokens: int = 0


@dataclass(slots=True)
class Tally:
    """Counts and events of a run so far.

    began     when the first request was sent, on the monotonic clock
    refused   why values were not accepted that were then asked for again, by branch and name
    """

    usage: Usage = field(default_factory=Usage)
    log: list[ProgramEvent] = field(default_factory=list)
    refused: dict[tuple[int, str], str] = field(default_factory=dict)
    began: float = 0.0


@dataclass(slots=True)
class Outbox:
    """Submissions of a run, the branches to be cancelled once they are sent, its tools."""

    deadline: float | None
    submissions: list[Submission] = field(default_factory=list)
    to_cancel: dict[int, Place] = field(default_factory=dict)
    tools: dict[str, ToolCall] = field(default_factory=dict)


class Session:
    """One run of a program.

    The body records on one thread, which is also the one that sends; once it has returned, whoever reads may send.
    Everything else may be used from any thread. `changed` guards all that events change.
    """

    def __init__(self, backend: Backend, driver: Driver, settings: Settings, reading: Reading) -> None:
        self.backend = backend
        self.settings = settings
        self.id = secrets.token_hex(16)
        self.recorder = Recorder()
        self.changed = Monitor()
        self.outbox = Outbox(None if settings.timeout_s is None else time.monotonic() + settings.timeout_s)
        self.body = Body()
        self.tally = Tally()
        self.error: BaseException | None = None
        self.finished = False
        self.watched = False
        """Somebody beside the body has the state before the program's end, and may want texts as they come."""
        self.reading = reading
        self._driver = driver
        self.arrivals = Arrivals(self.recorder)
        self.spans: RunSpans | None = None

    # Sending

    def own(self) -> None:
        """The calling thread is the one that records."""
        self.body.thread = threading.get_ident()

    @property
    def records_here(self) -> bool:
        """The body is running, and the caller is part of it."""
        return not self.body.ended and self.body.thread == threading.get_ident() and inside(self)

    @property
    def records_elsewhere(self) -> bool:
        """The body is running, on another thread."""
        return not self.body.ended and self.body.thread not in (0, threading.get_ident())

    @property
    def may_send(self) -> bool:
        return self.error is None and (self.body.ended or self.records_here)

    @property
    def ended_early(self) -> bool:
        """The program has failed, and the caller is no part of it: what had come can be read."""
        return self.error is not None and not self.records_here

    @property
    def ops(self) -> tuple[Op, ...]:
        """All that was sent, what is in blocks after the instruction that holds it."""
        return tuple(op for submission in self.outbox.submissions for op in walk(submission.program.ops))

    @property
    def keeps_state(self) -> bool:
        """The backend holds a state for this program."""
        return bool(self.outbox.submissions) and self.outbox.submissions[-1].program.keep

    @property
    def running(self) -> Submission | None:
        """The first submission that has not ended."""
        return next((submission for submission in self.outbox.submissions if not submission.ended), None)

    def time_left(self) -> float | None:
        """Seconds that the program still has.

        Raises:
            ProgramError: none.
        """
        if self.outbox.deadline is None:
            return None
        left_s = self.outbox.deadline - time.monotonic()
        if left_s <= 0:
            limit_s = self.settings.timeout_s
            message = f"the program was not done within {limit_s:g} s"
            raise ProgramError(message, code="generation_timeout", param="timeout_s")
        return left_s

    def send(self) -> None:
        """Sends what has been recorded, if anything has.

        Raises:
            ProgramError: a block is being recorded.
        """
        with self.changed:
            if not self.may_send:
                return
            self.refuse_in_block()
            if self.recorder.empty:
                return
            ops, places, slots = self.recorder.take(more=not self.body.ended)
            due = [branch for branch in self.outbox.to_cancel if _begins(ops, branch)]
            said = [self.outbox.to_cancel.pop(branch) for branch in due]
            self._start((*ops, *map(Cancel, due)), (*places, *said), slots)

    def _start(
        self, ops: tuple[Op, ...], places: tuple[Place, ...], slots: list[Slot], *, cancels: bool = False
    ) -> Submission:
        program = Program(
            id=self.id,
            ops=ops,
            keep=not self.body.ended,
            resume=bool(self.outbox.submissions),
            trace=self.settings.trace,
            deltas=self.watched or self.settings.log or self.settings.trace or not self.body.ended,
            namespace=self.settings.namespace,
            timeout_s=self.time_left(),
            spec_tokens=self.settings.spec_tokens,
        )
        used = {name for op in walk(ops) for name in named_tools(op)} if self.outbox.tools else ()
        tools = {name: self.outbox.tools[name] for name in used if name in self.outbox.tools}
        if self.spans is not None:
            self.spans.sent(program)
            tools = {name: self.spans.watched(tool) for name, tool in tools.items()}
        submission = Submission(program, places, tools=tools, cancels=cancels)
        self.tally.began = self.tally.began or time.monotonic()
        self.arrivals.expect(slots, submission)
        self.outbox.submissions.append(submission)
        self._driver.start(self, submission)
        self.notify()
        return submission

    def refuse_in_block(self, what: str = "the program") -> None:
        """Raises if the caller is recording a block: it is not known before the run which way it goes, or how often."""
        if self.recorder.in_block and self.records_here:
            raise ProgramError(
                f"{what} cannot be read while a when or repeat_until is recorded: refer to it with s.ref(name), decide "
                "with bough.when, or read it before the block or after it",
                code="invalid_program",
                place=place(),
            )

    def refuse_checks(self, here: Place) -> None:
        """Raises if the values of this run are not checked in Python: a program that is compiled says so."""

    def add_tool(self, tool: ToolCall | None) -> None:
        """The program uses a tool of this process.

        Raises:
            ProgramError: it uses another of that name, or the backend can use none.
        """
        if tool is None:
            return
        if "tools" not in inspect.signature(self.backend.run).parameters:
            raise UnsupportedError(f"{type(self.backend).__name__} cannot use tools", param="tools", place=place())
        if self.outbox.tools.setdefault(tool.name, tool) is not tool:
            raise ProgramError(
                f"the program uses two tools named {tool.name!r}: rename one of them with @bough.tool(name=...)",
                code="invalid_program",
                place=place(),
            )

    def cancel(self, branch: int) -> None:
        """Stops a branch and those forked from it, from any thread or task: in a submission of its own, beside what the
        body records. A branch that was not sent yet never begins."""
        with self.changed:
            if self.error is not None or self.finished or self.arrivals.failure_of(branch) is not None:
                return
            if not _begins(self.ops, branch):
                self.outbox.to_cancel[branch] = place()
                return
            if self.running is None and not self.keeps_state:
                return
            submission = self._start((Cancel(branch),), (place(),), [], cancels=True)
        if submission.events is not None:  # nobody else brings them
            self._wait(lambda: submission.begun, lambda: submission)

    # What comes back

    def feed(self, submission: Submission, event: ProgramEvent) -> None:
        """Takes in an event."""
        with self.changed:
            submission.begun = True
            if self.spans is not None:
                self.spans.take(event)
            match event:
                case BranchFailed(branch=branch, error=info, index=index):
                    error = explain(submission.program, submission.places, info, branch, index)
                    error.state = self.body.state
                    self.arrivals.fail(branch, error)
                case BranchRestarted(branch=branch, kept=kept):
                    self.arrivals.restart(branch, kept)
                case Done(usage=usage):
                    submission.ended = True
                    self.tally.usage += usage
                    self.arrivals.take_end(self.outbox.submissions.index(submission), event)
                case Failed(error=info, branch=branch, index=index):
                    if not (submission.cancels and info.code == "state_not_found"):  # nothing was left to be cancelled
                        self._fail(explain(submission.program, submission.places, info, branch, index))
                    submission.ended = True
                    self.tally.usage += self.arrivals.used_in(submission)
                case _:
                    self.arrivals.take(event)
            if self.settings.log or (self.settings.trace and not isinstance(event, Delta)):
                self.tally.log.append(event)
            self.notify()

    def end(self, submission: Submission, error: BaseException | None = None) -> None:
        """No more comes from a submission. Without a terminal event that is an error."""
        with self.changed:
            if not submission.ended:
                submission.begun = submission.ended = True
                self.tally.usage += self.arrivals.used_in(submission)
                error = error or BackendError("the backend's answer broke off", code="broken_stream")
                if self.error is not None or not isinstance(error, BoughError):
                    self._fail(error)
                elif not (submission.cancels and error.code == "state_not_found"):
                    self._fail(refused(submission.program, submission.places, error))
            self.notify()

    def news(self, num_seen: int) -> bool:
        """The log has more than `num_seen` events, or will never have."""
        return len(self.tally.log) > num_seen or self.finished

    def notify(self) -> None:
        """Wakes those whose wait is over, and all threads that wait."""
        with self.changed:
            self.changed.notify(all_tasks=self.error is not None)

    def _fail(self, error: BaseException) -> None:
        if self.error is not None:
            return
        if isinstance(error, ProgramError) and error.state is None:
            error.state = self.body.state
        self.error = error

    # Waiting

    def wait(self, done: Callable[[], bool], slot: Slot | None = None) -> None:
        """Blocks until `done`, for which a value of `slot` has to come, or until the program has failed."""
        self._wait(done, lambda: None if slot is None else slot.submission)

    async def await_until(self, done: Callable[[], bool]) -> None:
        """The same for a task, whose events others bring. Also ends when the program has failed."""
        with self.changed:
            if self.error is not None or done():
                return
            waiter = self.changed.add_waiter(done)
        try:
            await waiter.future
        finally:
            self.changed.remove_waiter(waiter)

    def wait_quiet(self) -> None:
        """Blocks until nothing is running."""
        self._wait(lambda: self.running is None, lambda: self.running)

    def wait_finished(self) -> None:
        """Blocks until the program has ended."""
        self._wait(lambda: self.finished, lambda: self.running)

    def _wait(self, done: Callable[[], bool], submission: Callable[[], Submission | None]) -> None:
        self._driver.wait(self, lambda: self.error is not None or done(), submission)

    def settling(self) -> Iterator[Wait]:
        """Yields what has to be waited for until each value that is asked for with retries is there.

        Raises:
            ProgramError: one was never right.
        """
        while self.body.attempts:
            self.send()
            for attempts in list(self.body.attempts):
                yield Wait(attempts.over, attempts.slot)
                self.raise_error()
                attempts.judge()

    def settle(self) -> None:
        """Waits for the same."""
        for wait in self.settling():
            self.wait(*wait)

    async def asettle(self) -> None:
        """Waits for the same in a task."""
        for wait in self.settling():
            await self.await_until(wait.done)

    def raise_error(self) -> None:
        """Raises what the program failed with, if it has failed."""
        error = self.error
        if isinstance(error, ProgramError):
            raise error
        if error is not None:
            raise ProgramError(f"the program was stopped by {type(error).__name__}: {error}", code="aborted") from error

    # The end

    def finish(self, judge: Callable[[], None]) -> None:
        """The body has returned: sends the rest, waits for all of it, and has `judge` raise what is wrong with it."""
        self._close()
        self.wait_quiet()
        self.raise_error()
        judge()
        if self.keeps_state:
            self._drop()
        self._finished()

    async def afinish(self, judge: Callable[[], None]) -> None:
        self._close()
        await self.await_until(lambda: self.running is None)
        self.raise_error()
        if self.body.unread:
            await spawn(judge)  # a check may wait, for another program
        if self.keeps_state:
            await asyncio.to_thread(self._drop)
        self._finished()

    def abort(self, error: BaseException) -> None:
        """Stops the program; what has not been read raises `error` from now on."""
        if self._stop(error):
            self._drop()

    async def aabort(self, error: BaseException) -> None:
        """The same without blocking the event loop."""
        if self._stop(error):
            await asyncio.to_thread(self._drop)

    def _stop(self, error: BaseException) -> bool:
        """Ends the run as failed; returns whether the backend still keeps a state."""
        with self.changed:
            if self.finished:
                return False
            begun = [submission for submission in self.outbox.submissions if submission.begun]
            # a failed program is gone already, and one that is left while it runs goes with that
            kept = self.error is None and bool(begun) and begun[-1].program.keep and all(s.ended for s in begun)
            self._fail(error)
            self.body.ended = True
        self._driver.stop(self)
        self._finished()
        return kept

    def _drop(self) -> None:
        with contextlib.suppress(BoughError):  # nothing is lost: the backend forgets it by itself some time later
            self.backend.drop(self.id)

    def _close(self) -> None:
        """Text to which nothing is generated is not worth a request of its own."""
        self.body.ended = True
        if self.recorder.generates or self.outbox.submissions:
            self.send()

    def _finished(self) -> None:
        with self.changed:
            self.finished = True
            try:
                if self.spans is not None:
                    self.spans.end(self.error)
            finally:
                self.notify()


def _begins(ops: Iterable[Op], branch: int) -> bool:
    """Tells whether one of the instructions forks the branch."""
    return any(isinstance(op, Fork) and branch in op.children for op in walk(ops))
