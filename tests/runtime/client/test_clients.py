"""Engines on a thread and in a process, asked alike: streams, refusals, leaving early, death, many at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bough.constrain.spec import Regex
from bough.runtime.client.client import EngineClient
from bough.runtime.client.local import EngineLoop, LocalClient
from bough.runtime.client.remote import RemoteClient
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.condition import Matches
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import BoughError, EngineStoppedError, OverloadedError, RequestError
from bough.runtime.protocol.program import Done, Failed, Gen, Text, When
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import fake_engine
from ..asking import assert_nothing_left, assert_stopped, config, program, request, tokens, wait_until


def slow_down(engine: Engine, step_s: float = 0.01) -> None:
    """Answers of hundreds of tokens last longer than the rest of a test on any machine."""
    step = engine.step

    def slow_step() -> None:
        time.sleep(step_s)
        step()

    engine.step = slow_step  # type: ignore[method-assign]


@pytest.fixture
def local() -> Iterator[LocalClient]:
    engine, _ = fake_engine()
    slow_down(engine, 0.002)
    client = LocalClient(EngineLoop(engine, EngineConfig()))
    yield client
    client.close()


@pytest.fixture(scope="module")
def remote_process(folder: Path) -> Iterator[RemoteClient]:
    client = RemoteClient.launch(config(folder))
    yield client
    client.close()


@pytest.fixture(params=["local", "remote"])
def client(request: pytest.FixtureRequest) -> Iterator[EngineClient]:
    """Each kind of client; whatever a test does, nothing of it is left in the engine."""
    made = request.getfixturevalue("local" if request.param == "local" else "remote_process")
    yield made
    assert_nothing_left(made)


def test_many_calls_leave_time_for_steps() -> None:
    """512 programs that came together were all begun before the next step."""
    engine, _ = fake_engine()
    loop = EngineLoop(engine, EngineConfig())
    num_steps, at = 0, list[int]()
    step = engine.step

    def counted() -> None:
        nonlocal num_steps
        num_steps += 1
        step()

    engine.step = counted  # type: ignore[method-assign]
    gate = threading.Event()
    loop.start_request(request(2000), lambda _: None)
    loop.ask(gate.wait, lambda _: None)  # all the others come while it waits
    for _ in range(100):
        loop.ask(lambda: time.sleep(0.01), lambda _: at.append(num_steps))
    gate.set()
    wait_until(lambda: len(at) == 100)
    assert max(at.count(each) for each in set(at)) <= 3
    loop.close()


# What every client does


def test_a_stream_is_the_events_of_a_request(client: EngineClient) -> None:
    outputs = list(client.stream(request(8)))
    assert len(tokens(outputs)) == 8
    assert [output.finish is not None for output in outputs] == [False] * 7 + [True]
    assert outputs[0].cached_tokens is not None
    assert client.alive


def test_sync_and_async_streams_say_the_same(client: EngineClient) -> None:
    async def collect() -> tuple[list[RequestOutput], list[Any]]:
        outputs = [output async for output in client.astream(request(8, "twice"))]
        return outputs, [event async for event in client.arun(program())]

    outputs, events = asyncio.run(collect())
    assert tokens(outputs) == tokens(list(client.stream(request(8, "twice"))))
    same = list(client.run(program()))
    assert isinstance(events[-1], Done)
    assert isinstance(same[-1], Done)
    assert events[-1].texts == same[-1].texts


def test_leaving_a_stream_aborts_it(client: EngineClient) -> None:
    stream = client.stream(request(400))
    next(stream)
    assert client.stats().running == 1
    stream.close()  # type: ignore[attr-defined]
    wait_until(lambda: client.stats().running == 0)
    assert client.stats().finished_total["abort"] >= 1
    for _ in client.stream(request(400)):
        break
    gc.collect()
    wait_until(lambda: client.stats().running == 0)


def test_leaving_an_async_stream_aborts_it(client: EngineClient) -> None:
    async def leave() -> None:
        stream = client.astream(request(400))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

        async def consume() -> None:
            async for _ in client.astream(request(400)):
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    wait_until(lambda: client.stats().running == 0)


def test_a_request_is_settled_once_whoever_leaves_it(client: EngineClient) -> None:
    """With all its tokens, also those that would have come in one piece at the end."""
    settled: list[RequestOutput] = []

    async def leave() -> None:
        whole = msgspec.structs.replace(request(400), stream=False)
        outputs = client.astream(whole, settle=settled.append)
        await anext(outputs)
        assert settled == []
        await outputs.aclose()  # type: ignore[attr-defined]
        while not settled:
            await asyncio.sleep(0.01)
        done = [output async for output in client.astream(request(8), settle=settled.append)][-1]
        assert settled[1:] == [done]

    asyncio.run(leave())
    left = settled[0].finish
    assert left is not None
    assert (left.reason, left.usage.prompt_tokens) == ("abort", len(request(400).prompt))
    assert 1 <= left.usage.completion_tokens < 400


def test_a_program_is_settled_once_whoever_leaves_it(client: EngineClient) -> None:
    """With all tokens of its prompts and answers, those of a value that never came included."""
    settled: list[Done | Failed] = []

    async def leave() -> None:
        ops = (Text(0, ("x" * 8,)), Gen(0, "g", request(400).sampling))
        events = client.arun(program(*ops), settle=settled.append)
        for _ in range(6):
            await anext(events)
        assert settled == []
        await events.aclose()  # type: ignore[attr-defined]
        while not settled:
            await asyncio.sleep(0.01)
        done = [event async for event in client.arun(program(), settle=settled.append)][-1]
        assert settled[1:] == [done]

    asyncio.run(leave())
    left, done = settled
    assert isinstance(left, Failed)
    assert left.usage.prompt_tokens > 0
    assert 5 <= left.usage.completion_tokens < 400
    assert done.usage.completion_tokens > 0


def test_leaving_a_program_drops_it(client: EngineClient) -> None:
    endless = request(400).sampling
    events = client.run(program(Text(0, ("x",)), Gen(0, "g", endless), keep=True))
    next(events)
    events.close()  # type: ignore[attr-defined]
    wait_until(lambda: (client.stats().running, client.stats().states) == (0, 0))


def test_a_program_that_another_thread_drops_ends(client: EngineClient) -> None:
    """A reader of a program's events does not wait for ever when its state is dropped."""
    endless = program(Text(0, ("x",)), Gen(0, "g", request(400).sampling), keep=True)
    events = client.run(endless)
    next(events)
    client.drop(endless.id)
    client.drop("unknown")
    last = list(events)[-1]
    assert isinstance(last, Failed)
    assert last.error.code == "aborted"


def test_a_kept_state_is_resumed_and_dropped(client: EngineClient) -> None:
    first = program(Text(0, ("one ",)), keep=True)
    assert list(client.run(first))[-1].texts == {0: "one "}  # type: ignore[union-attr]
    again = msgspec.structs.replace(first, ops=(Text(0, ("two",)),), resume=True)
    assert list(client.run(again))[-1].texts == {0: "one two"}  # type: ignore[union-attr]
    client.drop(first.id)
    with pytest.raises(RequestError) as caught:
        next(client.run(again))
    assert caught.value.code == "state_not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"sampling": SamplingParams(max_tokens=0)}, "max_tokens"),
        ({"sampling": SamplingParams(max_tokens=9000)}, "prompt"),
        ({"score_from": 0}, "score_from"),
        ({"grammar": Regex("(")}, "grammar"),
    ],
)
def test_refusals_are_raised_at_the_first_next(client: EngineClient, fields: dict[str, Any], param: str) -> None:
    stream = client.stream(request(**fields))
    with pytest.raises(RequestError) as caught:
        next(stream)
    assert caught.value.param == param

    async def first() -> None:
        await anext(client.astream(request(**fields)))

    with pytest.raises(RequestError) as caught:
        asyncio.run(first())
    assert caught.value.param == param


def test_a_program_that_is_not_well_formed_is_refused(client: EngineClient) -> None:
    with pytest.raises(RequestError, match="branch 3, which does not exist"):
        next(client.run(program(Text(3, ("x",)))))


def test_text_that_is_not_unicode_is_refused_not_lost(client: EngineClient) -> None:
    bad = program(Text(0, ("\ud800",)))
    if isinstance(client, RemoteClient):  # it cannot even be sent
        with pytest.raises(RequestError):
            next(client.run(bad))
    else:
        last = next(client.run(bad))
        assert isinstance(last, Failed)
        assert last.error.code == "invalid_value"


def test_many_threads_at_once(client: EngineClient) -> None:
    """Requests, programs and questions from 16 threads: each gets its own answer."""
    prompts = [f"thread {index % 5}" for index in range(48)]
    alone = {prompt: tokens(list(client.stream(request(6, prompt)))) for prompt in set(prompts)}

    def one(index: int) -> bool:
        prompt = prompts[index]
        if index % 3 == 0:
            client.stats()
            done = list(client.run(program(Text(0, (prompt,)), Gen(0, "g", request(6).sampling))))[-1]
            return isinstance(done, Done) and done.texts[0].startswith(prompt)
        if index % 3 == 1:
            next(stream := client.stream(request(300, prompt)))
            stream.close()  # type: ignore[attr-defined]
        return tokens(list(client.stream(request(6, prompt)))) == alone[prompt]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(48)))


def test_many_tasks_at_once(client: EngineClient) -> None:
    async def one(index: int) -> list[int]:
        return tokens([output async for output in client.astream(request(6, f"task {index % 4}"))])

    async def gather() -> list[list[int]]:
        return await asyncio.gather(*(one(index) for index in range(40)))

    answers = asyncio.run(gather())
    assert answers[:4] * 10 == answers


def test_the_cache_is_not_flushed_under_a_request(client: EngineClient) -> None:
    stream = client.stream(request(400))
    next(stream)
    assert not client.flush_cache()
    stream.close()  # type: ignore[attr-defined]


# The engine's thread


def test_close_ends_what_runs_and_can_be_repeated() -> None:
    engine, _ = fake_engine()
    slow_down(engine)
    client = LocalClient(EngineLoop(engine, EngineConfig()))
    stream = client.stream(request(400))
    events = client.run(program(Text(0, ("x",)), Gen(0, "g", request(400).sampling)))
    next(stream), next(events)
    client.close()
    last, failed = list(stream)[-1], list(events)[-1]
    assert last.finish is not None
    assert last.finish.error is not None
    assert isinstance(failed, Failed)
    assert (last.finish.error.code, failed.error.code) == ("engine_dead", "engine_dead")
    assert not client.alive
    client.close()
    assert_stopped(client)


class PanicError(BaseException):
    """Panic of native code, which is no Exception."""


@pytest.mark.parametrize("error", [MemoryError("no more"), PanicError("index out of bounds")], ids=repr)
def test_death_of_the_thread_is_heard_by_everyone(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    engine, _ = fake_engine()
    deaths: list[int] = []
    client = LocalClient(EngineLoop(engine, EngineConfig(), on_death=lambda: deaths.append(1)))
    step, dies = engine.step, threading.Event()

    def fatal_step() -> None:
        if dies.is_set():
            raise error
        step()

    engine.step = fatal_step  # type: ignore[method-assign]
    streams = [client.stream(request(1000, f"{index}")) for index in range(5)]
    programs = [client.run(program(Text(0, ("x",)), Gen(0, "g", request(1000).sampling))) for _ in range(3)]
    for iterator in (*streams, *programs):
        next(iterator)
    dies.set()
    for stream in streams:
        last = list(stream)[-1]
        assert last.finish is not None
        assert last.finish.error is not None
        assert last.finish.error.code == "engine_dead"
    for events in programs:
        assert isinstance(list(events)[-1], Failed)
    wait_until(lambda: bool(deaths))
    assert deaths == [1]
    assert not client.alive
    assert_stopped(client)
    client.close()
    assert "the engine has died" in caplog.text


def test_an_idle_engine_uses_no_processor(local: LocalClient) -> None:
    list(local.stream(request(4)))
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.05


def test_an_engine_that_sleeps_wakes_up_for_a_compiled_grammar(local: LocalClient) -> None:
    for length in range(3, 9):
        outputs = list(local.stream(request(20, grammar=Regex(f"[ab]{{{length}}}"))))
        assert len("".join(output.text for output in outputs)) == length


@pytest.mark.parametrize("sleep_s", [float("inf"), 1e300])
def test_an_idle_engine_sleeps_no_longer_than_the_system_lets_it(sleep_s: float) -> None:
    """It would, for a check of a request whose time is never over."""
    engine, _ = fake_engine()
    engine.sleep_s = lambda: sleep_s  # type: ignore[method-assign]
    client = LocalClient(EngineLoop(engine, EngineConfig()))
    for _ in range(3):
        time.sleep(0.1)
        client.stats()
    assert client.alive
    client.close()


def test_a_full_queue_refuses() -> None:
    engine, _ = fake_engine(max_waiting=1, max_num_seqs=1)
    slow_down(engine)
    client = LocalClient(EngineLoop(engine, EngineConfig()))
    streams = [client.stream(request(500)) for _ in range(2)]
    next(streams[0])
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(lambda: list(streams[1]))
        wait_until(lambda: client.stats().waiting == 1)
        with pytest.raises(OverloadedError):
            next(client.stream(request(1)))
        client.close()
        with pytest.raises(EngineStoppedError):
            second.result(timeout=5.0)


@pytest.mark.parametrize("part", ["prepare", "warm"])
def test_an_idle_engine_outlives_what_cannot_be_made_ready(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    asked = threading.Event()

    def fail() -> bool:
        asked.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(engine, part, fail)
    client = LocalClient(EngineLoop(engine, EngineConfig(), serves=True))
    assert asked.wait(10.0)
    assert len(tokens(list(client.stream(request(4))))) == 4
    assert client.alive
    client.close()


class Panic(BaseException):
    """Exception that native code raises when it panics."""


@pytest.mark.parametrize("kind", ["request", "program"])
def test_native_code_that_panics_over_a_request_ends_it_alone(
    kind: str, local: LocalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*args: Any, **fields: Any) -> None:
        raise Panic("at src/lib.rs")

    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(local._loop.engine, "submit", panic)
        patch.setattr(local._loop._executor, "run", panic)
        ask = (lambda: list(local.stream(request()))) if kind == "request" else (lambda: list(local.run(program())))
        with pytest.raises(BoughError) as caught:
            pool.submit(ask).result(10.0)
    assert caught.value.code == "internal_error"
    assert len(tokens(list(local.stream(request(4))))) == 4


class Held:
    """A loop whose thread is held until `go`, and what it was asked to submit then, by id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, _ = fake_engine()
        self.loop = EngineLoop(self.engine, EngineConfig())
        self.submitted: list[str] = []
        self.outputs: dict[str, list[RequestOutput]] = {}
        self._held, ready = threading.Event(), threading.Event()
        submit = self.engine.submit

        def note(request: Request, listen: Callable[[RequestOutput], None]) -> None:
            self.submitted.append(request.id)
            submit(request, listen)

        monkeypatch.setattr(self.engine, "submit", note)
        self.loop.ask(ready.set, lambda _: None)
        self.loop.ask(self._held.wait, lambda _: None)
        assert ready.wait(10.0)

    def start(self, asked: Request) -> str:
        heard = self.outputs[asked.id] = []
        self.loop.start_request(asked, heard.append)
        return asked.id

    def go(self) -> None:
        """Returns when all have ended."""
        self._held.set()
        wait_until(lambda: all(heard and heard[-1].finish for heard in self.outputs.values()))

    def reason(self, request_id: str) -> str:
        finish = self.outputs[request_id][-1].finish
        assert finish is not None
        return finish.reason


def test_tenants_take_turns_at_the_engine_s_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had asked for more before was submitted first, and 20 ms of it before each step."""
    held = Held(monkeypatch)
    flood = [held.start(request(1, namespace="flood/")) for _ in range(500)]
    quiet = [held.start(request(1, namespace="quiet/")) for _ in range(3)]
    held.go()
    assert sorted(held.submitted) == sorted(flood + quiet)
    assert [each for each in held.submitted if each in flood] == flood
    assert held.submitted.index(quiet[0]) <= 2
    held.loop.close()


def test_who_leaves_before_the_engine_s_thread_has_looked_is_not_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    stays, leaves = held.start(request(1)), held.start(request(1))
    held.loop.abort(leaves)
    held.go()
    assert held.submitted == [stays]
    assert (held.reason(stays), held.reason(leaves)) == ("length", "abort")
    held.loop.close()


def test_a_program_is_dropped_after_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a request has its id."""
    held = Held(monkeypatch)
    asked = program()
    events: list[Any] = []
    held.start(request(1, namespace="x/"))
    drop = held.loop.start_program(asked, events.append)
    held.loop.abort(asked.id)
    drop()
    held.go()
    wait_until(lambda: bool(events))
    (failed,) = events
    assert isinstance(failed, Failed) and failed.error.code == "aborted"
    held.loop.close()


def test_a_request_waits_for_no_program_that_came_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them took a slice of time and a step before the next call was looked at."""
    engine, _ = fake_engine()
    order: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            order.append(name)
            return call(*arguments)

        return run

    for name in ("step", "submit"):
        monkeypatch.setattr(engine, name, noted(name, getattr(engine, name)))
    loop = EngineLoop(engine, EngineConfig())
    held, heard = threading.Event(), list[RequestOutput]()
    loop.ask(held.wait, lambda _: None)
    drops = []
    for number in range(20):
        long = [When(0, Matches("a", r"\w?" * 46 + f"{number} {each}")) for each in range(40)]
        drops.append(loop.start_program(program(*long), lambda event: None))
    loop.start_request(request(1), heard.append)
    order.clear()
    held.set()
    wait_until(lambda: bool(heard))
    for drop in drops:
        drop()
    loop.close()
    assert order[: order.index("submit")].count("step") <= 1  # that which was under way
