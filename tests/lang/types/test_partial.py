"""Typed values while they are written: what is set on them, type by type, and the streams that bring them."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import json
import threading
from collections.abc import Iterator
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from bough.constrain.json_text.partial import ABSENT, PartialReader
from bough.constrain.spec import JsonSchema
from bough.lang.api import assistant, function, gen, user
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError
from bough.lang.types.partial import shape_of
from bough.lang.types.schema import typed
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Delta, Done, Gen, Program

from ..fakes import FakeBackend, value

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Item:
    name: str
    price: float


@dataclasses.dataclass
class Invoice:
    number: int
    items: list[Item]
    buyer: Item | None = None
    paid: bool = False


@dataclasses.dataclass
class Tree:
    label: str
    children: "list[Tree]"  # noqa: UP037  as in files without the future import


@dataclasses.dataclass
class Box(Generic[T]):
    content: T
    more: list[T]


class Address(TypedDict):
    street: str
    box: int


class Point(msgspec.Struct, rename="camel", frozen=True):
    first_name: str
    born_on: datetime.date


class Pair(NamedTuple):
    a: int
    b: str


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    tricks: list[str]


class Line(pydantic.BaseModel):
    text: str
    amount: float = 1.0


class Order(pydantic.BaseModel):
    id: int = pydantic.Field(alias="orderId", ge=0)
    lines: list[Line]
    first: Line | None = None
    due: datetime.date
    status: Literal["open", "paid"] = "open"

    @pydantic.model_validator(mode="after")
    def _right(self) -> Order:
        assert self.due.year > 1900
        return self


def shown(kind: object, text: str) -> list[Any]:
    """Parts that are shown, character by character, each once, but not the whole."""
    reader = PartialReader(shape_of(kind))
    parts = [reader.value for char in text if reader.feed(char) and not reader.done]
    return [part for index, part in enumerate(parts) if index == 0 or part != parts[index - 1]]


def test_a_dataclass_has_only_what_is_complete() -> None:
    text = '{"number": 12, "items": [{"name": "ink", "price": 3}], "buyer": {"name": "Ann", "price": 0}, "paid": true}'
    parts = shown(Invoice, text)
    assert [repr(part) for part in parts] == [
        "Invoice(number=12, ...)",
        "Invoice(number=12, items=[Item(name='ink', price=3.0)], ...)",
        "Invoice(number=12, items=[Item(name='ink', price=3.0)], buyer=Item(name='Ann', ...), ...)",
        "Invoice(number=12, items=[Item(name='ink', price=3.0)], buyer=Item(name='Ann', price=0.0), ...)",
        "Invoice(number=12, items=[Item(name='ink', price=3.0)], buyer=Item(name='Ann', price=0.0), paid=True, ...)",
    ]
    first = parts[0]
    assert first.number == 12
    assert "number" in first
    assert "paid" not in first
    assert not hasattr(first, "items")
    with pytest.raises(AttributeError, match=r"Invoice.paid is not written yet"):
        first.paid  # noqa: B018


def test_a_pydantic_model_has_only_what_is_complete() -> None:
    text = '{"orderId": 7, "lines": [{"text": "a"}, {"text": "b", "amount": 2}], "first": {"text": "x", "amount": 3}, '
    text += '"due": "2026-01-02", "status": "paid"}'
    parts = shown(Order, text)
    assert all(type(part) is Order for part in parts)
    assert [sorted(part.model_fields_set) for part in parts] == [
        ["id"],
        ["id", "lines"],
        ["id", "lines"],
        ["first", "id", "lines"],
        ["first", "id", "lines"],
        ["due", "first", "id", "lines"],
        ["due", "first", "id", "lines", "status"],
    ]
    assert parts[0].id == 7
    assert not hasattr(parts[0], "status")  # its default is nothing that was written
    assert parts[1].lines == [Line(text="a")]
    assert vars(parts[3].first) == {"text": "x"}
    assert parts[5].due == datetime.date(2026, 1, 2)
    assert parts[0].model_dump() == {"id": 7}


@pytest.mark.parametrize(
    ("kind", "text", "last"),
    [
        (Address, '{"box": 1, "street": "s"}', {"box": 1, "street": "s"}),
        (list[Item], '[{"name": "a", "price": 1}, {"name": "b", "price": 2}]', [Item("a", 1.0), Item("b", 2.0)]),
        (dict[str, Item], '{"x": {"name": "a", "price": 1}}', {"x": Item("a", 1.0)}),
        (tuple[int, Item], '[1, {"name": "a", "price": 1}]', [1, Item("a", 1.0)]),
        (set[int], "[1, 2]", [1]),  # a number ends with what follows it
        (Annotated[list[Color], "x"], '["red", "red"]', [Color.RED, Color.RED]),
        (dict[str, Any], '{"a": {"b": [1, {"c": 2}]}}', {"a": {"b": [1, {"c": 2}]}}),
        ({"type": "object"}, '{"a": {"b": 1}}', {"a": {"b": 1}}),
        (list[Pair], '[[1, "x"]]', [Pair(1, "x")]),
        (list[Cat | Dog], '[{"type": "cat", "lives": 9}]', [Cat(9)]),
    ],
)
def test_the_last_part_holds_all_but_the_end(kind: object, text: str, last: Any) -> None:
    part = shown(kind, text)[-1]
    assert part == last
    assert type(part) is type(last)


def test_names_and_types_are_those_of_the_class() -> None:
    part = shown(Point, '{"firstName": "Ada", "bornOn": "1815-12-10"}')[-1]
    assert (part.first_name, part.born_on) == ("Ada", datetime.date(1815, 12, 10))


def test_a_type_can_hold_itself() -> None:
    text = '{"label": "a", "children": [{"label": "b", "children": []}]}'
    assert shown(Tree, text)[-1].children == [Tree("b", [])]


def test_a_generic_type_knows_what_it_holds() -> None:
    part = shown(Box[Point], '{"content": {"firstName": "Ada", "bornOn": "1815-12-10"}, "more": []}')[0]
    assert part.content.first_name == "Ada"


@pytest.mark.parametrize("kind", [Cat | Dog, list[Cat] | Dog, Pair, int, str, pydantic.RootModel[list[int]]])
def test_what_could_still_be_another_type_is_not_shown(kind: object) -> None:
    reader = PartialReader(shape_of(kind))
    reader.feed('{"type": "cat", "lives": 9, ')
    assert reader.value is ABSENT


def test_a_field_that_is_wrong_by_itself_is_left_to_the_end() -> None:
    assert shown(Item, '{"name": 3, "price": 1, "x": 2}') == shown(Item, '{"price": 1, "x": 2}')
    assert [part.model_fields_set for part in shown(Order, '{"orderId": -1, "due": "2026-01-02"}')] == [{"due"}]


INVOICE = Invoice(12, [Item("ink", 3.0)], Item("Ann", 0.0), True)
TEXT = json.dumps(dataclasses.asdict(INVOICE))


def streaming_backend(*texts: str, size: int = 3) -> FakeBackend:
    """Answers each generation with the next of `texts`, a few characters at a time."""
    left = iter(texts)

    def script(program: Program) -> Iterator[Any]:
        for op in program.ops:
            if isinstance(op, Gen):
                text = next(left)
                yield from (Delta(op.branch, op.name, text[at : at + size]) for at in range(0, len(text), size))
                yield value(op.branch, op.name, text)
        yield Done()

    return FakeBackend(script)


def test_a_type_is_asked_for_and_streamed_in_one() -> None:
    seen: list[Any] = []

    def body(s: Any) -> None:
        s += user("An invoice.")
        with s.assistant():
            for invoice in s.stream(Invoice, name="invoice", max_tokens=99):
                seen.append(invoice)

    backend = streaming_backend(TEXT)
    state = function(body).run(backend=backend)
    assert seen[0].number == 12
    assert all(type(part).__name__ == "Partial" for part in seen[:-1])
    assert seen[-1] == INVOICE == state["invoice"]
    op = next(op for op in backend.requests[0].ops if isinstance(op, Gen))
    assert op.sampling.max_tokens == 99
    assert op.grammar == typed(Invoice).grammar


def test_async_for() -> None:
    async def body(s: Any) -> Any:
        s += user("An order.") + assistant(gen("order", Order))
        return [order async for order in s.stream(Order)]

    text = '{"orderId": 7, "lines": [{"text": "a"}], "due": "2026-01-02"}'
    backend = streaming_backend(text)
    state = asyncio.run(function(body).arun(backend=backend))
    assert len(backend.requests) == 1
    assert [part.model_fields_set for part in state.ret_value] == [
        {"id"},
        {"id", "lines"},
        {"id", "lines", "due"},
        {"id", "lines", "due"},
    ]
    assert state.ret_value[-1] == state["order"] == Order.model_validate_json(text)
    assert state.ret_value[-1].status == "open"


def test_a_second_stream_of_a_type_asks_for_another_value() -> None:
    def body(s: Any) -> Any:
        s += "Two: "
        return [[*s.stream(Item)][-1] for _ in range(2)]

    backend = streaming_backend('{"name": "a", "price": 1}', '{"name": "b", "price": 2}')
    assert function(body).run(backend=backend).ret_value == [Item("a", 1.0), Item("b", 2.0)]


def test_a_value_is_streamed_by_name_and_by_type_from_outside() -> None:
    go = threading.Event()

    def body(s: Any) -> None:
        assert go.wait(10)
        s += gen("x", Item) + gen("schema", json_schema={"type": "object"})

    text = '{"name": "a", "price": 1}'
    state = function(body).run(backend=streaming_backend(text, '{"k": [1, 2]}', size=1), stream=True)
    stream = state.stream(Item)
    go.set()
    assert [*stream][-1] == Item("a", 1.0)
    assert [repr(part) for part in state.stream("x", partial=True)] == ["Item(name='a', price=1.0)"]  # all is there
    assert [*state.stream("schema", partial=True)][-1] == {"k": [1, 2]}
    assert "".join(state.stream("x")) == text
    with pytest.raises(ProgramError, match="no value of"):
        next(state.stream(Invoice))


def test_a_grammar_that_is_a_schema_streams_data() -> None:
    def body(s: Any) -> Any:
        s += gen("x", grammar=JsonSchema('{"type": "object"}'))
        return [*s.stream("x", partial=True)]

    assert function(body).run(backend=streaming_backend('{"a": 1, "b": 2}', size=1)).ret_value == [
        {"a": 1},
        {"a": 1, "b": 2},
    ]


@pytest.mark.parametrize(("kind", "text", "result"), [(int, "42", 42), (Color, "red", Color.RED), (str, '"a"', "a")])
def test_what_has_no_parts_comes_as_a_whole(kind: type, text: str, result: Any) -> None:
    def body(s: Any) -> Any:
        return [*s.stream(kind)]

    assert function(body).run(backend=MockBackend({"gen_0": text})).ret_value == [result]


def test_what_does_not_conform_in_the_end_is_an_error() -> None:
    seen: list[Any] = []

    def body(s: Any) -> None:
        seen.extend(part.name for part in s.stream(Item))

    with pytest.raises(ProgramError) as caught:
        function(body).run(backend=streaming_backend('{"name": "a", "price": "x"}'))
    assert caught.value.code == "invalid_output"
    assert seen == ["a"]


def test_a_text_has_no_parts() -> None:
    def body(s: Any) -> None:
        s += gen("x")
        next(s.stream("x", partial=True))

    with pytest.raises(ProgramError, match=r"gen\('x', Type\)"):
        function(body).run(backend=MockBackend())


def test_options_are_for_new_values_only() -> None:
    def body(s: Any) -> None:
        s.stream("x", max_tokens=3)

    with pytest.raises(TypeError, match="give its type"):
        function(body).run(backend=MockBackend())
    with pytest.raises(RequestError, match="describes no JSON value"):
        function(lambda s: s.stream(object())).run(backend=MockBackend())


def test_typed_values_are_written_in_the_order_of_their_type() -> None:
    for kind in (Item, Order, Address, list[int], {"type": "object"}, '{"type": "object"}'):
        spec = typed(kind).grammar
        assert isinstance(spec, JsonSchema)
        assert spec.property_order == "schema"
