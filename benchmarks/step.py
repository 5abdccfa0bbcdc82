"""Time of a decode step by stages: those of the engine's loop, beside the forward pass itself."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ..runtime.engine.engine import Engine
from ..runtime.engine.generation import Generation
from ..runtime.load.start import start_engine
from ..runtime.protocol.config import EngineConfig
from ..runtime.protocol.request import Request
from ..runtime.protocol.sampling_params import SamplingParams
from ..runtime.runner import runner as passes
from ..runtime.runner.runner import DirectPasses
from .harness.report import write_json

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_k": {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05},
    "stop": {"temperature": 0.0, "stop": ("###", "\n\n\n")},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
}
STAGES = ("schedule", "batch", "forward", "rows", "sample", "accept", "apply", "send", "rest")
_WARM_STEPS = 4


class Stopwatch:
    """Seconds spent in each stage of the current step; a stage within another counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner_s = [0.0]

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        """Has calls of `owner.name` counted as `stage`."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            self._inner_s.append(0.0)
            began = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                whole = time.perf_counter() - began
                self.seconds[stage] = self.seconds.get(stage, 0.0) + whole - self._inner_s.pop()
                self._inner_s[-1] += whole

        setattr(owner, name, timed)


def run(arguments: argparse.Namespace) -> int:
    engine = start_engine(EngineConfig(model=arguments.model, device="cpu", speculation="off"))
    watch = watch_engine(engine)
    print(f"{'sampling':12} {'batch':>5} {'step ms':>8}  " + " ".join(f"{stage:>8}" for stage in STAGES) + "  beside")
    results = []
    for kind in arguments.sampling:
        for batch in arguments.batch:
            stages = measure(engine, watch, SamplingParams(**SAMPLING[kind]), batch, arguments.steps)
            whole_s = sum(stages.values())
            beside = 1.0 - stages["forward"] / whole_s
            numbers = " ".join(f"{1e3 * stages[stage]:8.3f}" for stage in STAGES)
            print(f"{kind:12} {batch:5} {1e3 * whole_s:8.2f}  {numbers}  {beside:6.1%}", flush=True)
            results.append({"sampling": kind, "batch": batch, "step_s": whole_s, "beside": beside, "stages_s": stages})
    engine.close()
    write_json(arguments.json, results)
    return 0


def watch_engine(engine: Engine) -> Stopwatch:
    """A stopwatch over the parts of an engine on the CPU."""
    watch = Stopwatch()
    runner = engine._runner
    assert isinstance(runner, DirectPasses), "passes that overlap have no stages one after the other"
    watch.wrap(engine._scheduler, "schedule", "schedule")
    watch.wrap(engine._scheduler, "apply", "apply")
    watch.wrap(passes, "build_batch", "batch")
    watch.wrap(passes.DirectPass, "draw", "sample")
    watch.wrap(runner.model, "run", "forward")
    watch.wrap(Generation, "rows", "rows")
    watch.wrap(Generation, "take", "accept")
    watch.wrap(engine, "_emit", "send")
    watch.wrap(engine, "step", "rest")
    return watch


def measure(engine: Engine, watch: Stopwatch, params: SamplingParams, batch: int, num_steps: int) -> dict[str, float]:
    """Median seconds of each stage of a step that decodes `batch` sequences."""
    params = msgspec.structs.replace(params, ignore_eos=True)
    ids = [f"{batch}-{index}" for index in range(batch)]
    for index, request_id in enumerate(ids):
        prompt = tuple(engine.tokenizer.encode_prompt(f"A short story about the number {index}."))
        engine.submit(Request(id=request_id, prompt=prompt, sampling=params), lambda output: None)
    for _ in range(_WARM_STEPS):  # the prompts, all of which fit into one, come first
        engine.step()
    steps: list[dict[str, float]] = []
    for _ in range(num_steps):
        watch.seconds = dict.fromkeys(STAGES, 0.0)
        engine.step()
        steps.append(watch.seconds)
    for request_id in ids:
        engine.abort(request_id)
    while not engine.idle:
        engine.step()
    return {stage: statistics.median(step[stage] for step in steps) for stage in STAGES}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=EngineConfig().model, help="a name or a file (default: %(default)s)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64], help="sequences (default: %(default)s)")
    parser.add_argument("--sampling", nargs="+", choices=SAMPLING, default=list(SAMPLING), help="default: all")
    parser.add_argument("--steps", type=int, default=60, help="of each, of which the median counts")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
