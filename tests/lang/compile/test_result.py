"""Compiled programs give what their functions give: values, types and the texts before each generation."""

import asyncio
import datetime
import decimal
import enum
import json
import uuid
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

import bough
from bough.lang.types.annotations import as_json


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Tone(enum.StrEnum):
    WARM = "warm"


class Person(pydantic.BaseModel):
    name: str
    born: datetime.date
    age: int = 3


@dataclass(frozen=True)
class Team:
    name: str
    color: Color
    people: list[Person]


class Row(TypedDict):
    key: str
    number: float


class Point(msgspec.Struct, frozen=True):
    x: int
    y: float


class Pair(NamedTuple):
    left: object
    right: object


SCHEMA = {"type": "integer"}
PERSON = '{"name": "Ada", "born": "1815-12-10", "age": 3}'
TEAM = f'{{"name": "a", "color": "blue", "people": [{PERSON}]}}'

OF_ONE_TYPE: list[tuple[Any, str]] = [
    (int, "0"),
    (int, "-7"),
    (float, "0"),
    (float, "1.5"),
    (bool, "True"),
    (bool, "False"),
    (str, '"a\\nb"'),
    (Color, "blue"),
    (Level, "2"),
    (Tone, "warm"),
    (Literal["a", "b"], "b"),
    (Literal[1, 2], "2"),
    (Person, PERSON),
    (Team, TEAM),
    (Row, '{"key": "k", "number": 1.0}'),
    (Point, '{"x": 1, "y": 2.5}'),
    (list[int], "[1, 2]"),
    (list[Person], f"[{PERSON}]"),
    (dict[str, float], '{"a": 1.5}'),
    (tuple[int, str], '[1, "a"]'),
    (int | None, "null"),
    (datetime.datetime, '"2024-02-29T12:30:00"'),
    (datetime.date, '"2024-02-29"'),
    (decimal.Decimal, '"1.50"'),
    (uuid.UUID, '"12345678-1234-5678-1234-567812345678"'),
    (SCHEMA, "0"),
    (json.dumps(SCHEMA), "0"),
    ({"type": "object"}, '{"a": 1}'),
]


class Told(bough.MockBackend):
    """Keeps the text before each answer."""

    def __init__(self, answers: dict[str, Any]) -> None:
        lists = {name: iter(texts) for name, texts in answers.items() if isinstance(texts, list)}

        def answer(before: str, name: str) -> str:
            self.told.append((name, before))
            return str(next(lists[name])) if name in lists else str(answers[name])

        self.told: list[tuple[str, str]] = []
        super().__init__(answer)


def compare(body, answers, optimisations=(), **arguments):
    """Result of both; asserts that it is the same."""
    function = bough.function(body)
    plain, compiled, loaded = Told(answers), Told(answers), Told(answers)
    state = function.run(backend=plain, **arguments)
    expected = state.values() if state.ret_value is None else state.ret_value
    program = function.compile(list(optimisations))
    found = program.run(backend=compiled, **arguments)
    assert type(found) is type(expected) and found == expected and repr(found) == repr(expected)
    assert plain.told == compiled.told
    assert asyncio.run(program.arun(backend=Told(answers), **arguments)) == expected
    other = bough.CompiledProgram.from_json(program.to_json())
    assert other.run(backend=loaded, **plain_json(arguments)) == plain_json(expected)
    assert plain.told == loaded.told
    return expected


def plain_json(value):
    return json.loads(json.dumps(as_json(value)))


@pytest.mark.parametrize(("kind", "text"), OF_ONE_TYPE)
def test_values_of_every_type(kind, text):
    def typed(s):
        s += (
            "x: " + bough.gen("value", kind if not isinstance(kind, dict | str) else None)
            if not isinstance(kind, dict | str)
            else bough.gen("value", json_schema=kind)
        )
        return [s["value"]]

    compare(typed, {"value": text})


@pytest.mark.parametrize(("kind", "text"), OF_ONE_TYPE)
def test_values_by_name(kind, text):
    def typed(s):
        s += "x: "
        s += bough.gen("value", json_schema=kind) if isinstance(kind, dict | str) else bough.gen("value", kind)

    assert list(compare(typed, {"value": text})) == ["value"]


def test_texts_and_what_is_written_of_values():
    manner = "Be %s."

    def written(s, word: str, number: int, share: float, flag: bool, mood: Literal["a", 1], items: list[int]):
        s += bough.system(manner % word) + bough.user(word + "!" + f"{number:>4}{share:.2f}{flag}{mood}{items}")
        s += bough.assistant("So " + bough.gen("text"))
        s += bough.user(f"{s['text']}" + s["text"])
        s += bough.assistant(bough.gen("number", int))
        s += bough.user(f"{s['number']} {word} {{}}")
        s += bough.assistant(bough.gen("flag", bool))
        s += bough.user(str(s["flag"])) + bough.assistant(bough.select("choice", ["p", "q"]))
        return f"{s['choice']}/{s['number']}/{number}", s["flag"]

    answers = {"text": "t x t", "number": "12", "flag": "False", "choice": "q"}
    arguments = {"word": "w", "number": 3, "share": 0.5, "flag": True, "mood": 1, "items": [1, 2]}
    assert compare(written, answers, **arguments) == ("q/12/3", False)


def test_results_of_all_shapes():
    def shapes(s, who: Person, note: str, when: datetime.datetime, tone: Tone = Tone.WARM):
        s += f"{who.name} {who.age} {note} {tone}" + bough.gen("a", int) + bough.gen("b", Color)
        return {
            "list": [s["a"], s["b"]],
            "tuple": (s["a"], (s["b"], note)),
            "named": Pair(s["a"], {"inner": who.name}),
            "team": Team(note, s["b"], [Person(name=note, born=datetime.date(1900, 1, 1))]),
            "point": Point(s["a"], 1.0),
            "arguments": [who, note, when, tone],
            "text": f"{s['a']}!",
            "nothing": None,
            3: [True, 1.5, Color.RED],
        }

    who = Person(name="Ada", born=datetime.date(1815, 12, 10))
    when = datetime.datetime(2024, 1, 1)
    found = compare(shapes, {"a": "1", "b": "red"}, who=who, note="n", when=when)
    assert found["arguments"][0] is who


def test_models_that_are_made_of_values():
    class Note(pydantic.BaseModel):
        text: str
        tags: list[str] = []

    def made(s):
        s += bough.gen("a")
        return Note(text=s["a"], tags=[s["a"], "b"])

    found = compare(made, {"a": "x"})
    assert found == Note(text="x", tags=["x", "b"]) and type(found.text) is str


def test_values_read_as_another_type_or_as_json():
    def read(s):
        s += bough.gen("a") + bough.gen("b", json_schema={"type": "object"}) + bough.gen("c", int)
        return s.get("a", int), s.json("b"), s.get("c", int), s["b"], s.get("a", str)

    assert compare(read, {"a": "7", "b": '{"x": [1]}', "c": "2"}) == (7, {"x": [1]}, 2, '{"x": [1]}', "7")


def test_patterns_with_a_type():
    def patterned(s):
        s += bough.gen("a", str, regex="[a-z]+") + bough.gen("b", int, regex="[0-9]+")
        s += f"{s['a']}" + bough.gen("c", float, regex=r"[0-9]\.[0-9]")

    assert compare(patterned, {"a": "xyz", "b": "12", "c": "1.5"}) == {"a": "xyz", "b": 12, "c": 1.5}


@pytest.mark.parametrize("style", [None, "qwen3", "qwen3-thinking", "kimi"])
@pytest.mark.parametrize("text", ["<think>why</think>42", "why</think> 42", "42"])
@pytest.mark.parametrize("returns", [True, False])
def test_reasoning_is_separate(style, text, returns):
    if style == "kimi":
        text = text.replace("<think>", "◁think▷").replace("</think>", "◁/think▷")

    def reasoned(s):
        s += bough.user("q") + bough.assistant(bough.separate_reasoning(bough.gen("answer"), model_type=style))
        s += bough.user("more") + bough.assistant(bough.gen("end"))
        if returns:
            return s["answer"], s["answer_reasoning_content"], s["end"]

    compare(reasoned, {"answer": text, "end": "e"})


def test_typed_answers_after_reasoning():
    def reasoned(s):
        s += bough.separate_reasoning(bough.gen("n", int) + bough.gen("person", Person))

    expected = compare(reasoned, {"n": "<think>a</think>3", "person": f"<think>b</think>{PERSON}"})
    assert expected["n"] == 3 and isinstance(expected["person"], Person)
    assert expected["n_reasoning_content"] == "a"


def test_reasoning_cannot_stand_in_text():
    def written(s):
        s += bough.separate_reasoning(bough.gen("n"))
        s += f"{s['n_reasoning_content']}"

    with pytest.raises(bough.CompileError, match="part of a generated value: it can be returned") as caught:
        bough.function(written).compile()
    assert caught.value.place is not None and caught.value.place.function == "written"


def test_branches_blocks_and_samples():
    def branched(s, topics: str):
        branches = s.fork(2)
        for branch, color in zip(branches, Color, strict=True):
            branch += f"{color.value} of {topics}" + bough.gen("note", int)
        branches.join()
        s += f"{s['note'][0]}, " + s.ref("note", 1)
        s += bough.select("kind", ["p", "q"])
        s += bough.when(s.ref("kind") == "q", bough.gen("extra", Color), bough.gen("other", Color))
        s += bough.repeat_until(bough.var("turn") == "2", "again " + bough.gen("turn", int), at_most=3)
        s["fixed"] = Level.HIGH
        with s.var_scope("scope"):
            s += "in " + bough.gen("inner")

    answers = {"note": [1, 2], "kind": "q", "extra": "blue", "turn": [1, 2], "inner": "i"}
    found = compare(branched, answers, topics="t")
    assert found["note"] == [1, 2] and found["extra"] is Color.BLUE and found["turn"] == 2 and found["other"] is None
    assert found["fixed"] is Level.HIGH and found["scope"] == "in i"


def test_several_samples():
    def sampled(s):
        s += "q" + bough.gen("n", int, n=3)

    backend = bough.MockBackend({"n": "4"})
    assert bough.function(sampled).compile().run(backend=backend) == {"n": [4, 4, 4]}
    assert sampled_values(sampled) == {"n": [4, 4, 4]}


def sampled_values(body):
    return bough.function(body).run(backend=bough.MockBackend({"n": "4"})).values()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Color, Color.RED),
        (datetime.datetime, datetime.datetime(2024, 1, 1)),
        (tuple[int, int], (1, 2)),
        (set[str], {"a"}),
    ],
)
def test_arguments_that_json_writes_otherwise_stand_in_no_text(kind, value):
    def returned(s, x):
        s += "q" + bough.gen("a")
        return x

    returned.__annotations__ = {"x": kind}
    assert compare(returned, {"a": "b"}, x=value) == value

    def written(s, x):
        s += f"{x}" + bough.gen("a")

    written.__annotations__ = {"x": kind}
    with pytest.raises(bough.CompileError, match=r"the argument 'x' has a text that differs from its `str`"):
        bough.function(written).compile()
    assert bough.function(written).compile(x=value).template.parameters == ()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (datetime.date, datetime.date(2024, 2, 29)),
        (decimal.Decimal, decimal.Decimal("1.50")),
        (uuid.UUID, uuid.UUID(int=5)),
        (Tone, Tone.WARM),
        (dict[str, list[int]], {"a": [1]}),
        (str | None, None),
        (str | None, "x"),
        (Any, 3),
    ],
)
def test_arguments_that_json_writes_alike(kind, value):
    def written(s, x):
        s += f"<{x}>" + bough.gen("a")

    written.__annotations__ = {"x": kind}
    compare(written, {"a": "b"}, x=value)


def test_the_value_of_an_enum_can_be_written():
    def written(s, color: Color):
        s += f"<{color.value}>" + bough.gen("a")

    compare(written, {"a": "b"}, color=Color.RED)


def test_a_body_that_asks_whether_an_argument_is_none_is_refused():
    def asks(s, style: str | None = None):
        s += "Hello"
        s += bough.gen("a")
        if style is not None:
            s += f" in {style}"
        s += bough.gen("b")

    with pytest.raises(
        bough.CompileError, match=r"whether the argument 'style' is None.*asks.compile\(style=\.\.\.\)"
    ) as caught:
        bough.function(asks).compile()
    assert caught.value.place is not None and caught.value.place.function == "asks"
    assert bough.function(asks).compile(style=None).run(backend=bough.MockBackend()) == {"a": "(a)", "b": "(b)"}

    def returns(s, style: str | None = None):
        return "plain" if style is None else style

    with pytest.raises(bough.CompileError, match="is None"):
        bough.function(returns).compile()
