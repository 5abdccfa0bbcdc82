"""Speculation on and off in turn: copying, JSON and free prose, alone and in batches. Outputs must be the same."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..constrain.spec import JsonSchema
from ..runtime.engine.engine import Engine
from ..runtime.load.load_torch import load_engine
from ..runtime.protocol.config import EngineConfig
from ..runtime.protocol.errors import BoughError
from ..runtime.protocol.request import Request, RequestOutput
from ..runtime.protocol.sampling_params import SamplingParams
from .harness.arguments import BenchmarkParser
from .harness.report import write_json
from .workloads.prompts import RESIDENT
from .workloads.prose import PASSAGE

_PEOPLE = ("smith", "pilot", "queen", "thief", "baker", "monk", "spy", "nurse", "sailor", "judge", "poet", "giant")
_SCHEMA = json.dumps(json.loads(RESIDENT))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        config = EngineConfig(model=arguments.model, dtype=arguments.dtype, num_pages=32_768)
        engines = {mode: load_engine(msgspec.structs.replace(config, speculation=mode)) for mode in ("off", "auto")}
    except BoughError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    chosen = [name for name in _WORKLOADS if name in arguments.only]
    rows = [_compare(engines, name, batch, arguments) for batch in arguments.batch for name in chosen]
    for engine in engines.values():
        engine.close()
    if arguments.json:
        write_json(arguments.json, rows)
    return 0 if all(row["same"] for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = BenchmarkParser(prog="python -m bough.benchmarks.speculation", description=__doc__)
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--only", nargs="+", choices=list(_WORKLOADS), default=list(_WORKLOADS))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    return parser


def _compare(engines: dict[str, Engine], name: str, batch: int, arguments: argparse.Namespace) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {mode: [] for mode in engines}
    same, before = True, engines["auto"].stats()
    for number in range(arguments.rounds + 1):
        make, first = _WORKLOADS[name], number * batch
        requests = [make(engines["off"], first + index, arguments.tokens) for index in range(batch)]
        outputs = {}
        for mode in sorted(engines, reverse=number % 2 == 0):
            outputs[mode], elapsed = _run(engines[mode], requests)
            if number:  # the first round warms up
                seconds[mode].append(elapsed)
        same &= outputs["off"] == outputs["auto"]
    after = engines["auto"].stats()
    guessed = after.guessed_tokens_total - before.guessed_tokens_total
    generated = after.generated_tokens_total - before.generated_tokens_total
    ratios = [off / auto for off, auto in zip(seconds["off"], seconds["auto"], strict=True)]
    row: dict[str, Any] = {
        "workload": name,
        "batch": batch,
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "guessed": guessed / generated,
        "right": (after.right_guesses_total - before.right_guesses_total) / max(guessed, 1),
        "same": same,
    }
    print(
        "{workload:6} batch {batch:3}: {ratio:5.2f}x ({least:.2f} .. {most:.2f}); {guessed:.2f} drafts a token, "
        "{right:.0%} right; the same: {same}".format(**row),
        flush=True,
    )
    return row


def _run(engine: Engine, requests: Sequence[Request]) -> tuple[list[list[int]], float]:
    """The tokens of each request, and seconds until the last has ended."""
    engine.flush_cache()
    heard: list[list[RequestOutput]] = [[] for _ in requests]
    started = time.perf_counter()
    for request, outputs in zip(requests, heard, strict=True):
        engine.submit(request, outputs.append)
    while not all(outputs and outputs[-1].finish for outputs in heard):
        engine.step()
    elapsed = time.perf_counter() - started
    return [[token for output in outputs for token in output.tokens] for outputs in heard], elapsed


def _copying(engine: Engine, number: int, num_tokens: int) -> Request:
    paragraphs = PASSAGE.split("\n\n")
    text = "\n\n".join(paragraphs[number % (len(paragraphs) - 2) :][:2])
    prompt = f"The text, number {number}:\n\n{text}\n\nThe same text again, in which nothing has changed:\n\n"
    greedy = {"temperature": 0.0, "ignore_eos": True}
    return _request(engine, number, prompt + " ".join(text.split()[:8]), None, max_tokens=num_tokens, **greedy)


def _json(engine: Engine, number: int, num_tokens: int) -> Request:
    task = f"Describe a {_PEOPLE[number % len(_PEOPLE)]}, number {number}, as JSON."
    prompt = f"<|im_start|>user\n{task}<|im_end|>\n<|im_start|>assistant\n"
    return _request(engine, number, prompt, JsonSchema(_SCHEMA), max_tokens=num_tokens, temperature=0.0)


def _prose(engine: Engine, number: int, num_tokens: int) -> Request:
    prompt = f"A story of a {_PEOPLE[number % len(_PEOPLE)]}, the tale number {number}. Once upon a time"
    drawn = {"temperature": 0.9, "top_p": 0.95, "seed": number, "ignore_eos": True}
    return _request(engine, number, prompt, None, max_tokens=num_tokens, **drawn)


def _request(engine: Engine, number: int, prompt: str, grammar: JsonSchema | None, **sampling: Any) -> Request:
    tokens = tuple(engine.tokenizer.encode_prompt(prompt))
    return Request(id=str(number), prompt=tokens, sampling=SamplingParams(**sampling), grammar=grammar)


_WORKLOADS: dict[str, Callable[[Engine, int, int], Request]] = {"copy": _copying, "json": _json, "prose": _prose}


if __name__ == "__main__":
    sys.exit(main())
