"""Compile service: runs compilations concurrently, native code on threads and Python in processes, in fair shares."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, RLock, Thread, current_thread
from typing import Any, TypeVar

from ..errors import CompileLateError, GrammarError, GrammarTooComplexError
from .clocks import Clock, clock_of_this_thread
from .jobs import Answer, Checked, Done, Failed, Interrupted, Job, Refused, Tabulated
from .process import TICK_S, LateError, ProcessEndedError, Processes, ProcessKilledError, WorkerProcess
from .turns import Share, Turns, rank

logger = logging.getLogger("bough.constrain")

SLICE_S = 0.1
"""Processor time of a task before it is preempted if others wait; four times as much after each preemption."""
SLOWDOWN = 10
"""Wall-clock time for such a slice, in multiples of its processor time, since other work may keep the machine busy."""
MIN_SHARE_S = 0.3
"""Processor time that each task gets within `PATIENCE_S`, however long it has waited."""
PATIENCE_S = 30.0
"""Time after which a task fails even if the machine is busy with other work."""
EXIT_TIMEOUT_S = 5.0
MAX_EXTRA_THREADS = 8
"""Most additional threads while native code holds the regular ones."""

T = TypeVar("T")


class _NoThreadError(Exception):
    """No thread can be started."""


class _PreemptedError(Exception):
    """The task is preempted and starts anew later."""


@dataclass(eq=False)
class _Task:
    """Work whose result settles a future.

    shares       shares of the tenants that wait for it; the first one submitted it
    payer        the share that is charged while it runs, or was last
    level        number of preemptions
    begun        time at which it, or its current part, began
    clock        processor time of the thread or process that runs it; None while it waits
    clock_begun  reading of `clock` at the start
    used_s       processor time used on previous clocks since it last started anew
    shared_s     processor time used before its preemptions
    error        reason why it was given up; None if it was not
    remote       its current part is a process, the start of one, or work done for all tasks
    """

    work: Callable[[Turn], Any]
    future: Future[Any]
    submitted: float
    shares: list[Share]
    payer: Share = field(init=False)
    level: int = 0
    begun: float = 0.0
    clock: Clock | None = None
    clock_begun: float = 0.0
    used_s: float = 0.0
    shared_s: float = 0.0
    remote: bool = False
    process: WorkerProcess | None = None
    error: GrammarError | None = None

    def time_anew_by(self, clock: Clock | None) -> None:
        """Resets the time used and continues by `clock`."""
        self.clock, self.used_s = None, 0.0
        self.time_by(clock)

    def time_by(self, clock: Clock | None) -> None:
        """Continues by another clock."""
        self.used_s = self.processor_s
        self.clock, self.clock_begun = clock, 0.0 if clock is None else clock()

    @property
    def processor_s(self) -> float:
        """Processor time used since the task last started anew."""
        if self.clock is None:
            return self.used_s
        try:
            return self.used_s + self.clock() - self.clock_begun
        except OSError:  # the thread or process has ended
            return self.used_s


class CompileService:
    """Runs tasks. Thread-safe.

    A task is too complex if it takes `timeout_s` of processor time in one run. If others wait, it is late that long
    after its submission, but never before it has had `MIN_SHARE_S`. When many wait, tenants take turns, and the tasks
    of a tenant run for a slice each, so that a task that hangs delays no other. When a task's time is over, its job in
    a process (`Turn.do`) is killed; native code on a thread continues unheeded, and another thread takes its place.
    """

    def __init__(self, *, num_threads: int, timeout_s: float) -> None:
        self._process_id = os.getpid()
        self._num_threads = num_threads
        self._timeout_s = timeout_s
        self.lock = RLock()
        self.closed = False
        self.processes = Processes(num_threads, timeout_s)
        self._arrived = Condition(self.lock)
        self._watched = Condition(self.lock)
        self._waiting: list[_Task] = []
        self._running: list[_Task] = []
        self._turns = Turns()
        self._num_abandoned = 0
        self._timed_from = 0.0  # end of the last work that is charged to no task
        self._threads: list[Thread] = []
        self._watcher: Thread | None = None

    @property
    def num_waiting(self) -> int:
        """Number of tasks that have not begun or are preempted."""
        with self.lock:
            return len(self._waiting)

    @property
    def process_ids(self) -> list[int]:
        """Ids of the idle and busy processes."""
        with self.lock:
            busy = [task.process.process_id for task in self._running if task.process is not None]
        return [*busy, *self.processes.idle_ids()]

    def submit(self, work: Callable[[Turn], T], future: Future[T], *, urgent: bool = False, tenant: str = "") -> None:
        """Sets `future` to what `work` returns or raises. Urgent work begins before any other of its tenant.

        Sets it to a CompileLateError if no thread can be started; the next call tries again.
        """
        try:
            self._begin(work, future, urgent=urgent, tenant=tenant)
        except _NoThreadError as error:
            late = CompileLateError("the machine has no threads left to compile the constraint: try again later")
            late.__cause__ = error
            future.set_exception(late)

    def _begin(self, work: Callable[[Turn], T], future: Future[T], *, urgent: bool, tenant: str) -> None:
        with self.lock:
            if self.closed:
                raise RuntimeError("the grammar compiler is closed")
            if self._watcher is None:
                self._start_watcher()
            task = _Task(work, future, time.monotonic(), [self._turns.enter(tenant)])
            self._waiting.insert(0 if urgent else len(self._waiting), task)
            self._arrived.notify()
            if len(self._waiting) == 1:
                self._watched.notify()

    def join(self, future: Future[Any], tenant: str) -> None:
        """Adds `tenant` to those that wait for `future`: its task runs as soon as one of them has a turn."""
        with self.lock:
            for task in self._waiting:
                if task.future is future and all(share.tenant != tenant for share in task.shares):
                    task.shares.append(self._turns.enter(tenant))

    def drop(self, future: Future[Any]) -> bool:
        """Drops the task of `future` unless it is running; returns False if there is none."""
        with self.lock:
            dropped = [task for task in self._waiting if task.future is future]
            self._waiting = [task for task in self._waiting if task.future is not future]
            for task in dropped:
                self._leave(task)
            return bool(dropped)

    def _leave(self, task: _Task) -> None:
        """Removes a task that has ended from the shares of its tenants."""
        for share in task.shares:
            self._turns.leave(share.tenant)

    def close(self) -> None:
        """Ends the processes, and the threads that are not inside native code. Unfinished tasks fail."""
        atexit.unregister(self._exit)
        self._close(wait_s=1.0)

    def discard(self) -> None:
        """Ends the service without waiting, since its owner is gone. Does nothing in a forked process."""
        if os.getpid() == self._process_id:
            atexit.unregister(self._exit)
            self.processes.kill()
            self._close(wait_s=0.0)

    def _exit(self) -> None:
        """Ends the service at the interpreter's exit: a thread stopped inside native code would crash the process."""
        self._close(wait_s=EXIT_TIMEOUT_S)

    def _close(self, wait_s: float) -> None:
        with self.lock:
            self.closed = True
            left, self._waiting, self._running = [*self._waiting, *self._running], [], []
            self._turns = Turns()
            threads = [thread for thread in self._threads if thread is not current_thread()]
            for task in left:
                if task.process is not None:
                    task.process.kill()
            self._arrived.notify_all()
            self._watched.notify_all()
        for task in left:
            task.future.set_exception(GrammarError("the grammar compiler was closed"))
        deadline = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        self.processes.close()

    # Threads

    def _start_watcher(self) -> None:
        watcher = Thread(target=self._watch, name="grammar-watch", daemon=True)
        try:
            watcher.start()
        except RuntimeError as error:
            raise _NoThreadError from error
        self._watcher = watcher
        atexit.register(self._exit)
        for _ in range(self._num_threads):
            self._start_thread()

    def _start_thread(self) -> None:
        """Starts a thread that runs tasks. If none can be started, the watcher tries again."""
        thread = Thread(target=self._work, name="grammar-compile", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.debug("a thread that compiles could not be started: %s", error)
            return
        self._threads = [*(other for other in self._threads if other.is_alive()), thread]

    def _work(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Runs one task; returns False when the thread is to end. A waiting thread holds no reference to past tasks."""
        task = self._next()
        if task is None:
            return False
        result: Any = None
        error: BaseException | None = None
        try:
            result = task.work(Turn(self, task))
        except Exception as failure:  # noqa: BLE001  # raised where the future is awaited
            error = failure
        except BaseException as failure:  # noqa: BLE001  # a panic of native code must not end the waiting thread
            error = RuntimeError(f"the constraint could not be compiled: {failure}")
            error.__cause__ = failure
        if self._settle(task, preempted=isinstance(error, _PreemptedError)):
            if error is not None:
                task.future.set_exception(error)
            else:
                task.future.set_result(result)
        return True

    def _next(self) -> _Task | None:
        """Returns the next task of this thread; None when it is to end."""
        with self.lock:
            while not self._waiting and not self.closed and not self._has_spare_threads():
                self._arrived.wait()
            if self.closed or (not self._waiting and self._has_spare_threads()):
                self._threads.remove(current_thread())
                return None
            task = min(self._waiting, key=lambda task: (self._rank(task), task.level))
            self._waiting.remove(task)
            task.payer = min(task.shares, key=rank)
            task.payer.num_running += 1
            task.begun = time.monotonic()
            task.time_anew_by(clock_of_this_thread())
            self._running.append(task)
            return task

    def _settle(self, task: _Task, *, preempted: bool) -> bool:
        """Returns True if the future of a task that has run is to be set now."""
        with self.lock:
            if task not in self._running:  # its time was over, or the service is closed
                self._num_abandoned -= not self.closed
                return False
            self._stop(task)
            if not preempted:
                self._leave(task)
            else:
                task.level += 1
                task.shared_s += task.processor_s
                task.time_anew_by(None)
                self._waiting.append(task)
                self._watched.notify()
            return not preempted

    def _stop(self, task: _Task) -> None:
        """Takes a task off the running ones and charges its time to its payer."""
        self._running.remove(task)
        task.payer.num_running -= 1
        task.payer.used += task.processor_s

    def _has_spare_threads(self) -> bool:
        return len(self._threads) > self._num_threads + min(self._num_held(), MAX_EXTRA_THREADS)

    def _num_held(self) -> int:
        """Returns the number of threads that native code has held for longer than a slice."""
        before = time.monotonic() - SLICE_S
        held = sum(not task.remote and task.begun <= before for task in self._running)
        return held + self._num_abandoned

    # Time

    def is_running(self, task: _Task) -> bool:
        """Returns True if `task` has been neither given up nor ended."""
        return task in self._running

    def gives_up(self, task: _Task) -> bool:
        """Returns True if `task` is no longer needed, or if its time is over, which `task.error` then says."""
        task.error = self.verdict(task)
        return task.error is not None or not self.is_running(task)

    def verdict(self, task: _Task) -> GrammarError | None:
        """Returns the error of a task whose time is over; None if it is not."""
        used_s = task.processor_s
        if used_s >= self._timeout_s:
            reason = f"the constraint takes longer than {self._timeout_s:g} s of processor time to compile"
            return GrammarTooComplexError(reason)
        waited_s = time.monotonic() - max(task.submitted, self._timed_from)
        late = waited_s >= self._timeout_s and self._waiting and used_s + task.shared_s >= MIN_SHARE_S
        if late or waited_s >= PATIENCE_S:
            return CompileLateError("the machine is too busy to compile the constraint: send the request again later")
        return None

    def begin_timing(self, task: _Task) -> None:
        """Restarts the timing of all tasks: what `task` has done so far is not charged to it."""
        with self.lock:
            task.remote = False
            task.begun = self._timed_from = time.monotonic()
            task.time_anew_by(clock_of_this_thread())

    def should_make_room(self, task: _Task) -> bool:
        """Returns True if other tasks should go before `task`. Of the same tenant these are tasks with fewer
        preemptions, and once it has run for a slice, those with as many. Tasks of tenants that have had less go before
        it after a slice too; or earlier, if they have fewer preemptions and fewer of their tenant's tasks run.
        """
        spent = max(task.processor_s, (time.monotonic() - task.begun) / SLOWDOWN)
        has_had_slice = spent >= SLICE_S * 4**task.level
        with self.lock:
            payer = task.payer
            mine = payer.num_running - 1, payer.used + task.processor_s
            for other in self._waiting:
                others = self._rank(other)
                if payer in other.shares:
                    goes_before = has_had_slice and other.level == task.level
                else:
                    goes_before = has_had_slice and others < mine
                gives = payer in other.shares or others[0] < mine[0]
                if goes_before or (other.level < task.level and gives):
                    return True
            return False

    def _rank(self, task: _Task) -> tuple[int, float]:
        """Returns the rank of the waiting tenant whose turn comes first."""
        return min(map(rank, task.shares))

    def _watch(self) -> None:
        while self._fail_late():
            pass

    def _fail_late(self) -> bool:
        """Fails the tasks whose time is over, or waits if there are none; returns False once the service is closed."""
        with self.lock:
            if self.closed:
                return False
            verdicts = [(task, error) for task in self._tasks() if (error := self.verdict(task)) is not None]
            for task, _ in verdicts:
                if task in self._running:
                    self._stop(task)
                    self._num_abandoned += 1
                else:
                    self._waiting.remove(task)
                self._leave(task)
            wanted = self._num_threads + min(self._num_held(), MAX_EXTRA_THREADS)
            if self._waiting and len(self._threads) < wanted:
                self._start_thread()
            if not verdicts:
                self._watched.wait(TICK_S if self._running or self._waiting else None)
        for task, error in verdicts:
            task.future.set_exception(error)
        return True

    def _tasks(self) -> list[_Task]:
        """Returns the tasks whose time no other thread checks. The first start of a process is not charged to them."""
        running = (task for task in self._running if not task.remote or (task.process is None and task.level > 0))
        return [*running, *self._waiting]


class Turn:
    """Interface of the service for a running task."""

    def __init__(self, service: CompileService, task: _Task) -> None:
        self._service = service
        self._task = task

    def do(self, job: Job) -> Done | Checked | Tabulated:
        """Returns the answer of a process to `job`.

        Raises:
            NoProcessError: no process is available.
            GrammarError: the job refuses its constraint, or takes too much time or memory; a CompileLateError if the
                job is not to blame.
        """
        service, task = self._service, self._task
        with service.lock:
            task.remote = True
            task.time_by(None)
        try:
            answer = self._ask_twice(job)
        except LateError:
            raise (task.error or CompileLateError("the constraint is no longer needed")) from None
        except ProcessEndedError as error:
            if service.is_running(task):
                logger.warning("a constraint could not be compiled: %s", error)
            if isinstance(error, ProcessKilledError):
                message = "the process that compiles the constraint was killed: send the request again later"
                raise CompileLateError(message) from None
            raise GrammarTooComplexError(
                "the constraint takes too much memory or time to compile: its process was stopped"
            ) from None
        finally:
            with service.lock:
                task.remote, task.process, task.begun = False, None, time.monotonic()
                task.time_by(clock_of_this_thread())
        return self._read(answer)

    def yield_to_others(self) -> None:
        """Preempts the task if others should go first; it then starts anew later.

        Raises:
            GrammarError: the task is no longer needed.
        """
        if not self._service.is_running(self._task):
            raise CompileLateError("the constraint is no longer needed")
        if self._service.should_make_room(self._task):
            raise _PreemptedError

    def prepare(self, work: Callable[[], Any]) -> None:
        """Does work that all tasks need, once, without charging its time to any task."""
        self._task.remote = True
        try:
            work()
        finally:
            self._service.begin_timing(self._task)

    def extend(self) -> None:
        """Grants the task its time once more, for an alternative to what took too long."""
        with self._service.lock:
            self._task.submitted = time.monotonic()
            self._task.time_anew_by(clock_of_this_thread())

    def _ask_twice(self, job: Job) -> Answer:
        """Sends a job again if its process ended, since the job need not be the cause."""
        try:
            return self._ask(job)
        except ProcessEndedError:
            if not self._service.is_running(self._task):
                raise
            return self._ask(job)

    def _ask(self, job: Job) -> Answer:
        service, task = self._service, self._task
        process = service.processes.take()
        try:
            with service.lock:
                if not service.is_running(task):  # its time was over before a process was available
                    raise LateError
                task.process, task.begun = process, time.monotonic()
                task.time_by(process.clock)
            return process.do(
                job,
                crowded=lambda: service.should_make_room(task),
                given_up=lambda: service.gives_up(task),
            )
        finally:
            with service.lock:
                task.time_by(None)
            service.processes.give_back(process)

    @staticmethod
    def _read(answer: Answer) -> Done | Checked | Tabulated:
        match answer:
            case Done() | Checked() | Tabulated():
                return answer
            case Refused():
                raise answer.error()
            case Interrupted():
                raise _PreemptedError
            case Failed(traceback=traceback):
                raise RuntimeError(f"a worker process failed:\n{traceback}")
