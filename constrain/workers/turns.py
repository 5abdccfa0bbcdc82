"""Turns of tenants at something scarce: who has had the least of those who want it goes next."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

T = TypeVar("T")

IDLE_S = 10.0
"""Time without work after which a thread ends."""


@dataclass(eq=False, slots=True)
class Share:
    """A tenant's part of something scarce, as long as it wants some of that.

    num_present   pieces of its work that wait or run
    num_running   of these, those that run
    used          cost of those that have run
    """

    tenant: str
    used: float
    num_present: int = 0
    num_running: int = 0


rank: Callable[[Share], tuple[int, float]] = attrgetter("num_running", "used")
"""Sort key by which who has less comes first: what runs counts before what has run."""


class Turns:
    """Shares of tenants that want something. Not thread-safe.

    One that comes begins with what the least served of those present has had (start-time fair queueing; Goyal, Vin and
    Cheng, IEEE/ACM ToN 5(5), 1997): neither a long absence nor a short one is rewarded.
    """

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}

    def enter(self, tenant: str) -> Share:
        """A piece of work of the tenant's has come. Whoever keeps the share may count in it what runs."""
        share = self._shares.get(tenant)
        if share is None:
            used = min((other.used for other in self._shares.values()), default=0.0)
            share = self._shares[tenant] = Share(tenant, used)
        share.num_present += 1
        return share

    def leave(self, tenant: str) -> None:
        """A piece of work is done, or was given up."""
        share = self._shares[tenant]
        share.num_present -= 1
        if not share.num_present:
            del self._shares[tenant]

    def begin(self, tenant: str) -> None:
        """A piece of work runs from now on."""
        self._shares[tenant].num_running += 1

    def end(self, tenant: str, cost: float) -> None:
        """It has stopped running, at this cost."""
        share = self._shares[tenant]
        share.used += cost
        share.num_running -= 1

    def num_running(self, tenant: str) -> int:
        share = self._shares.get(tenant)
        return 0 if share is None else share.num_running

    def rank(self, tenant: str) -> tuple[int, float]:
        """Returns the `rank` of the tenant's share; of one that is not present, that of nothing."""
        share = self._shares.get(tenant)
        return (0, 0.0) if share is None else rank(share)


class FairQueue(Generic[T]):
    """Items that wait, in the order of their arrival within a tenant. Not thread-safe.

    Whoever takes an item tells when it has ended, and what it cost. No more than `most_running` of a tenant's run.
    """

    def __init__(self, most_running: int | None = None) -> None:
        self._most_running = most_running
        self._turns = Turns()
        self._waiting: dict[str, deque[T]] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        """The items that wait."""
        return self._num_waiting

    def num_waiting(self, tenant: str) -> int:
        return len(self._waiting.get(tenant, ()))

    def may_run(self, tenant: str) -> bool:
        """Returns whether a further item of the tenant's may run."""
        return self._most_running is None or self._turns.num_running(tenant) < self._most_running

    def push(self, tenant: str, item: T) -> None:
        self._turns.enter(tenant)
        self._waiting.setdefault(tenant, deque()).append(item)
        self._num_waiting += 1

    def pop(self) -> tuple[str, T] | None:
        """Takes the next item, which runs from now on; None if none waits, or none may run yet."""
        tenant = min(filter(self.may_run, self._waiting), key=self._turns.rank, default=None)
        if tenant is None:
            return None
        item = self._waiting[tenant].popleft()
        self._left(tenant)
        self._turns.begin(tenant)
        return tenant, item

    def end(self, tenant: str, cost: float) -> None:
        """An item that was taken has ended."""
        self._turns.end(tenant, cost)
        self._turns.leave(tenant)

    def remove(self, tenant: str, item: T) -> bool:
        """Gives up an item that waits; False if it does not."""
        if tenant not in self._waiting or item not in self._waiting[tenant]:
            return False
        self._waiting[tenant].remove(item)
        self._left(tenant)
        self._turns.leave(tenant)
        return True

    def _left(self, tenant: str) -> None:
        self._num_waiting -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]


class FairThreads:
    """Threads that work for several tenants, who take turns by the processor time that they had. Thread-safe.

    With `most_running` below the number of threads, no tenant holds them all. Work whose future is cancelled before it
    begins is dropped. What has begun goes to its end, or to that of the process, which does not wait for it (it would
    for the threads of `concurrent.futures`).
    """

    def __init__(self, name: str, num_threads: int, *, most_running: int | None = None) -> None:
        """The threads are begun as they are needed."""
        self._name = f"bough-{name}"
        self._num_most = num_threads
        self._changed = threading.Condition(threading.Lock())
        self._queue: FairQueue[Future[Any]] = FairQueue(most_running)
        self._work_of: dict[Future[Any], Callable[[], Any]] = {}  # of what waits: no future keeps its work
        self._num_threads = 0
        self._num_running = 0
        self._closed = False

    def busy(self, tenant: str) -> bool:
        """Returns true if further work of the tenant's has to wait."""
        with self._changed:
            is_full = self._num_running + len(self._queue) >= self._num_most
            return is_full or bool(self._queue.num_waiting(tenant)) or not self._queue.may_run(tenant)

    def num_waiting(self, tenant: str | None = None) -> int:
        """Returns how many pieces of work wait, of a tenant or of all."""
        with self._changed:
            return len(self._queue) if tenant is None else self._queue.num_waiting(tenant)

    def submit(self, tenant: str, work: Callable[[], T]) -> Future[T]:
        """Has `work` done, when it is the tenant's turn. Raises RuntimeError: they are closed, or no thread is to be
        had."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("the threads are closed")
            self._queue.push(tenant, future)
            self._work_of[future] = work
            num_idle = self._num_threads - self._num_running
            if num_idle < len(self._queue) and self._num_threads < self._num_most:
                self._begin_thread(tenant, future)
            self._changed.notify()
        future.add_done_callback(lambda done: self._drop(tenant, done) if done.cancelled() else None)
        return future

    def close(self) -> None:
        """Waits for nothing: what has not begun is never done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _begin_thread(self, tenant: str, future: Future[Any]) -> None:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more of them
            if not self._num_threads:
                self._queue.remove(tenant, future)
                del self._work_of[future]
                raise
        else:
            self._num_threads += 1

    def _drop(self, tenant: str, future: Future[Any]) -> None:
        with self._changed:
            work = self._work_of.pop(future) if self._queue.remove(tenant, future) else None
        del work  # not under the lock, which a finalizer of what it holds may take

    def _work(self) -> None:
        """Does one piece of work after the other, until none has come for a while."""
        while (taken := self._take()) is not None:
            tenant, (future, work) = taken
            began = time.thread_time()
            try:
                if future.set_running_or_notify_cancel():
                    settle(future, work)
            finally:
                del taken, future, work  # or they would be kept while nothing comes
                with self._changed:
                    self._queue.end(tenant, time.thread_time() - began)
                    self._num_running -= 1
                    self._changed.notify()  # more of the tenant's may run, and this thread may take that of another

    def _take(self) -> tuple[str, tuple[Future[Any], Callable[[], Any]]] | None:
        """Waits for the next piece of work, which runs from now on; None if the thread is to end."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._closed or self._queue.pop(), IDLE_S)
            if not isinstance(found, tuple):
                self._num_threads -= 1
                return None
            self._num_running += 1
            tenant, future = found
            return tenant, (future, self._work_of.pop(future))


def settle(future: Future[T], work: Callable[[], T]) -> None:
    """Does a piece of work, whose result or exception becomes that of `future`."""
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001  a panic of native code, too, is raised where somebody waits
        future.set_exception(error)
    else:
        future.set_result(result)


def outcome(future: Future[T]) -> T:
    """Returns the result of a future that several ask, or raises a copy of its exception: one that is raised again and
    again keeps in its traceback all who have asked, and what they hold."""
    error = future.exception()
    if error is None:
        return future.result()
    copied = type(error).__new__(type(error), *error.args)
    copied.__dict__.update(error.__dict__)
    raise copied from None
