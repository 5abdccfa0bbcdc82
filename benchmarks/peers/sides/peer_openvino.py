"""OpenVINO GenAI's side of a comparison: continuous batching with its prefix cache on, over weights in int8.

Programs drive it step by step, without a server: a generation joins the batch in the step after its dependencies have
ended, earlier than a client of a server, or one that waits for whole batches, could do. For choices, the prompt is
computed first, then all of them are scored concurrently.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-not-found,unused-ignore]  # in its own environment only
import openvino_genai as genai  # type: ignore[import-not-found,unused-ignore]
import tokenizers

from .peer_walk import Answer, Call, Plan, run_stepping


@dataclass(frozen=True)
class _Sent:
    """A request. `place`: which of the call's choices is scored, `count` tokens long; None: its prompt is computed."""

    handle: Any
    call: Call
    place: int | None = None
    count: int = 0


class OpenVino:
    """`options`: model_file (a folder with the model as OpenVINO has it), threads, max_num_seqs; for programs also
    tokenizer (a folder)."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        scheduling = genai.SchedulerConfig()
        scheduling.enable_prefix_caching = True
        scheduling.max_num_seqs = options["max_num_seqs"]
        properties = {"INFERENCE_NUM_THREADS": options["threads"]}
        self._pipeline = genai.ContinuousBatchingPipeline(options["model_file"], scheduling, "CPU", properties)
        self._end = self._pipeline.get_tokenizer().get_eos_token_id()
        self._num_requests = 0
        self._running: list[_Sent] = []
        self._scores: dict[Call, dict[int, float]] = {}  # of each choice that has one

    def _config(self, num_tokens: int, *, ignore_eos: bool = False, scores: bool = False) -> Any:
        """Greedy; with `scores`, the log-probabilities of the prompt are told."""
        config = genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.do_sample, config.ignore_eos = False, ignore_eos
        config.eos_token_id, config.stop_token_ids = self._end, {self._end}
        if scores:
            config.echo, config.logprobs = True, 1
        return config

    def _send(self, prompt: list[int], config: Any) -> Any:
        self._num_requests += 1
        return self._pipeline.add_request(self._num_requests, _tensor(prompt), config)

    # Prompts

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        return self._generate(prompts, self._config(num_tokens, ignore_eos=True))

    def constrained(self, prompts: list[list[int]], schema: str, num_tokens: int) -> list[list[int]]:
        config = self._config(num_tokens)
        config.structured_output_config = genai.StructuredOutputConfig(json_schema=schema)
        return self._generate(prompts, config)

    def score(self, tokens: list[int]) -> tuple[list[float] | None, None]:
        handle = self._send(tokens, self._config(1, scores=True))
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        (output,) = handle.read_all()
        found = [float(each) for each in output.generated_log_probs[1 : len(tokens)]]
        return (found if len(found) == len(tokens) - 1 else None), None

    def _generate(self, prompts: list[list[int]], config: Any) -> list[list[int]]:
        tensors = [_tensor(prompt) for prompt in prompts]
        results = self._pipeline.generate(tensors, [config] * len(prompts))
        return [[int(token) for token in result.m_generation_ids[0]] for result in results]

    # Programs

    def run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        return run_stepping(plans, at_once, stop_s, self._step)

    def _step(self, calls: list[Call]) -> list[tuple[Call, Answer]]:
        while calls:
            self._begin(calls.pop(0))
        self._pipeline.step()
        ended = []
        for sent in [each for each in self._running if each.handle.get_status() != genai.GenerationStatus.RUNNING]:
            self._running.remove(sent)
            if sent.handle.get_status() != genai.GenerationStatus.FINISHED:
                raise RuntimeError(f"a generation ended as {sent.handle.get_status()}")
            (output,) = sent.handle.read_all()
            if not sent.call.choices:
                tokens = [token for token in output.generated_ids if token != self._end or sent.call.pattern is None]
                text = self._tokenizer.decode(tokens, skip_special_tokens=False)
                ended.append((sent.call, Answer(text, len(tokens))))
            elif sent.place is None:
                self._score(sent.call)
            else:
                scores = self._scores.setdefault(sent.call, {})
                scores[sent.place] = sum(output.generated_log_probs[-1 - sent.count : -1]) / sent.count
                if len(scores) == len(sent.call.choices):
                    del self._scores[sent.call]
                    ended.append((sent.call, Answer(sent.call.choices[max(scores, key=scores.__getitem__)])))
        return ended

    def _begin(self, call: Call) -> None:
        config = self._config(max(1, call.num_tokens), ignore_eos=call.pattern is None)
        if call.pattern is not None:
            config.structured_output_config = genai.StructuredOutputConfig(regex=call.pattern)
        self._running.append(_Sent(self._send(self._encode(call.prompt), config), call))

    def _score(self, call: Call) -> None:
        prompt, config = self._encode(call.prompt), self._config(1, ignore_eos=True, scores=True)
        for place, tokens in enumerate(map(self._encode, call.choices)):
            self._running.append(_Sent(self._send(prompt + tokens, config), call, place, len(tokens)))

    @cached_property
    def _tokenizer(self) -> Any:
        return tokenizers.Tokenizer.from_file(str(Path(self._options["tokenizer"]) / "tokenizer.json"))

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens


def _tensor(tokens: list[int]) -> Any:
    return ov.Tensor(np.array([tokens], dtype=np.int64))
