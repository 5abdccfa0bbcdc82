"""Counters of an engine since its start, and facts about its model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from .request import Finish


@dataclass
class Counters:
    """Totals since the start, under their names in EngineStats without `_total`."""

    steps: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    guessed_tokens: int = 0
    right_guesses: int = 0
    retried_passes: int = 0
    failed_passes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("step", "forward", "mask", "sample"), 0.0))
    finished: dict[str, int] = field(default_factory=dict)

    def ended(self, finish: Finish) -> None:
        """Counts a request that has ended."""
        usage = finish.usage
        self.finished[finish.reason] = self.finished.get(finish.reason, 0) + 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.generated_tokens += usage.completion_tokens
        self.forced_tokens += usage.forced_tokens

    def totals(self) -> dict[str, Any]:
        """Returns the fields of EngineStats that are counted here."""
        counts = {f"{name}_total": value for name, value in vars(self).items() if isinstance(value, int)}
        seconds = {f"{name}_seconds_total": value for name, value in self.seconds.items()}
        return {**counts, **seconds, "finished_total": dict(self.finished)}


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the loaded model for clients. `max_model_len` counts prompt and completion tokens;
    `max_request_tokens` is the same, or the capacity of the cache if that is less. `path` is the place of the files. At
    most `max_requests` wait or run; only the engine sets it.

    backend        "native" (the library in C), "torch" or "triton"
    instructions   instruction set that the processor uses, or the GPU's name
    weights        format of most of the layers' weights
    activations    format of the inputs of products
    kv_cache       format of keys and values
    """

    name: str
    path: str
    architecture: str
    vocab_size: int
    max_model_len: int
    max_request_tokens: int
    dtype: str
    device: str
    num_parameters: int
    page_size: int
    num_pages: int
    max_requests: int | None = None
    backend: str = ""
    instructions: str = ""
    weights: str = ""
    activations: str = ""
    kv_cache: str = ""

    def described(self) -> str:
        """Returns a line that describes how the model is computed."""
        formats = ((self.weights, "weights"), (self.activations, "activations"), (self.kv_cache, "KV cache"))
        shown = ", ".join(f"{name} {what}" for name, what in formats if name)
        return f"{self.backend} on {self.instructions or self.device}" + (f": {shown}" if shown else "")


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start (`*_total`) and current gauges.

    `up` is 1 while the engine accepts requests; `restarts_total` counts the restarts of its process.
    `abandoned_tools` are abandoned tool calls that have not returned, and event loops blocked by a coroutine of a tool.
    num_pages = free_pages + cached_pages + locked_pages. Cached pages are not in use; locked ones are in use by one
    sequence, or shared by several.
    """

    up: int = 1
    restarts_total: int = 0
    running: int = 0
    waiting: int = 0
    states: int = 0
    abandoned_tools: int = 0
    num_pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    locked_pages: int = 0
    steps_total: int = 0
    requests_total: int = 0
    programs_total: int = 0
    finished_total: dict[str, int] = {}
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    computed_tokens_total: int = 0
    generated_tokens_total: int = 0
    forced_tokens_total: int = 0
    guessed_tokens_total: int = 0
    right_guesses_total: int = 0
    retried_passes_total: int = 0
    failed_passes_total: int = 0
    preemptions_total: int = 0
    evicted_tokens_total: int = 0
    grammars_compiled_total: int = 0
    grammar_cache_hits_total: int = 0
    step_seconds_total: float = 0.0
    forward_seconds_total: float = 0.0
    mask_seconds_total: float = 0.0
    sample_seconds_total: float = 0.0
