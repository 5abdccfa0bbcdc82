"""Masks of a step on threads: each sequence gets its own, and one that is late is the only one to be late."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

from bough.constrain import JsonSchema, Matcher, MatcherError, Regex
from bough.constrain.errors import SearchLateError
from bough.constrain.matchers.completion import Completer
from bough.constrain.matchers.interface import GrammarState
from bough.constrain.spec import GrammarSpec
from bough.constrain.vocabulary.vocabulary import MaskRow
from bough.runtime.engine.engine import Engine
from bough.runtime.engine.masks import MAX_STUCK, NUM_SLOW, Filling, MaskFiller, MaskJob
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import FakeRunner, fake_engine, refuse_threads

VOCAB = 40
WORDS = 2


class Number(Matcher):
    """A matcher whose mask is its number; it may have to be let go first."""

    accepting = finished = free = False
    taken = ()

    def __init__(self, number: int, gate: threading.Event | None = None) -> None:
        self.number, self.gate = number, gate
        self.num_fills = 0

    def min_tokens(self) -> int | None:
        return None

    def fill_mask(self, out: MaskRow) -> None:
        self.num_fills += 1
        if self.gate is not None:
            assert self.gate.wait(10.0)
        if self.number < 0:
            raise MatcherError("a dead end")
        out[:] = self.number

    def accept(self, token: int, remaining: int | None = None, patience_s: float | None = None) -> int:
        self.number += token
        return token

    def rollback(self, num_tokens: int) -> None:
        self.number -= num_tokens

    def forced_tokens(self, patience_s: float | None = None) -> list[int]:
        return []

    def copy(self) -> Matcher:
        return Number(self.number, self.gate)


@pytest.mark.parametrize("num_threads", [1, 4])
def test_each_job_gets_its_rows(num_threads: int) -> None:
    filler = MaskFiller(VOCAB, num_threads)
    for start in (0, 100, 200):
        jobs = [MaskJob(Number(start + index), [1] * (index % 3)) for index in range(20)]
        jobs[7] = MaskJob(Number(-5))
        filling = filler.start(jobs)
        assert filling is not None and filler.finish(filling, 10.0) == []
        for index, job in enumerate(jobs):
            assert job.right == (0 if index == 7 else 1 + index % 3)
            rows = filling.rows[job.first : job.first + job.right]
            assert (rows == start + index + np.arange(job.right)[:, None]).all()
    assert filler.start([]) is None
    filler.close()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_who_is_late_holds_nobody_else(num_threads: int) -> None:
    """Also those that come after the slow ones in the queue get their masks, on threads that are added."""
    filler = MaskFiller(VOCAB, num_threads)
    gate = threading.Event()
    jobs = [MaskJob(Number(index, gate if index < 3 else None)) for index in range(8)]
    filling = filler.start(jobs)
    assert filling is not None
    late = filler.finish(filling, 0.05)
    assert late and set(late) <= set(jobs[:3])
    late = [job for job in jobs[:3] if job.right is None]
    assert all(job.right == 1 for job in jobs[3 + num_threads :])
    kept = [np.array(job.rows) for job in jobs[3:] if job.right]
    again = filler.start([MaskJob(Number(99)) for _ in range(8)])  # into other memory, as are the next
    assert again is not None and filler.finish(again, 10.0) == []
    gate.set()
    deadline = time.monotonic() + 10.0
    while any(job.right is None for job in late) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert (again.rows == 99).all()
    assert [row.tolist() for row in kept] == [job.rows.tolist() for job in jobs[3:] if job.rows is not None][
        : len(kept)
    ]
    # What came late is taken over, not filled again.
    follower = MaskJob(jobs[0].matcher, [], jobs[0].rows, jobs[0].right)
    filling = filler.start([MaskJob(Number(5)), follower])
    assert filling is not None and filler.finish(filling, 10.0) == []
    assert filling.rows[follower.first].tolist() == [0] * WORDS and filling.rows[0].tolist() == [5] * WORDS
    assert jobs[0].matcher.num_fills == 1  # type: ignore[attr-defined]
    filler.close()


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_what_ends_while_it_is_waited_for_again_is_in_the_step(num_drafts: int) -> None:
    """A job that was late comes again before it has ended, as after a retraction."""
    filler = MaskFiller(VOCAB, 2)
    gate = threading.Event()
    job = MaskJob(Number(7, gate), [1] * num_drafts)
    filling = filler.start([job])
    assert filling is not None and filler.finish(filling, 0.01) == [job]
    other = MaskJob(Number(99))
    filling = filler.start([other, job])
    assert filling is not None and job.right is None
    gate.set()
    deadline = time.monotonic() + 10.0
    while job.right is None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert filler.finish(filling, 10.0) == []
    assert job.right == 1 + num_drafts
    expected = [[7 + index] * WORDS for index in range(1 + num_drafts)]
    assert filling.rows[job.first : job.first + 1 + num_drafts].tolist() == expected
    assert filling.rows[other.first].tolist() == [99] * WORDS
    filler.close()


class Panic(BaseException):
    """Exception that native code raises when it panics."""


def test_native_code_that_panics_ends_its_own_job(caplog: pytest.LogCaptureFixture) -> None:
    class Panicking(Number):
        def fill_mask(self, out: MaskRow) -> None:
            raise Panic("at src/lib.rs")

    filler = MaskFiller(VOCAB, 1)
    jobs = [MaskJob(Panicking(1)), MaskJob(Number(2))]
    filling = filler.start(jobs)
    assert filling is not None and filler.finish(filling, 10.0) == []
    assert [job.right for job in jobs] == [0, 1]
    assert "could not be filled" in caplog.text
    filler.close()


class Slow:
    """A matcher that takes two passes over a mask, as long as there are any."""

    def __init__(self, inner: Matcher, runner: FakeRunner) -> None:
        self.inner, self.runner = inner, runner

    def fill_mask(self, out: MaskRow) -> None:
        stop, deadline = self.runner.num_steps + 2, time.monotonic() + 0.05
        while self.runner.num_steps < stop and time.monotonic() < deadline:
            time.sleep(0.001)
        self.inner.fill_mask(out)

    on_table = tabulable = None
    fill_along = Matcher.fill_along

    @property
    def successor(self) -> Slow:
        return self

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_slow_mask_holds_its_own_sequence_only(ahead: int) -> None:
    """The answers are the same, and the others take no longer."""
    spec = JsonSchema(
        '{"type":"array","items":{"enum":[1,22,333]},"minItems":12,"maxItems":12}', property_order="schema"
    )
    found = []
    for slow in (False, True):
        engine, runner = fake_engine(ahead=ahead, mask_patience_s=0.004)
        heard: list[list[RequestOutput]] = [[] for _ in range(4)]
        ends: dict[int, int] = {}
        for index, outputs in enumerate(heard):
            sampling = SamplingParams(max_tokens=120, temperature=1.0, seed=index)
            request = Request(id=str(index), prompt=(65, 66 + index), sampling=sampling, grammar=spec)
            engine.submit(request, outputs.append)
        engine.wait_for_grammar(10.0)
        while not engine.idle or engine._live:
            engine.step()
            generation = engine._live.get("2")
            if slow and generation is not None and not isinstance(generation.matcher, Slow) and generation.matcher:
                generation.matcher = Slow(generation.matcher, runner)  # type: ignore[assignment]
            for index, outputs in enumerate(heard):
                if outputs and outputs[-1].finish is not None:
                    ends.setdefault(index, runner.num_steps)
        engine.close()
        assert all(outputs[-1].finish is not None and outputs[-1].finish.reason == "stop" for outputs in heard)
        found.append(([[token for output in outputs for token in output.tokens] for outputs in heard], ends))
    (tokens, ends), (slow_tokens, slow_ends) = found
    assert slow_tokens == tokens
    assert slow_ends[2] > max(slow_ends[index] for index in (0, 1, 3)), "it did not sit out"
    assert all(slow_ends[index] <= 2 * ends[index] + 20 for index in (0, 1, 3))


def test_who_is_late_may_leave() -> None:
    engine, _ = fake_engine(ahead=0, mask_patience_s=0.001)
    heard: list[RequestOutput] = []
    engine.submit(
        Request(id="a", prompt=(65,), sampling=SamplingParams(max_tokens=20), grammar=Regex("[a-z]{5}")), heard.append
    )
    engine.wait_for_grammar(10.0)
    engine._admit(0.0)
    generation = engine._live["a"]
    gate = threading.Event()
    generation.matcher = Number(1, gate)
    for _ in range(5):
        engine.step()
    assert not heard and not engine.idle
    engine.abort("a")
    engine.step()
    assert heard[-1].finish is not None and heard[-1].finish.reason == "abort" and engine.idle
    gate.set()
    engine.close()


def test_free_matchers_need_no_mask() -> None:
    engine, _ = fake_engine(ahead=0)
    heard: list[RequestOutput] = []
    spec = Regex("[a-z]{5}")
    engine.submit(Request(id="a", prompt=(65,), sampling=SamplingParams(max_tokens=6), grammar=spec), heard.append)
    engine.wait_for_grammar(10.0)
    engine._admit(0.0)
    free = Number(0)
    free.free = True
    engine._live["a"].matcher = free
    while engine._live:
        engine.step()
    assert free.num_fills == 0 and heard[-1].finish is not None
    engine.close()


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_slow_search_is_not_the_engines(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near the end of a budget ways to the end are sought on other threads; the answers are the same."""
    spec = JsonSchema('{"type":"array","items":{"type":"string","minLength":6},"minItems":3}')
    search = Completer.search
    slow = False
    threads: set[str] = set()

    def counted(
        self: Completer, state: GrammarState, max_tokens: int, patience_s: float | None = None
    ) -> list[int] | None:
        if slow and patience_s is not None:
            raise SearchLateError("it takes longer")
        threads.add(threading.current_thread().name)
        return search(self, state, max_tokens)

    monkeypatch.setattr(Completer, "search", counted)
    found = []
    for slow in (False, True):
        engine, _ = fake_engine(ahead=ahead)
        heard: list[list[RequestOutput]] = [[] for _ in range(4)]
        for index, outputs in enumerate(heard):
            sampling = SamplingParams(max_tokens=60, temperature=1.0, seed=index // 2)
            request = Request(id=str(index), prompt=(65, 66), sampling=sampling, grammar=spec if index else None)
            engine.submit(request, outputs.append)
        engine.wait_for_grammar(10.0)
        threads.clear()
        while not engine.idle:
            engine.step()
        engine.close()
        assert threads
        assert all(name.startswith("bough-slow") for name in threads) or not slow
        found.append([[token for output in outputs for token in output.tokens] for outputs in heard])
        assert sum(output.cached_tokens is not None for output in heard[1]) == 1
        usage = heard[1][-1].finish
        assert usage is not None and usage.usage.completion_tokens == len(found[-1][1])
    assert found[0] == found[1]


@pytest.mark.parametrize("num_keys", [1, 10])
def test_masks_that_hang_are_no_concern_of_other_keys(num_keys: int) -> None:
    """A whole batch of them would keep every thread busy."""
    engine, _ = fake_engine(ahead=0, mask_patience_s=0.05)
    heard: dict[str, list[RequestOutput]] = {}
    gate = threading.Event()
    for number in range(31):
        name = f"flood {number}" if number < 30 else "quiet"
        key, sampling = f"flood{number % num_keys}" if number < 30 else name, SamplingParams(max_tokens=4)
        listener = heard.setdefault(name, []).append
        engine.submit(Request(id=name, prompt=(65,), sampling=sampling, namespace=key), listener)
        engine._live[name].matcher = Number(1, gate if number < 30 else None)
    for _ in range(100):
        engine.step()
        if not engine._live.get("quiet"):
            break
    assert heard["quiet"][-1].finish is not None
    assert all(not outputs for name, outputs in heard.items() if name != "quiet")
    gate.set()
    engine.close()


def test_what_is_left_to_the_slow_threads_comes_right() -> None:
    engine, _ = fake_engine(ahead=0, mask_patience_s=0.01)
    heard: list[RequestOutput] = []
    gate = threading.Event()
    for number in range(31):
        sampling = SamplingParams(max_tokens=2)
        request = Request(id=str(number), prompt=(65,), sampling=sampling, namespace=str(number % 2))
        engine.submit(request, heard.append)
        engine._live[str(number)].matcher = Number(1, gate)
    for _ in range(5):
        engine.step()
    assert not heard
    gate.set()
    deadline = time.monotonic() + 20.0
    while engine._live and time.monotonic() < deadline:
        engine.step()
    assert sum(output.finish is not None for output in heard) == 31
    engine.close()


def test_late_masks_of_requests_that_have_ended_are_not_made() -> None:
    """They would hold their matchers, and delay those of others of the same tenant."""
    engine, _ = fake_engine(ahead=0, mask_patience_s=0.001, max_num_seqs=64)
    gate = threading.Event()
    sampling = SamplingParams(max_tokens=4)
    for number in range(60):
        engine.submit(Request(id=str(number), prompt=(65,), sampling=sampling, namespace="k"), lambda _: None)
        engine._live[str(number)].matcher = Number(1, gate)
    for _ in range(5):
        engine.step()
    slow = engine._masks._filler._slow_threads
    assert slow.num_waiting() > 20
    for name in list(engine._live):
        engine.abort(name)
    engine.step()
    assert slow.num_waiting() == 0
    gate.set()
    engine.close()


def ask(engine: Engine, name: str, spec: GrammarSpec | None, **fields: Any) -> list[RequestOutput]:
    heard: list[RequestOutput] = []
    sampling = SamplingParams(max_tokens=fields.pop("max_tokens", 20), temperature=1.0, seed=1)
    engine.submit(Request(id=name, prompt=(65, 66), sampling=sampling, grammar=spec), heard.append)
    return heard


def run(engine: Engine) -> None:
    engine.wait_for_grammar(10.0)
    deadline = time.monotonic() + 20.0
    while engine._live and time.monotonic() < deadline:
        engine.step()
    assert not engine._live


def code_of(heard: list[RequestOutput]) -> str:
    """Returns the code of the error that it has ended with, or else the reason."""
    finish = heard[-1].finish
    assert finish is not None
    return finish.reason if finish.error is None else finish.error.code


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_mask_without_a_thread_ends_its_request_alone(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine(ahead=ahead)
    allow = refuse_threads(monkeypatch, "bough-masks", "bough-slow-masks")
    bound, free = ask(engine, "bound", Regex("[a-z]{5}")), ask(engine, "free", None)
    run(engine)
    assert (code_of(bound), code_of(free)) == ("engine_overloaded", "length")
    assert engine.counters.failed_passes == 0
    allow()
    bound = ask(engine, "again", Regex("[a-z]{5}"))
    run(engine)
    assert code_of(bound) == "stop"
    engine.close()


def test_masks_do_with_the_threads_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    filler = MaskFiller(VOCAB, 4)
    filling = filler.start([MaskJob(Number(0))])
    assert filling is not None and filler.finish(filling, 10.0) == []
    refuse_threads(monkeypatch, "bough-masks", "bough-slow-masks")
    jobs = [MaskJob(Number(index)) for index in range(20)]
    filling = filler.start(jobs)
    assert filling is not None and filler.finish(filling, 10.0) == []
    assert [job.right for job in jobs] == [1] * 20
    filler.close()


def test_what_no_thread_could_begin_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    filler = MaskFiller(VOCAB, 2)
    refuse_threads(monkeypatch, "bough-masks", "bough-slow-masks")
    matchers: weakref.WeakSet[Matcher] = weakref.WeakSet()
    for number in range(20):
        matcher = Number(number)
        matchers.add(matcher)
        filling = filler.start([MaskJob(matcher)])
        assert filling is not None and filler.finish(filling, 0.001) == []
    del matcher, filling
    gc.collect()
    assert not matchers
    filler.close()


def test_nothing_gathers_behind_threads_that_are_all_stuck() -> None:
    filler, gate = MaskFiller(VOCAB, 1), threading.Event()
    num_threads = filler.num_threads + MAX_STUCK
    fillings: weakref.WeakSet[Filling] = weakref.WeakSet()
    for step in range(4 * num_threads):
        filling = filler.start([MaskJob(Number(step, gate)) for _ in range(num_threads)])
        assert filling is not None
        fillings.add(filling)
        filler.finish(filling, 0.001)
    del filling
    gc.collect()
    assert len(fillings) <= 2 * num_threads
    gate.set()
    deadline = time.monotonic() + 10.0
    while True:  # once they have come back
        filling = filler.start([job := MaskJob(Number(1))])
        assert filling is not None
        if not filler.finish(filling, 0.1) or time.monotonic() > deadline:
            break
    assert job.right == 1
    filler.close()


def flood(engine: Engine, name: str, gate: threading.Event) -> weakref.WeakSet[Matcher]:
    """Submits requests of one key, whose masks wait for the gate; returns their matchers."""
    matchers: weakref.WeakSet[Matcher] = weakref.WeakSet()
    for number in range(60):
        ask(engine, f"{name}-{number}", None)
        matcher = engine._live[f"{name}-{number}"].matcher = Number(1, gate)
        matchers.add(matcher)
    return matchers


@pytest.mark.parametrize("ahead", [0, 1])
def test_masks_of_what_was_aborted_are_given_up(ahead: int) -> None:
    """Only those go on that have begun."""
    engine, _ = fake_engine(ahead=ahead, mask_patience_s=0.001, max_num_seqs=64)
    filler, gate = engine._masks._filler, threading.Event()
    matchers: weakref.WeakSet[Matcher] = weakref.WeakSet()
    for count in range(3):
        matchers |= flood(engine, str(count), gate)
        for _ in range(5):
            engine.step()
        assert filler._slow_threads.num_waiting()
        for name in list(engine._live):
            engine.abort(name)
        if ahead:
            engine.step()
        assert filler._slow_threads.num_waiting() == 0
    gc.collect()
    assert len(matchers) <= filler.num_threads + MAX_STUCK + NUM_SLOW
    gate.set()
    heard = ask(engine, "live", None, max_tokens=2)
    engine._live["live"].matcher = Number(1)
    run(engine)
    assert code_of(heard) == "length"
    deadline = time.monotonic() + 10.0
    while matchers and time.monotonic() < deadline:
        time.sleep(0.001)
        gc.collect()
    assert not matchers
    engine.close()


def test_a_search_does_not_wait_for_those_of_aborted_requests() -> None:
    engine, _ = fake_engine(ahead=0, mask_patience_s=0.001, max_num_seqs=64)
    stage, gate, order = engine._masks, threading.Event(), list[str]()

    def foresee(matcher: Matcher, token: int, remaining: int) -> tuple[Matcher, int]:
        assert gate.wait(10.0)
        order.append("aborted")
        return matcher, token

    for number in range(20):
        ask(engine, str(number), None)
    engine.step()
    for generation in list(engine._live.values()):
        generation.matcher, generation.undecided = Number(1), 66
        stage.defer_undecided(generation, foresee)
    job = stage._filler.begin_slow(Number(1), "flood", lambda: order.append("live"))
    for name in list(engine._live):
        engine.abort(name)
    assert stage._filler._slow_threads.num_waiting() <= 1 and not stage.any_deferred
    gate.set()
    deadline = time.monotonic() + 10.0
    while job.right is None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert job.right == 1 and order.count("aborted") <= NUM_SLOW
    engine.close()


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_search_without_a_thread_ends_its_request_alone(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine itself has no time for it."""

    def late(self: Completer, state: GrammarState, max_tokens: int, patience_s: float | None = None) -> None:
        raise SearchLateError("it takes longer")

    monkeypatch.setattr(Completer, "search", late)
    engine, _ = fake_engine(ahead=ahead)
    refuse_threads(monkeypatch, "bough-slow-masks")
    spec = JsonSchema('{"type":"array","items":{"type":"string","minLength":6},"minItems":3}')
    bound, free = ask(engine, "bound", spec, max_tokens=60), ask(engine, "free", None, max_tokens=60)
    run(engine)
    assert (code_of(bound), code_of(free)) == ("engine_overloaded", "length")
    engine.close()


def test_a_late_mask_is_remembered_if_a_step_has_no_memory_for_its_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job goes on, and uses the matcher."""
    engine, _ = fake_engine(ahead=0, mask_patience_s=0.001)
    stage, gate = engine._masks, threading.Event()
    ask(engine, "late", None)
    engine._live["late"].matcher = Number(1, gate)
    for _ in range(3):
        engine.step()
    (generation,) = stage._deferred
    job = stage._deferred[generation]

    def fail(jobs: list[MaskJob]) -> None:
        raise MemoryError

    work = [Sampling()]
    with monkeypatch.context() as patch:
        patch.setattr(stage._filler, "start", fail)
        with pytest.raises(MemoryError):
            stage.start(work, [generation])  # type: ignore[arg-type]
    assert stage._deferred == {generation: job}
    assert stage.start(work, [generation]).jobs == {0: job}  # type: ignore[arg-type]
    assert not stage.any_deferred
    gate.set()
    engine.close()


class Sampling:
    """The part of a step that draws a token."""

    samples = live = True
    drafts = ()


def test_no_key_holds_all_slow_threads() -> None:
    filler, gate, running = MaskFiller(VOCAB, 1), threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        running.release()
        assert gate.wait(10.0)

    for number in range(2 * NUM_SLOW):
        filler.begin_slow(Number(number), "flood", hang)
    for _ in range(NUM_SLOW - 1):
        assert running.acquire(timeout=10.0)
    job = filler.begin_slow(Number(1), "quiet")
    deadline = time.monotonic() + 10.0
    while job.right is None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert job.right == 1
    assert not running.acquire(blocking=False)
    gate.set()
    filler.close()
