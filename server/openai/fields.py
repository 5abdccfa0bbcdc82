"""Fields of other engines that no struct of ours has: those without effect here, and those that are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..errors import ApiError, invalid

Neutral = Sequence[Any]

_MAX_NEUTRAL_BYTES = 32
"""Longest JSON text of a neutral value; no longer one is decoded."""

_NONE: Neutral = (False, [], {}, "")
_OFF: Neutral = (False,)
_ON: Neutral = (True,)
_ZERO: Neutral = (0,)
_ONE: Neutral = (1,)
_UNLIMITED: Neutral = (-1,)

IGNORED = frozenset({
    # bookkeeping, routing and caches
    "store", "service_tier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
    "request_id", "rid", "no_logs", "custom_labels", "routing_key", "routed_dp_rank", "kv_hints", "id_slot",
    "cache_prompt", "keep_alive",
    "prompt_cache_max_len", "prompt_cache_isolation_key", "num_ctx", "n_keep", "n_discard", "stream_interval",
    # speed, and what is told beside the answer
    "prediction", "prompt_lookup_num_tokens", "timings_per_token", "return_progress", "perf_metrics_in_response",
    "return_cached_tokens_details", "guided_decoding_backend", "verbose",
    # settings of a sampler that another field switches on, which is refused then
    "mirostat_tau", "mirostat_eta", "mirostat_lr", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_range",
    "dry_sequence_breakers", "xtc_threshold", "dynatemp_exponent", "smoothing_curve", "adaptive_decay",
    "negative_prompt", "rep_pen_range", "rep_pen_slope",
    # accepted without a promise: how much is said is the model's to decide
    "verbosity", "spaces_between_special_tokens",
})  # fmt: skip
"""Fields that do not change the output, at any value."""

REFUSED: Mapping[str, Neutral] = {
    # samplers
    "mirostat": _ZERO, "mirostat_mode": _ZERO, "mirostat_target": (), "dry_multiplier": _ZERO,
    "typical_p": _ONE, "typical": _ONE, "tfs": _ONE, "tfs_z": _ONE, "top_a": _ZERO,
    "top_n_sigma": (-1, 0), "nsigma": _ZERO, "xtc_probability": _ZERO, "epsilon_cutoff": _ZERO, "eta_cutoff": _ZERO,
    "dynatemp_range": _ZERO, "dynatemp_low": _ZERO, "dynatemp_high": _ZERO, "dynatemp_min": _ZERO,
    "dynatemp_max": _ZERO, "dynatemp": _OFF, "dynamic_temperature": _OFF, "smoothing_factor": _ZERO,
    "adaptive_target": _UNLIMITED, "skew": _ZERO, "penalty_alpha": _ZERO, "guidance_scale": _ONE, "do_sample": _ON,
    "repeat_penalty": _ONE, "rep_pen": _ONE, "encoder_repetition_penalty": _ONE, "no_repeat_ngram_size": _ZERO,
    "repeat_last_n": _UNLIMITED, "repetition_penalty_range": _ZERO,
    "penalize_nl": _OFF, "penalty_prompt": (None, ""), "min_keep": (0, 1), "temperature_last": _OFF,
    "samplers": _NONE, "sampler_order": _NONE, "sampler_priority": _NONE, "sampling_seed": (), "random_seed": (),
    "custom_logit_processor": _NONE, "custom_params": _NONE, "logits_processors": _NONE, "watermark": _NONE,
    # searches
    "use_beam_search": _NONE, "beam_width": (0, 1), "num_beams": _ONE, "early_stopping": _OFF,
    "length_penalty": (0, 1),
    # what may be generated, and how much
    "bad_words": _NONE, "banned_tokens": _NONE, "banned_strings": _NONE, "custom_token_bans": _NONE,
    "ban_eos_token": _OFF, "allowed_token_ids": _NONE, "guided_whitespace_pattern": _NONE,
    "n_predict": _UNLIMITED, "num_predict": _UNLIMITED, "max_new_tokens": (), "max_length": (), "min_length": _ZERO,
    "min_new_tokens": _ZERO, "t_max_predict_ms": (-1, 0), "n_indent": _ZERO, "max_time": _ZERO,
    "repetition_detection": _NONE,
    # the model, and its reasoning
    "adapter": _NONE, "adapter_id": _NONE, "lora": _NONE, "lora_adapters": _NONE, "lora_path": _NONE,
    "lora_request": _NONE, "models": _NONE, "prompt_mode": _NONE, "reasoning": _NONE,
    "reasoning_effort": (None,    "none"), "reasoning_budget": _UNLIMITED,
    "reasoning_budget_tokens": _UNLIMITED, "reasoning_format": (None, "auto"), "max_thinking_tokens": _UNLIMITED,
    "thinking_token_budget": _UNLIMITED, "thinking": _NONE, "think": (), "thinking_forced_open": _OFF,
    "include_reasoning": _ON, "separate_reasoning": _ON, "stream_reasoning": _ON,
    # the prompt
    "audio": _NONE, "add_bos_token": (), "chat_template": _NONE, "conversation": _NONE,
    "documents": _NONE, "guideline": _NONE, "images": _NONE, "input": _NONE, "input_embeds": _NONE, "input_ids": _NONE,
    "instructions": _NONE, "mm_processor_kwargs": _NONE, "options": _NONE, "previous_response_id": _NONE,
    "prompt_embeds": _NONE, "prompt_truncate_len": (), "response_prefix": _NONE, "safe_prompt": _OFF,
    "safety_model": _NONE, "session_id": _NONE, "session_params": _NONE, "suffix": _NONE, "system": _NONE,
    "tool_prompt": _NONE, "transforms": _NONE, "truncate": _NONE,
    "truncation_length": _ZERO, "web_search_options": _NONE,
    "context_length_exceeded_behavior": (None, "error"),
    # tools
    "functions": _NONE, "function_call": (None, "none", ""), "parse_tool_calls": _ON, "plugins": _NONE,
    # what an answer has beside the text
    "decoder_input_details": _OFF, "details": _OFF, "echo_last": _ZERO, "kv_transfer_params": _NONE,
    "logprob_token_ids": _NONE, "moderation": _NONE, "n_probs": _ZERO, "post_sampling_probs": _OFF, "raw_output": _OFF,
    "response_fields": _NONE, "return_entropy": _OFF, "return_hidden_states": _NONE, "return_prompt_text": _NONE,
    "return_prompt_token_ids": _OFF, "return_tokens": _OFF,
    "return_tokens_as_token_ids": _NONE, "token_ids_logprob": _NONE, "top_n_tokens": _ZERO, "vllm_xargs": _NONE,
    # fields of the other route
    "add_generation_prompt": (), "chat_template_kwargs": _NONE, "continue_final_message": _OFF, "echo": _OFF,
    "max_completion_tokens": (), "messages": (), "modalities": (None, ["text"], []), "parallel_tool_calls": (),
    "prompt": _NONE, "reasoning_end": _NONE, "tool_choice": (None, "none", "auto"), "tools": _NONE,
    "top_logprobs": _ZERO,
}  # fmt: skip
"""Fields that would change the output and are not supported, with their neutral values beside null. A struct that has
a field of such a name reads it itself."""


def is_unknown(name: str, value: msgspec.Raw) -> bool:
    """Tells whether a field that no struct has is known nowhere.

    Raises:
        ApiError: it is known, not supported, and its value would change the output.
    """
    if name in IGNORED:
        return False
    if name not in REFUSED:
        return True
    if not _is_neutral(bytes(value), REFUSED[name]):
        raise _unsupported(name, REFUSED[name])
    return False


def _is_neutral(text: bytes, neutral: Neutral) -> bool:
    if len(text) > _MAX_NEUTRAL_BYTES:
        return False
    value = msgspec.json.decode(text)
    return value is None or any(isinstance(value, bool) == isinstance(each, bool) and value == each for each in neutral)


def _unsupported(name: str, neutral: Neutral) -> ApiError:
    message = f"{name} is not supported by this server"
    shown = [msgspec.json.encode(each).decode() for each in neutral if each not in ((), [], {}, "", None)]
    if shown:
        message += f", except with the value {' or '.join(shown)}, which has no effect"
    return invalid(name, message, code="unsupported_parameter")
