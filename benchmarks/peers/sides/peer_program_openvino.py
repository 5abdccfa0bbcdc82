"""OpenVINO GenAI's side of a comparison on programs: continuous batching driven step by step, without a server.

A generation joins the batch in the very step after what it depends on has ended: faster than any client of a server, or
one that waits for whole batches. Of choices, the prompt is computed first, then all of them are scored side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-not-found,unused-ignore]  # in its own environment only
import openvino_genai as genai  # type: ignore[import-not-found,unused-ignore]
import tokenizers


@dataclass(eq=False)
class _Choice:
    """A call for one of several, with the score of each that has one."""

    call: Any
    prompt: list[int]
    scores: dict[int, float]


@dataclass(frozen=True)
class _Sent:
    """A request. `choice` is what it is a part of; `place`: which of its choices is scored, `count` tokens long."""

    handle: Any
    call: Any
    choice: _Choice | None = None
    place: int | None = None
    count: int = 0


class OpenVinoClient:
    """`options`: model_file (a folder as OpenVINO has it), tokenizer (a folder), threads, max_num_seqs."""

    def __init__(self, options: dict[str, Any], beside: Callable[[str], Any]) -> None:
        scheduling = genai.SchedulerConfig()
        scheduling.enable_prefix_caching = True
        scheduling.max_num_seqs = options["max_num_seqs"]
        properties = {"INFERENCE_NUM_THREADS": options["threads"]}
        self._pipeline = genai.ContinuousBatchingPipeline(options["model_file"], scheduling, "CPU", properties)
        self._end = self._pipeline.get_tokenizer().get_eos_token_id()
        self._tokenizer = tokenizers.Tokenizer.from_file(str(Path(options["tokenizer"]) / "tokenizer.json"))
        self._walk = beside("peer_program_walk")
        self._running: list[_Sent] = []
        self._num_requests = 0

    def run(self, plans: list[Any], at_once: int, stop_s: float) -> dict[str, Any]:
        result: dict[str, Any] = self._walk.run_stepping(plans, at_once, stop_s, self)
        return result

    def add(self, call: Any) -> None:
        prompt = self._encode(call.prompt)
        config = self._config(max(1, call.num_tokens))
        if call.pattern is not None:
            config.ignore_eos = False
            config.structured_output_config = genai.StructuredOutputConfig(regex=call.pattern)
        choice = _Choice(call, prompt, {}) if call.choices else None
        self._running.append(_Sent(self._send(prompt, config), call, choice))

    def step(self) -> list[tuple[Any, Any]]:
        self._pipeline.step()
        ended = []
        for sent in [each for each in self._running if each.handle.get_status() != genai.GenerationStatus.RUNNING]:
            self._running.remove(sent)
            if sent.handle.get_status() != genai.GenerationStatus.FINISHED:
                raise RuntimeError(f"a generation ended as {sent.handle.get_status()}")
            (output,) = sent.handle.read_all()
            if sent.choice is None:
                tokens = [token for token in output.generated_ids if token != self._end or sent.call.pattern is None]
                text = self._tokenizer.decode(tokens, skip_special_tokens=False)
                ended.append((sent.call, self._walk.Answer(text, len(tokens))))
            elif sent.place is None:
                self._score(sent.choice)
            else:
                found = output.generated_log_probs[-1 - sent.count : -1]
                sent.choice.scores[sent.place] = sum(found) / sent.count
                if len(sent.choice.scores) == len(sent.call.choices):
                    best = max(sent.choice.scores, key=sent.choice.scores.__getitem__)
                    ended.append((sent.call, self._walk.Answer(sent.call.choices[best])))
        return ended

    def _score(self, choice: _Choice) -> None:
        for place, text in enumerate(choice.call.choices):
            tokens = self._encode(text)
            config = self._config(1)
            config.echo, config.logprobs = True, 1
            handle = self._send(choice.prompt + tokens, config)
            self._running.append(_Sent(handle, choice.call, choice, place, len(tokens)))

    def _config(self, num_tokens: int) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.do_sample, config.ignore_eos = False, True
        config.eos_token_id, config.stop_token_ids = self._end, {self._end}
        return config

    def _send(self, prompt: list[int], config: Any) -> Any:
        self._num_requests += 1
        return self._pipeline.add_request(self._num_requests, ov.Tensor(np.array([prompt], dtype=np.int64)), config)

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return tokens


def load(options: dict[str, Any], beside: Callable[[str], Any]) -> OpenVinoClient:
    return OpenVinoClient(options, beside)
