"""Fair queueing: tenants take turns at a scarce resource, and the least served of those that wait goes next."""

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
"""Idle time after which a thread ends."""


@dataclass(eq=False, slots=True)
class Share:
    """A tenant's share of a resource, as long as it has work for it.

    num_present   items of its work that wait or run
    num_running   items of these that run
    used          cost of the items that have run
    """

    tenant: str
    used: float
    num_present: int = 0
    num_running: int = 0


rank: Callable[[Share], tuple[int, float]] = attrgetter("num_running", "used")
"""Sort key that puts the least served first: by running items, then by past cost."""


class Turns:
    """Shares of the tenants that have work. Not thread-safe.

    A new tenant starts with the cost of the least served one present (start-time fair queueing; Goyal, Vin and Cheng,
    IEEE/ACM ToN 5(5), 1997), so that no absence is rewarded, long or short.
    """

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}

    def enter(self, tenant: str) -> Share:
        """Counts a new item of the tenant's work; returns its share, in which the caller may count running items."""
        share = self._shares.get(tenant)
        if share is None:
            used = min((other.used for other in self._shares.values()), default=0.0)
            share = self._shares[tenant] = Share(tenant, used)
        share.num_present += 1
        return share

    def leave(self, tenant: str) -> None:
        """Counts off an item that is done or was given up."""
        share = self._shares[tenant]
        share.num_present -= 1
        if not share.num_present:
            del self._shares[tenant]

    def begin(self, tenant: str) -> None:
        """Counts an item as running."""
        self._shares[tenant].num_running += 1

    def end(self, tenant: str, cost: float) -> None:
        """Counts an item as no longer running and charges its cost."""
        share = self._shares[tenant]
        share.used += cost
        share.num_running -= 1

    def num_running(self, tenant: str) -> int:
        share = self._shares.get(tenant)
        return 0 if share is None else share.num_running

    def rank(self, tenant: str) -> tuple[int, float]:
        """Returns the `rank` of the tenant's share; that of an empty share if it has no work."""
        share = self._shares.get(tenant)
        return (0, 0.0) if share is None else rank(share)


class FairQueue(Generic[T]):
    """Queue of waiting items, in the order of arrival within a tenant. Not thread-safe.

    The taker of an item must report its end and its cost. At most `most_running` items of a tenant run at a time.
    """

    def __init__(self, most_running: int | None = None) -> None:
        self._most_running = most_running
        self._turns = Turns()
        self._waiting: dict[str, deque[T]] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        """Returns the number of waiting items."""
        return self._num_waiting

    def num_waiting(self, tenant: str) -> int:
        return len(self._waiting.get(tenant, ()))

    def may_run(self, tenant: str) -> bool:
        """Returns True if another item of the tenant may run."""
        return self._most_running is None or self._turns.num_running(tenant) < self._most_running

    def push(self, tenant: str, item: T) -> None:
        self._turns.enter(tenant)
        self._waiting.setdefault(tenant, deque()).append(item)
        self._num_waiting += 1

    def pop(self) -> tuple[str, T] | None:
        """Takes the next item, which then counts as running; None if none waits or may run yet."""
        tenant = min(filter(self.may_run, self._waiting), key=self._turns.rank, default=None)
        if tenant is None:
            return None
        item = self._waiting[tenant].popleft()
        self._left(tenant)
        self._turns.begin(tenant)
        return tenant, item

    def end(self, tenant: str, cost: float) -> None:
        """Reports the end of an item that was taken, and its cost."""
        self._turns.end(tenant, cost)
        self._turns.leave(tenant)

    def remove(self, tenant: str, item: T) -> bool:
        """Removes a waiting item; returns False if it does not wait."""
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
    """Threads that work for several tenants in turn, by the processor time that each has had. Thread-safe.

    With `most_running` below the number of threads, no tenant can hold them all. Work whose future is cancelled before
    it begins is dropped. Work that has begun runs to its end or to that of the process, which does not wait for it (as
    it would for the threads of `concurrent.futures`).
    """

    def __init__(self, name: str, num_threads: int, *, most_running: int | None = None) -> None:
        """Creates no threads yet: they are started on demand."""
        self._name = f"bough-{name}"
        self._num_most = num_threads
        self._changed = threading.Condition(threading.Lock())
        self._queue: FairQueue[Future[Any]] = FairQueue(most_running)
        self._work_of: dict[Future[Any], Callable[[], Any]] = {}  # of waiting futures, which do not hold their work
        self._num_threads = 0
        self._num_running = 0
        self._closed = False

    def busy(self, tenant: str) -> bool:
        """Returns True if further work of the tenant has to wait."""
        with self._changed:
            is_full = self._num_running + len(self._queue) >= self._num_most
            return is_full or bool(self._queue.num_waiting(tenant)) or not self._queue.may_run(tenant)

    def num_waiting(self, tenant: str | None = None) -> int:
        """Returns the number of waiting items, of a tenant or of all."""
        with self._changed:
            return len(self._queue) if tenant is None else self._queue.num_waiting(tenant)

    def submit(self, tenant: str, work: Callable[[], T]) -> Future[T]:
        """Runs `work` when it is the tenant's turn; returns its future. Raises RuntimeError: the threads are closed, or
        none can be started."""
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
        """Closes without waiting; work that has not begun is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _begin_thread(self, tenant: str, future: Future[Any]) -> None:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no threads left
            if not self._num_threads:
                self._queue.remove(tenant, future)
                del self._work_of[future]
                raise
        else:
            self._num_threads += 1

    def _drop(self, tenant: str, future: Future[Any]) -> None:
        with self._changed:
            work = self._work_of.pop(future) if self._queue.remove(tenant, future) else None
        del work  # outside the lock, which finalizers of what it holds may take

    def _work(self) -> None:
        """Runs one item of work after another, until none has come for IDLE_S."""
        while (taken := self._take()) is not None:
            tenant, (future, work) = taken
            began = time.thread_time()
            try:
                if future.set_running_or_notify_cancel():
                    settle(future, work)
            finally:
                del taken, future, work  # or they would be kept alive while idle
                with self._changed:
                    self._queue.end(tenant, time.thread_time() - began)
                    self._num_running -= 1
                    self._changed.notify()  # more of the tenant's work may run, and this thread may take another's

    def _take(self) -> tuple[str, tuple[Future[Any], Callable[[], Any]]] | None:
        """Waits for the next item of work, which then counts as running; returns None if the thread is to end."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._closed or self._queue.pop(), IDLE_S)
            if not isinstance(found, tuple):
                self._num_threads -= 1
                return None
            self._num_running += 1
            tenant, future = found
            return tenant, (future, self._work_of.pop(future))


def settle(future: Future[T], work: Callable[[], T]) -> None:
    """Runs `work` and sets `future` to its result or exception."""
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001  a panic of native code, too, is raised where the future is awaited
        future.set_exception(error)
    else:
        future.set_result(result)


def outcome(future: Future[T]) -> T:
    """Returns the result of a future with several readers, or raises a copy of its exception: one that is raised again
    and again would keep all its readers' frames alive in its traceback."""
    error = future.exception()
    if error is None:
        return future.result()
    copied = type(error).__new__(type(error), *error.args)
    copied.__dict__.update(error.__dict__)
    raise copied from None
