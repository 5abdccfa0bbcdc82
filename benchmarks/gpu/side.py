"""One side of a comparison: an engine in a process of its own that runs whole workloads when told to.

Ours runs as a module of the package; a peer's interpreter runs this file by its path, so it imports nothing of the
package at the top and needs the standard library only until its engine is made. Every side makes the same prompts from
the same numbers.

In comes a line of JSON, {"workload": name, "seed": n}; out goes a line that begins with "@bench ", with seconds. The
end of the input ends the process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MARK = "@bench "
MAX_MODEL_LEN = 12_288
MAX_NUM_SEQS = 256
_VOCABULARY = 10_000  # prompts use the ids below it


@dataclass(frozen=True)
class EngineWorkload:
    """Token ids and output lengths of requests that arrive together. `decode`: time the decode alone as well."""

    prompts: list[list[int]]
    outputs: list[int]
    temperature: float = 0.0
    decode: bool = False


Generate = Callable[[EngineWorkload], int]
"""Runs all requests to the end; returns how many tokens came out."""


def make_workload(name: str, seed: int, *, scale: float = 1.0, vocabulary: int = _VOCABULARY) -> EngineWorkload:
    """A workload by name; lengths are the same for every seed, token ids are not.

    w1          256 requests, inputs and outputs of 100 .. 1024 tokens, uniformly drawn (133,966 tokens out), at
                temperature 0.6: as nano-vllm and mini-sglang measure themselves
    shared-8k   64 requests: 8,192 tokens in common, 256 of their own, 256 out; shared-2k: 2,048 and 512
    unshared    64 requests of 2,560 tokens, 256 out: the twin of shared-2k
    """
    if name == "w1":
        drawn = random.Random(0)
        prompts = [[drawn.randint(0, 10_000) for _ in range(drawn.randint(100, 1024))] for _ in range(256)]
        outputs = [drawn.randint(100, 1024) for _ in range(256)]
        count = max(2, int(256 * scale))
        shift = random.Random(seed).randrange(10_000)
        prompts = [
            [(token + shift) % vocabulary for token in prompt[: max(1, int(len(prompt) * scale))]]
            for prompt in prompts[:count]
        ]
        return EngineWorkload(prompts, [max(2, int(output * scale)) for output in outputs[:count]], temperature=0.6)
    ids = random.Random(f"{name} {seed}")

    def tokens(count: int) -> list[int]:
        return [ids.randrange(vocabulary) for _ in range(max(1, int(count * scale)))] if count else []

    common, own = {"shared-8k": (8192, 256), "shared-2k": (2048, 512), "unshared": (0, 2560)}[name]
    num_requests = max(2, int(64 * scale))
    prefix = tokens(common)
    outputs = [max(4, int(256 * scale))] * num_requests
    return EngineWorkload([prefix + tokens(own) for _ in range(num_requests)], outputs, decode=True)


def run_workload(workload: EngineWorkload, generate: Generate) -> dict[str, float]:
    """Seconds from the first request's arrival to the last token, nothing of it cached before.

    With `decode`, also of the decode alone: all prompts are cached then, and what the first token takes is taken off.
    """
    times: dict[str, float] = {}
    started = time.perf_counter()
    times["output_tokens"] = generate(workload)
    times["seconds"] = time.perf_counter() - started
    if not workload.decode:
        return times
    first = EngineWorkload(workload.prompts, [1] * len(workload.outputs))
    for key, one in (("first_s", first), ("whole_s", workload)):
        started = time.perf_counter()
        generate(one)
        times[key] = time.perf_counter() - started
    times["decode_s"] = times["whole_s"] - times["first_s"]
    times["decode_tokens"] = sum(workload.outputs) - len(workload.outputs)
    return times


# -- Engines -----------------------------------------------------------------------------------------------------------


def _bough(arguments: argparse.Namespace) -> Generate:
    from ...runtime.protocol.config import EngineConfig
    from ...runtime.protocol.request import Request, RequestOutput
    from ...runtime.protocol.sampling_params import SamplingParams
    from ..harness.models import random_engine

    on_gpu = arguments.device != "cpu"
    engine = random_engine(
        EngineConfig(
            model=arguments.model,
            device=arguments.device,
            dtype="bfloat16" if on_gpu else "float32",
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            max_batch_tokens=8192,
            kv_cache_memory=arguments.kv_bytes,
        )
    )

    def generate(workload: EngineWorkload) -> int:
        done = tokens = 0

        def take(output: RequestOutput) -> None:
            nonlocal done, tokens
            tokens += len(output.tokens)
            if output.finish is not None:
                if output.finish.reason != "length":
                    raise RuntimeError(f"a request ended by {output.finish.reason}")
                done += 1

        for index, (prompt, output) in enumerate(zip(workload.prompts, workload.outputs, strict=True)):
            sampling = SamplingParams(max_tokens=output, temperature=workload.temperature, ignore_eos=True)
            engine.submit(Request(id=str(index), prompt=tuple(prompt), sampling=sampling), take)
        while done < len(workload.prompts):
            engine.step()
        return tokens

    return generate


def _vllm(arguments: argparse.Namespace) -> Generate:
    vllm = importlib.import_module("vllm")
    engine = vllm.LLM(
        model=arguments.folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        enable_prefix_caching=True,
        gpu_memory_utilization=0.4,
        kv_cache_memory_bytes=arguments.kv_bytes,
    )

    def generate(workload: EngineWorkload) -> int:
        params = [
            vllm.SamplingParams(max_tokens=output, temperature=workload.temperature, ignore_eos=True, detokenize=False)
            for output in workload.outputs
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in workload.prompts]
        results = engine.generate(prompts, params, use_tqdm=False)
        return sum(len(result.outputs[0].token_ids) for result in results)

    return generate


def _sglang(arguments: argparse.Namespace) -> Generate:
    sglang = importlib.import_module("sglang")
    engine = sglang.Engine(
        model_path=arguments.folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        context_length=MAX_MODEL_LEN,
        max_running_requests=MAX_NUM_SEQS,
        max_total_tokens=arguments.kv_bytes // arguments.kv_token_bytes,
        mem_fraction_static=0.85,
    )

    def generate(workload: EngineWorkload) -> int:
        params = [
            {"max_new_tokens": output, "temperature": workload.temperature, "ignore_eos": True}
            for output in workload.outputs
        ]
        results = engine.generate(input_ids=workload.prompts, sampling_params=params)
        return sum(int(result["meta_info"]["completion_tokens"]) for result in results)

    return generate


def _transformers(arguments: argparse.Namespace) -> Generate:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    config = transformers.AutoConfig.from_pretrained(arguments.folder)
    with torch.device(arguments.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.eval()
    batching = transformers.ContinuousBatchingConfig(max_memory_percent=0.5)

    def generate(workload: EngineWorkload) -> int:
        if len(set(workload.outputs)) > 1:
            raise NotImplementedError("it takes one output length for all requests")
        settings = transformers.GenerationConfig(max_new_tokens=workload.outputs[0], do_sample=False, eos_token_id=-1)
        results = model.generate_batch(
            inputs=workload.prompts,
            generation_config=settings,
            continuous_batching_config=batching,
            progress_bar=False,
        )
        return sum(len(result.generated_tokens) for result in results.values())

    return generate


ENGINES: dict[str, Callable[[argparse.Namespace], Generate]] = {
    "bough": _bough,
    "vllm": _vllm,
    "sglang": _sglang,
    "transformers": _transformers,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", required=True, help="with the config.json of the model")
    parser.add_argument("--device", required=True)
    parser.add_argument("--kv-bytes", type=int, required=True)
    parser.add_argument("--kv-token-bytes", type=int, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--vocabulary", type=int, default=_VOCABULARY)
    arguments = parser.parse_args(argv)
    started = time.perf_counter()
    generate = ENGINES[arguments.engine](arguments)
    generate(make_workload("shared-2k", -1, scale=arguments.scale / 16, vocabulary=arguments.vocabulary))
    _send({"ready": time.perf_counter() - started})
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        workload = make_workload(
            message["workload"], message["seed"], scale=arguments.scale, vocabulary=arguments.vocabulary
        )
        try:
            _send(run_workload(workload, generate))
        except Exception as error:  # noqa: BLE001  a peer may raise anything; the other side goes on
            _send({"error": f"{type(error).__name__}: {error}"})
    return 0


def _send(message: dict[str, Any]) -> None:
    print(MARK + json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
