"""Listings that people read."""

import enum
from dataclasses import dataclass
from typing import Literal

import pytest

import bough
from bough.lang.compile.listing import schema_text


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Order:
    number: int
    color: Color
    note: str | None
    lines: list[str]


LONG = "word " * 40


@bough.function
def everything(s, topic: str, orders: list[Order], limit: int | None = 3):
    s += bough.system(LONG)
    s += bough.user_begin() + f"About {topic}: "
    outer = s.fork(2)
    for number, branch in enumerate(outer):
        branch += f"part {number}" + bough.user_end() + bough.assistant(bough.gen("order", Order, max_tokens=9))
        inner = branch.fork(2)
        inner += bough.gen("color", Color) + bough.gen("word", regex="[a-z]+")
        inner.join()
    outer.join()
    s += bough.user_end() + bough.assistant(bough.select("choice", ["p", "q"]))
    s += bough.when(bough.var("choice") == "p", bough.gen("one"), bough.gen("other"))
    s += bough.repeat_until(bough.var("turn") == "x", bough.user(bough.gen("turn")), at_most=2)


EXPECTED = """\
program everything(topic: string, orders: [{number: integer, color: "blue" | "red", note: stri ... [90 characters], \
limit: integer | null = 3)
    0 | system
    0 |   "word word word word word word word word word word wo..."[200 characters]
    0 | user
    0 |   "About " {topic} ": "
    0 |   fork 1 2
    1 |     "part 0"
    1 |   assistant
    1 |     gen order (max_tokens=9, schema {number: integer, color: "blue" | "red", note: strin ... [83 characters])
    1 |   fork 3 4
    3 |     gen color (one of "red", "blue")
    3 |     gen word (regex /[a-z]+/)
    4 |     gen color (one of "red", "blue")
    4 |     gen word (regex /[a-z]+/)
    1 |   join 3 4, gather
    2 |     "part 1"
"""


def test_branches_and_messages_stand_below_what_they_belong_to():
    listing = str(everything.compile([]))
    for options in (", max_tokens=128", "max_tokens=128, ", " (max_tokens=128)"):
        listing = listing.replace(options, "")
    found = listing.splitlines()
    assert found[: EXPECTED.count("\n")] == EXPECTED.splitlines()
    assert '    0 | when <choice of 0> == "p"' in found and "    0 |   gen one" in found
    assert found[found.index("    0 | repeat") + 1 : found.index("    0 | repeat") + 3] == [
        "    0 |   user",
        "    0 |     gen turn",
    ]
    assert all(len(line) < 130 for line in found[1:])
    assert listing.count("result {\n") == 1 and found[-1] == "}"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "any"),
        (True, "any"),
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"enum": ["a", 1, None]}, '"a" | 1 | null'),
        ({"const": 3}, "3"),
        ({"type": "array", "items": {"type": "number"}}, "[number, ...]"),
        ({"type": "array", "prefixItems": [{"type": "number"}, {}]}, "[number, any]"),
        ({"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"type": "object"}}}, "object | null"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/A"}}}}}, "{a: {a: {a: ...}}}"),
    ],
)
def test_schemas_in_a_few_words(schema, text):
    assert schema_text(schema) == text


def test_reasoning_is_named():
    @bough.function
    def reasoned(s, mood: Literal["a", "b"]):
        s += f"{mood}" + bough.separate_reasoning(bough.gen("x"))

    listing = str(reasoned.compile())
    assert listing.startswith('program reasoned(mood: "a" | "b")\n')
    assert "x: the answer in <x of 0> as text, x_reasoning_content: the reasoning in <x of 0> as text" in listing
