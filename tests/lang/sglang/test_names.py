"""Every name that SGLang's programs use is there, with its parameters in the same order."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import bough as sgl
from bough.lang.sglang.words import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR

NAMES = [
    "function", "gen", "gen_int", "gen_string", "select", "image", "video", "system", "user", "assistant",
    "system_begin", "system_end", "user_begin", "user_end", "assistant_begin", "assistant_end", "separate_reasoning",
    "set_default_backend", "flush_cache", "get_server_info", "Runtime", "RuntimeEndpoint", "Engine", "ServerArgs",
    "OpenAI", "Anthropic", "LiteLLM", "VertexAI", "Crusoe", "global_config", "greedy_token_selection",
    "token_length_normalized", "unconditional_likelihood_normalized",
]  # fmt: skip
ABSENT = ("LiteLLM", "VertexAI", "Crusoe")

GEN = [
    "name", "max_tokens", "min_tokens", "n", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k",
    "min_p", "frequency_penalty", "presence_penalty", "ignore_eos", "return_logprob", "logprob_start_len",
    "top_logprobs_num", "return_text_in_logprobs", "dtype", "choices", "choices_method", "regex", "json_schema",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there(name):
    assert getattr(sgl, name) is not None
    assert name in sgl.__all__


@pytest.mark.parametrize("name", ABSENT)
def test_an_absent_backend_says_what_to_use(name):
    with pytest.raises(sgl.ProgramError, match=r"OpenAI\("):
        getattr(sgl, name)("model")


def test_parameters_of_gen_stand_in_the_same_order():
    places = [parameter.name for parameter in inspect.signature(sgl.gen).parameters.values()]
    assert places[: len(GEN)] == GEN
    rest = [
        name for name in GEN if name not in ("min_tokens", "dtype", "choices", "choices_method", "regex", "json_schema")
    ]
    for word in (sgl.gen_int, sgl.gen_string):
        assert list(inspect.signature(word).parameters)[: len(rest)] == rest


def test_parameters_of_the_others():
    assert list(inspect.signature(sgl.select).parameters) == ["name", "choices", "temperature", "choices_method"]
    assert list(inspect.signature(sgl.function).parameters) == ["func", "num_api_spec_tokens"]
    expected = ["base_url", "api_key", "verify", "chat_template_name"]
    assert list(inspect.signature(sgl.RuntimeEndpoint).parameters) == expected


def test_every_parameter_by_its_place():
    by_place: Any = sgl.gen("x", 8, 2, 1, ["."], [3], None, 0.5, 0.9, 40, 0.1, 0.2, 0.3, True, True, -1, 2, True, int)
    by_name: Any = sgl.gen(
        "x", max_tokens=8, min_tokens=2, n=1, stop=["."], stop_token_ids=[3], temperature=0.5, top_p=0.9, top_k=40,
        min_p=0.1, frequency_penalty=0.2, presence_penalty=0.3, ignore_eos=True, logprobs=2, dtype=int,
    )  # fmt: skip
    assert by_place.options == by_name.options
    assert by_place.grammar == by_name.grammar


def test_a_place_too_many_or_an_option_in_two_ways():
    too_many: Any = [None] * 24
    with pytest.raises(TypeError, match="at most 21 options by position, got 22"):
        sgl.gen(*too_many)
    with pytest.raises(TypeError, match="multiple values for argument 'min_tokens'"):
        sgl.gen("x", 8, 2, min_tokens=3)
    with pytest.raises(TypeError, match="multiple values for argument 'n'"):
        sgl.gen_int("x", 8, 2, n=3)
    options = sgl.gen_int("x", 8, 2).options
    assert (options["max_tokens"], options["n"]) == (8, 2)


def test_a_program_keeps_its_number_of_speculated_tokens():
    program = sgl.function(num_api_spec_tokens=64)(lambda s, x: None)
    assert program.num_api_spec_tokens == 64
    assert program.bind(x=1).num_api_spec_tokens == 64


def test_global_config():
    config = sgl.global_config
    assert config.default_backend is None
    backend = sgl.MockBackend()
    config.default_backend = backend
    assert sgl.global_config.default_backend is backend
    sgl.set_default_backend(None)
    config.enable_parallel_encoding = False
    config.enable_parallel_encoding = True
    config.verbosity = 0
    with pytest.raises(ValueError, match="verbosity"):
        config.verbosity = 2
    with pytest.raises(AttributeError, match="verbose"):
        config.verbose = True


def test_options_of_run():
    program = sgl.function(lambda s: s.__iadd__("a" + sgl.gen("x")))
    backend = sgl.MockBackend({"x": "b"})
    state = program.run(
        max_new_tokens=4, n=1, stop=[], stop_token_ids=[], stop_regex=None, temperature=1.0, top_p=1.0, top_k=-1,
        min_p=0.0, frequency_penalty=0.0, presence_penalty=0.0, ignore_eos=False, return_logprob=None,
        logprob_start_len=None, top_logprobs_num=None, return_text_in_logprobs=None, stream=False, backend=backend,
        use_thread=False,
    )  # fmt: skip
    assert state["x"] == "b"


def test_patterns():
    assert all(isinstance(pattern, str) for pattern in (REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR))
