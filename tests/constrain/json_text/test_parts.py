"""Light constraints, and the places in a text of the values that a schema speaks of."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bough.constrain import Choice, Gbnf, JsonSchema, Lark, Regex, Structural, Tag
from bough.constrain.json_text.parts import json_parts
from bough.constrain.workers.jobs import is_small

CALL_OR_ANSWER = Structural(
    (Tag("<f>", JsonSchema('{"type": "string"}'), "</f>"), Tag("", JsonSchema('{"type": "integer"}'), "")),
    at_least_one=True,
    stop_after_first=True,
    free_text=False,
)
INTEGER, TEXT = JsonSchema('{"type": "integer"}'), JsonSchema('{"type": "string"}')


@pytest.mark.parametrize(
    ("spec", "light"),
    [
        (Regex("[a-z]+"), True),
        (Regex("a" * 5_000), False),
        (Choice(("a", "b")), True),
        (Choice(("a" * 5_000,)), False),
        (Lark('start: "a"'), True),
        (Gbnf('root ::= "a"'), False),
        (JsonSchema("{"), True),
        (JsonSchema("true"), True),
        (JsonSchema('{"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}'), True),
        (JsonSchema('{"properties": {"a": {"anyOf": [{}, {}]}}}'), False),
        (JsonSchema('{"items": {"pattern": "a"}}'), False),
        (JsonSchema('{"additionalProperties": {"$ref": "#"}}'), False),
        (JsonSchema(json.dumps({"description": "x" * 5_000})), False),
        (JsonSchema("[" * 500), True),
    ],
)
def test_what_is_light(spec: Any, light: bool) -> None:
    assert is_small(spec) == light


@pytest.mark.parametrize(
    ("spec", "text", "parts"),
    [
        (INTEGER, "1", [((INTEGER,), "1")]),
        (Regex("a"), "a", []),
        (Structural(reasoning_end="</think>", then=INTEGER), "hm</think>12", [((INTEGER,), "12")]),
        (Structural(reasoning_end="</think>", then=Regex("a")), "hm</think>a", []),
        (
            Structural(tags=(Tag("<a>", INTEGER, "</a>"), Tag("<b>", TEXT, "</b>"), Tag("<c>", None, "</c>"))),
            'see <b>"x</b>"</b> and <a>12</a>, <c><a>',
            [((TEXT,), '"x</b>"'), ((INTEGER,), "12")],
        ),
        (Structural(tags=(Tag("<a>", INTEGER, "</a>"),)), "<a>nonsense</a> x", [((INTEGER,), "nonsense")]),
        (
            Structural(tags=(Tag("<a", INTEGER, ">"), Tag("<ab", TEXT, ">"))),
            '<ab"x"><a1>',
            [((TEXT,), '"x"'), ((INTEGER,), "1")],
        ),
        (CALL_OR_ANSWER, "12", [((INTEGER,), "12")]),
        (CALL_OR_ANSWER, '\n"<f>1</f>"', [((INTEGER,), '\n"<f>1</f>"')]),
        (CALL_OR_ANSWER, '\n\n<f>"x"</f>', [((TEXT,), '"x"')]),
        (CALL_OR_ANSWER, "", [((), "")]),
        (Structural(CALL_OR_ANSWER.tags, free_text=False), "12", [((INTEGER,), "12")]),
        (Structural((Tag("", Regex("a*"), ""),), free_text=False), "aa", []),
        (Structural((Tag("<a>", INTEGER, "</a>"),), stop_after_first=True), "<a>1</a><a>2</a>", [((INTEGER,), "1")]),
        (Structural((Tag("<a>", INTEGER, "</a>"),), at_least_one=True), "1", [((), "1")]),
        (Structural((Tag("<a>", INTEGER, "</a>"),)), "1", []),
        (Structural((Tag("<a>", INTEGER, "</a>"), Tag("<a>", TEXT, "</a>"))), "<a>1</a>", [((INTEGER, TEXT), "1")]),
        (Structural((Tag("<a>", INTEGER, "</a>"), Tag("<a>", TEXT, "</b>"))), '<a>"x"</b>', [((TEXT,), '"x"')]),
        (Structural((Tag("<a>", INTEGER, "</a>"), Tag("<a>", None, "</a>"))), "<a>1</a>", []),
        (
            Structural((Tag("<a>", None, "</a>"), Tag("<b>", INTEGER, "</b>"))),
            "<a>so: <b>no number</b></a><b>1</b>",
            [((INTEGER,), "1")],
        ),
        (
            Structural((Tag("<b>", INTEGER, "</b>"),), reasoning_end="</think>", at_least_one=True),
            "<b>1</b></think>",
            [((), "")],
        ),
    ],
)
def test_where_the_values_are(spec: Any, text: str, parts: Any) -> None:
    assert list(json_parts(spec, text)) == parts
