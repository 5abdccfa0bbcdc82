"""A hundred requests to whole engines on the CPU library, for a process in which it is sanitized; prints how they end.

Constrained, sampled and forked ones, with log-probabilities and without, over caches of 16 and of 8 bits and weights of
all kinds; then the same with a norm that is not finite.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from typing import Any

from bough.constrain.spec import JsonSchema
from bough.runtime.client.llm import LLM
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.tiny_model import write_tiny_model

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "head_dim": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SETTINGS: list[dict[str, Any]] = [
    {"quantization": "int8"},
    {"quantization": "int4", "kv_cache_dtype": "int8", "page_size": 16, "num_pages": 100},
    {"quantization": "w8a8", "kv_cache_dtype": "int8", "max_batch_tokens": 37},
    {"quantization": "w8a8", "num_pages": 420},
]
SCHEMA = JsonSchema('{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
NUM_REQUESTS = 25
FILTERS: list[dict[str, Any]] = [
    {},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1, "logprobs": 5},
    {"repetition_penalty": 1.2},
]


def ask(llm: LLM) -> list[str]:
    """Returns how each request ended."""
    ended: dict[str, str] = {}
    for index in range(NUM_REQUESTS):
        params: dict[str, Any] = {"seed": index, "max_tokens": 8, "temperature": float(index % 2), "ignore_eos": True}
        params |= FILTERS[index % len(FILTERS)]
        grammar = SCHEMA if index % 4 == 3 else None
        if grammar is not None:
            params |= {"ignore_eos": False, "max_tokens": 24}
        if index % 6 == 5:
            params["n"] = 3  # three branches of one prompt
        prompt = "a trunk that branches share, long enough for chunks of its own; " + "and more " * (index % 7)
        llm.add_request(str(index), prompt, SamplingParams(**params), grammar=grammar)
    while len(ended) < NUM_REQUESTS:
        for output in llm.step():
            if output.finished:
                ended[output.request_id] = "well" if output.error is None else getattr(output.error, "code", "?")
    return list(ended.values())


def spoil(llm: LLM) -> None:
    """Has the norm after the last layer be infinite in one place."""
    runner: Any = llm._engine._runner
    decoder = runner.model._decoder
    (ctypes.c_float * 8).from_address(decoder.struct.norm)[3] = float("inf")


def main(folder: Path) -> None:
    write_tiny_model(folder, **SHAPE)
    for settings in SETTINGS:
        with contextlib.closing(LLM(str(folder), **({"num_pages": 4000} | settings))) as llm:
            print(*sorted(set(ask(llm))))
            spoil(llm)
            print(*sorted(set(ask(llm))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
