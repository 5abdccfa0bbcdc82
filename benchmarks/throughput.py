"""The server at 16 concurrent requests, against transformers generating for the same prompts one by one."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import torch
import transformers

from ..runtime.checkpoints.checkpoint import GGUFCheckpoint
from ..runtime.checkpoints.config import read_config
from ..runtime.checkpoints.gguf_file import GGUFFile
from ..runtime.models.load import locate, resolve_dtype
from ..runtime.protocol.config import EngineConfig
from ..runtime.protocol.errors import ModelError
from ..runtime.tokenizer.load import load_tokenizer
from .harness.report import write_json
from .harness.server_process import ServerProcess
from .harness.wire import Wire
from .peers.sides.peer_transformers import generate_greedily
from .workloads.prose import Prose

REQUESTS = 16
LENGTH = 64  # tokens of a prompt, and of an answer


def run(arguments: argparse.Namespace) -> int:
    dtype = resolve_dtype(arguments.dtype, "cpu")
    reference = TransformersReference(arguments.model, dtype)
    tokenizer, prose = load_tokenizer(locate(arguments.model)), Prose(0)

    def new_prompts() -> list[list[int]]:
        """Those of a round are new, so nothing comes from the prefix cache."""
        return [tokenizer.encode_prompt(prose.text(2 * LENGTH))[:LENGTH] for _ in range(REQUESTS)]

    rounds = []
    with ServerProcess(["--model", arguments.model, "--dtype", str(dtype).removeprefix("torch.")]) as server:
        asyncio.run(_complete_all(server, new_prompts(), num_tokens=4))  # both are warm when it starts
        reference.generate(new_prompts()[0], 4)
        for number in range(arguments.rounds):
            prompts = new_prompts()
            ours_s = asyncio.run(_complete_all(server, prompts, num_tokens=LENGTH))
            started = time.perf_counter()
            for prompt in prompts:
                reference.generate(prompt, LENGTH)
            theirs_s = time.perf_counter() - started
            rounds.append({"bough_s": ours_s, "transformers_s": theirs_s, "ratio": theirs_s / ours_s})
            print(f"round {number + 1}: bough {ours_s:.2f} s, transformers {theirs_s:.2f} s", flush=True)
    ours_s, theirs_s, ratio = (statistics.median(row[name] for row in rounds) for name in rounds[0])
    ours, theirs = REQUESTS * LENGTH / ours_s, REQUESTS * LENGTH / theirs_s
    print(f"bough, {REQUESTS} at once    {ours:8.1f} output tokens/s")
    print(f"transformers, 1 by 1 {theirs:8.1f} output tokens/s")
    print(f"median ratio         {ratio:8.2f}")
    report = {"model": arguments.model, "requests": REQUESTS, "prompt_tokens": LENGTH, "output_tokens": LENGTH}
    report |= {"rounds": rounds, "bough_tokens_per_s": ours, "transformers_tokens_per_s": theirs}
    report |= {"threads": torch.get_num_threads(), "torch": torch.__version__, "median_ratio": ratio}
    write_json(arguments.json, report)
    return 0 if ratio >= arguments.at_least else 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=EngineConfig().model, help="a GGUF model (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="of both (default: what the engine takes)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-least", type=float, default=0.0, help="fail below this median ratio")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")


async def _complete_all(server: ServerProcess, prompts: list[list[int]], *, num_tokens: int) -> float:
    """Seconds until all prompts, sent at once, are answered. Raises RuntimeError: an answer has not as many tokens as
    were asked for."""
    options = {"model": server.model, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    bodies = [json.dumps({"prompt": prompt, **options}).encode() for prompt in prompts]
    async with Wire(server.url) as wire:
        started = time.perf_counter()
        answers = await asyncio.gather(*(wire.post("/v1/completions", body) for body in bodies))
        elapsed_s = time.perf_counter() - started
    if short := {n for answer in answers if (n := answer["usage"]["completion_tokens"]) != num_tokens}:
        raise RuntimeError(f"asked for {num_tokens} tokens, got {short}")
    return elapsed_s


class TransformersReference:
    """A LlamaForCausalLM made of our own dequantised tensors. Raises ModelError: the model is not a GGUF file
    of the Llama architecture."""

    def __init__(self, model: str, dtype: torch.dtype) -> None:
        path = locate(model)
        if not path.is_file():
            raise ModelError(f"{model} is not a .gguf file, which this comparison needs")
        file = GGUFFile(path)
        config = read_config(file)
        if config.architecture != "llama":
            raise ModelError(f"{model} is a {config.architecture} model; this comparison is written for llama")
        checkpoint = GGUFCheckpoint(file, config)
        tensors = {name: checkpoint.read(name).to(dtype) for name in checkpoint.shapes}
        theirs = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        made: Any = transformers.LlamaForCausalLM(theirs)
        self._model: Any = made.to(dtype).eval()
        # The output head may be the embedding, and rotary frequencies are computed: neither is in the file.
        missing, unexpected = self._model.load_state_dict(tensors, strict=False)
        missing = [name for name in missing if not (config.tie_embeddings and name == "lm_head.weight")]
        if missing or unexpected:
            raise ModelError(f"weights do not fit: missing {missing[:3]}, unexpected {unexpected[:3]}")
        self._model.tie_weights()

    def generate(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Greedy continuation of exactly `num_tokens` tokens."""
        (output,) = generate_greedily(self._model, [prompt], num_tokens)
        return output
