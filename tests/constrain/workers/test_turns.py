"""Tenants take turns by what each has had, and none waits behind all that another one has asked for."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.constrain.errors import GrammarError, UnsupportedKeywordError
from bough.constrain.workers import turns
from bough.constrain.workers.turns import FairQueue, FairThreads, Turns, outcome


def test_who_has_had_less_goes_next() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(5):
        queue.push("flood", f"f{number}")
    assert queue.pop() == ("flood", "f0")
    queue.push("quiet", "q")
    assert queue.pop() == ("quiet", "q")  # nothing of its own runs
    queue.end("quiet", 5.0)
    queue.end("flood", 0.1)
    queue.push("quiet", "q again")
    assert queue.pop() == ("flood", "f1")


def test_what_runs_counts_before_what_has_run() -> None:
    shares = Turns()
    for tenant in ("a", "b"):
        shares.enter(tenant)
        shares.enter(tenant)
    shares.begin("a")
    shares.end("a", 10.0)
    shares.begin("b")
    assert shares.rank("a") < shares.rank("b")


def test_an_absence_is_not_rewarded() -> None:
    shares = Turns()
    shares.enter("old")
    shares.begin("old")
    shares.end("old", 100.0)
    shares.enter("new")  # it would have the threads for itself for 100 s otherwise
    assert shares.rank("new") == shares.rank("old") == (0, 100.0)
    shares.leave("old")
    shares.leave("new")
    shares.enter("old")
    assert shares.rank("old") == (0, 0.0)


def test_nothing_is_kept_of_tenants_that_have_left() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(100):
        queue.push(str(number), number)
    assert queue.remove("0", 0)
    assert not queue.remove("0", 0)
    while (taken := queue.pop()) is not None:
        queue.end(taken[0], 1.0)
    assert (len(queue), queue._turns._shares, queue._waiting) == (0, {}, {})


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20)), min_size=1, max_size=60))
def test_each_tenant_has_its_part(items: list[tuple[str, int]]) -> None:
    """While all of them wait, what two have had differs by no more than the largest item."""
    queue: FairQueue[int] = FairQueue()
    for tenant, cost in items:
        queue.push(tenant, cost)
    had = dict.fromkeys({tenant for tenant, _ in items}, 0)
    while all(queue.num_waiting(tenant) for tenant in had):
        taken = queue.pop()
        assert taken is not None
        queue.end(*taken)
        had[taken[0]] += taken[1]
        assert max(had.values()) - min(had.values()) <= 20


def occupy(threads: FairThreads, gate: threading.Event) -> Future[bool]:
    """Returns the future of work that runs, until the gate opens."""
    begun = threading.Event()

    def work() -> bool:
        begun.set()
        return gate.wait()

    future = threads.submit("flood", work)
    assert begun.wait(10.0)
    return future


def test_a_flood_delays_another_one_by_what_runs() -> None:
    threads = FairThreads("test", 1)
    gate, order = threading.Event(), list[str]()
    futures: list[Future[Any]] = [occupy(threads, gate)]
    futures += [threads.submit("flood", lambda: order.append("flood")) for _ in range(50)]
    futures.append(threads.submit("quiet", lambda: order.append("quiet")))
    assert threads.busy("quiet")
    assert (threads.num_waiting(), threads.num_waiting("quiet")) == (51, 1)
    gate.set()
    for future in futures:
        future.result(10.0)
    assert order.index("quiet") == 0
    threads.close()


def test_no_tenant_holds_all_threads() -> None:
    threads = FairThreads("test", 3, most_running=2)
    gate, running = threading.Event(), threading.Semaphore(0)

    def work() -> bool:
        running.release()
        return gate.wait()

    flood = [threads.submit("flood", work) for _ in range(6)]
    for _ in range(2):
        assert running.acquire(timeout=10.0)
    assert threads.busy("flood")
    assert threads.submit("quiet", lambda: "done").result(10.0) == "done"
    assert not running.acquire(blocking=False)
    gate.set()
    assert all(future.result(10.0) for future in flood)
    threads.close()


def test_what_nobody_waits_for_is_dropped() -> None:
    threads = FairThreads("test", 1)
    gate = threading.Event()
    running = occupy(threads, gate)
    done: list[int] = []
    waiting = [threads.submit("a", lambda: done.append(1)) for _ in range(100)]
    assert all(future.cancel() for future in waiting)
    assert threads.num_waiting() == 0
    assert not running.cancel()
    last = threads.submit("a", lambda: "done")
    gate.set()
    assert last.result(10.0) == "done"
    assert done == []
    threads.close()


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_future_keeps_nothing_of_its_work(cancelled: bool) -> None:
    """Nor does it need the garbage collector to be freed."""

    class Work:
        def __call__(self) -> str:
            return "done"

    threads = FairThreads("test", 1)
    gate = threading.Event()
    gc.disable()
    try:
        occupy(threads, gate)
        work = Work()
        held = weakref.ref(work)
        future = threads.submit("a", work)
        del work
        if cancelled:
            assert future.cancel()
        gate.set()
        assert threads.submit("a", lambda: "last").result(10.0) == "last"
        assert future.done() and held() is None
    finally:
        gc.enable()
    threads.close()


def test_threads_begin_as_needed_and_end_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> int:
        return sum(thread.name.startswith("bough-idle-test") for thread in threading.enumerate())

    monkeypatch.setattr(turns, "IDLE_S", 0.2)
    threads = FairThreads("idle-test", 3)
    for _ in range(5):
        threads.submit("a", lambda: None).result(10.0)
        time.sleep(0.01)
    assert count() == 1
    gate = threading.Event()
    waiting = [threads.submit("a", gate.wait) for _ in range(10)]
    assert count() == 3
    gate.set()
    for future in waiting:
        future.result(10.0)
    deadline = time.monotonic() + 5.0
    while count() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not count()
    assert threads.submit("a", lambda: 1).result(10.0) == 1
    threads.close()


def test_closed_threads_do_nothing_more() -> None:
    threads = FairThreads("test", 1)
    gate, done = threading.Event(), list[int]()
    running = occupy(threads, gate)
    threads.submit("a", lambda: done.append(1))
    threads.close()
    gate.set()
    assert running.result(10.0)
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit("a", lambda: done.append(2))
    time.sleep(0.05)
    assert not done


def test_work_under_way_does_not_keep_a_process() -> None:
    program = (
        "import time\nfrom bough.constrain.workers.turns import FairThreads\n"
        "FairThreads('test', 1).submit('a', lambda: time.sleep(60))"
    )
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    assert subprocess.run([sys.executable, "-c", program], env=environment, timeout=30.0, check=False).returncode == 0


def test_errors_and_panics_are_raised_where_somebody_waits() -> None:
    class Panic(BaseException):
        """Exception that native code raises when it panics."""

    def panic() -> None:
        raise Panic

    threads = FairThreads("test", 1)
    with pytest.raises(Panic):
        threads.submit("a", panic).result(10.0)
    assert threads.submit("a", lambda: 1).result(10.0) == 1
    assert threads.num_waiting() == 0
    deadline = time.monotonic() + 5.0
    while threads.busy("a") and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not threads.busy("a")
    threads.close()


@pytest.mark.parametrize("error", [GrammarError("no", path="/a"), UnsupportedKeywordError("not"), OSError(2, "gone")])
def test_an_outcome_keeps_nobody_who_asked_for_it(error: Exception) -> None:
    """A pattern that could not be compiled was raised again for each request, and kept all of them."""
    future: Future[str] = Future()
    future.set_exception(error)
    for _ in range(3):
        with pytest.raises(type(error)) as raised:
            outcome(future)
        assert raised.value is not error
        assert (str(raised.value), vars(raised.value)) == (str(error), vars(error))
    assert error.__traceback__ is None


def test_an_outcome_is_the_result() -> None:
    future: Future[str] = Future()
    future.set_result("yes")
    assert outcome(future) == "yes"
