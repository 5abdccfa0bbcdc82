"""The server at 16 concurrent requests, against transformers generating for the same prompts one by one."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

import httpx
import torch

from ..runtime.models.load import locate, resolve_dtype
from ..runtime.protocol.config import EngineConfig
from ..runtime.protocol.errors import BoughError
from ..runtime.tokenizer.load import load_tokenizer
from .harness.models import TransformersReference
from .harness.report import write_json
from .harness.server_process import ServerProcess
from .workloads.prose import Prose

REQUESTS = 16
LENGTH = 64
"""Tokens of a prompt, and of an answer."""


def run(arguments: argparse.Namespace) -> int:
    dtype = resolve_dtype(arguments.dtype, "cpu")
    try:
        reference = TransformersReference(arguments.model, dtype)
    except ImportError:
        raise BoughError("the comparison needs transformers: pip install transformers") from None
    tokenizer, prose = load_tokenizer(locate(arguments.model)), Prose(0)

    def new_prompts() -> list[list[int]]:
        """Those of a round are new, so nothing comes from the prefix cache."""
        return [tokenizer.encode_prompt(prose.text(2 * LENGTH))[:LENGTH] for _ in range(REQUESTS)]

    rounds = []
    with ServerProcess(["--model", arguments.model, "--dtype", str(dtype).removeprefix("torch.")]) as server:
        asyncio.run(_complete_all(server, new_prompts(), num_tokens=4))  # both are warm when it starts
        reference.run(new_prompts()[:1], 4)
        for number in range(arguments.rounds):
            prompts = new_prompts()
            ours_s = asyncio.run(_complete_all(server, prompts, num_tokens=LENGTH))
            reference_s = reference.run(prompts, LENGTH)
            rounds.append({"bough_s": ours_s, "transformers_s": reference_s, "ratio": reference_s / ours_s})
            print(f"round {number + 1}: bough {ours_s:.2f} s, transformers {reference_s:.2f} s", flush=True)
    report = _report(arguments.model, rounds)
    print(f"bough, {REQUESTS} at once    {report['bough_tokens_per_s']:8.1f} output tokens/s")
    print(f"transformers, 1 by 1 {report['transformers_tokens_per_s']:8.1f} output tokens/s")
    print(f"median ratio         {report['median_ratio']:8.2f}")
    write_json(arguments.json, report)
    return 0 if report["median_ratio"] >= arguments.at_least else 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=EngineConfig().model, help="a GGUF model (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="of both (default: what the engine takes)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-least", type=float, default=0.0, help="fail below this median ratio")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")


async def _complete_all(server: ServerProcess, prompts: list[list[int]], *, num_tokens: int) -> float:
    """Seconds until all prompts, sent at once, are answered.

    Raises:
        RuntimeError: an answer has not as many tokens as were asked for.
    """
    options = {"model": server.model, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=server.url, timeout=600.0) as client:

        async def complete(prompt: list[int]) -> None:
            response = await client.post("/v1/completions", json={"prompt": prompt, **options})
            response.raise_for_status()
            if (found := response.json()["usage"]["completion_tokens"]) != num_tokens:
                raise RuntimeError(f"asked for {num_tokens} tokens, got {found}")

        started = time.perf_counter()
        await asyncio.gather(*(complete(prompt) for prompt in prompts))
        return time.perf_counter() - started


def _report(model: str, rounds: list[dict[str, float]]) -> dict[str, Any]:
    num_tokens = REQUESTS * LENGTH
    return {
        "model": model,
        "requests": REQUESTS,
        "prompt_tokens": LENGTH,
        "output_tokens": LENGTH,
        "rounds": rounds,
        "bough_tokens_per_s": num_tokens / statistics.median(row["bough_s"] for row in rounds),
        "transformers_tokens_per_s": num_tokens / statistics.median(row["transformers_s"] for row in rounds),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "median_ratio": statistics.median(row["ratio"] for row in rounds),
    }
