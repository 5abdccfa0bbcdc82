"""OpenVINO GenAI's side of a comparison: continuous batching with its prefix cache on, over weights in int8."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-not-found,unused-ignore]  # in its own environment only
import openvino_genai  # type: ignore[import-not-found,unused-ignore]


class OpenVinoEngine:
    """`options`: model_file (a folder with the model as OpenVINO has it), threads, max_num_seqs."""

    def __init__(self, options: dict[str, Any]) -> None:
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.enable_prefix_caching = True
        scheduling.max_num_seqs = options["max_num_seqs"]
        for name, value in options.get("scheduling", {}).items():
            setattr(scheduling, name, value)
        properties = {"INFERENCE_NUM_THREADS": options["threads"]}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(options["model_file"], scheduling, "CPU", properties)
        self._num_requests = 0

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        config = self._config(num_tokens)
        config.ignore_eos = True
        return self._run(prompts, config)

    def constrained(self, prompts: list[list[int]], schema: str, num_tokens: int) -> list[list[int]]:
        config = self._config(num_tokens)
        config.structured_output_config = openvino_genai.StructuredOutputConfig(json_schema=schema)
        return self._run(prompts, config)

    def score(self, tokens: list[int]) -> tuple[list[float] | None, None]:
        config = self._config(1)
        config.echo, config.logprobs = True, 1
        handle = self._pipeline.add_request(self._num_requests, _tensor(tokens), config)
        self._num_requests += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        (output,) = handle.read_all()
        found = [float(each) for each in output.generated_log_probs[1 : len(tokens)]]
        return (found if len(found) == len(tokens) - 1 else None), None

    def _config(self, num_tokens: int) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.do_sample = False
        config.eos_token_id = self._pipeline.get_tokenizer().get_eos_token_id()
        config.stop_token_ids = {config.eos_token_id}
        return config

    def _run(self, prompts: list[list[int]], config: Any) -> list[list[int]]:
        results = self._pipeline.generate([_tensor(prompt) for prompt in prompts], [config] * len(prompts))
        return [[int(token) for token in result.m_generation_ids[0]] for result in results]


def _tensor(tokens: list[int]) -> Any:
    return ov.Tensor(np.array([tokens], dtype=np.int64))


def load(options: dict[str, Any]) -> OpenVinoEngine:
    return OpenVinoEngine(options)
