"""Runs compilations side by side: on threads, the interpretable part in processes, each with a share of the time."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, RLock, Thread, current_thread
from typing import Any, TypeVar

from ..errors import CompileLateError, GrammarError, GrammarTooComplexError
from .jobs import Answer, Checked, Done, Failed, Interrupted, Job, Refused, Tabulated
from .process import LateError, ProcessEndedError, Processes, WorkerProcess

logger = logging.getLogger("bough.constrain")

SLICE_S = 0.1
"""Time a task may run before it makes room for others, if others wait; four times as much each time it comes again."""
MIN_SHARE_S = 0.3
"""Time that each task gets, however long it waited."""
EXIT_TIMEOUT_S = 5.0
MAX_EXTRA_THREADS = 8
"""Threads beside the regular ones while those are held by native code."""
TICK_S = 0.05

T = TypeVar("T")


class _PreemptedError(Exception):
    """The task makes room for others, and starts anew later."""


@dataclass(eq=False)
class _Task:
    """Work to be done for a future.

    level        how often it was preempted
    started      when it first ran
    begun        when it, or the part of it that runs now, began
    remote       what runs now is a process, or its start, or what is made for all tasks
    """

    work: Callable[[Turn], Any]
    future: Future[Any]
    submitted: float
    level: int = 0
    started: float | None = None
    begun: float = 0.0
    remote: bool = False
    process: WorkerProcess | None = None


class CompileService:
    """Runs tasks. Thread-safe.

    A task fails `timeout_s` after it was submitted, but never before it had `MIN_SHARE_S` of its own. When many wait,
    each runs for a slice in turn, so that those that hang hold nobody up. What a task does in a process (`Turn.do`) is
    killed at its end; native code on a thread of ours is left to itself, and another thread takes its place.
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
        self._num_abandoned = 0
        self._timed_from = 0.0  # when the last thing was made that is no task's fault
        self._threads: list[Thread] = []
        self._watcher: Thread | None = None

    @property
    def num_waiting(self) -> int:
        """Tasks that have not begun, or make room for others."""
        with self.lock:
            return len(self._waiting)

    @property
    def process_ids(self) -> list[int]:
        """Ids of the processes that are there to be used or in use."""
        with self.lock:
            busy = [task.process.process_id for task in self._running if task.process is not None]
        return [*busy, *self.processes.idle_ids()]

    def submit(self, work: Callable[[Turn], T], future: Future[T], *, urgent: bool = False) -> None:
        """Sets `future` to what `work` returns or raises. Urgent work is begun before any other."""
        with self.lock:
            if self.closed:
                raise RuntimeError("the grammar compiler is closed")
            if self._watcher is None:
                atexit.register(self._exit)
                self._watcher = Thread(target=self._watch, name="grammar-watch", daemon=True)
                self._watcher.start()
                for _ in range(self._num_threads):
                    self._start_thread()
            self._waiting.insert(0 if urgent else len(self._waiting), _Task(work, future, time.monotonic()))
            self._arrived.notify()
            if len(self._waiting) == 1:
                self._watched.notify()

    def drop(self, future: Future[Any]) -> bool:
        """Forgets a task that is not running; False if there is none."""
        with self.lock:
            left = [task for task in self._waiting if task.future is not future]
            dropped = len(left) < len(self._waiting)
            self._waiting = left
            return dropped

    def close(self) -> None:
        """Ends the processes, and the threads that are not inside native code. What is not done yet fails."""
        atexit.unregister(self._exit)
        self._close(wait_s=1.0)

    def discard(self) -> None:
        """Ends all without waiting: whoever made it has gone. Nothing happens in a process that was forked off."""
        if os.getpid() == self._process_id:
            atexit.unregister(self._exit)
            self.processes.kill()
            self._close(wait_s=0.0)

    def _exit(self) -> None:
        """Ends all at the interpreter's end: a thread cut off inside native code takes the whole process with it."""
        self._close(wait_s=EXIT_TIMEOUT_S)

    def _close(self, wait_s: float) -> None:
        with self.lock:
            self.closed = True
            left, self._waiting, self._running = [*self._waiting, *self._running], [], []
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

    def _start_thread(self) -> None:
        thread = Thread(target=self._work, name="grammar-compile", daemon=True)
        self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        thread.start()

    def _work(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Does one task; False when the thread is to end. A thread that waits remembers no task, nor whose it was."""
        task = self._next()
        if task is None:
            return False
        result: Any = None
        error: BaseException | None = None
        try:
            result = task.work(Turn(self, task))
        except Exception as failure:  # noqa: BLE001  # it is raised from the future, where someone waits for it
            error = failure
        except BaseException as failure:  # noqa: BLE001  # a panic of native code must not end who waits for it
            error = RuntimeError(f"the constraint could not be compiled: {failure}")
            error.__cause__ = failure
        if self._settle(task, preempted=isinstance(error, _PreemptedError)):
            if error is not None:
                task.future.set_exception(error)
            else:
                task.future.set_result(result)
        return True

    def _next(self) -> _Task | None:
        """The next task of this thread; None when it is to end."""
        with self.lock:
            while not self._waiting and not self.closed and not self._has_spare_threads():
                self._arrived.wait()
            if self.closed or (not self._waiting and self._has_spare_threads()):
                self._threads.remove(current_thread())
                return None
            task = min(self._waiting, key=lambda task: task.level)
            self._waiting.remove(task)
            task.begun = time.monotonic()
            if task.started is None:
                task.started = task.begun
            self._running.append(task)
            return task

    def _settle(self, task: _Task, *, preempted: bool) -> bool:
        """Returns whether the future of a task that has run is to be set now."""
        with self.lock:
            if task not in self._running:  # its time was over, or all is over
                self._num_abandoned -= not self.closed
                return False
            self._running.remove(task)
            if preempted:
                task.level += 1
                self._waiting.append(task)
                self._watched.notify()
            return not preempted

    def _has_spare_threads(self) -> bool:
        return len(self._threads) > self._num_threads + min(self._num_held(), MAX_EXTRA_THREADS)

    def _num_held(self) -> int:
        """Threads that native code holds for longer than a slice."""
        before = time.monotonic() - SLICE_S
        held = sum(not task.remote and task.begun <= before for task in self._running)
        return held + self._num_abandoned

    # Time

    def is_running(self, task: _Task) -> bool:
        """Returns whether somebody still waits for `task`."""
        return task in self._running

    def deadline(self, task: _Task) -> float:
        """Returns when `task` fails, once it has begun."""
        assert task.started is not None
        submitted, started = (max(moment, self._timed_from) for moment in (task.submitted, task.started))
        return max(submitted + self._timeout_s, started + MIN_SHARE_S)

    def begin_timing(self, task: _Task) -> None:
        """The time of all tasks counts from now on; what `task` did so far is not its own."""
        with self.lock:
            task.remote = False
            task.begun = self._timed_from = time.monotonic()

    def late(self) -> CompileLateError:
        """The error of a task whose time is over."""
        return CompileLateError(f"the constraint takes longer than {self._timeout_s:g} s to compile")

    def should_make_room(self, task: _Task) -> bool:
        """Returns whether others should go before `task`, which has run for a slice."""
        with self.lock:
            if not self._waiting:
                return False
            lowest = min(other.level for other in self._waiting)
        spent = time.monotonic() - task.begun
        return lowest < task.level or (lowest == task.level and spent >= SLICE_S * 4**task.level)

    def _watch(self) -> None:
        while self._fail_late():
            pass

    def _fail_late(self) -> bool:
        """Fails the tasks whose time is over, or else waits a while; False at the end."""
        with self.lock:
            if self.closed:
                return False
            now = time.monotonic()
            late = [task for task in self._running if _is_watched(task) and self.deadline(task) <= now]
            for task in late:
                self._running.remove(task)
                self._num_abandoned += 1
            starved = [task for task in self._waiting if task.started is not None and self.deadline(task) <= now]
            self._waiting = [task for task in self._waiting if task not in starved]
            wanted = self._num_threads + min(self._num_held(), MAX_EXTRA_THREADS)
            if self._waiting and len(self._threads) < wanted:
                self._start_thread()
            if not late and not starved:
                self._watched.wait(TICK_S if self._running or self._waiting else None)
        for task in [*late, *starved]:
            task.future.set_exception(self.late())
        return True


def _is_watched(task: _Task) -> bool:
    """Returns whether `task` must be watched: nothing else ends it in time. A first start is not its fault."""
    return not task.remote or (task.process is None and task.level > 0)


class Turn:
    """Services that a task may ask for while it runs."""

    def __init__(self, service: CompileService, task: _Task) -> None:
        self._service = service
        self._task = task

    def do(self, job: Job) -> Done | Checked | Tabulated:
        """The answer of a process to `job`.

        Raises:
            NoProcessError: there is no process to do it.
            GrammarError: the job refuses its constraint, or takes too much time or memory.
        """
        service, task = self._service, self._task
        task.remote = True
        try:
            answer = self._ask_twice(job)
        except LateError:
            raise service.late() from None
        except ProcessEndedError as error:
            if service.is_running(task):
                logger.warning("a constraint could not be compiled: %s", error)
            raise GrammarTooComplexError("the constraint takes too much to compile: its process was ended") from None
        finally:
            with service.lock:
                task.remote, task.process, task.begun = False, None, time.monotonic()
        return self._read(answer)

    def prepare(self, work: Callable[[], Any]) -> None:
        """Makes what all tasks need, once: of no task's time."""
        self._task.remote = True
        try:
            work()
        finally:
            self._service.begin_timing(self._task)

    def extend(self) -> None:
        """Gives the task a share of time once more, for something else than what took too long."""
        with self._service.lock:
            self._task.started = time.monotonic()

    def _ask_twice(self, job: Job) -> Answer:
        """Asks again where a process ended: what ends it need not be its job."""
        try:
            return self._ask(job)
        except ProcessEndedError:
            if not self._service.is_running(self._task):
                raise
            return self._ask(job)

    def _ask(self, job: Job) -> Answer:
        service, task = self._service, self._task
        asked = time.monotonic()
        process = service.processes.take()
        try:
            with service.lock:
                if not service.is_running(task):  # its time was over before there was a process for it
                    raise service.late()
                task.process, task.begun = process, time.monotonic()
                if task.level == 0 and task.started is not None:
                    task.started += task.begun - asked  # the start of a process is not the task's fault
            return process.do(
                job,
                deadline=service.deadline(task),
                slice_s=SLICE_S,
                crowded=lambda: service.should_make_room(task),
            )
        finally:
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
