"""One reading of annotations: tools, generations and compiled programs describe a type in the same way."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

import bough
from bough.lang.tools.tool import tool
from bough.lang.types.annotations import annotations_of, as_json, described, fields_of

if TYPE_CHECKING:
    from elsewhere import Unknown  # type: ignore[import-not-found]


class Person(pydantic.BaseModel):
    name: str


@dataclass
class Team:
    people: list[Person]
    size: int = 0


class Row(TypedDict):
    zeta: int
    alpha: str


KINDS = [int, str, list[int], Person, Team, Row, dict[str, Person], Person | None, Annotated[int, msgspec.Meta(ge=1)]]


@pytest.mark.parametrize("kind", KINDS)
def test_tools_and_programs_describe_a_type_alike(kind):
    def takes(s, x):
        s += bough.gen("a")

    def called(x):
        return x

    takes.__annotations__ = called.__annotations__ = {"x": kind}
    schema = json.loads(bough.function(takes).compile(x=None).to_json())["parameters"]
    assert schema == []
    parameter = json.loads(bough.function(takes).compile().template.parameters[0].schema)
    found = dict(tool(called).parameters)
    definitions = {"$defs": found["$defs"]} if "$defs" in found else {}
    assert parameter == {**found["properties"]["x"], **definitions} == described(kind).schema


def test_what_is_not_annotated_is_any_value():
    def takes(s, x, y=3):
        s += f"{x}{y}" + bough.gen("a")

    def called(x, y=3):
        return [x, y]

    assert [one.schema for one in bough.function(takes).compile().template.parameters] == ["{}", "{}"]
    made = tool(called)
    assert made.parameters["properties"] == {"x": {}, "y": {"default": 3}}
    assert made.call({"x": "2024"}) == '["2024",3]' and made.call({"x": [1]}) == "[[1],3]"


def test_dataclasses_may_hold_models():
    value = described(Team).convert({"people": [{"name": "Ada"}]})
    assert value == Team([Person(name="Ada")]) == described(Team).read('{"people": [{"name": "Ada"}]}')
    assert as_json(value) == {"people": [{"name": "Ada"}], "size": 0}
    with pytest.raises(ValueError, match="name"):
        described(Team).convert({"people": [{}]})

    @tool
    def first(team: Team) -> Team:
        assert isinstance(team.people[0], Person)
        return team

    assert json.loads(str(first.call({"team": {"people": [{"name": "Ada"}]}})))["people"] == [{"name": "Ada"}]
    state = bough.function(lambda s: s.__iadd__(bough.gen("team", Team))).run(
        backend=bough.MockBackend({"team": '{"people": [{"name": "Ada"}], "size": 1}'})
    )
    assert state["team"] == Team([Person(name="Ada")], 1)


def test_names_that_only_type_checkers_know_are_left_out():
    def takes(s: "Unknown", x: "int", y: "Unknown") -> "Unknown":
        """Nothing."""

    assert annotations_of(takes) == {"x": int}


def test_fields_and_orders():
    assert list(fields_of(Row) or ()) == ["zeta", "alpha"] and fields_of(int) is None and fields_of(Row | None) is None
    assert list(described(Row).schema["$defs"]["Row"]["properties"]) == ["zeta", "alpha"]
    assert described(Any).schema == {}
    with pytest.raises(TypeError):
        described(object)
