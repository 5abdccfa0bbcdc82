"""Bounds: pools of any size, deadlines, searches, compilations and programs that ask for too much."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.constrain.spec import Choice
from bough.runtime.client.llm import LLM
from bough.runtime.engine.detokenizer import Detokenizer
from bough.runtime.engine.engine import Engine
from bough.runtime.engine.generation import Generation, PenalisedTokens, Terms
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import BoughError, RequestError
from bough.runtime.protocol.program import Assign, Fork, Gen, Join, Program, Ref, Select, Text
from bough.runtime.protocol.request import Request
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.scheduler.scheduler import Sequence, Standing, Work

from ...support.fakes import byte_tokenizer, fake_engine
from ..listening import ENDLESS, Heard, assert_clean, drive, request
from ..programs.oracle import Heard as ProgramHeard
from ..programs.oracle import executor_of
from ..programs.place import bound


def program(*ops: Any) -> Program:
    return Program(id="p", ops=tuple(ops))


# The pool


@pytest.mark.parametrize("page_size", [1, 3])
def test_whatever_passes_the_door_ends_in_a_pool_of_any_size(page_size: int) -> None:
    for num_pages in range(2, 42):
        rng = random.Random(num_pages)
        engine, _ = fake_engine(num_pages, page_size, max_batch_tokens=rng.choice([1, 3, 16, 512]), max_num_seqs=6)
        heard = []
        for index in range(12):
            text = rng.choice(["aaaa", "aab", "b"]) * rng.randrange(1, 6)
            sampling = SamplingParams(max_tokens=rng.randrange(1, 30), temperature=0.0, ignore_eos=True)
            grammar = Choice(("abcdefghijkl", "abcxyz")) if index % 4 == 1 else None
            score = len(text) // 2 if index % 4 == 2 and len(text) > 2 else None
            listener = Heard()
            asked = request(str(index), text, sampling, grammar=grammar, score_from=score)
            wanted = len(asked.prompt) + (0 if score is not None else sampling.max_tokens or 0)
            if wanted > (num_pages - 1) * page_size:
                with pytest.raises(RequestError, match="in all is the limit"):
                    engine.submit(asked, listener)
            else:
                engine.submit(asked, listener)
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
        engine._scheduler.cache.check([])
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


# Searches for stops


def test_a_search_for_a_stop_that_is_too_slow_cannot_stop_an_abort() -> None:
    engine, runner = fake_engine()
    runner.bias = {ord("a"): 1000.0}
    heard = Heard()
    sampling = SamplingParams(max_tokens=400, temperature=0.0, stop_regex="(?:a|aa)+b")
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
        sampling = SamplingParams(max_tokens=400, temperature=0.0, stop_regex=r"(?:(?:a?b?){60}(?:b?a?){60}){9}c")
        engine.submit(request(str(index), sampling=sampling), one)
    started = time.thread_time()
    drive(engine)
    assert time.thread_time() - started < 2.0
    assert [one.code for one in heard] == ["stop_regex_timeout"] * 4
    runner.bias = {}
    assert_clean(engine)


@pytest.mark.parametrize("pattern", ["(?:(?:(?:a|b){1000}){1000}){1000}", "(?:[ab]{1000}){1000}", "a{99999999}"])
def test_a_stop_regex_that_repeats_much_takes_little_memory(pattern: str) -> None:
    engine, runner = fake_engine()
    runner.bias = {ord("a"): 1000.0}
    heard = Heard()
    tracemalloc.start()
    try:
        sampling = SamplingParams(max_tokens=50, temperature=0.0, stop_regex=pattern)
        engine.submit(request("r", sampling=sampling), heard)
        drive(engine)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert heard.finish.reason == "length"
    runner.bias = {}
    assert_clean(engine)


def test_a_stop_regex_that_is_none_ends_its_request_only() -> None:
    engine, _ = fake_engine()
    wrong, right = Heard(), Heard()
    engine.submit(request("wrong", sampling=SamplingParams(max_tokens=4, stop_regex="(")), wrong)
    engine.submit(request("right", sampling=SamplingParams(max_tokens=4, stop_regex="never{3}")), right)
    drive(engine)
    assert wrong.code == "invalid_value"
    assert right.finish.reason == "length"
    assert_clean(engine)


# Programs that ask for too much


MANY = 1 << 12


@pytest.mark.parametrize(
    "ops",
    [
        [Assign(0, "x", ("ab" * 100_000,)), Text(0, tuple(Ref(0, "x") for _ in range(MANY)))],
        [Text(0, ("word " * 1_000_000,))],
        [Text(0, ("word " * 400,)), Text(0, ("word " * 400,))],
        [Text(0, ("word " * 400,)), *(Fork(0, tuple(range(1000 * i + 1, 1000 * i + 1000))) for i in range(4))],
        [Text(0, ("x",)), Select(0, "s", tuple(str(number) for number in range(100_000)))],
    ],
    ids=["references", "text", "branch", "forks", "choices"],
)
def test_a_program_cannot_ask_for_the_memory(ops: list[Any]) -> None:
    engine, _ = fake_engine()
    executor = executor_of(engine, time.monotonic, max_states=4)
    heard = ProgramHeard()
    started = time.thread_time()
    executor.run(program(*ops), heard)
    assert time.thread_time() - started < 2.0
    assert isinstance(heard.failed.error.code, str)
    assert heard.failed.error.code in ("context_length_exceeded", "invalid_value")
    assert executor.num_states == 0
    assert_clean(engine)


def test_states_that_wait_are_bounded_by_what_they_hold() -> None:
    engine, _ = fake_engine()
    executor = executor_of(engine, time.monotonic, max_states=100)
    bound(executor._machine, held_tokens=10_000)
    for index in range(20):
        executor.run(Program(id=str(index), ops=(Assign(0, "x", ("y" * 3000,)),), keep=True), ProgramHeard())
    assert list(executor._states) == ["17", "18", "19"]
    executor.close()
    assert_clean(engine)


def test_a_client_who_keeps_many_states_drops_his_own() -> None:
    engine, _ = fake_engine()
    executor = executor_of(engine, time.monotonic, max_states=4)

    def keep(namespace: str, name: str, length: int = 1) -> None:
        ops = (Assign(0, "x", ("y" * length,)),)
        executor.run(Program(id=name, ops=ops, keep=True, namespace=namespace), ProgramHeard())

    keep("alice", "a0")
    keep("alice/salt", "a1")
    for index in range(20):
        keep("bob" if index % 2 else "bob/salt", f"b{index}")
    assert list(executor._states) == ["a0", "a1", "b18", "b19"]
    bound(executor._machine, held_tokens=10_000)
    keep("bob", "large", 7000)
    keep("bob", "larger", 7900)
    assert list(executor._states) == ["a0", "a1", "larger"]
    executor.close()
    assert_clean(engine)


def test_joins_are_bounded() -> None:
    engine, _ = fake_engine()
    executor = executor_of(engine, time.monotonic, max_states=4)
    ops = (Fork(0, (1,)), *(Join(0, (1,) * 1000) for _ in range(200)))
    with pytest.raises(RequestError, match="joins"):
        executor.run(program(*ops), ProgramHeard())
    assert executor.num_states == 0
    assert_clean(engine)


def test_a_program_of_many_branches_takes_time_in_proportion() -> None:
    engine, _ = fake_engine(max_waiting=4096)
    executor = executor_of(engine, time.monotonic, max_states=4)
    branches = tuple(range(1, 1001))
    heard = ProgramHeard()
    one = SamplingParams(max_tokens=1, temperature=0.0)
    executor.run(program(Text(0, ("x",)), Fork(0, branches), *(Gen(branch, "g", one) for branch in branches)), heard)
    started = time.monotonic()
    drive(engine)
    assert len(heard.values) == 1000
    assert time.monotonic() - started < 5.0
    assert_clean(engine)


def test_a_long_list_of_prompts_is_no_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(config: EngineConfig) -> Engine:
        return fake_engine(max_waiting=config.max_waiting)[0]

    monkeypatch.setattr("bough.runtime.client.llm.start_engine", load)
    llm = LLM("fake")
    answers = llm.generate(["x"] * 5000, SamplingParams(max_tokens=1, temperature=0.0), use_tqdm=False)
    assert len({answer.outputs[0].text for answer in answers}) == 1
    llm.close()


# Work in each step


class Tokens(list[int]):
    """Tokens that count how many of them are read, by slices and by iteration."""

    num_read = 0

    def __iter__(self) -> Iterator[int]:
        self.num_read += len(self)
        return super().__iter__()

    def __getitem__(self, place):
        found = super().__getitem__(place)
        self.num_read += len(found) if isinstance(place, slice) else 1
        return found


def test_with_a_repetition_penalty_a_step_reads_the_new_tokens_alone() -> None:
    sampling = SamplingParams(max_tokens=100, repetition_penalty=1.2)
    tokens = Tokens(number % 200 for number in range(4000))
    sequence = Sequence(id="r", tokens=tokens, num_prompt=len(tokens), standing=Standing(0))
    asked, ends = Request(id="r", prompt=(1,), sampling=sampling), frozenset({257})
    detokenizer = Detokenizer(byte_tokenizer())
    generation = Generation(asked, sequence, detokenizer, Terms(100, 0, ends, ends), lambda _: None, 0.0)

    def seen() -> list[int]:
        stop = len(tokens)
        (row,) = generation.rows(Work(sequence, stop - 1, stop, stop - 1, stop), None)
        return sorted(row.seen)

    assert seen() == [*range(200)]
    tokens.num_read = 0
    for number in range(190, 240):
        tokens.append(number)
        assert seen() == [*range(max(number + 1, 200))]
    assert tokens.num_read <= 50


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=9), max_size=8))
def test_tokens_seen_are_those_of_a_set(parts: list[list[int]]) -> None:
    penalised, tokens = PenalisedTokens(), []
    for part in parts:
        tokens += part
        before = penalised.seen(tokens)
        assert before.tolist() == sorted(set(tokens))
        tokens.append(31)
        penalised.seen(tokens)
        assert before.tolist() == sorted(set(tokens[:-1]))  # a row in flight keeps what it was given
