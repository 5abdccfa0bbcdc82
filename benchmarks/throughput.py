"""The server at 16 concurrent requests, against transformers generating for the same prompts one by one."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from ..runtime.models.load import locate, resolve_dtype
from ..runtime.protocol.config import EngineConfig
from ..runtime.protocol.errors import BoughError
from ..runtime.tokenizer.load import load_tokenizer
from .workloads.prose import Prose

_START_S = 180.0


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        from .harness.transformers_reference import TransformersReference

        dtype = resolve_dtype(arguments.dtype, "cpu")
        reference = TransformersReference(arguments.model, dtype)
    except ImportError:
        print("error: the comparison needs transformers: pip install transformers", file=sys.stderr)
        return 1
    except (BoughError, ValueError) as error:  # this model cannot be compared
        print(f"error: {error}", file=sys.stderr)
        return 1
    prompts = _prompts(arguments.model, arguments.requests, arguments.prompt_tokens)
    rounds = []
    with _server(arguments.model, str(dtype).removeprefix("torch.")) as url:
        _run_server(url, prompts[: arguments.concurrency], 4, arguments.concurrency)  # both are warm when it starts
        reference.run(prompts[:1], 4)
        for number in range(arguments.rounds):
            # Prompts of a round are new, so nothing comes from the prefix cache.
            of_round = prompts[number * arguments.requests : (number + 1) * arguments.requests]
            ours_s = _run_server(url, of_round, arguments.output_tokens, arguments.concurrency)
            reference_s = reference.run(of_round, arguments.output_tokens)
            rounds.append({"bough_s": ours_s, "transformers_s": reference_s, "ratio": reference_s / ours_s})
            print(f"round {number + 1}: bough {ours_s:.2f} s, transformers {reference_s:.2f} s", flush=True)
    report = _report(arguments, rounds)
    print(f"bough, {arguments.concurrency} at once    {report['bough_tokens_per_s']:8.1f} output tokens/s")
    print(f"transformers, 1 by 1 {report['transformers_tokens_per_s']:8.1f} output tokens/s")
    print(f"median ratio         {report['median_ratio']:8.2f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    return 0 if report["median_ratio"] >= arguments.at_least else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bough bench throughput", description=__doc__)
    parser.add_argument("--model", default=EngineConfig().model, help="a GGUF model (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="of both (default: what the engine takes)")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--requests", type=int, default=16, help="in a round (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-least", type=float, default=0.0, help="fail below this median ratio")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
    return parser


def _prompts(model: str, num_requests: int, num_tokens: int) -> list[list[int]]:
    """Token ids, enough for any number of rounds that a patient person asks for."""
    tokenizer = load_tokenizer(locate(model))
    prose = Prose(0)
    return [tokenizer.encode_prompt(prose.text(2 * num_tokens))[:num_tokens] for _ in range(num_requests * 20)]


@contextmanager
def _server(model: str, dtype: str) -> Iterator[str]:
    """A server of its own on a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # -P: the folder that this is run in must not be on the path, or its kernels/ hides another package.
    command = [
        sys.executable,
        "-P",
        "-m",
        "bough.cli",
        "serve",
        "--model",
        model,
        "--port",
        str(port),
        "--dtype",
        dtype,
    ]
    process = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(url):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server was not ready within {_START_S:.0f} s")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False


def _run_server(url: str, prompts: list[list[int]], num_tokens: int, concurrency: int) -> float:
    """Seconds until all prompts are answered, `concurrency` at a time.

    Raises:
        RuntimeError: an answer has not as many tokens as were asked for.
    """
    return asyncio.run(_complete_all(url, prompts, num_tokens, concurrency))


async def _complete_all(url: str, prompts: list[list[int]], num_tokens: int, concurrency: int) -> float:
    places = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=600.0) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]

        async def complete(prompt: list[int]) -> None:
            body = {
                "model": model,
                "prompt": prompt,
                "max_tokens": num_tokens,
                "temperature": 0,
                "ignore_eos": True,
            }
            async with places:
                response = await client.post("/v1/completions", json=body)
            response.raise_for_status()
            usage = response.json()["usage"]
            if usage["completion_tokens"] != num_tokens:
                raise RuntimeError(f"asked for {num_tokens} tokens, got {usage['completion_tokens']}")

        started = time.perf_counter()
        await asyncio.gather(*(complete(prompt) for prompt in prompts))
        return time.perf_counter() - started


def _report(arguments: argparse.Namespace, rounds: list[dict[str, float]]) -> dict[str, Any]:
    num_tokens = arguments.requests * arguments.output_tokens
    return {
        "model": arguments.model,
        "concurrency": arguments.concurrency,
        "requests": arguments.requests,
        "prompt_tokens": arguments.prompt_tokens,
        "output_tokens": arguments.output_tokens,
        "rounds": rounds,
        "bough_tokens_per_s": num_tokens / statistics.median(row["bough_s"] for row in rounds),
        "transformers_tokens_per_s": num_tokens / statistics.median(row["transformers_s"] for row in rounds),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "median_ratio": statistics.median(row["ratio"] for row in rounds),
    }


if __name__ == "__main__":
    sys.exit(main())
