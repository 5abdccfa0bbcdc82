"""The stop patterns of an engine: kept in bounds, and searched for at each key's own expense."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bough.runtime.engine import stop_patterns
from bough.runtime.engine.stop_patterns import MAX_KEPT, MAX_KEYS, StopPatterns
from bough.runtime.protocol.errors import OverloadedError, RequestError
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import fake_engine, refuse_threads
from ..listening import Heard, assert_clean, drive, request

COSTLY = r"(?:(?:a?b?){60}(?:b?a?){60}){9}c"


@contextmanager
def patterns() -> Iterator[StopPatterns]:
    made = StopPatterns()
    yield made
    made.close()


def test_a_pattern_is_compiled_once_and_on_another_thread() -> None:
    with patterns() as kept:
        first = kept.compile("a+b")
        assert kept.compile("a+b") is first
        first.result(10.0)
        assert any(thread.name.startswith("bough-stop-patterns") for thread in threading.enumerate())
        with pytest.raises(RequestError):
            kept.compile("(").result(10.0)


def test_a_pattern_without_a_thread_is_refused_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    allow = refuse_threads(monkeypatch, "bough-stop-patterns")
    sampling = SamplingParams(max_tokens=4, stop_regex="x")
    with pytest.raises(OverloadedError, match="no thread left"):
        engine.submit(request("a", sampling=sampling), Heard())
    allow()
    heard = Heard()
    engine.submit(request("a", sampling=sampling), heard)
    drive(engine)
    assert heard.finish.error is None
    engine.close()


def test_so_many_are_kept() -> None:
    with patterns() as kept:
        first = kept.compile("b")
        for index in range(MAX_KEPT):
            kept.compile(f"a{index}").result(10.0)
        assert kept.compile("b") is not first
        budget = kept.budget("key")
        assert kept.budget("key/salt") is budget
        for index in range(MAX_KEYS):
            kept.budget(str(index))
        assert kept.budget("key") is not budget


def test_patterns_that_nobody_waits_for_do_not_pile_up() -> None:
    engine, _ = fake_engine()
    held = threading.Event()
    engine._admission._patterns._thread.submit("", lambda: held.wait(10.0))
    for index in range(300):
        sampling = SamplingParams(max_tokens=4, stop_regex=f"x{index}")
        engine.submit(request(str(index), sampling=sampling), Heard())
        engine.abort(str(index))
    assert not engine._admission._patterns._compiled
    held.set()
    assert_clean(engine)


def test_a_key_that_spends_its_effort_costs_no_other_key_its_own() -> None:
    engine, runner = fake_engine()
    runner.bias = {ord("a"): 1000.0}
    greedy, quiet = [Heard() for _ in range(4)], Heard()
    for index, heard in enumerate(greedy):
        sampling = SamplingParams(max_tokens=400, temperature=0.0, stop_regex=COSTLY)
        engine.submit(request(str(index), sampling=sampling, namespace=f"greedy/{index}"), heard)
    sampling = SamplingParams(max_tokens=400, temperature=0.0, stop_regex="a{300}")
    engine.submit(request("quiet", sampling=sampling, namespace="quiet"), quiet)
    drive(engine)
    assert [heard.code for heard in greedy] == ["stop_regex_timeout"] * 4
    assert quiet.finish.reason == "stop" and quiet.text == ""
    runner.bias = {}
    assert_clean(engine)


def test_a_failure_that_is_not_the_patterns_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: str) -> None:
        raise MemoryError

    with patterns() as kept:
        with monkeypatch.context() as patch:
            patch.setattr(stop_patterns, "StopPattern", fail)
            with pytest.raises(MemoryError):
                kept.compile("a+b").result(10.0)
        assert kept.compile("a+b").result(10.0) is not None
        refused = kept.compile("(")
        refused.exception(10.0)
        assert kept.compile("(") is refused
