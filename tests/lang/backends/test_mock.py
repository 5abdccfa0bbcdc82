"""The mock backend executes programs faithfully."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Literal

import jsonschema
import pytest

from bough.constrain.spec import Choice, JsonSchema, Lark, Regex, Structural, Tag
from bough.lang.api import assistant, function, gen, select, user
from bough.lang.backends.mock import MockBackend, conforms, make_text
from bough.lang.diagnostics.errors import ProgramError
from bough.runtime.protocol.condition import Ref
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import (
    Done,
    Failed,
    Fork,
    Gen,
    Join,
    Program,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    Value,
)


def execute(*ops, answers=None, **fields):
    return list(MockBackend(answers).run(Program(id="p", ops=ops, **fields)))


def test_answers_by_text_list_and_function():
    backend = MockBackend({"a": "same", "b": ["1", "2"], "c": lambda prompt, name: f"{name} after {prompt}"})

    @function
    def body(s):
        s += "start " + gen("a") + gen("b") + gen("b") + gen("c")

    state = body.run(backend=backend)
    assert (state["a"], state["b"], state["c"]) == ("same", "2", "c after start same12")
    with pytest.raises(ProgramError, match="answers to 'b' are used up"):
        body.run(backend=backend)


def test_one_function_may_answer_all():
    backend = MockBackend(lambda prompt, name: name.upper())
    assert function(lambda s: s.__iadd__(gen("a"))).run(backend=backend)["a"] == "A"


def test_stop_strings_cut_the_answer():
    events = execute(Text(0, ("x",)), Gen(0, "a", sampling=gen_sampling(stop=(".", "!"))), answers={"a": "one! two."})
    value = next(event for event in events if isinstance(event, Value))
    assert (value.text, value.matched) == ("one", "!")
    events = execute(Gen(0, "a", sampling=gen_sampling(stop=".", include_stop=True)), answers={"a": "one. two"})
    assert next(event for event in events if isinstance(event, Value)).text == "one."


def gen_sampling(**fields):
    from bough.runtime.protocol.sampling_params import SamplingParams

    return SamplingParams(**fields)


def test_a_reference_waits_for_a_branch_that_comes_later():
    events = execute(Fork(0, (1, 2)), Text(1, ("<", Ref(2, "x"), ">")), Gen(2, "x"), Join(0, (1, 2), "append"))
    assert events[-1].texts == {0: "<(x)>(x)", 1: "<(x)>", 2: "(x)"}


@pytest.mark.parametrize(
    ("ops", "index", "message"),
    [
        ((Text(0, (Ref(0, "x"),)),), 0, "no value named 'x'"),
        ((Text(0, ("a",)), RoleEnd(0)), 1, "no open message"),
        ((RoleBegin(0, "user"), RoleBegin(0, "user")), 1, "inside a user message"),
        ((Fork(0, (1,)), Text(1, (Ref(0, "x"),)), Join(0, (1,)), Gen(0, "x")), 2, "waits for it"),
        ((Gen(0, "x", grammar=Regex("[0-9]")),), 0, "not what its constraint allows"),
        ((Select(0, "x", ("a", "b")),), 0, "not among its choices"),
    ],
)
def test_a_bad_program_fails_at_its_instruction(ops, index, message):
    (*_, failed) = execute(*ops, answers={"x": "?"})
    assert isinstance(failed, Failed)
    assert failed.index == index
    assert message in failed.error.message


def test_a_branch_that_nobody_forks_is_refused():
    with pytest.raises(RequestError, match="instruction 1 is for branch 7, which does not exist"):
        execute(Text(0, ("a",)), Text(7, ("b",)))


def test_a_kept_state_goes_on_and_a_dropped_one_is_gone():
    backend = MockBackend()
    list(backend.run(Program(id="p", ops=(Gen(0, "x"),), keep=True)))
    (done,) = backend.run(Program(id="p", ops=(Text(0, ("!",)),), keep=True, resume=True))
    assert done == Done(texts={0: "(x)!"}, num_tokens={0: 1})
    backend.drop("p")
    with pytest.raises(RequestError, match="is gone"):
        list(backend.run(Program(id="p", ops=(Gen(0, "y"),), resume=True)))


def test_the_same_id_twice_is_refused():
    backend = MockBackend()
    list(backend.run(Program(id="p", ops=(Gen(0, "x"),), keep=True)))
    with pytest.raises(RequestError, match="exists already"):
        list(backend.run(Program(id="p", ops=(Gen(0, "x"),))))


def test_usage_counts_words():
    (*_, done) = execute(Text(0, ("one two",)), Gen(0, "x"), Gen(0, "y"), answers={"x": " three four", "y": ""})
    assert (done.requests, done.usage.prompt_tokens, done.usage.completion_tokens) == (2, 6, 2)


@dataclass
class Order:
    number: int
    lines: list[str]
    state: Literal["open", "closed"]
    note: str | None = None


def test_made_up_answers_satisfy_their_constraint():
    @function
    def body(s):
        s += user("Hi") + assistant(gen("plain") + gen("n", dtype=int) + gen("f", dtype=float) + gen("b", dtype=bool))
        s += assistant(select("c", ["x", "y"]) + gen("order", schema=Order) + gen("day", regex=r"\d{4}-\d{2}-\d{2}"))

    state = body.run(backend=MockBackend())
    assert state["plain"] == "(plain)"
    assert (state["n"], state["f"], state["b"], state["c"]) == (0, 0.0, True, "x")
    assert state["order"] == Order(0, ["text"], "closed", None)
    assert state["day"] == "2024-01-01"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 5},
        {"type": "integer", "exclusiveMinimum": 5},
        {"type": "string", "minLength": 9},
        {"type": "string", "maxLength": 2},
        {"type": ["null", "string"]},
        {"const": {"a": [1]}},
        {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        {"type": "array", "minItems": 3, "items": {"enum": ["b", "c"]}},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "number"}}},
    ],
)
def test_made_up_json_validates(schema):
    jsonschema.validate(json.loads(make_text(JsonSchema(json.dumps(schema)), "x")), schema)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (Regex("x{17}y"), "x" * 17 + "y"),
        (Lark('start: "a" /[0-9]/+'), "a0"),
        (JsonSchema('{"type": "string", "pattern": "^q+$"}'), '"q"'),
        (JsonSchema('{"type": "number", "exclusiveMinimum": 0.5, "maximum": 0.75}'), "0.75"),
        (JsonSchema('{"type": "array", "uniqueItems": true, "minItems": 2, "items": {"enum": [1, 2]}}'), None),
        (JsonSchema('{"not": {"type": "null"}}'), None),
        (Structural(tags=(Tag("<a>", Regex("[0-9]+"), "</a>"),), triggers=("<a",), at_least_one=True), "<a>0</a>"),
        (Structural(tags=(Tag("<a>", Regex("[0-9]+"), "</a>"),), triggers=("<a",)), "(x)"),
    ],
)
def test_where_no_guess_is_right_the_constraint_itself_gives_a_text(spec, text):
    made = make_text(spec, "x")
    assert text in (made, None)
    assert conforms(made, spec)


def test_what_cannot_be_made_up_is_asked_for():
    with pytest.raises(RequestError, match="give one") as caught:
        make_text(JsonSchema('{"not": {}}'), "x")
    assert caught.value.param == "answers"


def test_conforms():
    assert conforms("a", Choice(("a", "b"))) and not conforms("c", Choice(("a", "b")))
    assert conforms("anything", None)
    assert not conforms("{", JsonSchema("{}"))


def test_threads_share_a_list_of_answers():
    backend = MockBackend({"x": [str(i) for i in range(40)]})
    body = function(lambda s: s.__iadd__(gen("x")))
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(body.run(backend=backend)["x"])) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen, key=int) == [str(i) for i in range(40)]
