"""Places where tests of the whole engine run: in full on a GPU, in small on the CPU, so that they always run."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from bough.runtime.client.llm import LLM
from bough.runtime.protocol.request import TokenLogprob
from bough.runtime.protocol.sampling_params import SamplingParams

from ..support.tiny_model import write_tiny_model

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    from ..support import triton_interpreter  # noqa: F401  before anything imports a kernel

BYTES = range(97, 123)


@dataclass(frozen=True)
class Place:
    """A device and what can be asked of it in reasonable time.

    backend          of attention: "triton", on the CPU through Triton's interpreter, or "torch"
    num_requests     of a test, and num_tokens that each generates
    batch            requests that run at once
    longest          prompt, in tokens
    changes          of tests.support.tiny_model.CONFIG
    """

    device: str
    backend: str
    num_requests: int
    num_tokens: int
    batch: int
    longest: int
    page_size: int = 16
    changes: Mapping[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def llm(self, folder: Path, **options: Any) -> Iterator[LLM]:
        """An engine on this device with these fields of EngineConfig; nothing of it is left afterwards."""
        fields: dict[str, Any] = {"device": self.device, "attention_backend": self.backend, "page_size": self.page_size}
        llm = LLM(folder, **(fields | {"num_pages": 1 << 12, "max_num_seqs": self.batch} | options))
        try:
            yield llm
        finally:
            llm.close()
            del llm
            gc.collect()  # an engine's parts know each other
            if self.device != "cpu":
                torch.cuda.empty_cache()

    def write_model(self, folder: Path) -> Path:
        return write_tiny_model(folder, **self.changes)


_WIDE = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}

GPU = pytest.param(Place("cuda", "triton", 128, 24, 64, 600, changes=_WIDE), id="gpu", marks=pytest.mark.gpu)
INTERPRETED = pytest.param(
    Place("cpu", "triton", 4, 3, 2, 24, page_size=4),
    id="interpreted",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(torch.cuda.is_available() or not HAS_TRITON, reason="nothing is interpreted here"),
    ],
)
CPU = pytest.param(Place("cpu", "torch", 24, 12, 8, 60), id="cpu")


def make_prompts(place: Place) -> list[list[int]]:
    """Prompts of all lengths in random order: a half shares beginnings, in a tree of two levels, a half shares none.

    Both halves have the same lengths, so that they can be compared. A prompt of the first half begins with a "a".
    """
    random = Random(5)

    def text(length: int) -> list[int]:
        return random.choices(BYTES[1:], k=length)

    stem = [BYTES[0], *text(place.longest // 2)]
    branches = [stem + text(place.longest // 4) for _ in range(3)]
    prompts = []
    for index in range(place.num_requests):
        branch = branches[(index // 2) % len(branches)]
        length = len(branch) + 1 + (index // 2) % max(place.longest - len(branch), 1)
        prompts.append(branch + text(length - len(branch)) if index % 2 == 0 else text(length))
    random.shuffle(prompts)
    return prompts


def shares_prefix(prompt: list[int]) -> bool:
    return prompt[0] == BYTES[0]


def greedy(num_tokens: int, **fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, logprobs=2, **fields)


@dataclass(frozen=True)
class Said:
    """A complete answer."""

    tokens: list[int]
    logprobs: list[TokenLogprob]
    finish_reason: str | None


def ask(llm: LLM, prompts: Any, params: Any, grammars: Any = None) -> list[Said]:
    """Answers of the engine to all requests, given to it at once."""
    results = [result.outputs[0] for result in llm.generate(prompts, params, grammar=grammars, use_tqdm=False)]
    return [Said(result.token_ids, result.logprobs or [], result.finish_reason) for result in results]
