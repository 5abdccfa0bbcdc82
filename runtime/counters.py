"""What an engine counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Totals since the start; see client.EngineStats."""

    steps: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    guessed_tokens: int = 0
    right_guesses: int = 0
    step_seconds: float = 0.0
    forward_seconds: float = 0.0
    mask_seconds: float = 0.0
    sample_seconds: float = 0.0
