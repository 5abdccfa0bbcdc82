"""The first constraint of a process: nobody else waits for it, and an engine that serves gets ready for it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from llguidance import LLTokenizer

from bough.constrain import Regex
from bough.constrain.vocabulary import token_table as tokens_module
from bough.runtime.client import local
from bough.runtime.client.local import EngineLoop
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import fake_engine


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    monkeypatch.setattr(local, "QUIET_S", 0.1)
    return threading.Event()


def engine_that_tells(warmed: threading.Event) -> Engine:
    engine, _ = fake_engine()
    engine.warm = warmed.set  # type: ignore[method-assign]
    return engine


def test_others_go_on_while_the_tokenizer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def make(*arguments: Any, **options: Any) -> LLTokenizer:
        assert release.wait(30)
        return LLTokenizer(*arguments, **options)

    monkeypatch.setattr(tokens_module, "LLTokenizer", make)
    engine, _ = fake_engine()
    heard: dict[str, list[RequestOutput]] = {"constrained": [], "plain": []}
    params = SamplingParams(max_tokens=4)
    engine.submit(
        Request(id="constrained", prompt=(1, 2), sampling=params, grammar=Regex("[a-z]+")), heard["constrained"].append
    )
    engine.submit(Request(id="plain", prompt=(3, 4), sampling=params), heard["plain"].append)
    while not engine.idle:
        engine.step()
    assert heard["plain"][-1].finish is not None
    assert heard["constrained"] == []
    release.set()
    deadline = time.monotonic() + 30
    while not (heard["constrained"] and heard["constrained"][-1].finish) and time.monotonic() < deadline:
        engine.wait_for_grammar(0.1)
        engine.step()
    finish = heard["constrained"][-1].finish
    assert finish is not None and finish.error is None
    engine.close()


def test_an_engine_that_serves_gets_ready_when_it_is_quiet(warmed: threading.Event) -> None:
    loop = EngineLoop(engine_that_tells(warmed), EngineConfig(), serves=True)
    deadline = time.monotonic() + 10
    while not warmed.wait(0.01) and time.monotonic() < deadline:  # being asked how it is keeps it from nothing
        loop.ask(loop.stats, lambda _: None)
    loop.close()
    assert warmed.is_set()


def test_work_comes_first(warmed: threading.Event) -> None:
    loop = EngineLoop(engine_that_tells(warmed), EngineConfig(), serves=True)
    ended = threading.Event()
    ready_before_the_end: list[bool] = []

    def listen(output: RequestOutput) -> None:
        if output.finish is not None:
            ready_before_the_end.append(warmed.is_set())
            ended.set()

    step = loop.engine.step
    loop.engine.step = lambda: (time.sleep(0.04), step())[1]  # type: ignore[method-assign,func-returns-value]
    loop.start_request(Request(id="a", prompt=(1, 2), sampling=SamplingParams(max_tokens=16, ignore_eos=True)), listen)
    assert ended.wait(30)
    assert warmed.wait(10)
    loop.close()
    assert ready_before_the_end == [False]


def test_one_without_work_gets_ready_for_its_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until nothing is left, from the start and after each work."""
    monkeypatch.setattr(local, "REST_S", 0.001)
    engine, _ = fake_engine()
    left = iter([True, False, True, True, False, True, False, False])
    asked = 0

    def prepare() -> bool:
        nonlocal asked
        assert engine.idle
        asked += 1
        return next(left)

    engine.prepare = prepare  # type: ignore[method-assign]
    loop = EngineLoop(engine, EngineConfig())
    for expected, num_tokens in ((2, 0), (5, 4), (7, 4), (8, 1)):  # a single token is a single step
        if num_tokens:
            ended = threading.Event()
            request = Request(id=str(expected), prompt=(1, 2), sampling=SamplingParams(max_tokens=num_tokens))
            loop.start_request(request, lambda output, ended=ended: output.finish and ended.set())  # type: ignore[misc]
            assert ended.wait(30)
        deadline = time.monotonic() + 10
        while asked < expected and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert asked == expected
    loop.close()


def test_one_that_serves_nobody_else_gets_ready_for_nothing(warmed: threading.Event) -> None:
    loop = EngineLoop(engine_that_tells(warmed), EngineConfig())
    assert not warmed.wait(0.4)
    loop.close()
