"""Time of a step beside which others wait for their next token: learned from passes, bounded for those to come."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.radix import PrefixCache
from bough.runtime.engine.engine import Engine
from bough.runtime.engine.step_size import FIRST_TOKENS, MIN_TOKENS, SHARED_S, PassTimes, StepSize
from bough.runtime.protocol.config import EngineConfig, SchedulerLimits
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.request import Request
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.runner.runner import Batch
from bough.runtime.scheduler.scheduler import Plan, Scheduler, Scoring, Sequence, Standing, Work

from ...support.fakes import fake_engine
from ..listening import Clock, Heard, drive

Machine = Callable[[int, int, float], float]


def cpu(num_rows: int, num_tokens: int, num_pairs: float) -> float:
    """Two cores and the default model: 13 ms for 8 rows, 0.4 s for 512 tokens."""
    return 0.008 + 0.0006 * num_rows + 0.0007 * num_tokens + 1.5e-7 * num_pairs


def gpu(num_rows: int, num_tokens: int, num_pairs: float) -> float:
    """Memory-bound until some 500 rows."""
    return max(0.006, 0.004 + 1.2e-5 * (num_rows + num_tokens)) + 2e-10 * num_pairs


def pass_over(
    times: PassTimes, machine: Machine, rows: int, tokens: int, context: int = 0, noise: float = 1.0
) -> float:
    pairs = tokens * (context + tokens / 2)
    seconds = machine(rows, tokens, pairs)
    times.observe(rows, tokens, pairs, seconds * noise)
    return seconds


# Times of passes


def test_nothing_is_known_at_first() -> None:
    times = PassTimes()
    assert times.decode_s(8) == 0.0
    assert times.tokens_within(0.1, 8, 0) == FIRST_TOKENS


def test_what_only_decoded_bounds_the_first_chunk() -> None:
    times = PassTimes()
    for _ in range(5):
        pass_over(times, cpu, 8, 0)
    assert times.decode_s(8) == pytest.approx(cpu(8, 0, 0))
    tokens = times.tokens_within(0.05, 8, 0)
    assert 8 < tokens <= FIRST_TOKENS
    assert cpu(8, tokens, tokens**2 / 2) < 0.08


@pytest.mark.parametrize("machine", [cpu, gpu])
@pytest.mark.parametrize("bound", [0.03, 0.1, 0.4])
def test_chunks_come_close_to_the_bound_within_a_few_passes(machine: Machine, bound: float) -> None:
    times = PassTimes()
    for _ in range(3):
        pass_over(times, machine, 8, 0)
    context, seconds = 0, []
    for _ in range(25):
        tokens = min(times.tokens_within(bound, 8, context), 8192)
        seconds.append(pass_over(times, machine, 8, tokens, context))
        context = (context + tokens) % 6000
    assert max(seconds[2:]) <= 1.35 * bound
    if machine is cpu:
        assert min(seconds[12:]) >= 0.5 * bound


def test_one_prompt_alone_teaches_what_chunks_cost() -> None:
    times = PassTimes()
    for start in range(0, 2048, 512):
        pass_over(times, cpu, 0, 512, start)
    for _ in range(3):
        pass_over(times, cpu, 8, 0)
    tokens = times.tokens_within(0.1, 8, 0)
    assert 0.07 <= cpu(8, tokens, tokens**2 / 2) <= 0.13


@pytest.mark.parametrize("factor", [1e-6, 0.05, 20.0, 1e6])
def test_an_outlier_changes_little_and_is_forgotten(factor: float) -> None:
    times = PassTimes()
    for index in range(30):
        pass_over(times, cpu, 8, 0)
        pass_over(times, cpu, 8, 100, 100 * index)
    before = times.tokens_within(0.1, 8, 1000)
    pass_over(times, cpu, 8, 100, 1000, noise=factor)
    pass_over(times, cpu, 8, 0, noise=factor)
    assert before / 2 <= times.tokens_within(0.1, 8, 1000) <= 2 * before
    for index in range(15):
        pass_over(times, cpu, 8, 0)
        pass_over(times, cpu, 8, 100, 100 * index)
    assert times.tokens_within(0.1, 8, 1000) == pytest.approx(before, rel=0.15)


@pytest.mark.parametrize("slower", [5.0, 0.2])
def test_a_machine_that_changes_is_followed(slower: float) -> None:
    times = PassTimes()
    for _ in range(50):
        pass_over(times, cpu, 8, 0)
        pass_over(times, cpu, 8, 100, 500)

    def changed(num_rows: int, num_tokens: int, num_pairs: float) -> float:
        return slower * cpu(num_rows, num_tokens, num_pairs)

    for _ in range(40):
        pass_over(times, changed, 8, 0)
        tokens = times.tokens_within(0.3, 8, 500)
        seconds = pass_over(times, changed, 8, tokens, 500)
    assert seconds <= 1.25 * 0.3


OBSERVED = st.tuples(
    st.integers(0, 64), st.integers(0, 512), st.integers(0, 8000), st.floats(1e-6, 10.0, allow_nan=False)
)


@given(st.lists(OBSERVED, max_size=30), st.integers(0, 64), st.integers(0, 8000), st.floats(1e-4, 10.0))
def test_more_never_takes_less_whatever_was_measured(
    seen: list[tuple[int, int, int, float]], rows: int, context: int, bound: float
) -> None:
    times = PassTimes()
    for num_rows, tokens, start, seconds in seen:
        if num_rows or tokens:
            times.observe(num_rows, tokens, tokens * (start + tokens / 2), seconds)
    fitting = times.tokens_within(bound, rows, context)
    assert 0 <= fitting <= 2 * max([FIRST_TOKENS // 2, *(tokens for _, tokens, _, _ in seen)])
    assert times.tokens_within(bound, rows + 1, context) <= fitting
    assert times.tokens_within(bound, rows, context + 100) <= fitting
    assert times.tokens_within(2 * bound, rows, context) >= fitting
    assert times.decode_s(rows + 1) >= times.decode_s(rows) >= 0.0


def test_what_a_pass_takes_is_known_once_ones_like_it_were_measured() -> None:
    times = PassTimes()
    assert times.seconds(1, 0, 0.0) >= 0.5  # a machine may be slow
    assert times.seconds(0, 512, 512**2 / 2) >= 10.0
    for start in range(0, 2048, 512):
        pass_over(times, cpu, 0, 512, start)
    for _ in range(5):
        pass_over(times, cpu, 8, 0)
    assert times.seconds(8, 0, 0.0) == pytest.approx(cpu(8, 0, 0))
    pairs = 1000 * 2500.0
    assert times.seconds(8, 1000, pairs) == pytest.approx(cpu(8, 1000, pairs), rel=0.2)
    assert times.seconds(8, 8000, 8000 * 4000.0) >= cpu(8, 8000, 8000 * 4000.0)  # unlike any


# Rules


def sequence(num_tokens: int, num_computed: int, **fields: Any) -> Sequence:
    return Sequence(
        id="s",
        tokens=[1] * num_tokens,
        num_prompt=num_tokens,
        standing=Standing(0),
        num_computed=num_computed,
        **fields,
    )


DECODING, PROMPT = sequence(10, 9), sequence(1000, 100)


def scheduler(running: list[Sequence], *, any_waiting: bool) -> Scheduler:
    """A scheduler in which `running` run, and perhaps one more waits."""
    made = Scheduler(PrefixCache(16, 1), SchedulerLimits())
    made.running = running
    if any_waiting:
        made.add(sequence(1000, 0))
    return made


def step_size(**settings: Any) -> StepSize:
    size = StepSize(EngineConfig(**settings), SchedulerLimits(max_batch_tokens=512))
    for _ in range(5):
        pass_over(size.times, cpu, 8, 0)
        pass_over(size.times, cpu, 8, 512, 500)
    return size


@pytest.mark.parametrize("running", [[], [PROMPT], [PROMPT, PROMPT], [PROMPT, sequence(10, 8, score=Scoring(5))]])
def test_prompts_that_nobody_waits_beside_get_all(running: list[Sequence]) -> None:
    assert step_size().prompt_tokens(scheduler(running, any_waiting=True), 0.0) == 512


def test_a_tenant_that_was_there_lately_is_not_made_to_wait_for_a_long_step() -> None:
    size = StepSize(EngineConfig(), SchedulerLimits(max_batch_tokens=4096))
    for num_tokens in (512, 1024, 2048, 4096):
        pass_over(size.times, cpu, 8, 0)
        pass_over(size.times, cpu, 0, num_tokens, 500)
    other = sequence(1000, 100, namespace="other/salt")
    alone = size.prompt_tokens(scheduler([PROMPT], any_waiting=True), 0.0)
    assert size.prompt_tokens(scheduler([PROMPT, sequence(1000, 0)], any_waiting=True), 0.5) == alone
    shared = size.prompt_tokens(scheduler([PROMPT, other], any_waiting=True), 1.0)
    assert shared < alone / 2
    assert size.prompt_tokens(scheduler([other], any_waiting=True), 1.0) == shared
    assert size.prompt_tokens(scheduler([PROMPT], any_waiting=True), 1.0 + SHARED_S - 1) == shared
    assert size.prompt_tokens(scheduler([PROMPT], any_waiting=True), 1.0 + SHARED_S + 1) == alone


def test_prompts_beside_what_decodes_get_what_fits() -> None:
    fitting = [
        step_size(max_step_ms=bound).prompt_tokens(scheduler([*[DECODING] * 8, PROMPT], any_waiting=False), 0.0)
        for bound in (20, 60, 100, 200, 5000)
    ]
    assert fitting == sorted(fitting) and fitting[0] >= MIN_TOKENS and fitting[-1] == 512
    assert step_size().prompt_tokens(scheduler([*[DECODING] * 8, PROMPT], any_waiting=False), 0.0) == fitting[2]
    assert step_size().prompt_tokens(scheduler([DECODING] * 8, any_waiting=True), 0.0) >= fitting[2]


def test_a_bound_that_decoding_alone_passes_leaves_prompts_a_little() -> None:
    size = step_size(max_step_ms=1)
    assert size.prompt_tokens(scheduler([*[DECODING] * 8, PROMPT], any_waiting=False), 0.0) == MIN_TOKENS


def test_by_default_the_bound_is_four_steps_of_what_decodes() -> None:
    size = StepSize(EngineConfig(), SchedulerLimits(max_batch_tokens=512))
    for _ in range(5):
        pass_over(size.times, cpu, 200, 0)
        pass_over(size.times, cpu, 200, 512, 500)
    tokens = size.prompt_tokens(scheduler([*[DECODING] * 200, PROMPT], any_waiting=False), 0.0)
    seconds = cpu(200, tokens, tokens * (100 + tokens / 2))
    assert 0.3 < seconds < 1.1 * 4 * cpu(200, 0, 0)


def test_drafts_are_rows_too() -> None:
    drafting = [sequence(10, 9, drafts=[1] * 15) for _ in range(4)]
    size = step_size()
    plain = size.prompt_tokens(scheduler([*[DECODING] * 4, PROMPT], any_waiting=False), 0.0)
    assert size.prompt_tokens(scheduler([*drafting, PROMPT], any_waiting=False), 0.0) < plain


@pytest.mark.parametrize("bound", [0, -1, float("nan")])
def test_a_bound_must_be_positive(bound: float) -> None:
    with pytest.raises(RequestError, match="max_step_ms must be above 0"):
        EngineConfig(max_step_ms=bound)


@pytest.mark.parametrize("num_steps", [1, 4])
def test_a_pass_that_waited_for_the_one_before_counts_from_there(num_steps: int) -> None:
    """On a device that is asked ahead, launches overlap."""
    size, plans = (
        StepSize(EngineConfig(), SchedulerLimits()),
        [Plan([Work(DECODING, 9, 10, 9, 10)], [], [])] * num_steps,
    )
    for index in range(20):
        size.observe(plans, launched_at=10.0 + 0.05 * (index - 1), read_at=10.0 + 0.05 * index)
    assert size.times.decode_s(1) == pytest.approx(0.05 / num_steps)
    size.observe(plans, launched_at=99.0, read_at=99.0 + 0.05)  # after a rest, which is no time of a pass
    assert size.times.decode_s(1) == pytest.approx(0.05 / num_steps)


# In an engine


class Timed:
    """An engine over a clock that its passes move on, by their size."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.engine, runner = fake_engine(num_pages=16384, **settings)
        self.clock = Clock()
        self.engine._clock = self.clock
        self.passes: list[tuple[int, float]] = []
        self.runner, run = runner, runner.run

        def timed(batch: Batch) -> Any:
            counts = batch.attention.query_start[1:] - batch.attention.query_start[:-1]
            ends = batch.attention.context_len
            rows = int((counts == 1).sum())
            tokens = int(counts.sum()) - rows
            pairs = sum(int(n) * (int(end) - int(n) / 2) for n, end in zip(counts, ends, strict=True) if n > 1)
            seconds = machine(rows, tokens, pairs) * rng.uniform(0.95, 1.05)
            self.clock.now += seconds
            self.passes.append((tokens, seconds))
            return run(batch)

        rng = random.Random(3)
        monkeypatch.setattr(runner, "run", timed)

    def submit(self, name: str, prompt: tuple[int, ...], max_tokens: int) -> Heard:
        heard = Heard()
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        self.engine.submit(Request(id=name, prompt=prompt, sampling=sampling), heard)
        return heard


def text(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(32, 127) for _ in range(length))


def long_beside_short(timed: Timed) -> tuple[list[Heard], float]:
    """Tokens of 8 that decode and of a long prompt that comes later, and the seconds to its first token."""
    heard = [timed.submit(f"short {index}", text(index, 20), 120) for index in range(8)]
    for _ in range(12):
        timed.engine.step()
    timed.passes.clear()
    began = timed.clock.now
    long = timed.submit("long", text(99, 2000), 3)
    while not long.outputs:
        timed.engine.step()
    first_s = timed.clock.now - began
    drive(timed.engine)
    return [*heard, long], first_s


@pytest.mark.parametrize(("bound", "within"), [(None, 0.1), (60.0, 0.06), (200.0, 0.2)])
def test_the_time_between_tokens_stays_within_the_bound(
    bound: float | None, within: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(cpu, monkeypatch, ahead=0, max_step_ms=bound)
    found, first_s = long_beside_short(timed)
    chunks = [seconds for tokens, seconds in timed.passes if tokens]
    assert max(chunks[1:]) <= 1.1 * within
    free = Timed(cpu, monkeypatch, ahead=0, max_step_ms=1e9)
    expected, free_s = long_beside_short(free)
    assert max(seconds for _, seconds in free.passes) > 3 * within or within == 0.2
    assert [heard.tokens for heard in found] == [heard.tokens for heard in expected]
    assert first_s <= 1.5 * free_s


def test_a_prompt_alone_is_computed_in_the_largest_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(cpu, monkeypatch, ahead=0)
    timed.submit("long", text(1, 2000), 3)
    drive(timed.engine)
    assert [tokens for tokens, _ in timed.passes if tokens] == [512, 512, 512, 464]


def slow(num_rows: int, num_tokens: int, num_pairs: float) -> float:
    return 10 * cpu(num_rows, num_tokens, num_pairs)


@pytest.mark.parametrize(("max_step_ms", "bound"), [(None, 1.0), (100.0, 1.0), (4000.0, 4.0)])
def test_chunks_that_nobody_waits_beside_are_bounded_too(
    max_step_ms: float | None, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Timed(slow, monkeypatch, ahead=0, max_batch_tokens=8192, max_step_ms=max_step_ms)
    timed.submit("long", text(1, 2000), 3)
    drive(timed.engine)
    chunks = [seconds for tokens, seconds in timed.passes if tokens]
    assert max(chunks[1:]) <= 1.2 * bound
    assert min(chunks[2:-1]) >= 0.6 * bound


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_engine_tells_what_its_passes_are_expected_to_take(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(slow, monkeypatch, ahead=ahead)
    engine, run = timed.engine, timed.runner.run
    seen: list[tuple[float, float]] = []

    def told(batch: Batch) -> Any:
        began = timed.clock.now
        chosen = run(batch)
        seen.append((engine.expected_s, timed.clock.now - began))
        return chosen

    monkeypatch.setattr(timed.runner, "run", told)
    assert engine.expected_s == 0.0
    timed.submit("long", text(1, 1900), 20)
    drive(engine)
    assert seen[0][0] > 1.0  # nothing is known
    for expected_s, took_s in seen[-10:]:
        assert 0.5 * took_s <= expected_s <= 3.0 * (1 + ahead) * took_s


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_a_prompt_comes_to_its_end_whatever_a_pass_takes(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(lambda rows, tokens, pairs: 10.0 + tokens, monkeypatch, ahead=ahead, max_step_ms=1)
    timed.submit("short", text(1, 5), 200)
    for _ in range(5):
        timed.engine.step()
    timed.passes.clear()
    long = timed.submit("long", text(2, 300), 1)
    drive(timed.engine)
    assert long.over
    assert sum(1 for tokens, _ in timed.passes if tokens) <= -(-300 // MIN_TOKENS) + 1


@pytest.mark.parametrize("ahead", [0, 4])
@pytest.mark.parametrize("bound", [1.0, 30.0, 100.0])
def test_answers_do_not_depend_on_it(bound: float, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(engine: Engine, timed: Timed) -> list[list[int]]:
        rng = random.Random(8)
        heard = []
        for index in range(14):
            heard.append(timed.submit(str(index), text(index % 3, rng.randrange(1, 300)), rng.randrange(1, 30)))
            for _ in range(rng.randrange(4)):
                engine.step()
        drive(engine)
        engine.close()
        return [one.tokens for one in heard]

    timed, free = (Timed(cpu, monkeypatch, ahead=ahead, max_step_ms=limit) for limit in (bound, 1e9))
    assert answers(timed.engine, timed) == answers(free.engine, free)
