"""Requests on their way to the scheduler: deadlines while grammars compile, and compilations that nobody waits for."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from bough.constrain.spec import Gbnf, Regex
from bough.runtime.client.local import EngineLoop, LocalClient
from bough.runtime.engine import admission
from bough.runtime.engine.admission import Admission
from bough.runtime.engine.generation import Generation
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import EngineError, OverloadedError, RequestError
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import fake_engine
from ..listening import Clock, Heard, alone, assert_clean, drive, request


def never(_: object, tenant: str = "") -> Future[Any]:
    return Future()


def test_a_deadline_passes_while_a_grammar_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    clock = Clock()
    engine._clock = clock
    heard = Heard()
    with monkeypatch.context() as patch:
        patch.setattr(engine._grammars, "submit", never)
        engine.submit(request("r", grammar=Regex("a"), timeout_s=3.0), heard)
    engine.step()
    clock.now += 2.9
    engine.step()
    assert not heard.outputs
    clock.now += 0.2
    engine.step()
    assert heard.code == "generation_timeout"
    assert_clean(engine)


def test_a_sleeping_engine_wakes_up_for_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    client = LocalClient(EngineLoop(engine, EngineConfig()))
    with monkeypatch.context() as patch:
        patch.setattr(engine._grammars, "submit", never)
        started = time.monotonic()
        with pytest.raises(EngineError) as caught:
            list(client.stream(request("r", grammar=Regex("a"), timeout_s=0.3)))
    assert caught.value.code == "generation_timeout"
    assert 0.2 < time.monotonic() - started < 1.5
    client.close()


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e300])
def test_a_deadline_that_never_comes_does_not_hurt_a_sleeping_engine(
    timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = fake_engine()
    client = LocalClient(EngineLoop(engine, EngineConfig()))
    ended = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(engine._grammars, "submit", never)
        client._loop.start_request(request("r", grammar=Regex("a"), timeout_s=timeout_s), lambda _: ended.set())
        assert client.stats().waiting == 1
    assert [token for output in client.stream(request("other")) for token in output.tokens] == alone()
    client.close()
    assert ended.is_set()


def test_a_deadline_that_is_no_number_is_refused() -> None:
    engine, _ = fake_engine()
    with pytest.raises(RequestError, match="timeout_s"):
        engine.submit(request("r", timeout_s=float("nan")), Heard())
    assert_clean(engine)


def test_a_key_that_floods_leaves_places_to_others() -> None:
    engine, _ = fake_engine(max_waiting=639, max_num_seqs=1)

    def flood(key: str) -> int:
        for count in range(1000):
            try:
                engine.submit(request(f"{key} {count}", namespace=f"{key}/{count}"), Heard())
            except OverloadedError:
                return count
        raise AssertionError("no bound")

    assert [flood(key) for key in "abc"] == [560, 63, 8]
    engine.submit(request("quiet", namespace="quiet"), Heard())
    engine.abort("a 0")
    assert flood("a") == 0  # it has more than its part still
    for generation in list(engine._live.values()):
        engine.abort(generation.request.id)
    assert not engine._admission._places.num_taken
    assert_clean(engine)


def test_a_key_that_floods_leaves_room_for_prompts_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that waits takes 45 bytes: 4,096 prompts of a full context were as much as the model."""
    monkeypatch.setattr(admission, "MIN_WAITING_TOKENS", 100_000)
    monkeypatch.setattr(admission, "WAITING_POOLS", 0)
    engine, _ = fake_engine(max_waiting=4096, max_num_seqs=1)
    messages: list[str] = []

    def flood(key: str) -> int:
        for count in range(1000):
            try:
                engine.submit(request(f"{key} {count}", "x" * 1000, namespace=f"{key}/{count}"), Heard())
            except OverloadedError as error:
                messages.append(error.message)
                return count
        raise AssertionError("no bound")

    counts = [flood(key) for key in "abc"]
    assert all("tokens" in message for message in messages)
    assert 80 <= counts[0] <= 90 and counts[1] >= 8 and sum(counts) <= 100
    for generation in list(engine._live.values()):
        engine.abort(generation.request.id)
    places = engine._admission._places
    assert not places._num_tokens and not places._tokens_of
    assert_clean(engine)


@pytest.mark.parametrize(("weight", "most"), [(1, 560), (2, 593), (100, 630)])
def test_a_key_may_fill_the_queue_by_its_weight(weight: int, most: int) -> None:
    """So many requests for each place that is left: 8, 16 or 800."""
    engine, _ = fake_engine(max_waiting=639, max_num_seqs=1, tenant_weights={"heavy": weight})
    for count in range(most):
        engine.submit(request(str(count), namespace="heavy"), Heard())
    with pytest.raises(OverloadedError):
        engine.submit(request("more", namespace="heavy"), Heard())
    assert engine._admission._places._of == {"heavy": most}
    for count in range(8):
        engine.submit(request(f"quiet {count}", namespace="quiet"), Heard())
    for generation in list(engine._live.values()):
        engine.abort(generation.request.id)
    assert_clean(engine)


def test_compilations_that_nobody_waits_for_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    release = threading.Event()
    monkeypatch.setattr("bough.constrain.compiler.lower", lambda _: release.wait(10.0) and 1 / 0)
    for index in range(300):
        engine.submit(request(str(index), grammar=Regex(f"a{{{index}}}")), Heard())
        engine.abort(str(index))
    assert engine._grammars.num_waiting <= 4
    shared = Regex("shared")
    first, second = Heard(), Heard()
    engine.submit(request("first", grammar=shared), first)
    engine.submit(request("second", grammar=shared), second)
    engine.abort("first")
    assert any(True for _ in engine._admission.compiling)
    monkeypatch.undo()
    release.set()
    drive(engine)
    assert first.finish.reason == "abort"
    assert second.code is None
    third = Heard()
    engine.submit(request("third", grammar=Regex("a{7}")), third)  # it was dropped, not remembered as wrong
    drive(engine)
    assert third.code is None
    assert_clean(engine)


@pytest.mark.parametrize(
    "asked",
    [
        Request(id="", prompt=(1, 2), sampling=SamplingParams(max_tokens=1, stop_regex="(")),
        Request(id="", prompt=(1, 2), sampling=SamplingParams(max_tokens=1), grammar=Gbnf("root ::= nothing")),
    ],
    ids=["pattern", "grammar"],
)
def test_refused_requests_are_forgotten(asked: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is remembered; those that it was told to were, too, with their prompts."""
    engine, _ = fake_engine()
    kept = weakref.WeakSet[Generation]()
    make = Admission._generation

    def noted(self: Admission, *args: Any) -> Generation:
        made = make(self, *args)
        kept.add(made)
        return made

    monkeypatch.setattr(Admission, "_generation", noted)
    for index in range(20):
        heard: list[RequestOutput] = []
        engine.submit(msgspec.structs.replace(asked, id=str(index)), heard.append)
        while not heard:
            engine.wait_for_grammar(5.0)
            engine.step()
        assert heard[-1].finish is not None and heard[-1].finish.error is not None
    gc.collect()
    assert len(kept) <= 1  # the last one may be in the test's own frames
    engine.close()
