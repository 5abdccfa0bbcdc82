"""Batches: order, errors of single items, how many run at once, progress, leaving early."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from bough.lang.api import function, gen
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Delta, Done

from ..fakes import FakeBackend, value


@function
def echo(s, text):
    s += text + gen("x")
    if text == "bad":
        raise ValueError("bad item")


def echoing() -> MockBackend:
    return MockBackend({"x": lambda prompt, name: prompt.upper()})


def test_results_are_in_the_order_of_the_items():
    def script(program):
        text = program.ops[0].parts[0]
        time.sleep(0.02 if text == "0" else 0.0)
        yield value(0, "x", text)
        yield Done()

    states = echo.run_batch([{"text": str(i)} for i in range(20)], backend=FakeBackend(script), num_threads=8)
    assert [state["x"] for state in states] == [str(i) for i in range(20)]


def test_items_are_dicts_or_tuples():
    states = echo.run_batch([{"text": "a"}, ("b",), "c"], backend=echoing())
    assert [state["x"] for state in states] == ["A", "B", "C"]
    two = function(lambda s, text, other: echo.body(s, text))
    items: list[Any] = ["a", 3]
    for item in items:
        with pytest.raises(ProgramError, match="each item of a batch"):
            two.run_batch([item], backend=echoing())


def test_of_one_parameter_the_values_are_enough():
    assert [state["x"] for state in echo.run_batch(["a", "b"], backend=echoing())] == ["A", "B"]
    one = function(lambda s, text, other: echo.body(s, text + other)).bind(other="!")
    assert [state["x"] for state in one.run_batch(["a"], backend=echoing())] == ["A!"]


def test_a_failing_item_spoils_no_other():
    states = echo.run_batch([("a",), ("bad",), ("c", "too many"), ("d",)], backend=echoing())
    assert [state["x"] for state in (states[0], states[3])] == ["A", "D"]
    assert isinstance(states[1].error(), ValueError) and isinstance(states[2].error(), TypeError)
    assert states[0].error() is None
    with pytest.raises(ProgramError, match="bad item"):
        states[1]["x"]


def test_what_is_wrong_for_all_is_raised_at_once():
    backend = echoing()
    with pytest.raises(RequestError, match="temperature"):
        echo.run_batch([("a",)], backend=backend, temperature=-1)
    with pytest.raises(ProgramError, match="no backend"):
        echo.run_batch([("a",)])
    with pytest.raises(ProgramError, match="num_threads"):
        echo.run_batch([("a",)], backend=backend, num_threads=0)
    assert backend.requests == []


def test_an_empty_batch_is_empty():
    assert echo.run_batch([], backend=echoing()) == []


@pytest.mark.parametrize("num_threads", [1, 4])
def test_so_many_run_at_once_each_on_a_thread(num_threads: int):
    running, most = 0, 0
    threads = set()
    lock = threading.Lock()

    @function
    def blocks(s):
        nonlocal running, most
        threads.add(threading.get_ident())
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        s += gen("x")

    blocks.run_batch([()] * 12, backend=MockBackend(), num_threads=num_threads)
    assert most == len(threads) == num_threads


@pytest.mark.parametrize("num_threads", [1, 4])
def test_coroutine_bodies_and_tasks_are_bounded_too(num_threads: int):
    running, most = 0, 0

    @function
    async def counts(s):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    counts.run_batch([()] * 12, backend=MockBackend(), num_threads=num_threads)
    assert most == num_threads
    most = 0
    asyncio.run(counts.arun_batch([()] * 12, backend=MockBackend(), num_threads=num_threads))
    assert most == num_threads


def test_auto_runs_all_on_the_caller_s_thread_at_once():
    backend = FakeBackend(held := Held())
    held.num_wanted = 200
    threads = set()

    @function
    def reads(s, index):
        threads.add(threading.get_ident())
        s += f"{index}" + gen("x")
        return s["x"]

    num_threads = threading.active_count()
    states = reads.run_batch([(index,) for index in range(200)], backend=backend)
    assert [state.ret_value for state in states] == ["x"] * 200
    assert threads == {threading.get_ident()} and threading.active_count() <= num_threads


class Held:
    """Answers only when so many programs wait at a time."""

    def __init__(self) -> None:
        self.num_wanted = 0
        self.num_waiting = 0
        self.all = threading.Event()

    def __call__(self, program):
        self.num_waiting += 1
        if self.num_waiting == self.num_wanted:
            self.all.set()
        yield self.all
        yield value(0, "x", "x")
        yield Done()


def test_auto_on_a_running_loop_has_a_loop_thread_of_its_own():
    async def main() -> list[str]:
        return [state["x"] for state in echo.run_batch([("a",), ("b",)], backend=echoing())]

    assert asyncio.run(main()) == ["A", "B"]


def test_a_body_that_blocks_the_others_is_told_of_once(caplog, monkeypatch):
    monkeypatch.setattr("bough.lang.run.batch._SLOW_S", 0.001)

    @function
    def blocks(s, index):
        time.sleep(0.005)
        s += gen("x")

    blocks.run_batch([(1,), (2,), (3,)], backend=MockBackend())
    assert [record.message.count("num_threads=N") for record in caplog.records] == [1]
    caplog.clear()
    blocks.run_batch([(1,)], backend=MockBackend())
    blocks.run_batch([(1,), (2,)], backend=MockBackend(), num_threads=2)
    assert caplog.records == []


def test_what_is_wrong_with_one_item_is_that_item_s_failure():
    for num_threads in ("auto", 2):
        states = echo.run_batch([("a",), {"text": "b", "temperature": -1}], backend=echoing(), num_threads=num_threads)
        assert states[0]["x"] == "A"
        assert isinstance(states[1].error(), RequestError)


def test_progress_is_shown_with_its_rate(capsys):
    echo.run_batch([("a",), ("bad",)], backend=echoing(), progress_bar=True)
    shown = capsys.readouterr().err
    assert "2/2" in shown and "program/s" in shown
    echo.run_batch([("a",)], backend=echoing())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("num_threads", "most"), [(2, 20), ("auto", 16)])
def test_generator_style_runs_ahead_only_a_little_and_stops_when_left(num_threads, most, monkeypatch):
    monkeypatch.setattr("bough.lang.run.batch.MAX_AT_ONCE", 4)
    backend = echoing()
    items = [(str(i),) for i in range(100)]
    states = echo.run_batch(items, backend=backend, num_threads=num_threads, generator_style=True)
    assert next(states)["x"] == "0"
    states.close()
    assert len(backend.requests) < most
    states = echo.run_batch(items, backend=backend, num_threads=num_threads, generator_style=True)
    assert [state["x"] for state in states] == [str(i) for i in range(100)]


@pytest.mark.parametrize("num_threads", [2, "auto"])
def test_leaving_a_batch_aborts_what_runs(num_threads):
    def script(program):
        if program.ops[0].parts[0] == "0":
            yield value(0, "x", "zero")
        else:
            for _ in range(2000):
                yield Delta(0, "x", "h")
                time.sleep(0.001)
        yield Done()

    backend = FakeBackend(script)
    states = echo.run_batch([("0",), ("1",)], backend=backend, generator_style=True, num_threads=num_threads)
    assert next(states)["x"] == "zero"
    while len(backend.requests) < 2:
        time.sleep(0.001)
    start = time.monotonic()
    states.close()
    assert time.monotonic() - start < 1.0
    assert len(backend.aborted) == 1


def test_bodies_see_the_caller_s_context():
    import contextvars

    color = contextvars.ContextVar("color", default="none")
    color.set("red")

    @function
    def reads_context(s, index):
        s += gen("x")
        return color.get()

    states = reads_context.run_batch([(i,) for i in range(3)], backend=MockBackend())
    assert [state.ret_value for state in states] == ["red"] * 3


def test_arun_batch():
    states = asyncio.run(echo.arun_batch([("a",), ("bad",), ("c",)], backend=echoing(), num_threads=2))
    assert [states[0]["x"], states[2]["x"]] == ["A", "C"]
    assert isinstance(states[1].error(), ValueError)
