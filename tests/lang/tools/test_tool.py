"""Tools: what they are made of, and how programs use them."""

from __future__ import annotations

import asyncio
import datetime
import enum
import json
import threading
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import pydantic
import pytest

from bough.lang.api import assistant, function, gen, user
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError, UnsupportedError
from bough.lang.tools.tool import Tool, tool, use
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Ref, Use

from ..fakes import FakeBackend


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    city: str
    zip_code: int | None = None


@tool
def search(query: str, limit: int = 3, colour: Colour = Colour.RED) -> list[str]:
    """Looks something up."""
    return [f"{query}/{limit}/{colour.name}"]


def called(tool: Tool[..., Any], **arguments: Any) -> str:
    """Result of a tool that is no coroutine function."""
    result = tool.call(arguments)
    assert isinstance(result, str)
    return result


def test_a_tool_is_still_a_function():
    assert isinstance(search, Tool)
    assert search("a", limit=2) == ["a/2/RED"]
    assert search.__name__ == "search"


def test_annotations_are_the_schema():
    assert (search.name, search.description, search.timeout_s) == ("search", "Looks something up.", None)
    assert search.parameters["required"] == ["query"]
    assert search.parameters["additionalProperties"] is False
    properties = search.parameters["properties"]
    assert properties["query"] == {"type": "string"}
    assert properties["limit"] == {"type": "integer", "default": 3}

    @tool(name="at", description="d", timeout_s=2.5, max_chars=10)
    def somewhere(place: Place, kind: Literal["a", "b"], anything: Any = None) -> str:
        return ""

    assert (somewhere.name, somewhere.description, somewhere.timeout_s, somewhere.max_chars) == ("at", "d", 2.5, 10)
    assert set(somewhere.parameters["$defs"]) == {"Place"}


def test_arguments_get_their_types_and_results_are_text():
    assert search.call({"query": "x", "colour": "blue"}) == '["x/3/BLUE"]'

    @tool
    def where(place: Place) -> Place:
        assert isinstance(place, Place)
        return place

    assert json.loads(called(where, place={"city": "Wien", "zip_code": 1010})) == {"city": "Wien", "zip_code": 1010}


def test_a_pydantic_model_is_an_argument_and_a_result():
    class Person(pydantic.BaseModel):
        name: str
        age: int = 3

    def older(person):
        assert isinstance(person, Person)
        return Person(name=person.name, age=person.age + 1)

    older.__annotations__ = {"person": Person, "return": Person}
    assert json.loads(called(tool(older), person={"name": "Ada"})) == {"name": "Ada", "age": 4}


def test_an_async_function_is_a_tool():
    @tool
    async def slow(x: int) -> int:
        return x + 1

    async def wait(result):
        return await result

    assert asyncio.run(wait(slow.call({"x": 1}))) == "2"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [({}, "'query' is missing"), ({"query": "a", "what": 1}, "no parameter 'what'"), ({"query": 3}, "'query' of tool")],
)
def test_wrong_arguments_are_refused(arguments, match):
    with pytest.raises(RequestError, match=match):
        search.call(arguments)


def test_a_function_that_cannot_be_called_by_name_is_no_tool():
    with pytest.raises(RequestError, match="cannot be passed by name"):

        @tool
        def many(*values: int) -> None: ...

    with pytest.raises(RequestError, match="has no JSON type"):

        @tool
        def odd(value: threading.Thread) -> None: ...

    with pytest.raises(RequestError, match="name has"):
        tool(lambda: "")


# In programs


def run(body, answers=None):
    with closing(MockBackend(answers)) as backend:
        return function(body).run(backend=backend), backend


def test_a_program_uses_a_tool_in_one_request():
    def body(s):
        s += user("Q") + assistant("Look up " + gen("query"))
        s += user("Found: " + use("found", search, query=s.ref("query"), limit=1))
        s += assistant(gen("answer"))

    state, backend = run(body, {"query": "cats"})
    (program,) = backend.requests
    (op,) = (op for op in program.ops if isinstance(op, Use))
    assert op == Use(0, "found", "search", (("query", (Ref(0, "query"),)), ("limit", ("1",))))
    assert state["found"] == '["cats/1/RED"]'
    assert state.messages()[2]["content"] == 'Found: ["cats/1/RED"]'
    assert state.history("found") == ['["cats/1/RED"]']


def test_arguments_are_texts_with_references_or_json():
    seen = []

    @tool
    def take(text: str, place: Place, flags: list[int]) -> str:
        seen.append((text, place, flags))
        return "ok"

    def body(s):
        s["city"] = "Wien"
        s += gen("x")
        place = {"city": "Graz", "zip_code": 8010}
        s += use("a", take, text=["in ", s.ref("x"), "!"], place=place, flags=[1, 2])
        s += use("b", take, {"text": "plain " + s.ref("city")}, place=Place("Linz"), flags=(3,), append=False)

    state, _backend = run(body, {"x": 'a "quoted"\nline'})
    assert seen == [
        ('in a "quoted"\nline!', Place("Graz", 8010), [1, 2]),
        ("plain Wien", Place("Linz"), [3]),
    ]
    assert state.text().endswith("ok") and state["b"] == "ok"


def test_a_tool_is_checked_where_it_is_used():
    with pytest.raises(RequestError, match="no parameter 'what'"):
        use("x", search, query="a", what=1)
    with pytest.raises(RequestError, match="'query' is missing"):
        use("x", search)
    with pytest.raises(RequestError, match="takes a tool"):
        use("x", len)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="timeout_s"):
        use("x", search, query="a", timeout_s=0)
    with pytest.raises(ProgramError, match="can contain texts and references"):
        run(lambda s: s.__iadd__(use("x", search, query=["a", gen("x")])))
    with pytest.raises(ProgramError, match="is a JSON value"):
        run(lambda s: s.__iadd__(use("x", search, query=object())))


class Pair(pydantic.BaseModel):
    left: int


@tool
def typed(
    text: str,
    number: int = 1,
    place: Place | None = None,
    colour: Colour = Colour.RED,
    day: datetime.date | None = None,
    words: list[str] | None = None,
    pair: Pair | None = None,
    anything: Any = None,
) -> str:
    """Says what it got."""
    return repr((text, number, place, colour, day, words, pair, anything))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("text", 5),
        ("text", None),
        ("text", ["a"]),
        ("number", "x"),
        ("number", 2.5),
        ("number", True),
        ("place", {"city": 1}),
        ("place", "Rome"),
        ("colour", "green"),
        ("words", [1]),
        ("words", "a"),
        ("pair", {"left": "a"}),
    ],
)
def test_a_constant_of_the_wrong_type_is_refused_when_it_is_recorded(argument, value):
    backend = MockBackend()

    @function
    def program(s):
        s += gen("first")
        assert s["first"]
        s += use("o", typed, {"text": "a", argument: value})

    with pytest.raises(RequestError, match=f"argument '{argument}' of tool 'typed'") as caught:
        program.run(backend=backend)
    assert (caught.value.code, caught.value.param) == ("invalid_tool_call", argument)
    assert len(backend.requests) == 1


@pytest.mark.parametrize(
    ("argument", "value", "got"),
    [
        ("text", "5", "'5'"),
        ("number", 3, "3"),
        ("number", "3", "3"),
        ("place", Place("Rome"), "Place(city='Rome', zip_code=None)"),
        ("place", {"city": "Rome"}, "Place(city='Rome', zip_code=None)"),
        ("place", '{"city": "Rome"}', "Place(city='Rome', zip_code=None)"),
        ("colour", Colour.BLUE, "<Colour.BLUE: 'blue'>"),
        ("colour", "blue", "<Colour.BLUE: 'blue'>"),
        ("day", datetime.date(2020, 1, 31), "datetime.date(2020, 1, 31)"),
        ("day", "2020-01-31", "datetime.date(2020, 1, 31)"),
        ("words", ["a", "b"], "['a', 'b']"),
        ("pair", Pair(left=1), "Pair(left=1)"),
        ("pair", {"left": 1}, "Pair(left=1)"),
    ],
)
def test_a_constant_of_the_right_type_arrives(argument, value, got):
    program = function(lambda s: s.__iadd__(use("o", typed, {"text": "a", argument: value})))
    assert got in program.run(backend=MockBackend())["o"]


def test_two_tools_of_one_name_are_refused():
    other = Tool(lambda query: query, name="search")

    def body(s):
        s += use("a", search, query="a") + use("b", other, query="a")

    with pytest.raises(ProgramError, match="two tools named 'search'"):
        run(body)


def test_a_tool_of_the_server_is_used_by_name():
    def body(s):
        s += use("a", "look_up", query="a", depth=2)

    state, backend = run(body, {"a": "found"})
    (op,) = backend.requests[0].ops
    assert op == Use(0, "a", "look_up", (("query", ("a",)), ("depth", ("2",))))
    assert state["a"] == "found"


def test_a_backend_without_tools_refuses_them():
    with pytest.raises(UnsupportedError, match="FakeBackend cannot use tools"):
        function(lambda s: s.__iadd__(use("a", search, query="a"))).run(backend=FakeBackend(lambda program: iter(())))
