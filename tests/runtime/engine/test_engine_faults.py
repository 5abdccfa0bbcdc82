"""Blast radius: what goes wrong with one request, listener, grammar or program ends that one alone."""

from __future__ import annotations

import contextlib
import itertools
import queue
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from llguidance import LLParserLimits

from bough.constrain import Matcher, MatcherError
from bough.constrain.matchers import lexer
from bough.constrain.spec import Choice, GrammarSpec, JsonSchema, Regex
from bough.runtime.client import engine_process
from bough.runtime.client.local import EngineLoop, LocalClient
from bough.runtime.client.messages import FrameWriter, FromEngine, Output, Ready, RunProgram, Start, Submit, read_frames
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import BoughError, DeviceLostError, EngineStoppedError, RequestError
from bough.runtime.protocol.program import Failed, Fork, Gen, Program, ProgramEvent, Text
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.runner.runner import Batch
from bough.runtime.scheduler.scheduler import Work

from ...support.fakes import FakeRunner, fake_engine
from ..listening import ENDLESS, SHORT, Clock, Heard, alone, assert_clean, drive, request
from ..programs.oracle import Heard as ProgramHeard
from ..programs.oracle import executor_of


def program(*ops: Any, name: str = "p", **fields: Any) -> Program:
    return Program(id=name, ops=tuple(ops), **fields)


# A listener that ends other requests, as a program's and an LLM's does


def test_samples_of_a_program_that_expire_together_end_it_alone() -> None:
    engine, _ = fake_engine()
    clock = Clock()
    engine._clock = clock
    executor = executor_of(engine, clock, max_states=4)
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
    executor = executor_of(engine, clock, max_states=4)
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


@pytest.mark.parametrize("ahead", [0, 1])
def test_who_is_ended_by_an_expired_request_shares_nothing_that_was_not_computed(ahead: int) -> None:
    """Its next token was planned in that step, and never launched."""
    engine, _ = fake_engine(ahead=ahead)
    clock = Clock()
    engine._clock = clock
    victim, again, expected = Heard(), Heard(), Heard()

    def end_the_victim(output: RequestOutput) -> None:
        if output.finish is not None:
            engine.abort("victim")

    engine.submit(request("first", sampling=ENDLESS, timeout_s=5.0), end_the_victim)
    engine.submit(Request(id="victim", prompt=(9, 8, 7), sampling=ENDLESS, stream=True), victim)
    for _ in range(4):
        engine.step()
    clock.now += 6.0
    engine.step()
    assert victim.outputs[-1].finish is not None
    prompt = (9, 8, 7, *victim.tokens, 5)
    engine.submit(Request(id="again", prompt=prompt, sampling=SHORT), again)
    drive(engine)
    assert_clean(engine)
    cold, _ = fake_engine(enable_prefix_caching=False)
    cold.submit(Request(id="cold", prompt=prompt, sampling=SHORT), expected)
    drive(cold)
    assert again.tokens == expected.tokens
    cold.close()


def test_grammars_of_a_program_that_fail_together_end_it_alone() -> None:
    engine, _ = fake_engine()
    executor = executor_of(engine, time.monotonic, max_states=4)
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
        self.receipt = good.receipt

    def min_tokens(self) -> int | None:
        return None

    def matcher(self) -> Any:
        if self._method == "matcher":
            raise self._error
        return BrokenMatcher(self._good.matcher(), self._method, self._error)


class BrokenMatcher:
    on_table = tabulable = None
    fill_along = Matcher.fill_along

    def __init__(self, good: Any, method: str, error: Exception) -> None:
        self._good, self._method, self._error = good, method, error
        self._calls = 0

    @property
    def successor(self) -> BrokenMatcher:
        return self

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
        patch.setattr(engine._grammars, "submit", lambda *_: settled)
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
        patch.setattr(engine._grammars, "submit", lambda *_: failed)
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


@pytest.mark.parametrize("num_passes", range(1, 8))
def test_what_a_failed_pass_did_not_compute_is_not_in_the_cache(num_passes: int) -> None:
    """Also if its sequence ended well with the pass before."""
    expected = alone(text="a question")
    engine, runner = fake_engine(ahead=1)
    heard = Heard()
    stops = SamplingParams(max_tokens=50, temperature=0.0, ignore_eos=True, stop_token_ids=(expected[4],))
    engine.submit(request("first", "a question", stops), heard)
    for _ in range(num_passes):
        engine.step()
    runner.fails = 1
    drive(engine)
    runner.fails = 0
    again = Heard()
    prompt = (*request("", "a question").prompt, *expected[:6])
    engine.submit(Request(id="again", prompt=prompt, sampling=SHORT), again)
    drive(engine)
    assert again.tokens[:2] == expected[6:]
    assert_clean(engine)


@pytest.mark.parametrize("error", [RuntimeError("a table cannot be put in"), MemoryError("for a table")])
def test_what_fails_before_a_launch_loses_no_pass_in_flight(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token of one request is in flight as the pass of the other is prepared."""
    engine, _ = fake_engine(ahead=4)
    short, long = Heard(), Heard()
    engine.submit(request("short", "hello", SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)), short)
    engine.submit(request("long", "other", SamplingParams(max_tokens=50, temperature=0.0, ignore_eos=True)), long)
    specs, failures = engine._device_specs, [error]

    def fail_once(work: list[Work], generations: list[Any]) -> Any:
        if failures and "short" in engine._live and all(each.sequence.id != "short" for each in work):
            raise failures.pop()
        return specs(work, generations)

    monkeypatch.setattr(engine, "_device_specs", fail_once)
    for _ in range(200):
        if not engine._live:
            break
        engine.step()
    assert not failures
    assert short.finish.reason == "length"
    assert long.code == (None if isinstance(error, MemoryError) else "internal_error")
    assert_clean(engine)


def test_a_lost_device_ends_the_engine_and_everyone_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, runner = fake_engine()
    dead = threading.Event()

    def lost(batch: object) -> None:
        raise DeviceLostError("the device is gone")

    monkeypatch.setattr(runner, "run", lost)
    loop = EngineLoop(engine, EngineConfig(max_num_seqs=1), on_death=dead.set)
    ends: queue.SimpleQueue[RequestOutput] = queue.SimpleQueue()
    for index in range(3):
        with contextlib.suppress(EngineStoppedError):
            loop.start_request(request(str(index)), ends.put)
    assert dead.wait(10.0) and not loop.alive
    codes = []
    while not ends.empty():
        finish = ends.get().finish
        assert finish is not None and finish.error is not None
        codes.append(finish.error.code)
    assert codes and set(codes) == {"engine_dead"}


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_engine_all_of_whose_passes_fail_gives_up(ahead: int) -> None:
    engine, runner = fake_engine(ahead=ahead)
    clock = Clock()
    engine._clock = clock

    def ask(name: str) -> Heard:
        heard = Heard()
        engine.submit(request(name), heard)
        drive(engine)
        return heard

    runner.fails = 10**9
    for number in range(20):  # a burst of failures is no proof
        assert ask(str(number)).code == "internal_error"
    clock.now += 9.0
    assert ask("still").code == "internal_error"
    runner.fails = 0
    assert ask("good").code is None
    runner.fails = 10**9
    for number in range(7):  # nor are a few of them
        clock.now += 5.0
        assert ask(f"again {number}").code == "internal_error"
    heard = Heard()
    engine.submit(request("last"), heard)
    with pytest.raises(EngineStoppedError, match="the last 8 passes have failed"):
        drive(engine)
    assert heard.code == "internal_error"
    engine.close()


def test_a_poisoned_row_takes_nothing_from_other_tenants() -> None:
    engine, runner = fake_engine(max_batch_tokens=8)
    said = [("good", "one"), ("bad", "two")]
    for name, namespace in said:
        engine.submit(request(name, "what both have said", namespace=namespace), heard := Heard())
        drive(engine)
        assert heard.code is None
    runner.broken = ord("!")
    bad, expected = Heard(), alone(text="what both have said, and more", namespace="one")
    engine.submit(request("poison", "what both have said!!", namespace="two"), bad)
    drive(engine)
    assert bad.code == "nonfinite_logits"
    for (name, namespace), cached in zip(said, (True, False), strict=True):
        heard = Heard()
        engine.submit(request(name, "what both have said, and more", namespace=namespace), heard)
        drive(engine)
        assert bool(heard.finish.usage.cached_tokens) is cached and heard.tokens == expected
    assert_clean(engine)


# Memory


class Scarce:
    """Memory of a `FakeRunner` that runs out: in the passes that `fails` is true of, by their batch."""

    def __init__(self, runner: FakeRunner, monkeypatch: pytest.MonkeyPatch, fails: Callable[[Batch], bool]) -> None:
        self.num_failed = 0
        run = runner.run

        def scarce(batch: Batch) -> Any:
            if fails(batch):
                self.num_failed += 1
                raise MemoryError("Unable to allocate 12 GiB")
            return run(batch)

        monkeypatch.setattr(runner, "run", scarce)


def at_pass(number: int) -> Callable[[Batch], bool]:
    passes = itertools.count(1)
    return lambda _: next(passes) == number


def texts() -> list[str]:
    return [f"{'shared prefix ' * (index % 3)}prompt {index} " * (1 + index % 4) for index in range(6)]


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("num_requests", [1, 6])
def test_memory_that_runs_out_once_is_not_noticed(
    ahead: int, num_requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [alone(text=text) for text in texts()]
    for at in (1, 2, 3, 4):
        with monkeypatch.context() as patch:
            engine, runner = fake_engine(ahead=ahead, max_batch_tokens=64)
            scarce = Scarce(runner, patch, at_pass(at))
            heard = [Heard() for _ in range(num_requests)]
            for index, one in enumerate(heard):
                engine.submit(request(str(index), texts()[index]), one)
            drive(engine)
            assert [one.tokens for one in heard] == expected[:num_requests], at
            assert all(one.code is None for one in heard)
            assert scarce.num_failed == 1 <= engine.stats().retried_passes_total <= 3
            assert_clean(engine)


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_a_request_that_never_fits_ends_alone(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found among others in a number of passes that grows with the logarithm of theirs."""
    engine, runner = fake_engine(ahead=ahead)
    expected = [alone(text=text) for text in texts()]
    mark = next(chr(code) for code in range(33, 127) if not any(code in tokens for tokens in expected))
    scarce = Scarce(runner, monkeypatch, lambda batch: ord(mark) in batch.tokens)
    heard = {text: Heard() for text in [*texts(), f"too much{mark}"]}
    for text, one in heard.items():
        engine.submit(request(text, text), one)
    drive(engine)
    bad = heard.pop(f"too much{mark}")
    assert bad.code == "out_of_memory" and bad.finish.error is not None
    assert bad.finish.error.message == "there is too little memory to compute the request"
    assert [one.tokens for one in heard.values()] == expected
    assert scarce.num_failed <= 24
    assert_clean(engine)


@pytest.mark.parametrize("room", [1, 2, 7, 40])
def test_passes_of_a_size_that_fits_are_found(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, runner = fake_engine(max_batch_tokens=256)
    scarce = Scarce(runner, monkeypatch, lambda batch: len(batch.tokens) > room)
    long = "a long text " * 60
    heard = [Heard() for _ in range(6)]
    for index, one in enumerate(heard):
        engine.submit(request(str(index), f"{index} {long if index == 2 else 'short'}"), one)
    drive(engine)
    for index, one in enumerate(heard):
        assert one.tokens == alone(text=f"{index} {long if index == 2 else 'short'}")
    assert scarce.num_failed > 0
    assert_clean(engine)


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_memory_that_runs_out_at_random_changes_no_answer(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With constraints, drafts, log-probabilities, aborts and late arrivals; nothing is left of anything."""
    sampling = [
        SamplingParams(max_tokens=12, temperature=float(index % 2), seed=index, logprobs=2 if index % 3 == 0 else None)
        for index in range(8)
    ]
    grammars = [None, JsonSchema('{"enum": ["abcdefghijk", "abcdefghxyz", "abcd"]}'), Regex("[a-z ]+[.]"), None]

    def answers(seed: int | None) -> list[list[int]]:
        engine, runner = fake_engine(ahead=ahead, max_batch_tokens=48)
        with monkeypatch.context() as patch:
            if seed is not None:
                rng = random.Random(seed)
                Scarce(runner, patch, lambda batch: len(batch.tokens) > 1 and rng.random() < 0.4)
            heard = [Heard() for _ in sampling]
            for index, one in enumerate(heard):
                text, grammar = f"{'same ' * 5}{index}", grammars[index % 4]
                engine.submit(request(str(index), text, sampling[index], grammar=grammar), one)
                engine.step()
                if index == 5:
                    engine.submit(request("gone", "it goes"), Heard())
                    engine.step()
                    engine.abort("gone")
            drive(engine)
        assert_clean(engine)
        return [one.tokens for one in heard]

    expected = answers(None)
    for seed in range(5):
        assert answers(seed) == expected, seed


def test_masks_that_are_late_when_memory_runs_out_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matcher whose mask is still being filled has one user."""
    expected = alone(grammar=JsonSchema('{"enum": ["abcd", "abxy"]}'))
    engine, runner = fake_engine(mask_patience_s=0.001)
    Scarce(runner, monkeypatch, at_pass(1))
    fill, busy = Matcher.fill_along, threading.Lock()

    def slow(matcher: Matcher, *arguments: Any) -> int:
        assert busy.acquire(blocking=False), "two threads use one matcher"
        try:
            time.sleep(0.05)
            return fill(matcher, *arguments)
        finally:
            busy.release()

    heard = Heard()
    engine.submit(request("slow", grammar=JsonSchema('{"enum": ["abcd", "abxy"]}')), heard)
    engine.wait_for_grammar(10.0)
    kind = type(next(iter(engine._admission.compiling.values())).futures[0].result().matcher())
    monkeypatch.setattr(kind, "fill_along", slow)
    drive(engine, 100_000)
    assert heard.tokens == expected
    assert_clean(engine)


# What cannot be read


def test_a_message_of_the_wrong_type_is_refused_and_the_process_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    monkeypatch.setattr(engine_process, "_load", lambda config, writer: EngineLoop(engine, config))
    monkeypatch.setattr(engine_process, "BEAT_S", 60.0)
    ours, theirs = socket.socketpair()
    status: list[int] = []
    thread = threading.Thread(target=lambda: status.append(engine_process.serve(theirs.detach())))
    thread.start()
    writer, messages = FrameWriter(ours), read_frames(ours, FromEngine)
    writer.put(Start(EngineConfig()))
    assert isinstance(next(messages), Ready)
    wrong: Any = "five"
    writer.put(Submit(1, Request(id="a", prompt=(1, 2), timeout_s=wrong)))
    writer.put(RunProgram(2, Program(id="b", ops=(Text(0, (wrong, 7)),))))  # type: ignore[arg-type]
    answers = {message.key: message for message in itertools.islice(messages, 2)}
    assert answers[1].output.finish.error.code == answers[2].event.error.code == "invalid_type"
    writer.put(Submit(3, request("good")))
    tokens: list[int] = []
    for message in messages:
        assert isinstance(message, Output)
        tokens += message.output.tokens
        if message.output.finish is not None:
            break
    assert tokens == alone()
    writer.close()
    ours.shutdown(socket.SHUT_WR)
    thread.join(10.0)
    assert status == [0]
    ours.close()


def test_a_constraint_that_takes_too_much_to_follow_fails_those_that_come_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lexer, "_LIMITS", LLParserLimits(verbose_errors=False, step_lexer_fuel=20_000))
    engine, _ = fake_engine()
    grammar = Regex("(([ab]{1,90}){30,90}){30,90}")

    def heard(name: str, max_tokens: int) -> Heard:
        heard = Heard()
        sampling = SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=1)
        engine.submit(request(name, grammar=grammar, sampling=sampling), heard)
        return heard

    first = heard("first", 3)
    drive(engine)
    long, short = (
        [heard(f"long {index}", 200) for index in range(3)],
        [heard(f"short {index}", 3) for index in range(3)],
    )
    drive(engine)
    short.append(heard("last", 3))
    drive(engine)
    assert [one.code for one in long] == ["grammar_too_complex"] * 3
    assert len(first.tokens) == 3
    assert all(one.tokens == first.tokens for one in short)
    assert_clean(engine)
