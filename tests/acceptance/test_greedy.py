"""Promise: greedy text is token for token that of transformers with the same weights, in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch

from bough.benchmarks.throughput import TransformersReference
from bough.runtime.client.llm import LLM
from bough.runtime.protocol.sampling_params import SamplingParams

from .prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.slow]


def test_greedy_text_is_that_of_transformers(full: bool, figures: Callable[[str], None]) -> None:
    prompts, num_tokens = (PROMPTS, 128) if full else (PROMPTS[::5], 32)
    params = SamplingParams(temperature=0, max_tokens=num_tokens, min_tokens=num_tokens)
    with contextlib.closing(LLM(dtype="float32", num_pages=8192)) as llm:
        encoded = [llm.get_tokenizer().encode_prompt(prompt, special=True) for prompt in prompts]
        ours = [result.outputs[0].token_ids for result in llm.generate(encoded, params, use_tqdm=False)]
    reference = TransformersReference("smollm2-135m", torch.float32)
    theirs = [reference.generate(tokens, num_tokens) for tokens in encoded]
    different = [prompt for prompt, a, b in zip(prompts, ours, theirs, strict=True) if a != b]
    figures(f"{len(prompts) - len(different)} of {len(prompts)} prompts equal over {num_tokens} tokens")
    assert different == []
