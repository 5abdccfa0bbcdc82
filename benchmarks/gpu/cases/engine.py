"""The engine itself on a model with random weights: step times, first tokens, host bubbles, constraints, start."""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

from ....constrain.spec import GrammarSpec, JsonSchema
from ....runtime.engine.engine import Engine
from ....runtime.models.load import LoadedModel
from ....runtime.protocol.config import EngineConfig
from ....runtime.protocol.request import Request, RequestOutput
from ....runtime.protocol.sampling_params import SamplingParams
from ...harness.models import random_engine, random_model
from ...harness.shapes import shape
from .. import roofline
from ..rows import Row, spread
from .case import Case, Settings

_WINDOW = 16  # tokens of each request between two looks at the clock
_SLACK = 64  # tokens that a request may be ahead of the others, or of what is counted
_GAP_US = 5.0  # a device that has had nothing to do for longer has waited for the host

_CONVERTING = {"quantization", "deterministic"}
"""Options that change the weights in place, so that another engine needs new ones."""

_RECORDS = JsonSchema(
    '{"type": "array", "minItems": 400, "items": {"type": "object", "additionalProperties": false, '
    '"properties": {"name": {"type": "string", "minLength": 4, "maxLength": 24}, '
    '"kind": {"enum": ["order", "refund", "question"]}, "amount": {"type": "integer"}, '
    '"notes": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 3}}, '
    '"required": ["name", "kind", "amount", "notes"]}}'
)
"""A list of records too long to be finished, so that as many tokens come out as without a constraint."""


@dataclass
class Bench:
    """An engine made when it is first needed, and again with other options; the weights are made once."""

    model: str
    settings: Settings
    engine: Engine | None = None
    loaded: LoadedModel | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._serials = itertools.count()

    @property
    def max_model_len(self) -> int:
        return 1024 if self.settings.tiny else 12_288

    def open(self, **options: Any) -> Engine:
        """The engine with these options beside the usual ones."""
        if self.engine is not None and options == self.options:
            return self.engine
        self.close()
        on_gpu = self.settings.device != "cpu"
        if self.loaded is None:
            self.loaded = random_model(self.model, device=self.settings.device, dtype=self.settings.dtype_name)
        usual: dict[str, Any] = {
            "model": self.model,
            "device": self.settings.device,
            "dtype": self.settings.dtype_name,
            "max_model_len": self.max_model_len,
            "max_num_seqs": 256 if on_gpu else 8,
            "max_batch_tokens": 8192 if on_gpu else 256,
            **({} if on_gpu else {"kv_cache_memory": 64 << 20}),
        }
        self.options = options
        self.engine = random_engine(EngineConfig(**(usual | options)), loaded=self.loaded)
        return self.engine

    def close(self) -> None:
        """Gives the cache's memory back."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None
            if self.options.keys() & _CONVERTING:
                self.loaded = None
            gc.collect()
            if self.settings.device != "cpu":
                torch.cuda.empty_cache()

    def start(self, prompts: Sequence[Sequence[int]], max_tokens: int, grammar: GrammarSpec | None = None) -> Running:
        """Submits all prompts; greedy, and to the full length."""
        assert self.engine is not None
        running = Running(self.engine, len(prompts))
        for prompt in prompts:
            name = f"bench-{next(self._serials)}"
            sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=grammar is None)
            running.names.append(name)
            request = Request(id=name, prompt=tuple(prompt), sampling=sampling, grammar=grammar)
            self.engine.submit(request, partial(running.take, name))
        return running


class Running:
    """Requests on their way."""

    def __init__(self, engine: Engine, count: int) -> None:
        self.engine = engine
        self.names: list[str] = []
        self.num_tokens = 0
        self.started: set[str] = set()
        self.finished: set[str] = set()
        self._count = count

    def take(self, name: str, output: RequestOutput) -> None:
        self.num_tokens += len(output.tokens)
        if output.tokens:
            self.started.add(name)
        if output.finish is not None:
            self.finished.add(name)
            if output.finish.reason == "error":
                raise RuntimeError(f"a request failed: {output.finish.error}")

    def step(self) -> None:
        if self.engine.idle:
            self.engine.wait_for_grammar(timeout_s=0.05)
        self.engine.step()

    def until_decoding(self) -> None:
        while len(self.started) < self._count:
            self.step()

    def until_done(self) -> None:
        while len(self.finished) < self._count:
            self.step()

    def stop(self) -> None:
        for name in self.names:
            self.engine.abort(name)
        while not self.engine.idle:
            self.engine.step()

    def time_tokens(self, windows: int) -> list[float]:
        """Seconds for each token that every request gets, over windows of some; a step may bring several."""
        samples = []
        for _ in range(windows):
            before, started = self.num_tokens, time.perf_counter()
            while self.num_tokens - before < _WINDOW * self._count:
                self.step()
            samples.append((time.perf_counter() - started) * self._count / (self.num_tokens - before))
        return samples


def cases(settings: Settings, argument: str) -> list[Case]:
    """Cases of `model`, or `model:start` (the start alone), or `model:options` (other ways to run it)."""
    model, _, part = argument.partition(":")
    bench = Bench("tiny" if settings.tiny else model, settings)
    large = "8b" in model
    start = Case("start", partial(_start, bench), 45.0 if settings.cold else 20.0)
    if part == "start":
        return [start]
    if part == "options":
        return _option_cases(bench, large=large)
    batches = (1, 2) if settings.tiny else (1, 8, 32, 64, 128, 256)
    length = 32 if settings.tiny else 1024
    found = [start, *(_step_case(bench, batch, length, large=large) for batch in batches)]
    many, long = (2, 64) if settings.tiny else (64, 4096)
    if not settings.tiny:
        found.append(_step_case(bench, many, long, large=large))
    common = [(32, 16)] if settings.tiny else [(8192, 256), (2048, 512)]
    found += [Case(f"shared {shared}", partial(_step, bench, many, own, shared=shared), 4.0) for shared, own in common]
    found.append(Case("bubble", partial(_bubble, bench, many, length), 6.0))
    found.append(Case("ttft", partial(_first_token, bench), 4.0))
    found.append(Case("json", partial(_constrained, bench, many), 8.0))
    return found


def _option_cases(bench: Bench, *, large: bool) -> list[Case]:
    """Gain of one option: the same step with it changed."""
    tiny = bench.settings.tiny
    batches, length = ((2,), 32) if tiny else ((1, 64), 1024)
    options: list[tuple[str, dict[str, Any]]] = [("plain", {})]
    if not large:
        options += [("no graphs", {"cuda_graphs": False}), ("no overlap", {"overlap": False})]
        options += [] if bench.settings.device == "cpu" else [("deterministic", {"deterministic": True})]
    elif not tiny:
        options += [("fp8 cache", {"kv_cache_dtype": "fp8_e4m3"})]
        options += [(f"{kind} weights", {"quantization": kind}) for kind in ("fp8", "int8", "int4")]
    return [
        Case(f"{name} {batch}", partial(_step, bench, batch, length, option=name, **option), 12.0)
        for name, option in options
        for batch in batches
    ]


def _step_case(bench: Bench, batch: int, length: int, *, large: bool) -> Case:
    estimate = 1.5 + batch * length * (2.5e-5 if large else 5e-6)
    return Case(f"step B={batch} S={length}", partial(_step, bench, batch, length), estimate)


def _start(bench: Bench) -> Iterator[Row]:
    """From the start of this process to a request's first tokens; weights are random, so no checkpoint is read."""
    bench.open()
    running = bench.start([_tokens(bench, 64, "start")], 4)
    running.until_done()
    seconds = time.time() - bench.settings.spawned
    cache = "cold" if bench.settings.cold else "cached"
    yield Row(sec="E", name="start", cfg={"model": bench.model, "cache": cache}, value=seconds, unit="s")


def _step(bench: Bench, batch: int, length: int, *, shared: int = 0, option: str = "", **options: Any) -> Iterator[Row]:
    """Time of a decode step of `batch` requests of `length` tokens each, behind `shared` common ones."""
    bench.open(**options)
    windows = 2 if bench.settings.tiny else 5
    prefix = _tokens(bench, shared, "shared")
    # A request's tokens do not depend on how many there are, so the next batch size finds most of its prompts cached.
    prompts = [prefix + _tokens(bench, length, f"{shared} {length} {index}") for index in range(batch)]
    running = bench.start(prompts, (windows + 1) * _WINDOW + _SLACK)
    running.until_decoding()
    running.time_tokens(1)
    samples = running.time_tokens(windows)
    running.stop()
    low, high = spread(samples)
    cfg: dict[str, Any] = {"model": bench.model, "B": batch, "S": length}
    cfg |= {"shared": shared} if shared else {}
    cfg |= {"option": option} if option else {}
    row = Row(sec="E", name="step", cfg=cfg, us=median(samples) * 1e6, us_p10=low * 1e6, us_p90=high * 1e6)
    halves = [median(samples[: windows // 2]), median(samples[windows // 2 :])]
    row.noise = max(halves) / min(halves) - 1
    middle = length + _WINDOW * (1 + windows // 2)
    bits = {"fp8": 8.0, "int8": 8.0, "int4": 4.25}.get(str(options.get("quantization")), 16.0)
    kv_itemsize = 1 if options.get("kv_cache_dtype") == "fp8_e4m3" else 2
    contexts, distinct = [shared + middle] * batch, shared + middle * batch
    works = roofline.decode_step(
        shape(bench.model), contexts, distinct_tokens=distinct, weight_bits=bits, kv_itemsize=kv_itemsize
    )
    row.bytes, row.flops = sum(work.bytes for work in works), sum(work.flops for work in works)
    yield row.rated(floor_s=sum(work.floor_s() for work in works))


def _bubble(bench: Bench, batch: int, length: int) -> Iterator[Row]:
    """Share of the time in which the device had nothing to do, while requests decode."""
    bench.open()
    running = bench.start(
        [_tokens(bench, length, f"0 {length} {index}") for index in range(batch)], 5 * _WINDOW + _SLACK
    )
    running.until_decoding()
    running.time_tokens(1)
    row = Row(sec="E", name="bubble", cfg={"model": bench.model, "B": batch}, unit="%")
    if bench.settings.device == "cpu":
        running.stop()
        row.note = "no device to wait for the host"
        yield row
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        running.time_tokens(3)
        torch.cuda.synchronize()
    running.stop()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profile.events() or ()
        if event.device_type.name == "CUDA"
    ]
    row.value = idle_share(spans, _GAP_US)
    row.note = "" if row.value is not None else "the profiler saw nothing of the device"
    yield row


def idle_share(spans: Sequence[tuple[float, float]], shortest: float) -> float | None:
    """Percent of the time between the first and the last span that lies in gaps of `shortest` or longer."""
    idle, end = 0.0, None
    for start, stop in sorted(spans):
        if end is not None and start - end >= shortest:
            idle += start - end
        end = stop if end is None else max(end, stop)
    if end is None:
        return None
    first = min(start for start, _ in spans)
    return 100 * idle / (end - first) if end > first else None


def _first_token(bench: Bench) -> Iterator[Row]:
    """Time to the first token of a lone request, of whose prompt some was computed before."""
    bench.open()
    length, rounds = (64, 2) if bench.settings.tiny else (2048, 5)
    for hit in (0, 50, 90):
        samples = []
        for number in range(rounds + 1):
            known = _tokens(bench, length * hit // 100, f"ttft {hit} {number}")
            if known:
                before = bench.start([known], 1)
                before.until_done()
            prompt = known + _tokens(bench, length - len(known), f"ttft rest {hit} {number}")
            started = time.perf_counter()
            running = bench.start([prompt], 2)
            running.until_decoding()
            samples.append(time.perf_counter() - started)
            running.until_done()
        samples = samples[1:]
        low, high = spread(samples)
        cfg = {"model": bench.model, "T": length, "hit": f"{hit}%"}
        row = Row(sec="E", name="ttft", cfg=cfg, us=median(samples) * 1e6, us_p10=low * 1e6, us_p90=high * 1e6)
        num_cached = length * hit // 100
        yield row.rated(floor_s=roofline.prefill_s(shape(bench.model), length - num_cached, num_cached))


def _constrained(bench: Bench, batch: int) -> Iterator[Row]:
    """Output tokens a second with every request under a JSON schema, over the same without."""
    bench.open()
    length, max_tokens = (16, 16) if bench.settings.tiny else (512, 192)
    prompts = [_tokens(bench, length, f"json {index}") for index in range(batch)]
    rates: dict[bool, list[float]] = {False: [], True: []}
    for constrained in (False, True, False, True):
        running = bench.start(prompts, max_tokens, _RECORDS if constrained else None)
        running.until_decoding()
        before, started = running.num_tokens, time.perf_counter()
        running.until_done()
        rates[constrained].append((running.num_tokens - before) / (time.perf_counter() - started))
    row = Row(sec="E", name="json", cfg={"model": bench.model, "B": batch}, unit="x unconstrained")
    row.value = max(rates[True]) / max(rates[False])
    row.note = f"{max(rates[True]):,.0f} against {max(rates[False]):,.0f} tok/s"
    yield row


def _tokens(bench: Bench, count: int, name: str) -> list[int]:
    generator = random.Random(name)
    limit = shape(bench.model).vocab_size - 1  # the last one ends a turn
    return [generator.randrange(limit) for _ in range(count)]
