"""A device that is a pass behind gives the same answers as one that is not, where the two differ most."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from bough.constrain.spec import GrammarSpec, JsonSchema
from bough.radix import PrefixCache
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.config import SchedulerLimits
from bough.runtime.protocol.request import Finish, Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.runner.gpu_runner import _in_plan_order
from bough.runtime.scheduler.scheduler import Advance, Plan, Scheduler, Sequence, Standing, Work

from ...support.fakes import fake_engine

END = 257
LIST = JsonSchema(schema='{"type":"array","items":{"type":"string"}}')
KEYS = JsonSchema(
    schema='{"type":"object","properties":{"a_rather_long_name_for_a_key":{"type":"integer","minimum":0,"maximum":9},'
    '"another_long_name_for_a_key":{"type":"boolean"}},'
    '"required":["a_rather_long_name_for_a_key","another_long_name_for_a_key"],"additionalProperties":false}',
    property_order="schema",
)


Ends = list[tuple[list[int], Finish | None]]


def run(
    ahead: int, sampling: list[SamplingParams], grammar: GrammarSpec | None, bias: dict[int, float] | None = None
) -> tuple[Ends, int]:
    """Tokens and end of each request, and the number of forward passes."""
    engine, runner = fake_engine(ahead=ahead, num_pages=4096)
    runner.bias = bias or {}
    ends = generate(engine, [(prompt_of(index), params) for index, params in enumerate(sampling)], grammar)
    engine.close()
    return ends, runner.num_steps


def prompt_of(index: int) -> tuple[int, ...]:
    return tuple(65 + (index + place) % 26 for place in range(5))


def generate(
    engine: Engine, requests: list[tuple[tuple[int, ...], SamplingParams]], grammar: GrammarSpec | None
) -> Ends:
    heard: list[list[RequestOutput]] = [[] for _ in requests]
    for index, ((prompt, params), outputs) in enumerate(zip(requests, heard, strict=True)):
        engine.submit(Request(id=str(index), prompt=prompt, sampling=params, grammar=grammar), outputs.append)
    engine.wait_for_grammar(10.0)
    while not engine.idle or engine._live:
        engine.step()
    return [([t for o in outputs for t in o.tokens], outputs[-1].finish) for outputs in heard]


@pytest.mark.parametrize("ahead", [1, 4])
def test_values_that_are_closed_before_the_limit(ahead: int) -> None:
    """Near the limit a token is replaced after it was drawn, when the next step is in flight on the wrong one."""
    sampling = [
        SamplingParams(max_tokens=count, temperature=1.5, seed=seed) for count in (5, 8, 13, 21) for seed in range(6)
    ]
    expected, _ = run(0, sampling, LIST)
    found, _ = run(ahead, sampling, LIST)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    assert sum(finish is not None and finish.reason == "length" for _, finish in found) >= 8


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_what_replaced_tokens_leave_in_the_cache_is_theirs(ahead: int) -> None:
    """A continuation of a text that was closed finds the keys of the tokens in it, not of those that were drawn."""
    engine, _ = fake_engine(ahead=ahead)
    closed = [SamplingParams(max_tokens=count, temperature=1.5, seed=count) for count in range(5, 25)]
    requests = [(prompt_of(index), params) for index, params in enumerate(closed)]
    first = generate(engine, requests, LIST)
    greedy = SamplingParams(max_tokens=6, temperature=0.0)
    texts = [((*prompt, *tokens, 66), greedy) for (prompt, _), (tokens, _) in zip(requests, first, strict=True)]
    warm = generate(engine, texts, None)
    engine.close()
    engine, _ = fake_engine(enable_prefix_caching=False)
    assert [tokens for tokens, _ in warm] == [tokens for tokens, _ in generate(engine, texts, None)]
    assert sum(finish.usage.cached_tokens for _, finish in warm if finish is not None) > 10 * len(warm)
    engine.close()


@pytest.mark.parametrize("ahead", [1, 4])
def test_ends_of_sequence_before_min_tokens(ahead: int) -> None:
    sampling = [
        SamplingParams(max_tokens=12, min_tokens=count, temperature=0.7, seed=count) for count in (0, 1, 3, 7, 12)
    ]
    expected, _ = run(0, sampling, None, {END: 20.0})
    found, _ = run(ahead, sampling, None, {END: 20.0})
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    assert all(END not in tokens[:-1] for tokens, _ in found)


def test_what_a_grammar_forces_saves_passes_here_too() -> None:
    sampling = [SamplingParams(max_tokens=100, temperature=0.0)]
    ((expected, _),), _ = run(0, sampling, KEYS)
    ((tokens, finish),), num_passes = run(1, sampling, KEYS)
    assert tokens == expected and finish is not None
    assert finish.usage.forced_tokens > 40
    assert num_passes <= 8, f"{num_passes} passes for {len(tokens)} tokens"


def test_a_prefix_whose_last_chunk_is_not_read_yet_is_waited_for() -> None:
    """Branches over a common prefix compute it once, although its sequence decodes by the time they are looked at."""
    scheduler = Scheduler(PrefixCache(4096, 1), SchedulerLimits(max_batch_tokens=600))
    stem = [random.Random(1).randrange(3) for _ in range(512)]
    for index in range(4):
        tokens = [*stem, index % 2, index // 2, 1]
        scheduler.add(
            Sequence(id=str(index), tokens=tokens, num_prompt=len(tokens), standing=Standing(index), limit=600)
        )
    computed, unread = 0, Plan([], [], [])
    for _ in range(12):
        plan = scheduler.schedule(0.0)
        computed += sum(work.num_tokens for work in plan.work)
        scheduler.apply(unread, [Advance((1,) if work.samples else ()) for work in unread.work])
        unread = plan
    assert computed < 512 + 4 * 3 + 4 * 12, "a branch computed the prefix again"


def test_no_step_is_planned_past_the_limit() -> None:
    scheduler = Scheduler(PrefixCache(512, 4), SchedulerLimits(max_batch_tokens=64))
    sequences = [Sequence(id=str(i), tokens=[1] * 5, num_prompt=5, standing=Standing(i), limit=8 + i) for i in range(4)]
    for sequence in sequences:
        scheduler.add(sequence)
    unread: list[Plan] = []
    for _ in range(12):
        plans = [scheduler.schedule(0.0)]
        if plans[0].work and all(work.num_tokens == 1 and work.samples for work in plans[0].work):
            plans += scheduler.repeat(plans[0], 5)
        assert all(work.stop < work.sequence.limit for plan in plans for work in plan.work)
        for plan in unread:
            scheduler.apply(plan, [Advance((1,), len(w.sequence.tokens) + 1 >= w.sequence.limit) for w in plan.work])
        unread = plans
    assert scheduler.idle
    assert [len(sequence.tokens) for sequence in sequences] == [8, 9, 10, 11]


def test_logit_rows_come_back_in_the_order_of_the_plan() -> None:
    rng = random.Random(0)
    sequence: Any = None
    for _ in range(50):
        counts = [rng.choice([0, 1, 1, 3]) for _ in range(rng.randrange(1, 9))]
        works = [Work(sequence, 0, 4, 4 - count, 4) for count in counts]
        order = rng.sample(range(len(works)), len(works))
        arranged = [works[index] for index in order]
        # The rows of the work at place i of the plan are i * 10, i * 10 + 1, ...
        rows = [index * 10 + row for index in order for row in range(counts[index])]
        found = _in_plan_order(np.array(rows, np.int64), arranged, order)
        assert found.tolist() == [index * 10 + row for index, count in enumerate(counts) for row in range(count)]
