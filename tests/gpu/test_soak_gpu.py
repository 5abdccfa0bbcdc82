"""A soak: thousands of requests of every kind in bursts, over a pool that is much too small, with aborts in between."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from bough.constrain import GrammarCompiler
from bough.constrain.spec import Choice, GrammarSpec, JsonSchema, Regex
from bough.runtime.client.llm import LLM, PromptOutput
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.sampling_params import SamplingParams

from ..support.margin import MarginRule, faults
from .judge import Judge
from .place import BYTES, CPU, GPU, Place, Said

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-c]{1,4}$"}, "kind": {"enum": ["knight", "mage"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
GRAMMARS: list[GrammarSpec] = [
    JsonSchema(json.dumps(SCHEMA)),
    Regex("[0-9]{3}-[a-c]{2,6}"),
    Choice(("yes, certainly", "yes, perhaps", "no")),
]
RULE = MarginRule(margin=1e-3, share=0.02, mean_error=1e-4, largest_error=2e-3)


@dataclass(frozen=True)
class Size:
    num_requests: int
    num_judged: int
    num_pages: int
    longest_burst: int


SIZES = {"cuda": Size(10_000, 2_000, 130, 200), "cpu": Size(150, 60, 14, 20)}


@dataclass(frozen=True)
class Kind:
    """A request and what must come of it."""

    name: str
    prompt: list[int]
    params: SamplingParams
    grammar: GrammarSpec | None = None
    abort_after: int | None = None  # steps


def make_kind(random: Random, stems: list[list[int]]) -> Kind:
    def text(most: int) -> list[int]:
        return random.choices(BYTES, k=random.randint(1, most))

    prompt = random.choice(stems) + text(12) if random.random() < 0.5 else text(60)
    size = random.randint(1, 40)
    exact: dict[str, Any] = {"max_tokens": size, "temperature": 0.0, "ignore_eos": True, "logprobs": 1}
    draw = random.random()
    if draw < 0.45:
        return Kind("greedy", prompt, SamplingParams(**exact))
    if draw < 0.57:
        params = SamplingParams(
            max_tokens=size,
            temperature=random.uniform(0.7, 1.3),
            top_p=random.choice((0.8, 1.0)),
            top_k=random.choice((0, 20)),
            frequency_penalty=random.choice((0.0, 0.5)),
            seed=random.getrandbits(64),
        )
        return Kind("sampled", prompt, params)
    if draw < 0.72:
        return Kind("constrained", prompt, SamplingParams(**exact | {"max_tokens": 64}), random.choice(GRAMMARS))
    if draw < 0.77:
        return Kind("many", prompt, SamplingParams(max_tokens=size, n=random.randint(2, 4), seed=1))
    if draw < 0.81:
        params = SamplingParams(max_tokens=40, temperature=0.0, stop=tuple(map(chr, random.sample(BYTES, 2))))
        return Kind("stopped", prompt, params)
    if draw < 0.93:
        return Kind("aborted", prompt, SamplingParams(max_tokens=60), abort_after=random.randint(0, 20))
    if draw < 0.97:
        return Kind("too long", prompt * 10_000, SamplingParams(**exact))
    return Kind("bad grammar", prompt, SamplingParams(**exact), Regex("("))


@dataclass
class Soak:
    """Feeds an engine in bursts and keeps what it answers."""

    llm: LLM
    random: Random
    ended: dict[str, PromptOutput] = field(default_factory=dict)
    live: dict[str, Kind] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    _due: list[tuple[int, str]] = field(default_factory=list)  # step, request to abort
    _steps: int = 0

    def run(self, count: int, stems: list[list[int]], longest_burst: int) -> None:
        left = count
        while left or self.live:
            if left and (len(self.live) < longest_burst or self.random.random() < 0.02):
                burst = min(left, self.random.randint(1, longest_burst))
                left -= burst
                for _ in range(burst):
                    self._add(make_kind(self.random, stems))
            self._step()

    def _add(self, kind: Kind) -> None:
        name = f"{kind.name} {len(self.kinds)}"
        self.kinds[name] = kind
        try:
            self.llm.add_request(name, kind.prompt, kind.params, grammar=kind.grammar)
        except RequestError:
            self.refused[kind.name] += 1
            return
        self.live[name] = kind
        if kind.abort_after is not None:
            self._due.append((self._steps + kind.abort_after, name))

    def _step(self) -> None:
        for result in self.llm.step():
            if result.finished or result.error is not None:
                assert self.live.pop(result.request_id, None), f"{result.request_id} ended twice"
                self.ended[result.request_id] = result
        self._steps += 1
        due = [name for step, name in self._due if step <= self._steps]
        self._due = [entry for entry in self._due if entry[0] > self._steps]
        self.llm.abort_request(due + due[:1])  # one of them twice
        for name in due:
            self.live.pop(name, None)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", [GPU, CPU])
def test_soak(place: Place, model_of: Callable[[Place], Path]) -> None:
    size, random = SIZES[place.device], Random(11)
    stems = [random.choices(BYTES, k=random.randint(16, 48)) for _ in range(40)]
    memory = []
    with place.llm(model_of(place), dtype="float32", num_pages=size.num_pages, max_num_seqs=32) as llm:
        soak = Soak(llm, random)
        for _ in range(2):
            soak.run(size.num_requests // 2, stems, size.longest_burst)
            memory.append(torch.cuda.memory_allocated() if place.device == "cuda" else 0)
        stats = llm.stats
        assert (stats.running, stats.waiting) == (0, 0)
        assert llm.reset_prefix_cache() and llm.stats.free_pages == stats.num_pages, "pages are lost"
        assert stats.preemptions_total >= 0.3 * size.num_requests, "the pool is too large to test anything"
        grammars = GrammarCompiler(llm.get_tokenizer().vocabulary(258))
    assert memory[1] <= memory[0] + (1 << 20)
    _check_endings(soak)
    judge = Judge(model_of(place), place.device)
    names = [name for name in soak.ended if soak.kinds[name].name in ("greedy", "constrained")]
    answers = []
    for name in random.sample(names, min(size.num_judged, len(names))):
        kind, result = soak.kinds[name], soak.ended[name]
        said = Said(result.outputs[0].token_ids, result.outputs[0].logprobs or [], result.outputs[0].finish_reason)
        grammar = None if kind.grammar is None else grammars.compile(kind.grammar)
        answers.append(judge.judge(name, kind.prompt, said, warm=result.usage.cached_tokens > 0, grammar=grammar))
    assert len({answer.warm for answer in answers}) == 2
    assert faults(answers, RULE) == []


def _check_endings(soak: Soak) -> None:
    """Checks that requests ended once each, as their kind must."""
    seen: Counter[str] = Counter(soak.refused)
    for name, result in soak.ended.items():
        kind = soak.kinds[name]
        seen[kind.name] += 1
        reasons = {output.finish_reason for output in result.outputs}
        sizes = [len(output.token_ids) for output in result.outputs]
        if kind.name == "bad grammar":
            assert result.error is not None and "(" in str(result.error)
            continue
        assert result.error is None, f"{name}: {result.error}"
        match kind.name:
            case "greedy":
                assert reasons == {"length"} and sizes == [kind.params.max_tokens]
            case "constrained":
                assert reasons == {"stop"}
            case "stopped":
                stops = [stop for stop in kind.params.stop or () if stop in result.outputs[0].text]
                assert stops == [], "the stop string is in the text"
            case "many":
                assert len(sizes) == kind.params.n and all(sizes)
            case _:
                assert all(0 < size <= (kind.params.max_tokens or 0) for size in sizes)
    wanted = Counter(kind.name for kind in soak.kinds.values())
    assert len(wanted) == 8
    assert soak.refused["too long"] == wanted["too long"]
    assert {name: count for name, count in seen.items() if name != "aborted"} == {
        name: count for name, count in wanted.items() if name != "aborted"
    }
