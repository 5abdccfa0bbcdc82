"""A soak: requests of every kind over a pool that is much too small, with aborts, deadlines and faults in between."""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from bough.constrain import GrammarError
from bough.constrain.spec import Choice, GrammarSpec, JsonSchema, Regex
from bough.runtime.engine import engine as engine_module
from bough.runtime.engine import generation
from bough.runtime.engine.engine import Engine
from bough.runtime.programs.executor import Executor
from bough.runtime.protocol.errors import OverloadedError, RequestError
from bough.runtime.protocol.program import (
    Done,
    Failed,
    Fork,
    Gen,
    Join,
    Op,
    Program,
    ProgramEvent,
    Ref,
    Select,
    Text,
    Value,
)
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import FakeRunner, byte_tokenizer, fake_engine
from ..programs.oracle import executor_of, random_program

NUM_REQUESTS = 1500
NUM_KINDS = 160
NUM_PROGRAMS = 12
POOL = 180
POISON = 1  # contexts that end in this token give NaN
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["knight", "mage"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
WRONG = Regex("(")
STOP = "[0-9]|[a-c]{2}"
GRAMMARS: list[GrammarSpec] = [
    JsonSchema(json.dumps(SCHEMA)),
    Regex("[0-9]{3}-[a-c]{2,8}"),
    Choice(("yes, certainly", "yes, perhaps", "no")),
]
STEMS = ("system: be brief. ", "system: be kind. ", "few shot: a b c. ", "")


class Clock:
    """One second a step."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_request(index: int) -> dict[str, Any]:
    """The fields of the `index`-th kind of request."""
    rng = random.Random(index)
    text = rng.choice(STEMS) + "".join(rng.choice(("tell ", "me ", "of ", "it ")) for _ in range(rng.randrange(1, 6)))
    size = rng.randrange(1, 130)
    fields: dict[str, Any] = {}
    match index % 10:
        case 0 | 1:
            fields["sampling"] = SamplingParams(max_tokens=size, temperature=0.0)
        case 2:
            fields["sampling"] = SamplingParams(max_tokens=size, temperature=0.9, top_p=0.8, seed=index, logprobs=2)
        case 3:
            fields["sampling"] = SamplingParams(
                max_tokens=size, top_k=20, min_p=0.02, frequency_penalty=0.5, repetition_penalty=1.1, seed=index
            )
        case 4 | 5:
            fields["sampling"] = SamplingParams(max_tokens=48 if index % 4 else 12, temperature=1.2, seed=index)
            fields["grammar"] = rng.choice(GRAMMARS)
        case 6:
            fields["sampling"] = SamplingParams(max_tokens=size, temperature=0.0, stop=("e", "tt"), min_tokens=1)
        case 7:
            fields["sampling"] = SamplingParams(max_tokens=size, temperature=0.0, stop_regex=STOP)
        case 8:
            fields["sampling"] = SamplingParams(max_tokens=0)
            fields["score_from"] = rng.randrange(1, len(text))
        case 9:
            fields["sampling"] = SamplingParams(max_tokens=size, temperature=0.0, logit_bias={65: 5.0}, ignore_eos=True)
            text += rng.choice(("\x01", "", ""))
    return {"prompt": tuple(byte_tokenizer().encode(text)), **fields}


BAD: list[dict[str, Any]] = [
    {"prompt": ()},
    {"prompt": (999,)},
    {"prompt": (1,) * 1000},
    {"prompt": (5, 6), "sampling": SamplingParams(max_tokens=5, stop_token_ids=(300,))},
    {"prompt": (5, 6), "score_from": 2, "sampling": SamplingParams(max_tokens=0)},
]


def make_program(index: int) -> tuple[Op, ...]:
    if index % 3 == 0:
        sampling = SamplingParams(max_tokens=10, temperature=0.8, n=3, seed=index)
        return (
            Text(0, (f"program {index}: ",)),
            Gen(0, "ideas", sampling),
            Fork(0, (1, 2)),
            Gen(1, "a", SamplingParams(max_tokens=8, temperature=0.0), GRAMMARS[1]),
            Text(2, ("and ", Ref(1, "a"))),
            Select(2, "b", ("yes", "no", "perhaps")),
            Join(0, (1, 2), "append"),
            Gen(0, "end", SamplingParams(max_tokens=8, temperature=0.0)),
        )
    return tuple(random_program(index, 14))


@dataclass
class Heard:
    """Outputs of one request or program; nothing may follow the end."""

    outputs: list[RequestOutput] = field(default_factory=list)
    events: list[ProgramEvent] = field(default_factory=list)
    over: bool = False

    def take_output(self, output: RequestOutput) -> None:
        assert not self.over, "an event after the terminal one"
        self.outputs.append(output)
        self.over = output.finish is not None

    def take_event(self, event: ProgramEvent) -> None:
        assert not self.over, "an event after the terminal one"
        self.events.append(event)
        self.over = isinstance(event, (Done, Failed))

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.tokens]

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def scores(self) -> list[float]:
        return [entry.logprob for output in self.outputs for entry in output.logprobs or ()]

    @property
    def ending(self) -> tuple[str, object, str | None]:
        finish = self.outputs[-1].finish
        assert finish is not None
        return finish.reason, finish.matched, None if finish.error is None else finish.error.code

    @property
    def values(self) -> dict[tuple[int, str], tuple[object, ...]]:
        found = [event for event in self.events if isinstance(event, Value)]
        return {(e.branch, e.name): (e.text, e.finish_reason, e.matched, e.samples) for e in found}


def place(**settings: Any) -> tuple[Engine, FakeRunner, Executor, Clock]:
    engine, runner = fake_engine(**settings)
    runner.broken = POISON
    clock = Clock()
    engine._clock = clock
    for pattern in (STOP, "a*"):
        engine._admission._patterns.compile(pattern).exception(10.0)
    for spec in (*GRAMMARS, WRONG):  # so that each is there at once, in the same step in every run
        try:
            engine._grammars.compile(spec)
        except GrammarError:
            assert spec is WRONG
    return engine, runner, executor_of(engine, clock, max_states=8), clock


@functools.cache
def cold() -> tuple[list[Heard], list[Heard]]:
    """Answers that each kind gets alone: no cache, no batch, no chunks, no drafts."""
    engine, _, executor, _ = place(
        enable_prefix_caching=False, max_num_seqs=1, max_batch_tokens=2048, jump_forward=False
    )
    kinds, programs = [], []
    for index in range(NUM_KINDS):
        kinds.append(Heard())
        engine.submit(Request(id="r", **make_request(index)), kinds[-1].take_output)
        while not kinds[-1].over:
            engine.step()
    for index in range(NUM_PROGRAMS):
        programs.append(Heard())
        executor.run(Program(id="p", ops=make_program(index)), programs[-1].take_event)
        while not programs[-1].over:
            engine.step()
    engine.close()
    return kinds, programs


class Soak:
    """One run. Everything that happens is drawn from `seed`; `log` is what was heard, in order."""

    def __init__(self, seed: int, num_requests: int, *, keys: Sequence[str] = ("",), **settings: Any) -> None:
        self.rng = random.Random(seed)
        self.keys = keys
        self.engine, self.runner, self.executor, self.clock = place(**settings)
        self.num_requests = num_requests
        self.log: list[tuple[Any, ...]] = []
        self.requests: dict[str, tuple[int, Heard, Any]] = {}
        self.programs: dict[str, tuple[int, Heard]] = {}
        self.refused = 0
        self.cut: set[str] = set()  # what was aborted or has a deadline

    def run(self) -> None:
        number, steps = 0, 0
        while number < self.num_requests or self.engine._live:
            waiting = len(self.engine._live)
            for _ in range(self.rng.randrange(0, 6) if waiting < 40 and number < self.num_requests else 0):
                self._start(number)
                number += 1
            self._abort()
            self.engine.step()
            self.clock.now += 1.0
            steps += 1
            if steps % 64 == 0:
                self.check()
            assert steps < 100 * self.num_requests, "no progress"
        self.check()

    def check(self) -> None:
        scheduler = self.engine._scheduler
        assert all(sequence.lease is None for sequence in scheduler.waiting)
        self.engine._scheduler.cache.check(
            [sequence.lease for sequence in scheduler.running if sequence.lease is not None]
        )
        queued = len(scheduler.waiting) + len(scheduler.running) + len(self.engine._admission.compiling)
        assert queued == len(self.engine._live)

    def _start(self, number: int) -> None:
        name, kind = str(number), self.rng.random()
        if kind < 0.04:
            with pytest.raises(RequestError):
                self.engine.submit(Request(id=name, **self.rng.choice(BAD)), Heard().take_output)
            self.refused += 1
        elif kind < 0.06:
            wrong = self.rng.choice(({"grammar": WRONG}, {"sampling": SamplingParams(stop_regex="a*")}))
            self._submit(name, -1, Request(id=name, prompt=(5, 6, 7), **wrong))
        elif kind < 0.12:
            self._run_program(name)
        else:
            index = self.rng.randrange(NUM_KINDS)
            timeout_s = float(self.rng.randrange(1, 60)) if self.rng.random() < 0.08 else None
            if timeout_s is not None:
                self.cut.add(name)
            namespace = self.keys[number % len(self.keys)]
            request = Request(id=name, timeout_s=timeout_s, namespace=namespace, **make_request(index))
            self._submit(name, index, request)

    def _submit(self, name: str, index: int, request: Request) -> None:
        heard = Heard()

        def listen(output: RequestOutput) -> None:
            heard.take_output(output)
            self.log.append((name, output.tokens, output.text, output.cached_tokens, output.finish))

        self.engine.submit(request, listen)
        self.requests[name] = index, heard, self.engine._live[name].sequence

    def _run_program(self, name: str) -> None:
        heard, index = Heard(), self.rng.randrange(NUM_PROGRAMS)

        def listen(event: ProgramEvent) -> None:
            heard.take_event(event)
            self.log.append((name, event))

        self.executor.run(Program(id=name, ops=make_program(index), keep=self.rng.random() < 0.5), listen)
        self.programs[name] = index, heard

    def _abort(self) -> None:
        if self.rng.random() < 0.04 and self.requests:
            name = self.rng.choice([*self.requests][-40:])  # perhaps one that has ended
            if not self.requests[name][1].over:
                self.cut.add(name)
            self.engine.abort(name)
        if self.rng.random() < 0.004 and self.programs:
            name = self.rng.choice([*self.programs][-4:])
            if not self.programs[name][1].over:
                self.cut.add(name)
            self.executor.drop(name)


def assert_as_if_alone(soak: Soak) -> None:
    """Each request got what it would have got alone, or a beginning of it if it was cut off."""
    kinds, programs = cold()
    for name, (index, heard, _) in soak.requests.items():
        assert heard.over
        usage = heard.outputs[-1].finish.usage  # type: ignore[union-attr]
        assert usage.cached_tokens <= usage.prompt_tokens - 1
        assert heard.ending[2] is not None or usage.completion_tokens == len(heard.tokens)
        if index < 0:
            assert heard.ending[2] in ("invalid_grammar", "invalid_value") or (
                name in soak.cut and heard.ending[0] == "abort"
            )
            continue
        expected = kinds[index]
        if heard.ending[0] == "abort" or heard.ending[2] == "generation_timeout":
            assert name in soak.cut
            assert heard.tokens == expected.tokens[: len(heard.tokens)]
            continue
        assert (heard.tokens, heard.text, heard.ending) == (expected.tokens, expected.text, expected.ending), name
        assert heard.scores == pytest.approx(expected.scores, abs=1e-4)
    for name, (index, program) in soak.programs.items():
        assert program.over
        last = program.events[-1]
        if isinstance(last, Failed) and last.error.code == "aborted":
            assert name in soak.cut
        else:
            assert program.values == programs[index].values
            assert type(last) is type(programs[index].events[-1])


def assert_nothing_left(soak: Soak) -> None:
    engine, executor = soak.engine, soak.executor
    for name in list(executor._states):
        executor.drop(name)
    assert not executor._states
    assert not engine._live
    assert not engine._admission.compiling
    assert engine._scheduler.idle
    assert engine.flush_cache()
    stats = engine.stats()
    assert stats.free_pages == stats.num_pages
    assert sum(stats.finished_total.values()) == stats.requests_total
    engine._scheduler.cache.check([])
    assert not engine._scheduler.cache.tree.roots


@pytest.mark.parametrize(
    ("ahead", "keys", "share"), [(0, ("",), 0.3), (1, ("",), 0.3), (4, ("",), 0.3), (1, ("", "a", "b/x", "b/y"), 0.2)]
)
def test_soak(ahead: int, keys: Sequence[str], share: float) -> None:
    """On a device whose passes are read at once, read one pass later, and launched up to four steps at a time."""
    soak = Soak(0, NUM_REQUESTS, keys=keys, num_pages=POOL, max_num_seqs=48, max_batch_tokens=64, ahead=ahead)
    soak.run()
    assert_as_if_alone(soak)
    retracted = sum(sequence.standing.retractions > 0 for _, _, sequence in soak.requests.values())
    assert retracted >= share * len(soak.requests), f"only {retracted} of {len(soak.requests)} were retracted"
    assert soak.refused > 20
    endings = {heard.ending[0::2] for _, heard, _ in soak.requests.values()}
    assert {("stop", None), ("length", None), ("abort", None), ("error", "generation_timeout")} <= endings
    assert ("error", "nonfinite_logits") in endings
    assert_nothing_left(soak)
    soak.engine.close()


@pytest.mark.parametrize(("page_size", "ahead"), [(1, 0), (4, 0), (4, 3)])
def test_the_same_seed_gives_the_same_events(page_size: int, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Which step a row sits out while its search goes on is a matter of time, and the order of events with it.
    monkeypatch.setattr(generation, "SEARCH_PATIENCE_S", math.inf)
    monkeypatch.setattr(engine_module, "STEP_PATIENCE_S", math.inf)
    logs = []
    for _ in range(2):
        pool: dict[str, Any] = {"num_pages": POOL // page_size, "page_size": page_size}
        soak = Soak(7, 200, **pool, max_num_seqs=16, max_batch_tokens=24, ahead=ahead)
        soak.run()
        assert_as_if_alone(soak)
        assert_nothing_left(soak)
        soak.engine.close()
        logs.append(soak.log)
    assert logs[0] == logs[1]


def test_a_hundred_thousand_requests_at_once_are_bounded() -> None:
    engine, _, _, _ = place(max_waiting=64, max_num_seqs=4)
    heard: list[Heard] = []
    refused = 0
    for index in range(100_000):
        one = Heard()
        try:
            engine.submit(Request(id=str(index), prompt=(5, 6), sampling=SamplingParams(max_tokens=1)), one.take_output)
        except OverloadedError:
            refused += 1
        else:
            heard.append(one)
    assert (len(heard), refused, len(engine._live)) == (68, 100_000 - 68, 68)
    while engine._live:
        engine.step()
    assert all(one.over for one in heard)
    engine.close()
