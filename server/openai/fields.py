"""Fields of other engines that no struct of ours has: those without effect here, and those that are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ..errors import ApiError, invalid

Neutral = Sequence[Any]

_MAX_NEUTRAL_BYTES = 32
"""Longest JSON text of a neutral value; no longer one is decoded."""

EMPTY: Neutral = (False, [], {}, "")
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
    "samplers": EMPTY, "sampler_order": EMPTY, "sampler_priority": EMPTY, "sampling_seed": (), "random_seed": (),
    "custom_logit_processor": EMPTY, "custom_params": EMPTY, "logits_processors": EMPTY, "watermark": EMPTY,
    # searches
    "use_beam_search": EMPTY, "beam_width": (0, 1), "num_beams": _ONE, "early_stopping": _OFF,
    "length_penalty": (0, 1),
    # what may be generated, and how much
    "bad_words": EMPTY, "banned_tokens": EMPTY, "banned_strings": EMPTY, "custom_token_bans": EMPTY,
    "ban_eos_token": _OFF, "allowed_token_ids": EMPTY, "guided_whitespace_pattern": EMPTY,
    "n_predict": _UNLIMITED, "num_predict": _UNLIMITED, "max_new_tokens": (), "max_length": (), "min_length": _ZERO,
    "min_new_tokens": _ZERO, "t_max_predict_ms": (-1, 0), "n_indent": _ZERO, "max_time": _ZERO,
    "repetition_detection": EMPTY,
    # the model, and its reasoning
    "adapter": EMPTY, "adapter_id": EMPTY, "lora": EMPTY, "lora_adapters": EMPTY, "lora_path": EMPTY,
    "lora_request": EMPTY, "models": EMPTY, "prompt_mode": EMPTY, "reasoning": EMPTY,
    "reasoning_effort": (None, "none"), "reasoning_budget": _UNLIMITED,
    "reasoning_budget_tokens": _UNLIMITED, "reasoning_format": (None, "auto"), "max_thinking_tokens": _UNLIMITED,
    "thinking": EMPTY, "think": (), "thinking_forced_open": _OFF,
    "include_reasoning": _ON, "separate_reasoning": _ON, "stream_reasoning": _ON,
    # the prompt
    "audio": EMPTY, "add_bos_token": (), "chat_template": EMPTY, "conversation": EMPTY,
    "documents": EMPTY, "guideline": EMPTY, "images": EMPTY, "input": EMPTY, "input_embeds": EMPTY, "input_ids": EMPTY,
    "instructions": EMPTY, "mm_processor_kwargs": EMPTY, "options": EMPTY, "previous_response_id": EMPTY,
    "prompt_embeds": EMPTY, "prompt_truncate_len": (), "response_prefix": EMPTY, "safe_prompt": _OFF,
    "safety_model": EMPTY, "session_id": EMPTY, "session_params": EMPTY, "suffix": EMPTY, "system": EMPTY,
    "tool_prompt": EMPTY, "transforms": EMPTY, "truncate": EMPTY,
    "truncation_length": _ZERO, "web_search_options": EMPTY,
    "context_length_exceeded_behavior": (None, "error"),
    # tools
    "functions": EMPTY, "function_call": (None, "none", ""), "parse_tool_calls": _ON, "plugins": EMPTY,
    # what an answer has beside the text
    "decoder_input_details": _OFF, "details": _OFF, "echo_last": _ZERO, "kv_transfer_params": EMPTY,
    "logprob_token_ids": EMPTY, "moderation": EMPTY, "n_probs": _ZERO, "post_sampling_probs": _OFF, "raw_output": _OFF,
    "response_fields": EMPTY, "return_entropy": _OFF, "return_hidden_states": EMPTY, "return_prompt_text": EMPTY,
    "return_prompt_token_ids": _OFF, "return_tokens": _OFF,
    "return_tokens_as_token_ids": EMPTY, "token_ids_logprob": EMPTY, "top_n_tokens": _ZERO, "vllm_xargs": EMPTY,
    # fields of the other route
    "add_generation_prompt": (), "chat_template_kwargs": EMPTY, "continue_final_message": _OFF, "echo": _OFF,
    "max_completion_tokens": (), "messages": (), "modalities": (None, ["text"], []), "parallel_tool_calls": (),
    "prompt": EMPTY, "reasoning_end": EMPTY, "tool_choice": (None, "none", "auto"), "tools": EMPTY,
    "thinking_token_budget": _UNLIMITED, "top_logprobs": _ZERO,
}  # fmt: skip
"""Fields that would change the output and are not supported, with their neutral values beside null. A struct that has
a field of such a name reads it itself."""


class FieldNames(NamedTuple):
    """Names of fields that have no place in a body's struct: those without effect, and those that are refused, with
    their neutral values."""

    ignored: frozenset[str]
    refused: Mapping[str, Neutral]

    def is_unknown(self, name: str, value: msgspec.Raw) -> bool:
        """Tells whether a field that no struct has is known nowhere.

        Raises:
            ApiError: it is known, not supported, and its value would change the output.
        """
        if name in self.ignored:
            return False
        if name not in self.refused:
            return True
        if not _is_neutral(bytes(value), self.refused[name]):
            raise _unsupported(name, self.refused[name])
        return False


OPENAI_FIELDS = FieldNames(IGNORED, REFUSED)


def _is_neutral(text: bytes, neutral: Neutral) -> bool:
    if len(text) > _MAX_NEUTRAL_BYTES:
        return False
    value = msgspec.json.decode(text)
    return value is None or any(isinstance(value, bool) == isinstance(each, bool) and value == each for each in neutral)


def _unsupported(name: str, neutral: Neutral) -> ApiError:
    message = f"{name} is not supported by this server"
    shown = [msgspec.json.encode(each).decode() for each in neutral if each not in ("", None)]
    if shown and neutral is not EMPTY:
        message += f", except with the value {' or '.join(shown)}, which has no effect"
    return invalid(name, message, code="unsupported_parameter")
