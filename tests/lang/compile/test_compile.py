"""Compiled programs: what tracing records, what it refuses, and that they do what the function does."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypedDict

import pydantic
import pytest

import bough
from bough.lang.compile.placeholder import CompileError
from bough.runtime.protocol.condition import Hole, Ref
from bough.runtime.protocol.program import Gen, RoleBegin, RoleEnd, Text
from bough.runtime.protocol.template import ResultArgument, ResultList, ResultObject, ResultText, ResultValue


@bough.function
def capital(s, country: str, style: str = "short"):
    """Asks for a capital."""
    s += bough.user(f"What is the capital of {country}? Be {style:>6}.")
    s += bough.assistant(bough.gen("answer", max_tokens=8))


def test_arguments_become_holes():
    compiled = capital.compile(temperature=0)
    assert [parameter.name for parameter in compiled.template.parameters] == ["country", "style"]
    assert compiled.template.parameters[1].default == '"short"'
    assert compiled.template.description == "Asks for a capital."
    begin, text, end, _, gen = compiled.template.ops[:5]
    assert (begin, end) == (RoleBegin(0, "user"), RoleEnd(0))
    parts = ("What is the capital of ", Hole("country"), "? Be ", Hole("style", ">6"), ".")
    assert text == Text(0, parts)
    assert isinstance(gen, Gen) and gen.sampling.temperature == 0 and gen.sampling.max_tokens == 8


def test_it_runs_as_the_function_does():
    backend = bough.MockBackend({"answer": "Paris"})
    compiled = capital.compile([])
    assert compiled.run(country="France", backend=backend) == {"answer": "Paris"}
    capital.run("France", backend=backend)
    first, second = backend.requests
    assert first.ops == second.ops


def test_it_can_be_saved_and_loaded(tmp_path):
    compiled = capital.compile()
    compiled.save(tmp_path / "capital.json")
    loaded = bough.CompiledProgram.load(tmp_path / "capital.json")
    assert loaded.template == compiled.template
    assert loaded.run(country="x", backend=bough.MockBackend({"answer": "y"})) == {"answer": "y"}
    with pytest.raises(bough.RequestError, match="not a compiled program"):
        bough.CompiledProgram.from_json('{"name": 1}')


async def arun(compiled, **arguments):
    return await compiled.arun(**arguments)


def test_it_runs_on_an_event_loop():
    import asyncio

    assert asyncio.run(arun(capital.compile(), country="x", backend=bough.MockBackend({"answer": "y"}))) == {
        "answer": "y"
    }


def test_known_arguments_are_no_holes():
    compiled = capital.compile(country="France", style="long")
    assert compiled.template.parameters == ()
    assert compiled.template.ops[1] == Text(0, ("What is the capital of France? Be   long.",))


def test_the_listing_shows_everything():
    listing = str(capital.compile(temperature=0))
    assert listing.splitlines()[0] == 'program capital(country: string, style: string = "short")'
    assert '0 |   "What is the capital of " {country} "? Be " {style:>6} "."' in listing
    assert "gen answer (max_tokens=8, temperature=0" in listing
    assert listing.splitlines()[-1] == "result {answer: <answer of 0> as text}"


def test_the_cost_is_known_before_it_runs():
    cost = capital.compile().cost(country="France")
    assert (cost.calls, cost.generated_tokens, cost.counted) == (1, 8, False)


@bough.function
def summary(s, texts: list[str], num: int) -> dict[str, object]:
    forks = s.fork(2)
    for fork in forks:
        fork += bough.gen("note", max_tokens=4)
    forks.join()
    s += f"Notes: {s['note'][0]}" + s["note"][1]
    s += bough.gen("total", int)
    s += "Value: " + s["total"]
    s += bough.gen("mood", Literal["good", "bad"])
    return {"notes": s["note"], "total": s["total"], "text": f"<{s['mood']}>", "num": num, "one": 1}


def test_values_can_be_read_and_written_as_if_they_were_known():
    compiled = summary.compile()
    result = compiled.template.result
    assert isinstance(result, ResultObject)
    fields = dict(result.fields)
    assert fields["notes"] == ResultList((ResultValue(Ref(1, "note")), ResultValue(Ref(2, "note"))))
    assert fields["total"] == ResultValue(Ref(0, "total"), "int")
    assert fields["text"] == ResultText(("<", Ref(0, "mood"), ">"))
    assert fields["num"] == ResultArgument(Hole("num"))
    backend = bough.MockBackend({"note": ["a", "b"], "total": "42", "mood": "good"})
    assert compiled.run(texts=["x"], num=3, backend=backend) == {
        "notes": ["a", "b"],
        "total": 42,
        "text": "<good>",
        "num": 3,
        "one": 1,
    }
    assert len(backend.requests) == 1


class Person(pydantic.BaseModel):
    name: str
    age: int


@dataclass
class Address:
    city: str
    owner: Person


class Row(TypedDict):
    key: str


@bough.function
def letter(s, address: Address, row: Row) -> Person:
    s += f"{address.city}, {address.owner.name}: {row['key']}"
    s += bough.gen("person", schema=Person)
    return s["person"]


def test_arguments_with_fields_and_typed_results():
    compiled = letter.compile()
    assert compiled.template.ops[0] == Text(
        0, (Hole("address/city"), ", ", Hole("address/owner/name"), ": ", Hole("row/key"))
    )
    backend = bough.MockBackend({"person": '{"name": "Ada", "age": 36}'})
    owner = Person(name="Bob", age=1)
    address = Address("Rome", owner)
    assert compiled.run(address=address, row={"key": "k"}, backend=backend) == Person(name="Ada", age=36)
    assert backend.requests[0].ops[0] == Text(0, ("Rome, Bob: k",))


@bough.function
def shots(s):
    s += "An example.\n"


@bough.function
def nested(s, question):
    s += shots()
    shots(s)
    s += f"{question}" + bough.gen("answer")
    return s["answer"]


def test_nested_functions_are_part_of_it():
    compiled = nested.compile()
    assert compiled.template.ops[0] == Text(0, ("An example.\nAn example.\n", Hole("question")))


@bough.function
async def asynchronous(s, question):
    s += question + bough.gen("answer")
    return await s.aget("answer")


def test_coroutine_functions_are_compiled_too():
    assert asynchronous.compile().run(question="x", backend=bough.MockBackend({"answer": "y"})) == "y"


def only(body, **known):
    return bough.function(body).compile(**known)


class Color(Enum):
    RED = 1


def looks_at_an_argument(s, x):
    if x == "a":
        s += "b"


def counts_an_argument(s, x):
    s += "b" * len(x)


def loops_over_an_argument(s, x):
    for item in x:
        s += item


def looks_at_a_value(s):
    s += bough.gen("a")
    if s["a"].startswith("b"):
        s += "c"


def calculates_with_a_value(s):
    s += bough.gen("a", int)
    s += f"{s['a'] + 1}"


def reads_the_text(s):
    s += bough.user("b") + bough.assistant(bough.gen("a"))
    s += s.text()


def puts_an_argument_into_an_option(s, x):
    s += bough.gen("a", stop=f"{x}")


def puts_an_argument_into_choices(s, x):
    s += bough.select("a", [x, "b"])


def puts_an_argument_into_json(s, x):
    s += json.dumps({"x": x})


def returns_an_object(s):
    return object()


def test_text_without_roles_is_known_piece_by_piece():
    def doubled(s):
        s += "x" + bough.gen("a")
        s += s.text() + bough.gen("b")

    assert only(doubled).template.ops[2] == Text(0, ("x", Ref(0, "a")))


STRANGE = object()


def has_a_strange_default(s, x=STRANGE):
    """Has a default that is no JSON value."""


def formats_a_value(s):
    s += bough.gen("a", int)
    s += f"{s['a']:05d}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            looks_at_an_argument,
            r"deciding by the argument 'x' .* pass its value, looks_at_an_argument.compile.x=....",
        ),
        (counts_an_argument, "the length of the argument 'x'"),
        (loops_over_an_argument, "a loop over the argument 'x'"),
        (calculates_with_a_value, "calculating with the value 'a' needs its value"),
        (looks_at_a_value, "startswith.. of the value 'a'"),
        (reads_the_text, "waiting for a value"),
        (puts_an_argument_into_an_option, "not in options, choices or constraints"),
        (puts_an_argument_into_choices, "needs its value"),
        (puts_an_argument_into_json, "inside JSON"),
        (returns_an_object, "no JSON value"),
        (formats_a_value, "formatting with '05d' the value 'a'"),
    ],
)
def test_what_cannot_be_compiled_is_refused(body, message):
    with pytest.raises(bough.ProgramError, match=message) as caught:
        only(body)
    if body is not returns_an_object:
        assert caught.value.place is not None and caught.value.place.function == body.__name__


def test_known_arguments_can_be_looked_at():
    assert only(looks_at_an_argument, x="a").template.ops == (Text(0, ("b",)),)
    assert len(only(loops_over_an_argument, x=["p", "q"]).template.parameters) == 0


def test_strange_arguments_are_refused():
    with pytest.raises(bough.RequestError, match="no parameter 'other'"):
        capital.compile(other=1)
    with pytest.raises(bough.RequestError, match="no optimisation 'fast'"):
        capital.compile({"fast"})
    with pytest.raises(CompileError, match="default of 'x' is not a JSON value"):
        only(has_a_strange_default)


@bough.function
def checked(s, limit: int, word: str):
    s += bough.gen("a", int)
    s += bough.when(s.ref("a") >= limit, "big", "small")
    s += bough.when((limit < 3) | s.ref("a").matches("1+"), bough.gen("b"))
    s += bough.repeat_until(bough.var("c") == word, "again " + bough.gen("c"), at_most=3)
    return {"b": s["b"], "c": s["c"]}


@pytest.mark.parametrize(("limit", "b"), [(2, "bb"), (5, None)])
def test_conditions_on_arguments_and_values(limit, b):
    backend = bough.MockBackend({"a": "4", "b": "bb", "c": ["x", "stop", "y"]})
    compiled = bough.CompiledProgram.from_json(checked.compile().to_json())
    assert compiled.run(limit=limit, word="stop", backend=backend) == {"b": b, "c": "stop"}
    ((program),) = backend.requests
    assert not any(isinstance(part, Hole) for op in program.ops if isinstance(op, Text) for part in op.parts)


def test_results_of_enums_and_samples():
    @bough.function
    def several(s):
        s += bough.gen("color", Color)
        s += bough.gen("samples", n=2)

    compiled = several.compile()
    backend = bough.MockBackend({"color": "1"})
    result = compiled.run(backend=backend)
    assert result["color"] is Color.RED
    assert bough.CompiledProgram.from_json(compiled.to_json()).run(backend=backend)["color"] == 1
    assert isinstance(result["samples"], list) and len(result["samples"]) == 2


def test_probabilities_can_be_returned():
    @bough.function
    def mood(s):
        s += "x" + bough.select("mood", ["good", "bad"])
        return {"shares": s.probabilities("mood")}

    result = mood.compile().run(backend=bough.MockBackend({"mood": "good"}))
    assert set(result["shares"]) == {"good", "bad"}

    def looks(s):
        s += bough.select("mood", ["good", "bad"])
        s += f"{s.probabilities('mood')['good']}"

    with pytest.raises(CompileError, match="can be returned"):
        only(looks)


def test_variables_of_blocks_are_results_also_without_a_return():
    @bough.function
    def sides(s):
        s += bough.select("k", ["a", "b"])
        s += bough.when(bough.var("k") == "b", "A" + bough.gen("a"), "B" + bough.gen("b"))
        s += bough.repeat_until(bough.var("c") == "x", bough.gen("c"), at_most=2)

    for choice, expected in (("b", {"a": "p", "b": None}), ("a", {"a": None, "b": "q"})):
        answers = {"k": choice, "a": "p", "b": "q", "c": "x"}
        found = sides.compile().run(backend=bough.MockBackend(answers))
        assert found == {"k": choice, **expected, "c": "x"}
        assert sides.run(backend=bough.MockBackend(answers)).values() == found


@pytest.mark.parametrize("kind", [float, str, Color, Person])
def test_a_value_that_is_generated_in_another_form_cannot_stand_in_text(kind):
    def written(s):
        s += bough.gen("a", kind)
        s += f"{s['a']}"

    with pytest.raises(CompileError, match="differs from its `str`") as caught:
        only(written)
    assert caught.value.place is not None and caught.value.place.function == "written"

    def referred(s):
        s += bough.gen("a", kind)
        s += s.ref("a")
        return s["a"]

    assert isinstance(only(referred).template.result, ResultValue)


def test_cancelling_is_refused():
    def cancels(s):
        branch = s.fork(2)[0]
        branch += bough.gen("a")
        branch.cancel()

    with pytest.raises(CompileError, match="cancelling a branch"):
        only(cancels)


def test_a_failure_is_an_error():
    with pytest.raises(bough.RequestError, match="needs the argument 'country'"):
        capital.compile().run(backend=bough.MockBackend())
