"""Blast radius: what goes wrong with one request, listener, grammar or program ends that one alone."""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from bough.constrain import MatcherError
from bough.constrain.spec import Choice, GrammarSpec, JsonSchema, Regex
from bough.runtime.config import EngineConfig
from bough.runtime.engine import Engine
from bough.runtime.errors import BoughError, RequestError
from bough.runtime.executor import Executor
from bough.runtime.local import EngineLoop, LocalClient
from bough.runtime.program import Assign, Failed, Fork, Gen, Program, ProgramEvent, Ref, Select, Text
from bough.runtime.request import Finish, Request, RequestOutput
from bough.runtime.sampling import SamplingParams

from ..fakes import byte_tokenizer, fake_engine
from .interpreter import Heard as ProgramHeard

ENDLESS = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)
SHORT = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


class Heard:
    """Everything that was said of one request; nothing may be said after the end."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []

    def __call__(self, output: RequestOutput) -> None:
        assert not self.over, "an event after the terminal one"
        self.outputs.append(output)

    @property
    def over(self) -> bool:
        return bool(self.outputs) and self.outputs[-1].finish is not None

    @property
    def finish(self) -> Finish:
        finish = self.outputs[-1].finish
        assert finish is not None
        return finish

    @property
    def code(self) -> str | None:
        return None if self.finish.error is None else self.finish.error.code

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.tokens]


class Clock:
    """Time that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def request(name: str, text: str = "hello", sampling: SamplingParams = SHORT, **fields: Any) -> Request:
    return Request(id=name, prompt=tuple(byte_tokenizer().encode(text)), sampling=sampling, **fields)


def drive(engine: Engine, max_steps: int = 5000) -> None:
    for _ in range(max_steps):
        if not engine._live:
            return
        if engine.idle:
            engine.wait_for_grammar(5.0)
        engine.step()
    raise AssertionError("no progress")


def alone(**fields: Any) -> list[int]:
    engine, _ = fake_engine()
    heard = Heard()
    engine.submit(request("alone", **fields), heard)
    drive(engine)
    engine.close()
    return heard.tokens


def assert_clean(engine: Engine) -> None:
    """Nothing is left of anything, and a control request gets what it would get alone."""
    drive(engine)
    assert not engine._live
    assert not engine._compiling
    heard = Heard()
    engine.submit(request("control", "control"), heard)
    drive(engine)
    assert heard.tokens == alone(text="control")
    assert engine.flush_cache()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.num_pages)
    engine.close()


def program(*ops: Any, name: str = "p", **fields: Any) -> Program:
    return Program(id=name, ops=tuple(ops), **fields)


# A listener that ends other requests, as a program's and an LLM's does


def test_samples_of_a_program_that_expire_together_end_it_alone() -> None:
    engine, _ = fake_engine()
    clock = Clock()
    engine._clock = clock
    executor = Executor(engine, clock, max_states=4)
    heard, other = ProgramHeard(), Heard()
    sampling = SamplingParams(max_tokens=400, n=4, ignore_eos=True)
    executor.run(program(Text(0, ("x",)), Gen(0, "g", sampling, timeout_s=5.0)), heard)
    engine.submit(request("other"), other)
    engine.step()
    clock.now += 6.0
    engine.step()
    assert heard.failed.error.code == "generation_timeout"
    drive(engine)
    assert other.tokens == alone()
    assert executor.num_states == 0
    assert_clean(engine)


def test_an_expired_branch_does_not_break_the_step_that_its_sibling_was_planned_for() -> None:
    engine, _ = fake_engine()
    clock = Clock()
    engine._clock = clock
    executor = Executor(engine, clock, max_states=4)
    heard, other = ProgramHeard(), Heard()
    ops = [Text(0, ("x",)), Fork(0, (1, 2)), Gen(1, "a", ENDLESS, timeout_s=5.0), Gen(2, "b", ENDLESS)]
    executor.run(program(*ops), heard)
    engine.submit(request("other"), other)
    engine.step()
    clock.now += 6.0
    drive(engine)
    assert heard.failed.error.code == "generation_timeout"
    assert other.tokens == alone()
    assert_clean(engine)


def test_grammars_of_a_program_that_fail_together_end_it_alone() -> None:
    engine, _ = fake_engine()
    executor = Executor(engine, time.monotonic, max_states=4)
    heard, other = ProgramHeard(), Heard()
    ops = [Text(0, ("x",)), Fork(0, (1, 2)), *(Gen(branch, "g", SHORT, Regex("(")) for branch in (1, 2))]
    executor.run(program(*ops), heard)
    engine.submit(request("other"), other)
    engine.wait_for_grammar(5.0)
    time.sleep(0.05)
    drive(engine)
    assert heard.failed.error.code == "invalid_grammar"
    assert other.tokens == alone()
    assert_clean(engine)


def test_close_with_listeners_that_end_each_other() -> None:
    engine, _ = fake_engine()
    heard = [Heard() for _ in range(3)]

    def listener(index: int) -> Callable[[RequestOutput], None]:
        def listen(output: RequestOutput) -> None:
            heard[index](output)
            if output.finish is not None:
                for other in range(3):
                    engine.abort(str(other))

        return listen

    for index in range(3):
        engine.submit(request(str(index), sampling=ENDLESS), listener(index))
    engine.step()
    engine.close()
    assert all(one.over for one in heard)
    assert not engine._live


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_listener_that_ends_all_others_in_one_step(order: tuple[int, ...]) -> None:
    engine, _ = fake_engine()
    heard = [Heard() for _ in range(3)]

    def listener(index: int) -> Callable[[RequestOutput], None]:
        def listen(output: RequestOutput) -> None:
            heard[index](output)
            if len(heard[index].outputs) == 3:
                for other in order:
                    engine.abort(str(other))

        return listen

    for index in range(3):
        sampling = SHORT if index != order[0] else SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
        engine.submit(request(str(index), f"prompt {index}", sampling), listener(index))
    drive(engine)
    assert all(one.over for one in heard)
    assert_clean(engine)


@pytest.mark.parametrize("at", [1, 4, 8])
def test_a_listener_that_raises_ends_its_own_request_only(at: int) -> None:
    engine, _ = fake_engine()
    other, bad = Heard(), Heard()

    def raises(output: RequestOutput) -> None:
        bad(output)
        if len(bad.outputs) == at:
            raise RequestError("it cannot be sent")

    engine.submit(request("bad"), raises)
    engine.submit(request("other"), other)
    drive(engine)
    assert bad.over
    assert other.tokens == alone()
    assert_clean(engine)


# What a grammar may do


class BrokenGrammar:
    """A grammar whose matcher fails at one of its methods, from the third call on."""

    num_bytes = 1

    def __init__(self, good: Any, method: str, error: Exception) -> None:
        self._good, self._method, self._error = good, method, error

    def min_tokens(self) -> int | None:
        return None

    def matcher(self) -> Any:
        if self._method == "matcher":
            raise self._error
        return BrokenMatcher(self._good.matcher(), self._method, self._error)


class BrokenMatcher:
    def __init__(self, good: Any, method: str, error: Exception) -> None:
        self._good, self._method, self._error = good, method, error
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            self._calls += 1
            if self._calls >= 3:
                raise self._error
        return getattr(self._good, name)


@pytest.mark.parametrize("method", ["matcher", "fill_mask", "accept", "forced_tokens", "rollback", "finished"])
@pytest.mark.parametrize("error", [MatcherError("dead"), RuntimeError("panicked"), ValueError("odd")], ids=repr)
def test_a_grammar_that_breaks_ends_its_own_request_only(
    method: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = fake_engine()
    good = engine._grammars.compile(JsonSchema('{"enum": ["abcdefghijk", "abcdefghxyz", "abcd", "zyx"]}'))
    settled: Future[Any] = Future()
    settled.set_result(BrokenGrammar(good, method, error))
    with monkeypatch.context() as patch:
        patch.setattr(engine._grammars, "submit", lambda _: settled)
        bad, others = [Heard() for _ in range(3)], [Heard() for _ in range(2)]
        for index, heard in enumerate(bad):
            sampling = SamplingParams(max_tokens=30, temperature=1.0, seed=index)
            engine.submit(request(f"bad {index}", grammar=Regex("."), sampling=sampling), heard)
    for index, heard in enumerate(others):
        engine.submit(request(f"other {index}"), heard)
    drive(engine)
    assert all(heard.over for heard in bad)
    if method in ("matcher", "fill_mask", "accept"):
        assert all(heard.code in ("grammar_dead_end", "internal_error") for heard in bad)
    assert all(heard.tokens == alone() for heard in others)
    assert_clean(engine)


def test_a_compilation_that_fails_oddly_ends_its_own_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    failed: Future[Any] = Future()
    failed.set_exception(MemoryError("no more"))
    bad, other = Heard(), Heard()
    with monkeypatch.context() as patch:
        patch.setattr(engine._grammars, "submit", lambda _: failed)
        engine.submit(request("bad", grammar=Regex("a")), bad)
    engine.submit(request("other"), other)
    drive(engine)
    assert bad.code == "internal_error"
    assert other.tokens == alone()
    assert_clean(engine)


@pytest.mark.parametrize("spec", [Regex("\ud800"), Choice(("a", "\udfff")), JsonSchema('"\ud800"')])
def test_a_constraint_that_is_not_unicode_is_refused_and_leaves_nothing(spec: GrammarSpec) -> None:
    engine, _ = fake_engine()
    with pytest.raises(BoughError):
        engine.submit(request("bad", grammar=spec), Heard())
    assert_clean(engine)


# Deadlines


def never(_: object) -> Future[Any]:
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
        (last,) = client.stream(request("r", grammar=Regex("a"), timeout_s=0.3))
    assert last.finish is not None and last.finish.error is not None
    assert last.finish.error.code == "generation_timeout"
    assert 0.2 < time.monotonic() - started < 1.5
    client.close()


def test_a_search_for_a_stop_that_is_too_slow_cannot_stop_an_abort() -> None:
    engine, runner = fake_engine()
    runner.bias = {ord("a"): 1000.0}
    heard = Heard()
    sampling = SamplingParams(max_tokens=400, temperature=0.0, stop_regex="(?:a|aa)+$b")
    engine.submit(request("r", sampling=sampling), heard)
    generation = engine._live["r"]
    for _ in range(10):
        engine.step()

    def slow() -> str:
        raise BoughError("too slow", code="stop_regex_timeout")

    generation._detokenizer.finish = slow  # type: ignore[method-assign]
    engine.abort("r")
    assert heard.finish.reason in ("abort", "error")
    runner.bias = {}
    assert_clean(engine)


def test_slow_searches_for_a_stop_cost_a_bounded_time() -> None:
    engine, runner = fake_engine()
    runner.bias = {ord("a"): 1000.0}
    heard = [Heard() for _ in range(4)]
    for index, one in enumerate(heard):
        sampling = SamplingParams(max_tokens=400, temperature=0.0, stop_regex="(?:a|aa)+$b")
        engine.submit(request(str(index), sampling=sampling), one)
    started = time.monotonic()
    drive(engine)
    assert time.monotonic() - started < 4 * 0.5
    assert [one.code for one in heard] == ["stop_regex_timeout"] * 4
    runner.bias = {}
    assert_clean(engine)


@pytest.mark.parametrize("pattern", ["(?:(?:(?:a|b){1000}){1000}){1000}", "(?:[ab]{1000}){1000}", "a{99999999}"])
def test_a_stop_regex_that_would_fill_the_memory_is_refused(pattern: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(stop_regex=pattern)
    assert caught.value.param == "stop_regex"
    assert SamplingParams(stop_regex=r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}|[a-z]{20} x{3,}").stop_regex


# The loop


def test_the_loop_survives_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    client = LocalClient(EngineLoop(engine, EngineConfig()))
    with pytest.raises(BoughError):
        list(client.stream(Request(id="a", prompt=("x",), sampling=SHORT)))  # type: ignore[arg-type]
    with pytest.raises(BoughError):
        list(client.run(Program(id="b", ops=(3,))))  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "stats", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            client.stats()
    tokens = [token for output in client.stream(request("r")) for token in output.tokens]
    assert tokens == alone()
    client.close()


def test_a_flood_of_calls_does_not_keep_the_engine_from_stepping() -> None:
    engine, _ = fake_engine(max_waiting=1, max_num_seqs=1)
    loop = EngineLoop(engine, EngineConfig())
    ended = threading.Event()
    left = threading.Event()

    def flood() -> None:
        while not left.is_set():
            loop.abort("nobody")
            if loop._inbox.qsize() > 20_000:
                time.sleep(0.001)

    def again() -> None:  # there is always another call in the inbox
        if not left.is_set():
            loop._post(again)

    loop._post(again)
    threads = [threading.Thread(target=flood) for _ in range(2)]
    for thread in threads:
        thread.start()
    loop.start_request(request("r"), lambda output: ended.set() if output.finish is not None else None)
    assert ended.wait(10.0)
    left.set()
    for thread in threads:
        thread.join()
    loop.close()


def test_close_tells_everyone_even_if_some_do_not_listen() -> None:
    engine, _ = fake_engine()
    loop = EngineLoop(engine, EngineConfig())
    events: queue.SimpleQueue[RequestOutput | ProgramEvent] = queue.SimpleQueue()

    def raises(_: object) -> None:
        raise RuntimeError("it does not listen")

    loop.start_program(program(Text(0, ("x",)), Gen(0, "g", ENDLESS), name="deaf"), raises)
    loop.start_request(request("deaf", sampling=ENDLESS), raises)
    loop.start_program(program(Text(0, ("x",)), Gen(0, "g", ENDLESS), name="good"), events.put)
    loop.start_request(request("good", sampling=ENDLESS), events.put)
    loop.close()
    heard = []
    while not events.empty():
        heard.append(events.get())
    assert sum(isinstance(event, Failed) for event in heard) == 1
    assert sum(isinstance(event, RequestOutput) and event.finish is not None for event in heard) == 1


# The model


@pytest.mark.parametrize("step", [0, 2])
def test_a_poisoned_prefix_does_not_stay_in_the_cache(step: int) -> None:
    """Chunks that were computed, and shared, before the numbers were looked at."""
    engine, runner = fake_engine(max_batch_tokens=4)
    heard = Heard()
    engine.submit(request("bad", "the beginning is poisoned!"), heard)
    for _ in range(step):
        engine.step()
    runner.broken = ord("!")
    drive(engine)
    assert heard.code == "nonfinite_logits"
    runner.broken = None
    again = Heard()
    engine.submit(request("again", "the beginning is poisoned!"), again)
    drive(engine)
    assert again.finish.usage.cached_tokens == 0
    assert again.tokens == alone(text="the beginning is poisoned!")
    assert_clean(engine)


# The pool


@pytest.mark.parametrize("page_size", [1, 3])
def test_whatever_passes_the_door_ends_in_a_pool_of_any_size(page_size: int) -> None:
    for num_pages in range(2, 42):
        rng = random.Random(num_pages)
        engine, _ = fake_engine(num_pages, page_size, max_batch_tokens=rng.choice([1, 3, 16, 512]), max_num_seqs=6)
        heard, refused = [], 0
        for index in range(12):
            text = rng.choice(["aaaa", "aab", "b"]) * rng.randrange(1, 6)
            sampling = SamplingParams(max_tokens=rng.randrange(1, 30), temperature=0.0, ignore_eos=True)
            grammar = Choice(("abcdefghijkl", "abcxyz")) if index % 4 == 1 else None
            score = len(text) // 2 if index % 4 == 2 and len(text) > 2 else None
            listener = Heard()
            asked = request(str(index), text, sampling, grammar=grammar, score_from=score)
            try:
                engine.submit(asked, listener)
            except RequestError as error:
                refused += 1
                assert error.code == "context_length_exceeded"
                if score is None:
                    assert len(asked.prompt) + (sampling.max_tokens or 0) > (num_pages - 1) * page_size
            else:
                heard.append((asked, listener))
        drive(engine, 4000)
        for asked, listener in heard:
            assert listener.finish.reason in ("stop", "length"), (num_pages, asked)
            if asked.grammar is None and asked.score_from is None:
                assert len(listener.tokens) == asked.sampling.max_tokens
            usage = listener.finish.usage
            assert usage.cached_tokens <= usage.prompt_tokens - 1
        assert engine.flush_cache()
        assert engine.stats().free_pages == num_pages - 1
        engine._cache.check([])
        engine.close()


def test_drafts_of_some_do_not_take_the_turn_of_others() -> None:
    engine, _ = fake_engine(max_batch_tokens=16, max_num_seqs=8)
    word = "abcdefghijklmnopqrstuvwxyz" * 8
    grammar = Choice((word,))
    engine._grammars.compile(grammar)
    forced, plain = [Heard() for _ in range(4)], [Heard() for _ in range(4)]
    for index, heard in enumerate(forced):
        sampling = SamplingParams(max_tokens=300, temperature=0.0)
        engine.submit(request(f"forced {index}", "x", sampling, grammar=grammar), heard)
    for index, heard in enumerate(plain):
        engine.submit(request(f"plain {index}", "x", ENDLESS), heard)
    for _ in range(20):
        engine.step()
    assert min(len(heard.tokens) for heard in plain) >= 12
    engine.close()


# Programs that ask for too much


MANY = 1 << 12


@pytest.mark.parametrize(
    "ops",
    [
        [Assign(0, "x", "ab" * 100_000), Text(0, tuple(Ref(0, "x") for _ in range(MANY)))],
        [
            Assign(0, "x0", "ab" * 1000),
            *(
                op
                for level in range(30)
                for op in (Text(0, tuple(Ref(0, f"x{level}") for _ in range(2))), Assign(0, f"x{level + 1}", "ab"))
            ),
        ],
        [Text(0, ("word " * 200_000,)), Fork(0, tuple(range(1, 1000)))],
        [Text(0, ("x",)), Select(0, "s", tuple(str(number) for number in range(100_000)))],
    ],
    ids=["references", "texts", "forks", "choices"],
)
def test_a_program_cannot_ask_for_the_memory(ops: list[Any]) -> None:
    engine, _ = fake_engine()
    executor = Executor(engine, time.monotonic, max_states=4)
    heard = ProgramHeard()
    started = time.monotonic()
    executor.run(program(*ops), heard)
    assert time.monotonic() - started < 1.0
    assert isinstance(heard.failed.error.code, str)
    assert heard.failed.error.code in ("context_length_exceeded", "invalid_value")
    assert executor.num_states == 0
    assert_clean(engine)


def test_compilations_that_nobody_waits_for_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    release = threading.Event()
    monkeypatch.setattr("bough.constrain.compiler.lower", lambda _: release.wait(10.0) and 1 / 0)
    for index in range(300):
        engine.submit(request(str(index), grammar=Regex(f"a{{{index}}}")), Heard())
        engine.abort(str(index))
    assert len(engine._grammars._pool._waiting) <= 4
    shared = Regex("shared")
    first, second = Heard(), Heard()
    engine.submit(request("first", grammar=shared), first)
    engine.submit(request("second", grammar=shared), second)
    engine.abort("first")
    assert any(True for _ in engine._compiling)
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
