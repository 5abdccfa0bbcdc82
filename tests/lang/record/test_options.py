"""Options of the wrong type: refused on the line that gives them, by name, with what was given and what is wanted."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest

import bough
from bough import MockBackend, RequestError, function, gen


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("max_tokens", "a", "a whole number, got 'a' (str)"),
        ("max_tokens", 2.5, "a whole number, got 2.5 (float)"),
        ("max_tokens", True, "a whole number, got True (bool)"),
        ("max_new_tokens", "9", "a whole number"),
        ("min_tokens", 1.0, "a whole number"),
        ("n", "2", "a whole number"),
        ("seed", "x", "a whole number"),
        ("top_k", 1.5, "a whole number"),
        ("logprobs", "1", "a whole number"),
        ("temperature", "0", "a number, got '0' (str)"),
        ("top_p", None.__class__, "a number"),
        ("repetition_penalty", True, "a number"),
        ("stop", 5, "text, or a list of texts, got 5 (int)"),
        ("stop", ["a", 5], "text, or a list of texts"),
        ("stop", {"a": 1}, "text, or a list of texts"),
        ("stop_regex", [1], "text, or a list of texts"),
        ("stop_token_ids", 5, "a list of token ids"),
        ("stop_token_ids", ["a"], "a list of token ids"),
        ("logit_bias", {"x": 1}, "a dict of numbers by token id"),
        ("logit_bias", [1], "a dict of numbers by token id"),
        ("ignore_eos", "yes", "True or False"),
        ("include_stop", 1, "True or False"),
        ("timeout_s", "x", "a number of seconds"),
        ("timeout_s", -1, "more than 0, got -1"),
        ("name", 5, "text, the name of a variable"),
    ],
)
def test_of_gen(name, value, wanted):
    with pytest.raises(RequestError) as caught:
        gen(**{name: value})
    assert caught.value.param == name
    assert wanted in str(caught.value)
    assert any(frame.filename == __file__ for frame in traceback.extract_tb(caught.value.__traceback__))


def test_numbers_of_other_kinds_are_numbers():
    given: Any = {"max_tokens": np.int64(5), "temperature": np.float32(0.5), "stop": iter(["a"])}
    given["logit_bias"] = {np.int32(3): 1}
    made = gen("x", **given)
    assert made.options == {"max_tokens": 5, "temperature": 0.5, "logit_bias": {3: 1}, "stop": ("a",)}
    assert [type(made.options[name]) for name in ("max_tokens", "temperature")] == [int, float]


@function
def program(s: Any, x: str = "", **more: Any) -> None:
    s += "a" + gen("k")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_tokens": "a"}, "max_tokens must be a whole number"),
        ({"timeout_s": "a"}, "timeout_s must be a number of seconds"),
        ({"trace": "yes"}, "trace must be True or False"),
        ({"namespace": 4}, "namespace must be text"),
        ({"backend": "http://x"}, "use backend=bough.HttpBackend('http://x')"),
        ({"backend": "some/model"}, "use backend=bough.LocalBackend('some/model')"),
        ({"backend": MockBackend}, "create an instance, backend=bough.MockBackend"),
        ({"backend": 5}, "such as bough.LocalBackend"),
    ],
)
def test_of_run(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        program.run(**{"backend": MockBackend(), **options})
    assert said in str(caught.value)


def test_a_default_backend_that_is_none() -> None:
    with pytest.raises(RequestError, match="HttpBackend"):
        bough.set_default_backend("http://x")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="HttpBackend"), bough.use_backend("https://x"):  # type: ignore[arg-type]
        raise AssertionError


def test_arguments_that_there_are_not() -> None:
    @function
    def capital(s: Any, country: str) -> None:
        s += country + gen("city")

    with pytest.raises(TypeError, match="'county': did you mean 'country'"):
        capital.run(county="x", backend=MockBackend())
    with pytest.raises(TypeError, match="'temprature': did you mean 'temperature'"):
        capital.run("x", temprature=0, backend=MockBackend())
    with pytest.raises(TypeError, match="'temprature': did you mean 'temperature'"):
        gen("x", temprature=0)  # type: ignore[call-overload]
    items = [{"country": "x"}, {"county": "x"}]
    states = capital.run_batch(items, backend=MockBackend())
    assert [type(state.error()) for state in states] == [type(None), TypeError]


@pytest.mark.parametrize("size", ["2", 2.0, True, None, 0, -1])
def test_of_fork(size: Any) -> None:
    with pytest.raises(bough.ProgramError, match=f"takes the number of branches.*got {size!r}") as caught:
        function(lambda s: s.fork(size)).run(backend=MockBackend())
    assert caught.value.place is not None
    assert caught.value.place.file == __file__


def test_of_retries() -> None:
    with pytest.raises(bough.ProgramError, match="retries must be at least 0, got '1'"):
        function(lambda s: s.fork(2, isolated=True, retries="1")).run(backend=MockBackend())


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ([], "got none"),
        (None, "got None"),
        ("abc", "got 'abc'"),
        ([1, "a"], "got 1 among them"),
        (["a", ""], "got '' among them"),
        (["a", "b", "a"], "'a' is there twice"),
    ],
)
def test_of_choices(choices: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        bough.select("k", choices)
    assert caught.value.param == "choices"


@pytest.mark.parametrize(
    "make",
    [
        lambda n: gen("x", max_tokens=n),
        lambda n: gen("x", temperature=n),
        lambda n: gen("x", stop=n),
        lambda n: gen("x", stop=[n]),
        lambda n: gen("x", regex=n),
        lambda n: bough.select("x", n),
        lambda n: bough.select("x", [n, "b"]),
        lambda n: bough.when(bough.var("q").matches(n), "x"),
    ],
)
def test_an_argument_as_an_option_is_refused_by_compile_at_the_line_of_the_program(make: Any) -> None:
    def body(s: Any, n: Any) -> None:
        s += gen("q")
        s += make(n)

    with pytest.raises(bough.CompileError) as caught:
        function(body).compile()
    assert caught.value.place is not None
    assert caught.value.place.file == __file__
