"""Speculation on and off in turn: copying, JSON and free prose, alone and in batches. Outputs must be the same."""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from ..constrain.spec import JsonSchema
from ..runtime.client.llm import LLM
from ..runtime.protocol.config import EngineConfig
from ..runtime.protocol.sampling_params import SamplingParams
from .constrain.generate import generated
from .harness.report import write_json
from .workloads.prompts import RESIDENT
from .workloads.prose import PASSAGE

_PEOPLE = ("smith", "pilot", "queen", "thief", "baker", "monk", "spy", "nurse", "sailor", "judge", "poet", "giant")
_SCHEMA = JsonSchema(json.dumps(json.loads(RESIDENT)))


def run(arguments: argparse.Namespace) -> int:
    options = {"dtype": arguments.dtype, "num_pages": 32_768}
    engines = {mode: LLM(arguments.model, speculation=mode, **options) for mode in ("off", "auto")}
    chosen = [name for name in _WORKLOADS if name in arguments.only]
    rows = [_compare(engines, name, batch, arguments) for batch in arguments.batch for name in chosen]
    for engine in engines.values():
        engine.close()
    write_json(arguments.json, rows)
    return 0 if all(row["same"] for row in rows) else 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--only", nargs="+", choices=list(_WORKLOADS), default=list(_WORKLOADS))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")


def _compare(engines: dict[str, LLM], name: str, batch: int, arguments: argparse.Namespace) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {mode: [] for mode in engines}
    same, before, tokenizer = True, engines["auto"].stats, engines["off"].get_tokenizer()
    grammars = [_SCHEMA] * batch if name == "json" else None
    for number in range(arguments.rounds + 1):
        asked = [_WORKLOADS[name](number * batch + index) for index in range(batch)]
        prompts = [tokenizer.encode_prompt(prompt) for prompt, _ in asked]
        params = [SamplingParams(max_tokens=arguments.tokens, **sampling) for _, sampling in asked]
        outputs = {}
        for mode in sorted(engines, reverse=number % 2 == 0):
            engines[mode].reset_prefix_cache()
            found, elapsed = generated(engines[mode], prompts, params, grammars)
            outputs[mode] = [output.token_ids for output in found]
            if number:  # the first round warms up
                seconds[mode].append(elapsed)
        same &= outputs["off"] == outputs["auto"]
    after = engines["auto"].stats
    guessed = after.guessed_tokens_total - before.guessed_tokens_total
    generated_tokens = after.generated_tokens_total - before.generated_tokens_total
    ratios = [off / auto for off, auto in zip(seconds["off"], seconds["auto"], strict=True)]
    right = (after.right_guesses_total - before.right_guesses_total) / max(guessed, 1)
    row: dict[str, Any] = {"workload": name, "batch": batch}
    row |= {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    row |= {"guessed": guessed / generated_tokens, "right": right, "same": same}
    print(
        "{workload:6} batch {batch:3}: {ratio:5.2f}x ({least:.2f} .. {most:.2f}); {guessed:.2f} drafts a token, "
        "{right:.0%} right; the same: {same}".format(**row),
        flush=True,
    )
    return row


def _copying(number: int) -> tuple[str, dict[str, Any]]:
    paragraphs = PASSAGE.split("\n\n")
    text = "\n\n".join(paragraphs[number % (len(paragraphs) - 2) :][:2])
    prompt = f"The text, number {number}:\n\n{text}\n\nThe same text again, in which nothing has changed:\n\n"
    return prompt + " ".join(text.split()[:8]), {"temperature": 0.0, "ignore_eos": True}


def _json(number: int) -> tuple[str, dict[str, Any]]:
    task = f"Describe a {_PEOPLE[number % len(_PEOPLE)]}, number {number}, as JSON."
    return f"<|im_start|>user\n{task}<|im_end|>\n<|im_start|>assistant\n", {"temperature": 0.0}


def _prose(number: int) -> tuple[str, dict[str, Any]]:
    prompt = f"A story of a {_PEOPLE[number % len(_PEOPLE)]}, the tale number {number}. Once upon a time"
    return prompt, {"temperature": 0.9, "top_p": 0.95, "seed": number, "ignore_eos": True}


_WORKLOADS = {"copy": _copying, "json": _json, "prose": _prose}  # the prompt and how it is sampled, by number
