"""Fields of all engines whose clients may come: each is honoured or refused by its name, and none is dropped."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from bough.server.config import ServerConfig
from bough.server.openai.fields import IGNORED, REFUSED
from bough.server.openai.objects import ChatBody, CompletionBody, GenerationBody

from ..conftest import Running, running
from ..fake_client import ByteTokenizer, FakeClient

HI = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, tuple[type[GenerationBody], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatBody, {"model": "m", "messages": HI}),
    "/v1/completions": (CompletionBody, {"model": "m", "prompt": "hi"}),
}


def another(neutral: Sequence[Any]) -> Any:
    """A value of the kind of the neutral ones that is none of them."""
    first = next((value for value in neutral if value is not None), 7)
    if isinstance(first, bool):
        return "x" if len(neutral) > 1 else not first
    if isinstance(first, int):
        return 0.5
    return ["x"] if isinstance(first, list) else 7


def server_counts(server: Running) -> str:
    """The line of the unknown fields in the server's metrics."""
    lines = server.http().get("/metrics").text.splitlines()
    return next(line for line in lines if line.startswith("bough_unknown_fields_total"))


@pytest.mark.parametrize("path", ROUTES)
def test_a_field_that_is_not_supported_may_have_its_neutral_values(server: Running, path: str) -> None:
    kind, plain = ROUTES[path]
    http, wrong = server.http(), list[str]()
    unknown = server_counts(server)
    for name in sorted(REFUSED.keys() - set(kind.__struct_fields__)):
        for value in (None, *REFUSED[name]):
            response = http.post(path, json={**plain, name: value})
            if response.status_code != 200:
                wrong.append(f"{name}={value}: {response.text}")
        response = http.post(path, json={**plain, name: another(REFUSED[name])})
        error = response.json().get("error", {})
        if (response.status_code, error.get("code"), error.get("param")) != (400, "unsupported_parameter", name):
            wrong.append(f"{name}={another(REFUSED[name])}: {response.text}")
    assert wrong == []
    assert server_counts(server) == unknown


@pytest.mark.parametrize(
    ("name", "value"),
    [("typical_p", True), ("mirostat", False), ("xtc_probability", "0"), ("dry_multiplier", 1e-9), ("do_sample", 1)],
)
def test_a_neutral_value_has_its_type(server: Running, name: str, value: Any) -> None:
    for path, (_, plain) in ROUTES.items():
        response = server.http().post(path, json={**plain, name: value})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def test_a_refusal_says_which_value_has_no_effect(server: Running) -> None:
    response = server.http().post("/v1/completions", json={"model": "m", "prompt": "hi", "top_n_sigma": 2})
    assert "except with the value -1 or 0" in response.json()["error"]["message"]
    response = server.http().post("/v1/completions", json={"model": "m", "prompt": "hi", "adapter": "x"})
    assert response.json()["error"]["message"] == "adapter is not supported by this server"
    long = json.dumps({"model": "m", "prompt": "hi", "adapter": "x" * 100_000})
    headers = {"content-type": "application/json"}
    response = server.http().post("/v1/completions", content=long, headers=headers)
    assert (response.status_code, len(response.content) < 300) == (400, True)


def test_no_field_is_both_ignored_and_refused() -> None:
    assert IGNORED.isdisjoint(REFUSED)
    for kind, _ in ROUTES.values():
        assert IGNORED.isdisjoint(kind.__struct_fields__)


def test_more_candidates_than_choices_are_refused_on_both_routes(server: Running) -> None:
    for path, (_, plain) in ROUTES.items():
        response = server.http().post(path, json={**plain, "n": 2, "best_of": 3})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "best_of")
        assert server.http().post(path, json={**plain, "n": 2, "best_of": 2}).status_code == 200


# What each engine documents, with a value that must change an answer to the bodies above


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "integer"}
GRAMMAR = 'root ::= "a"'

SHARED: dict[str, Any] = {
    # OpenAI
    "best_of": 3, "echo": True, "frequency_penalty": 0.5, "function_call": {"name": "f"},
    "functions": [TOOL["function"]], "moderation": {"model": "x"}, "logit_bias": {"65": 5}, "logprobs": 1,
    "max_completion_tokens": 3, "max_tokens": 3, "messages": HI,
    "modalities": ["audio"], "n": 2, "parallel_tool_calls": False, "presence_penalty": 0.5, "prompt": "other",
    "reasoning_effort": "low",
    "response_format": {"type": "json_object"}, "seed": 7, "stop": ["x"], "stream": True,
    "stream_options": {"include_usage": True}, "suffix": "x", "temperature": 0.5, "tool_choice": "required",
    "tools": [TOOL], "top_logprobs": 2, "top_p": 0.5, "web_search_options": {"search_context_size": "low"},
    "audio": {"format": "wav", "voice": "alloy"},
    # vLLM
    "add_generation_prompt": False, "add_special_tokens": False, "allowed_token_ids": [65], "bad_words": ["a"],
    "cache_salt": "s", "chat_template": "x", "chat_template_kwargs": {"a": 1}, "continue_final_message": True,
    "documents": [{"title": "t", "text": "x"}], "guided_choice": ["a"], "guided_grammar": GRAMMAR,
    "guided_json": SCHEMA, "guided_regex": "a", "guided_whitespace_pattern": " ", "ignore_eos": True,
    "include_reasoning": False, "include_stop_str_in_output": True, "kv_transfer_params": {"a": 1},
    "length_penalty": 2.0, "logprob_token_ids": [65], "min_p": 0.5, "min_tokens": 3,
    "mm_processor_kwargs": {"a": 1}, "priority": 5, "prompt_embeds": "AAAA", "prompt_logprobs": 1,
    "repetition_detection": {"min_count": 2}, "repetition_penalty": 1.5, "return_prompt_text": True,
    "return_token_ids": True, "return_tokens_as_token_ids": True, "skip_special_tokens": False,
    "stop_token_ids": [65], "structured_outputs": {"choice": ["a"]}, "thinking_token_budget": 5, "top_k": 5,
    "truncate_prompt_tokens": 1, "truncation_side": "right", "use_beam_search": True, "vllm_xargs": {"a": 1},
    "logits_processors": ["x"],
    # SGLang
    "beam_width": 4, "custom_logit_processor": "x", "custom_params": {"a": 1}, "ebnf": GRAMMAR, "input_embeds": [[0.5]],
    "input_ids": [1], "json_schema": SCHEMA, "lora_path": "x", "max_thinking_tokens": 5, "no_stop_trim": True,
    "regex": "a", "return_entropy": True, "return_hidden_states": True, "return_prompt_token_ids": True,
    "sampling_seed": 7, "separate_reasoning": False, "session_id": "s", "session_params": {"id": "s"},
    "stop_regex": "a", "stream_reasoning": False, "structural_tag": '{"format": {"type": "regex", "pattern": "a"}}',
    "thinking": {"type": "enabled"}, "token_ids_logprob": [65], "watermark": True,
    # llama.cpp and its kin
    "adaptive_target": 0.5, "dry_multiplier": 0.8, "dynatemp_range": 0.5, "epsilon_cutoff": 3, "eta_cutoff": 3,
    "grammar": GRAMMAR, "lora": [{"id": 0, "scale": 1}], "min_keep": 5, "mirostat": 2, "mirostat_mode": 2,
    "n_indent": 4, "n_predict": 3, "n_probs": 3, "parse_tool_calls": False, "post_sampling_probs": True,
    "reasoning_budget": 0, "reasoning_format": "none", "repeat_last_n": 64, "repeat_penalty": 1.1,
    "response_fields": ["content"], "return_tokens": True, "samplers": ["top_k"], "smoothing_factor": 0.2,
    "t_max_predict_ms": 100, "tfs_z": 0.9, "thinking_forced_open": True, "top_a": 0.2, "top_n_sigma": 1.0,
    "typical_p": 0.9, "xtc_probability": 0.5,
    # TGI
    "adapter_id": "x", "decoder_input_details": True, "details": True, "do_sample": False, "guideline": "x",
    "max_new_tokens": 3, "tool_prompt": "x", "top_n_tokens": 2, "truncate": 1,
    # Ollama
    "format": "json", "images": ["AAAA"], "num_predict": 3, "options": {"top_k": 1}, "system": "x", "think": True,
    # Together, Fireworks, OpenRouter, Mistral and others
    "context_length_exceeded_behavior": "truncate", "echo_last": 2, "guided_json_object": True, "mirostat_target": 5.0,
    "models": ["x"], "output_format": {"type": "json_schema", "schema": SCHEMA}, "prompt_truncate_len": 1,
    "random_seed": 7, "raw_output": True, "reasoning": {"effort": "high"}, "response_schema": SCHEMA,
    "safe_prompt": True, "safety_model": "x", "transforms": ["x"],
    # bough
    "constraint_policy": "best_effort", "reasoning_end": "</r>", "token_healing": True, "unnamed_properties": "allow",
}  # fmt: skip

CHAT_VALUES: dict[str, Any] = {
    "add_special_tokens": True,
    "logprobs": True,
    "messages": [{"role": "user", "content": "other"}],
}
"""Values of fields that chats have in a form of their own."""

COMPANIONS: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "parallel_tool_calls": {"tools": [TOOL]},
    "tool_choice": {"tools": [TOOL]},
    "function_call": {"functions": [TOOL["function"]]},
    "constraint_policy": {"guided_json": SCHEMA},
    "reasoning_end": {"guided_json": SCHEMA},
    "truncation_side": {"truncate_prompt_tokens": 1},
    "unnamed_properties": {"guided_json": {"properties": {}}},
    "token_healing": {"continue_final_message": True},
    "best_of": {"n": 2},
    "no_stop_trim": {"stop": "x"},
}
"""Fields that must stand beside another for it to have a meaning, on the route that has it."""

NEVER = frozenset({
    "user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "verbosity", "prediction", "request_id", "rid", "id_slot",
    "cache_prompt", "timings_per_token",
    "return_progress", "return_cached_tokens_details", "spaces_between_special_tokens", "stream_interval", "keep_alive",
    "no_logs", "mirostat_tau", "mirostat_eta", "dry_base", "dry_allowed_length", "xtc_threshold", "dynatemp_exponent",
})  # fmt: skip
"""Fields that cannot change an answer."""

SAID = {"metadata": {"a": "b"}, "prediction": {"type": "content", "content": "x"}}


class OpenTokenizer(ByteTokenizer):
    """Writes into the prompt of a chat whatever the template was given; other prompts have a token before them."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        return self.encode(json.dumps([messages, options]))

    def encode_prompt(self, text: str, *, special: bool = False) -> list[int]:
        return [1, *self.encode(text)]


@pytest.fixture(scope="module")
def opened() -> Iterator[Running]:
    config = ServerConfig(port=0, served_model_name="m", request_log=False)
    with running(
        FakeClient(tokenizer=OpenTokenizer(template="tools <tool_call> arguments documents reasoning_effort")), config
    ) as server:
        yield server


def outcome(server: Running, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status of the answer, and all that the engine was asked and the client was told, or the error."""
    server.engine.asked.clear()
    response = server.http().post(path, json=body)
    if response.status_code != 200:
        return response.status_code, response.json()["error"]
    told = re.sub(r'"(id|created)":("[^"]*"|\d+)', "", response.text)
    return 200, ([msgspec.structs.replace(request, id="") for request in server.engine.asked], told)


def values(path: str) -> dict[str, Any]:
    return SHARED | (CHAT_VALUES if path.endswith("chat/completions") else {})


@pytest.mark.parametrize("path", ROUTES)
def test_each_documented_field_has_an_effect_or_is_refused_by_name(opened: Running, path: str) -> None:
    kind, plain = ROUTES[path]
    dropped = []
    for name, value in values(path).items():
        beside = COMPANIONS.get(name, {}) if name in kind.__struct_fields__ else {}
        beside = {key: value for key, value in beside.items() if key in kind.__struct_fields__}
        before = outcome(opened, path, plain | beside)
        assert before[0] == 200, (name, before)
        status, found = outcome(opened, path, plain | beside | {name: value})
        if status == 400:
            if not str(found["param"]).startswith(name):
                dropped.append(f"{name}: {found}")
        elif (status, found) == before:
            dropped.append(f"{name} is dropped")
    assert dropped == []


@pytest.mark.parametrize("path", ROUTES)
def test_a_field_that_cannot_change_the_answer_does_not(opened: Running, path: str) -> None:
    _, plain = ROUTES[path]
    before = outcome(opened, path, plain)
    for name in sorted(NEVER):
        assert outcome(opened, path, {**plain, name: SAID.get(name, "x")}) == before, name


def test_every_known_field_is_in_one_of_the_lists() -> None:
    """Those of the official client, of the served bodies, and of the tables."""
    official = (chat_params.CompletionCreateParamsBase, completion_params.CompletionCreateParamsBase)
    named = {name for kind in official for name in typing.get_type_hints(kind)}
    named |= {name for kind, _ in ROUTES.values() for name in kind.__struct_fields__}
    assert named - SHARED.keys() - NEVER - {"model"} == set()
    assert NEVER.isdisjoint(SHARED)
    assert NEVER - {"user", "metadata"} <= IGNORED
