"""Answers that a test gives, or that are made up, are written so that the type that is asked for reads them back."""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import ipaddress
import typing
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pydantic
import pytest

import bough
from bough.constrain.spec import JsonSchema
from bough.lang.diagnostics.errors import ProgramError
from bough.runtime.protocol.program import Failed, Gen, Program


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Point:
    x: int
    color: Color


class Model(pydantic.BaseModel):
    name: str
    born: datetime.date
    price: decimal.Decimal


class Bounds(pydantic.BaseModel):
    small: Annotated[int, pydantic.Field(ge=5, le=7)]
    odd: Annotated[int, pydantic.Field(multiple_of=7, gt=100, lt=110)]
    code: Annotated[str, pydantic.Field(pattern="^[a-c]{3,5}$")]
    long: Annotated[str, pydantic.Field(min_length=7)]
    half: Annotated[float, pydantic.Field(multiple_of=0.5, gt=1)]
    two: Annotated[list[int], pydantic.Field(min_length=2)]


class Formats(pydantic.BaseModel):
    at: datetime.datetime
    on: datetime.date
    when: datetime.time
    took: datetime.timedelta
    key: uuid.UUID
    url: pydantic.HttpUrl
    host: ipaddress.IPv4Address
    data: bytes
    either: int | None


class Tree(pydantic.BaseModel):
    value: int
    children: list[Tree]
    next: Tree | None


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Owner(pydantic.BaseModel):
    pet: Cat | Dog = pydantic.Field(discriminator="kind")


class Struct(msgspec.Struct):
    on: datetime.date
    key: uuid.UUID
    price: decimal.Decimal
    at: datetime.datetime
    opens: list[datetime.time]
    seen: datetime.datetime | None
    stops: dict[str, datetime.datetime]
    pair: tuple[int, datetime.time]


class Pair(NamedTuple):
    left: int
    right: str


@pytest.mark.parametrize(
    "kind",
    [
        datetime.datetime,
        datetime.time,
        datetime.date,
        datetime.timedelta,
        uuid.UUID,
        decimal.Decimal,
        bytes,
        tuple[int, str],
        tuple[int, ...],
        Pair,
        Literal["a", 1],
        Literal["a", None],
        Literal[True],
        Color,
        Level,
        list[Color],
        dict[str, int],
        set[bool],
        int | None,
        Point,
        Model,
        Bounds,
        Formats,
        Tree,
        Owner,
        Struct,
        Annotated[str, msgspec.Meta(min_length=4, pattern="^x")],
        Annotated[list[int], msgspec.Meta(min_length=3)],
    ],
    ids=str,
)
def test_an_answer_is_made_up_for_each_type(kind: Any) -> None:
    body = bough.function(lambda s: s.__iadd__("x" + bough.gen("v", kind)))
    value = body.run(backend=bough.MockBackend())["v"]
    if isinstance(kind, type) and typing.get_origin(kind) is None:
        assert isinstance(value, kind)


MODEL = Model(name="Ann", born=datetime.date(1990, 5, 1), price=decimal.Decimal("1.50"))
BORN = datetime.date(1990, 5, 1)


@pytest.mark.parametrize(
    ("kind", "answer", "value"),
    [
        (int, 5, 5),
        (int, "5", 5),
        (float, 0.00001, 0.00001),
        (float, 2, 2.0),
        (bool, False, False),
        (str, "plain", "plain"),
        (str, '"quoted"', "quoted"),
        (Color, Color.BLUE, Color.BLUE),
        (Color, "blue", Color.BLUE),
        (Level, Level.HIGH, Level.HIGH),
        (Level, 2, Level.HIGH),
        (Literal["a", 1], 1, 1),
        (Point, Point(3, Color.BLUE), Point(3, Color.BLUE)),
        (Point, {"x": 3, "color": "blue"}, Point(3, Color.BLUE)),
        (list[Point], [[Point(3, Color.BLUE)]], [Point(3, Color.BLUE)]),
        (list[int], [[1, 2]], [1, 2]),
        (list[int], [(), [3]], []),
        (Pair, Pair(1, "b"), Pair(1, "b")),
        (Model, MODEL, MODEL),
        (Model, {"name": "Ann", "born": BORN, "price": "1.50"}, MODEL),
        (datetime.date, BORN, BORN),
        (datetime.date, "1990-05-01", BORN),
        (decimal.Decimal, decimal.Decimal("1.5"), decimal.Decimal("1.5")),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict[str, list[Model]], {"a": [MODEL]}, {"a": [MODEL]}),
        (int, lambda prompt, name: len(prompt), 1),
        (int | None, "null", None),
    ],
    ids=lambda value: "function" if inspect.isfunction(value) else repr(value),
)
def test_an_answer_may_be_the_value_itself(kind: Any, answer: Any, value: Any) -> None:
    body = bough.function(lambda s: s.__iadd__("x" + bough.gen("v", kind)))
    found = body.run(backend=bough.MockBackend({"v": answer}))["v"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("answer", "text"), [(5, "5"), (True, "True"), (Color.RED, "red"), ({"a": 1}, '{"a": 1}'), (BORN, "1990-05-01")]
)
def test_free_text_and_choices_take_values_as_text(answer: object, text: str) -> None:
    @bough.function
    def body(s: Any) -> None:
        s += "x" + bough.gen("v") + bough.select("c", ["?", text]) + bough.use("t", "anything")

    state = body.run(backend=bough.MockBackend({"v": answer, "c": answer, "t": answer}))
    assert [state[name] for name in "vct"] == [text] * 3


def test_none_is_made_up() -> None:
    body = bough.function(lambda s: s.__iadd__("x" + bough.gen("v", int) + bough.gen("w")))
    state = body.run(backend=bough.MockBackend(lambda prompt, name: None))
    assert (state["v"], state["w"]) == (0, "(w)")


def test_what_is_wrong_about_an_answer_is_told() -> None:
    body = bough.function(lambda s: s.__iadd__("x" + bough.gen("v", Model)))
    with pytest.raises(ProgramError, match=r"born.*is a required property"):
        body.run(backend=bough.MockBackend({"v": {"name": "Ann"}}))
    with pytest.raises(ProgramError, match="has no text: object"):
        body.run(backend=bough.MockBackend({"v": object()}))


def test_a_list_that_was_meant_as_one_value_is_pointed_out() -> None:
    body = bough.function(lambda s: s.__iadd__("x" + bough.gen("v", list[int])))
    with pytest.raises(ProgramError, match=r"\{'v': \[\[\.\.\.\]\]\}"):
        body.run(backend=bough.MockBackend({"v": [1, 2]}))


@pytest.mark.parametrize("with_tool", [False, True])
def test_a_function_that_fails_fails_its_program(with_tool: bool) -> None:
    def answer(prompt: str, name: str) -> str:
        raise AssertionError(f"unexpected {prompt!r}")

    @bough.tool
    def hop() -> str:
        return "hop"

    @bough.function
    def body(s: Any) -> None:
        s += bough.use("t", hop) if with_tool else "hop"
        s += bough.gen("v")

    with pytest.raises(ProgramError, match="unexpected 'hop'") as caught:
        body.run(backend=bough.MockBackend({"v": answer}))
    assert caught.value.code == "answer_failed" and caught.value.place is not None
    assert caught.value.__cause__ is not None and isinstance(caught.value.__cause__.__cause__, AssertionError)


def test_a_schema_that_is_none_is_refused_as_by_an_engine() -> None:
    for schema in ('{"type": "nothing"}', "{"):
        program = Program(id="p", ops=(Gen(0, "v", grammar=JsonSchema(schema)),))
        (*_, last) = bough.MockBackend().run(program)
        assert isinstance(last, Failed)
        assert (last.error.code, last.index) == ("invalid_json_schema", 0)
