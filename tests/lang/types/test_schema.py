"""Types: the constraint each becomes, and the value that comes back."""

from __future__ import annotations

import enum
import json
import types
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
import regex

from bough import MockBackend, function, gen
from bough.constrain.spec import Choice, JsonSchema, Regex
from bough.lang.backends.mock import conforms, fault
from bough.lang.types.annotations import as_json
from bough.lang.types.schema import INTEGER, NUMBER, typed
from bough.runtime.protocol.errors import RequestError


@dataclass
class Item:
    name: str
    price: float


@dataclass
class Invoice:
    zebra: str
    items: list[Item]
    apple: bool = False


class Address(TypedDict):
    street: str
    city: str
    box: int


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Person(pydantic.BaseModel):
    surname: str
    age: int = pydantic.Field(ge=0)


class Point(msgspec.Struct):
    y: int
    x: int


def schema_of(kind: object) -> dict:
    spec = typed(kind).grammar
    assert isinstance(spec, JsonSchema)
    return json.loads(spec.schema)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "-42", -42),
        (float, "2.50", 2.5),
        (bool, "True", True),
        (bool, "False", False),
        (str, '"a\\nb"', "a\nb"),
        (Color, "blue", Color.BLUE),
        (Level, "2", Level.HIGH),
        (Literal["a", 3], "3", 3),
        (Literal[True, "x"], "true", True),
        (list[int], "[1, 2]", [1, 2]),
        (int | None, "null", None),
        (Item, '{"name": "x", "price": 1}', Item("x", 1.0)),
        (Invoice, '{"zebra": "z", "items": [{"name": "x", "price": 1}]}', Invoice("z", [Item("x", 1.0)])),
        (Address, '{"street": "s", "city": "c", "box": 1}', {"street": "s", "city": "c", "box": 1}),
        (Person, '{"surname": "s", "age": 3}', Person(surname="s", age=3)),
        (Point, '{"y": 1, "x": 2}', Point(1, 2)),
    ],
)
def test_a_text_becomes_a_value(kind, text, value):
    converted = typed(kind).convert(text)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize("kind", [{"type": "object"}, '{"type": "object"}'])
def test_a_schema_given_as_data_gives_text(kind):
    assert typed(kind).convert("{}") == "{}"
    assert schema_of(kind) == {"type": "object"}


def test_the_order_of_a_dict_schema_is_kept():
    kind = {"type": "object", "properties": {"z": {}, "a": {}, "m": {}}}
    assert list(schema_of(kind)["properties"]) == ["z", "a", "m"]


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        (Invoice, ["zebra", "items", "apple"]),
        (Address, ["street", "city", "box"]),
        (Point, ["y", "x"]),
    ],
)
def test_properties_keep_the_order_of_declaration_and_are_closed(kind, order):
    for definition in [
        schema["$defs"][kind.__name__] for schema in (schema_of(kind), schema_of(types.GenericAlias(list, kind)))
    ]:
        assert list(definition["properties"]) == order
        assert definition["additionalProperties"] is False


def test_a_pydantic_model_is_closed_and_keeps_its_bounds():
    schema = schema_of(Person)
    assert list(schema["properties"]) == ["surname", "age"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["age"]["minimum"] == 0


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (INTEGER, ["0", "-7", "123"], ["", "007", "+1", "1.0", "1" * 19]),
        (NUMBER, ["0", "-0.5", "12.25"], [".5", "1.", "1e3", "00.1"]),
    ],
)
def test_numbers_are_bounded_and_plain(pattern, good, bad):
    assert all(regex.fullmatch(pattern, text) for text in good)
    assert not any(regex.fullmatch(pattern, text) for text in bad)


def test_kinds_of_constraint():
    assert typed(int).grammar == Regex(INTEGER)
    assert typed(Color).grammar == Choice(("red", "blue"))
    assert typed(Literal["a", 3]).grammar == Choice(("a", "3"))


@pytest.mark.parametrize("kind", [object(), type(object()), 3])
def test_what_is_no_type_of_json_is_refused(kind):
    with pytest.raises(RequestError, match="describes no JSON value") as caught:
        typed(kind)
    assert caught.value.param == "schema"


def test_a_text_that_is_no_member_is_told_of_those_that_are():
    with pytest.raises(ValueError, match="'green' is none of 'red', '2'"):
        typed(Literal["red", 2]).convert("green")


def test_a_schema_text_must_be_json():
    with pytest.raises(RequestError, match="json_schema is not JSON"):
        typed("{type: object}")


# Types that JSON has no kind of value for


class Pair(NamedTuple):
    first: int
    second: str


@dataclass
class Order:
    price: Decimal
    wait: timedelta
    seal: bytes
    where: Path
    tags: frozenset[str]
    pair: Pair
    more: dict[str, Any]


ORDER = (
    '{"price": "-1.50", "wait": "P1DT2H", "seal": "QQ==", "where": "a/b", "tags": ["x"], "pair": [1, "y"], '
    '"more": {"z": [null]}}'
)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Decimal, {'"12.50"': Decimal("12.50"), '"-3"': Decimal(-3)}, ['"1e3"', '"NaN"', '".5"', "1.5"]),
        (
            timedelta,
            {'"P3D"': timedelta(3), '"PT90M"': timedelta(minutes=90), '"-P1DT1.5S"': -timedelta(1, 1.5)},
            ['"P1Y"', '"P2W"', '"P"', '"PT"', '"3 days"'],
        ),
        (bytes, {'"QUI="': b"AB", '""': b""}, ['"QQ"', '"Q$=="', '"="']),
        (Path, {'"a/b.txt"': Path("a/b.txt")}, ['""', '"a\\u0000b"']),
        (set[int], {"[1, 2]": {1, 2}}, ["[1, 1]", "[null]"]),
        (frozenset[str], {'["a"]': frozenset("a")}, ['["a", "a"]']),
        (Pair, {'[1, "x"]': Pair(1, "x")}, ["[1]", '["x", 1]', '[1, "x", 2]']),
        (dict[str, Any], {'{"a": [1, null]}': {"a": [1, None]}}, ["[]"]),
        (Order, {ORDER: None}, [ORDER.replace("-1.50", "many"), ORDER.replace("P1DT2H", "P1M")]),
    ],
)
def test_the_constraint_allows_what_can_be_read(kind, good, bad):
    spec, convert, _ = typed(kind)
    for text, value in good.items():
        assert conforms(text, spec), fault(text, spec)
        assert value is None or convert(text) == value
    for text in bad:
        assert not conforms(text, spec), text


def test_they_are_read_back_inside_of_others():
    order = typed(Order).convert(ORDER)
    where, pair = Path("a/b"), Pair(1, "y")
    assert order == Order(Decimal("-1.50"), timedelta(1, 7200), b"A", where, frozenset("x"), pair, {"z": [None]})
    assert type(order.pair) is Pair and isinstance(order.where, Path)
    assert json.loads(json.dumps(as_json(order)))["where"] == "a/b"
    assert typed(Order).convert(json.dumps(as_json(order))) == order


@pytest.mark.parametrize("kind", [Decimal, timedelta, bytes, Path, Order])
def test_an_answer_is_made_up_of_each(kind):
    state = function(lambda s: s.__iadd__("x" + gen("v", kind))).run(backend=MockBackend())
    assert isinstance(state["v"], kind)
