"""The words: what they accept, what they refuse, and where they say it was."""

from __future__ import annotations

import enum
from typing import Any, Literal

import pytest

from bough.constrain.spec import Choice, JsonSchema, Lark, Regex
from bough.lang import api
from bough.lang.api import gen, image, select, user
from bough.lang.backend import use_backend
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError, UnsupportedError
from bough.lang.record.choices import token_length_normalized
from bough.lang.record.expression import Choose, Generate, Picture
from bough.runtime.protocol.errors import RequestError

from .fakes import FakeBackend


def test_every_word_is_there():
    assert all(hasattr(api, name) for name in api.__all__)
    assert api.__all__ == sorted(api.__all__)


@pytest.mark.parametrize(
    ("arguments", "grammar"),
    [
        ({"regex": "a+"}, Regex("a+")),
        ({"regex": "[0-9]{4}", "dtype": int}, Regex("[0-9]{4}")),
        ({"json_schema": {"type": "null"}}, JsonSchema('{"type": "null"}', property_order="schema")),
        ({"json_schema": '{"type":"null"}'}, JsonSchema('{"type":"null"}', property_order="schema")),
        ({"schema": {"type": "null"}}, JsonSchema('{"type": "null"}', property_order="schema")),
        ({"ebnf": 'start: "a"'}, Lark('start: "a"')),
        ({"grammar": 'start: "a"'}, Lark('start: "a"')),
        ({"grammar": Choice(("a",))}, Choice(("a",))),
        ({}, None),
    ],
)
def test_constraints(arguments, grammar):
    expression = gen("x", **arguments)
    assert isinstance(expression, Generate)
    assert expression.grammar == grammar


def generation(**arguments) -> Generate:
    expression = gen("x", **arguments)
    assert isinstance(expression, Generate)
    return expression


def test_a_pattern_with_a_type_is_converted():
    assert generation(regex="[0-9]{4}", dtype=int).convert("1999") == 1999
    assert generation(regex="[a-z]+", dtype=str).convert("abc") == "abc"


@pytest.mark.parametrize(
    "arguments",
    [
        {"regex": "a", "json_schema": {}},
        {"dtype": int, "schema": int},
        {"choices": ["a"], "regex": "a"},
        {"ebnf": "a", "grammar": "a"},
        {"ebnf": 3},
        {"temperature": -1.0},
        {"max_tokens": 3, "max_new_tokens": 4},
        {"stop": [""]},
        {"choices": []},
    ],
)
def test_what_contradicts_itself_is_refused_where_it_is_written(arguments):
    with pytest.raises(RequestError):
        gen("x", **arguments)


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="temperatur"):
        generation(temperatur=1)


def test_gen_with_choices_is_a_select():
    expression = gen("x", choices=["a", "b"], choices_method="greedy_token_selection")
    assert isinstance(expression, Choose)
    assert (expression.choices, expression.method) == (("a", "b"), "greedy_token_selection")


@pytest.mark.parametrize(
    "arguments",
    [
        {"choices": None},
        {"choices": "ab"},
        {"choices": ["a", ""]},
        {"choices": ["a", "a"]},
        {"choices": ["a", 1]},
        {"choices": ["a"], "temperature": 0.7},
        {"choices": ["a"], "choices_method": "luck"},
    ],
)
def test_select_refuses(arguments):
    with pytest.raises(RequestError):
        select("x", **arguments)


def test_logprob_options_are_one():
    assert generation().options == {}
    assert generation(return_logprob=True).options == {"logprobs": 0}
    assert generation(return_logprob=True, top_logprobs_num=5).options == {"logprobs": 5}


def test_a_message_holds_text_and_expressions_only():
    with pytest.raises(ProgramError, match="a message contains text"):
        user(3)  # type: ignore[arg-type]


def test_expressions_remember_their_line():
    expression = gen("x")
    assert expression.place.file == __file__
    assert expression.place.function == "test_expressions_remember_their_line"


def test_adding_what_is_no_expression_is_a_type_error():
    things: list[Any] = [3, None, ["a"]]
    for thing in things:
        with pytest.raises(TypeError):
            gen("x") + thing
        with pytest.raises(TypeError):
            thing + gen("x")


def test_image_takes_paths_and_bytes():
    assert isinstance(image("a.png"), Picture)
    assert image(b"data").source == b"data"


def test_flush_cache_uses_the_default_backend():
    assert api.flush_cache(MockBackend())

    with use_backend(MockBackend()):
        assert api.flush_cache()
    with pytest.raises(ProgramError, match="no backend"):
        api.flush_cache()


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


@pytest.mark.parametrize("kind", [int, Level, Literal["a", "b"], list[int], {"type": "null"}, '{"type": "null"}'])
def test_a_type_may_stand_second(kind):
    second, named = gen("x", kind, max_tokens=7), generation(type=kind, max_tokens=7)
    assert isinstance(second, Generate)
    assert (second.grammar, second.options, second.kind) == (named.grammar, named.options, named.kind)


def test_a_limit_may_stand_second():
    expression = gen("x", 7)
    assert isinstance(expression, Generate)
    assert expression.options == {"max_tokens": 7}
    assert expression.grammar is None


@pytest.mark.parametrize("arguments", [("x", 7), ("x", int)])
def test_what_stands_second_is_given_once(arguments):
    with pytest.raises(RequestError, match="given twice"):
        gen(*arguments, max_tokens=8, type=float)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "kind"), [("int", int), ("float", float), ("bool", bool), ("string", str), ("str", str)]
)
def test_types_by_name(name, kind):
    assert generation(dtype=name).kind is kind


def test_several_patterns_stop():
    assert generation(stop_regex=["a|b", "c"]).options == {"stop_regex": "(?:a|b)|(?:c)"}
    assert generation(stop_regex=[]).options == {}


def test_choices_by_an_object():
    expression = select("x", ["a", "b"], 0.0, token_length_normalized)
    assert expression.method == "token_length_normalized"


def test_gen_with_choices_checks_its_options():
    assert isinstance(gen("x", choices=["a", "b"], max_tokens=3, stop="."), Choose)
    with pytest.raises(RequestError):
        gen("x", choices=["a", "b"], max_tokens=-3)
    with pytest.raises(RequestError, match="temperature must be 0"):
        gen("x", choices=["a", "b"], temperature=0.5)


def test_a_backend_that_says_nothing_of_itself():
    backend: Any = FakeBackend(lambda program: iter(()))
    with use_backend(backend), pytest.raises(UnsupportedError, match="FakeBackend"):
        api.get_server_info()


def test_a_video_needs_frames():
    with pytest.raises(RequestError, match="num_frames"):
        api.video("cat.mp4", 0)
