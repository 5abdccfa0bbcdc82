"""Script for an engine: waves of requests and programs, one after the other, each of one kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bough.constrain.spec import Choice, GrammarSpec, JsonSchema, Regex
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.program import Fork, Gen, Join, Op, Program, Ref, Select, Text
from bough.runtime.protocol.request import Request, RequestOutput, TokenLogprob
from bough.runtime.protocol.sampling_params import SamplingParams

from ...runtime.programs.oracle import Heard, executor_of
from .wide_model import END

Watch = Callable[[str], AbstractContextManager[None]]
"""Context of each step of a wave, by its name."""

TABLE: tuple[GrammarSpec, ...] = (
    Regex("([a-c][0-9])*!!"),
    Choice(("yes, certainly", "yes, perhaps", "no")),
    JsonSchema('{"enum": ["a knight", "a mage", 17, null]}'),
)
"""Constraints that a device follows by itself."""

FREE: tuple[GrammarSpec, ...] = (
    JsonSchema(
        '{"$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},'
        '"type": "object", "properties": {"of": {"$ref": "#/$defs/tree"}}, "required": ["of"],'
        '"additionalProperties": false}'
    ),
    JsonSchema(
        '{"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},'
        '"required": ["a", "b"], "additionalProperties": false}'
    ),
)
"""Constraints whose masks the host fills."""


@dataclass(frozen=True)
class Wave:
    """Requests that come at once, `late` ones two steps later, and a program beside them."""

    name: str
    requests: tuple[Request, ...] = ()
    late: tuple[Request, ...] = ()
    ops: tuple[Op, ...] = ()


@dataclass
class Answer:
    """Tokens of a generation, why it ended, and log-probabilities, if asked for."""

    tokens: list[int] = field(default_factory=list)
    reason: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)


def prompt(seed: int, length: int) -> tuple[int, ...]:
    return tuple(Random(seed).choices(range(97, 123), k=length))


def ask(
    name: str, text: int, length: int, max_tokens: int, grammar: GrammarSpec | None = None, **fields: Any
) -> Request:
    """A greedy request, unless `fields` say otherwise; it ends by itself if it has a grammar."""
    stream = fields.pop("stream", True)
    sampling = {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": grammar is None} | fields
    return Request(
        id=name, prompt=prompt(text, length), sampling=SamplingParams(**sampling), grammar=grammar, stream=stream
    )


GREEDY = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)

PROGRAM: tuple[Op, ...] = (
    Text(0, ("Two ideas of mine: ",)),
    Fork(0, (1, 2)),
    *(op for branch in (1, 2) for op in (Text(branch, (f"{branch}. ",)), Gen(branch, "idea", GREEDY))),
    Join(0, (1, 2), "append"),
    Text(0, (" Best: ", Ref(2, "idea"))),
    Select(0, "best", ("one", "two")),
    Gen(0, "why", GREEDY),
)

SMALL = (
    Wave("decode", (ask("plain", 1, 5, 6), ask("at once", 2, 9, 6, stream=False))),
    Wave("constrained", (ask("regex", 3, 4, 10, TABLE[0]),)),
    Wave("scored", (ask("scored", 5, 4, 5, logprobs=2), ask("not scored", 6, 4, 5))),
    Wave(
        "penalised",
        (
            ask("penalised", 7, 6, 8, repetition_penalty=1.3, frequency_penalty=0.4),
            ask("biased", 8, 5, 9, logit_bias={END: 100.0}, min_tokens=4, ignore_eos=False),
        ),
    ),
    Wave("sampled", (ask("sampled", 9, 4, 6, temperature=0.9, top_p=0.9, seed=5),)),
    Wave("drafts", (ask("tree", 10, 4, 40, FREE[0]),)),
    Wave("mixed", (ask("decodes", 11, 3, 6),), late=(ask("comes", 12, 30, 2),)),
    Wave("retracted", (ask("left", 13, 30, 9), ask("right", 14, 30, 5))),
    Wave("program", ops=PROGRAM),
)
"""A few seconds of each, for two sequences at once, in five pages of 16 tokens."""


def full() -> Iterator[Wave]:
    """All of `SMALL`, then more of everything at once, for four sequences in a few pages."""
    yield from SMALL
    random = Random(3)
    yield Wave("long", tuple(ask(f"long {index}", 20 + index, 9 * index + 1, 24) for index in range(4)))
    yield Wave("all tables", tuple(ask(f"table {index}", 30, 4, 40, spec) for index, spec in enumerate(TABLE)))
    yield Wave("all trees", tuple(ask(f"tree {index}", 40, 4, 40, spec) for index, spec in enumerate(FREE)))
    yield Wave("beside a program", (ask("beside", 50, 20, 12),), ops=PROGRAM)
    for turn in range(4):
        yield Wave(f"mix {turn}", tuple(_any(random, f"mix {turn} {index}") for index in range(9)))


def _any(random: Random, name: str) -> Request:
    """A request of any kind that has graphs of its own before it is asked for: one with log-probabilities at most."""
    seed, length, size = random.randrange(100), random.randrange(1, 60), random.randrange(1, 12)
    kind = random.randrange(8)
    if kind == 0:
        return ask(name, seed, length, size, temperature=0.8, top_k=20, min_p=0.02, seed=seed)
    if kind == 1:
        return ask(name, seed, length, size, presence_penalty=0.7, repetition_penalty=1.2)
    if kind == 2:
        return ask(name, seed, length, size, logit_bias={seed: 5.0, END: 3.0}, min_tokens=1, ignore_eos=False)
    if kind == 3:
        return ask(name, seed, min(length, 20), 40, random.choice(TABLE))
    if kind == 4:
        return ask(name, seed, min(length, 20), 40, random.choice(FREE))
    if kind == 5 and name.endswith("5"):
        return ask(name, seed, length, size, logprobs=3)
    return ask(name, seed, length, size, stream=bool(kind % 2))


def play(engine: Engine, waves: Iterator[Wave], watch: Watch) -> dict[str, Answer]:
    """Has an engine answer everything, a wave at a time; it is closed then."""
    executor = executor_of(engine, time.monotonic, max_states=4)
    answers: dict[str, Answer] = {}
    for wave in waves:
        heard = Heard()
        if wave.ops:
            executor.run(Program(id=wave.name, ops=wave.ops), heard)
        _submit(engine, wave.requests, answers)
        late = list(wave.late)
        for step in range(2000):
            if late and step == 2:
                _submit(engine, late, answers)
                late.clear()
            if not engine._live and engine._passes.flight is None and not late:
                break
            if engine.idle:
                engine.wait_for_grammar(10.0)
            with watch(wave.name):
                engine.step()
        assert not engine._live, f"{wave.name} does not end"
        if wave.ops:
            for (branch, name), value in heard.values.items():
                answers[f"{wave.name} {branch} {name}"] = Answer(reason=value.text)
            assert heard.done
    assert engine.flush_cache()
    assert engine.stats().free_pages == engine.stats().num_pages
    engine.close()
    return answers


def _submit(engine: Engine, requests: tuple[Request, ...] | list[Request], answers: dict[str, Answer]) -> None:
    for request in requests:
        answer = answers[request.id] = Answer()

        def listen(output: RequestOutput, answer: Answer = answer) -> None:
            answer.tokens += output.tokens
            answer.logprobs += output.logprobs or ()
            if output.finish is not None:
                answer.reason = output.finish.reason
                assert output.finish.error is None, output.finish.error

        engine.submit(request, listen)
