"""Meta information of values, under SGLang's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...runtime.protocol.program import Value
from ...runtime.protocol.request import TokenLogprob

Entry = tuple[float, int, str | None]
"""Log-probability, token id, and the token's text if the backend says it."""


def meta_info(program_id: str, value: Value, choices: Sequence[str] | None = None) -> dict[str, Any]:
    """All that is known of a value; `choices` are those of a select."""
    usage, timings = value.usage, value.timings
    finish: dict[str, Any] = {"type": value.finish_reason, "matched": value.matched}
    if value.finish_reason == "length":
        finish["length"] = usage.completion_tokens
    info: dict[str, Any] = {
        "id": program_id,
        "finish_reason": finish,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "forced_tokens": usage.forced_tokens,
        "queue_s": timings.queue_s,
        "prefill_s": timings.prefill_s,
        "decode_s": timings.decode_s,
        "e2e_latency": timings.queue_s + timings.prefill_s + timings.decode_s,
    }
    if value.logprobs is not None:
        info |= _of_tokens(value.logprobs, value.token_texts)
    if choices is not None:
        info |= _of_select(value, choices)
    return info


def info_so_far(program_id: str, logprobs: Sequence[TokenLogprob], texts: Mapping[int, str]) -> dict[str, Any]:
    """Describes a value that is being made: without log-probabilities, only by the program that makes it."""
    info: dict[str, Any] = {"id": program_id, "finish_reason": None}
    return info | {"completion_tokens": len(logprobs)} | _of_tokens(logprobs, texts) if logprobs else info


def _of_tokens(logprobs: Sequence[TokenLogprob], texts: Mapping[int, str]) -> dict[str, Any]:
    return {
        "input_token_logprobs": [],
        "output_token_logprobs": _entries(logprobs, texts),
        "output_token_logprobs_length": len(logprobs),
        "output_top_logprobs": [
            [(logprob, token, texts.get(token)) for token, logprob in entry.top] for entry in logprobs
        ],
    }


def _of_select(value: Value, choices: Sequence[str]) -> dict[str, Any]:
    info: dict[str, Any] = {
        "choices": list(choices),
        "scores": list(value.scores or ()),
        "probabilities": list(value.probabilities or ()),
    }
    if value.choice_logprobs is not None:
        info["input_token_logprobs"] = [_entries(entries, value.token_texts) for entries in value.choice_logprobs]
        info["normalized_prompt_logprobs"] = [
            sum(entry.logprob for entry in entries) / max(len(entries), 1) for entries in value.choice_logprobs
        ]
        info["output_token_logprobs"] = [[] for _ in choices]
    return info


def _entries(entries: Sequence[TokenLogprob], texts: Mapping[int, str]) -> list[Entry]:
    return [(entry.logprob, entry.token, texts.get(entry.token)) for entry in entries]
