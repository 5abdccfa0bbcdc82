"""Keys that a schema does not name, where they are to be left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bough.constrain import GrammarCompiler, Vocabulary
from bough.constrain.accepting import grammar_accepts
from bough.constrain.spec import JsonSchema

A: Any = {"a": {"type": "integer"}}
WORDS = {"description": "x"}

VOCABULARY = Vocabulary(
    tokens=(*(bytes([value]) for value in range(256)), None),
    eos_ids=(256,),
    size=257,
    encode=lambda text: [*text.encode()],
)


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(VOCABULARY)
    yield compiler
    compiler.close()


OPEN = {
    "nothing is listed": ({"type": "object"}, '{"b":1}'),
    "something is required only": ({"type": "object", "required": ["a"]}, '{"a":1,"b":1}'),
    "any others": ({"properties": A, "additionalProperties": True}, '{"a":1,"b":1}'),
    "others of a kind": ({"properties": A, "additionalProperties": {"type": "integer"}}, '{"a":1,"b":1}'),
    "a pattern": ({"properties": A, "patternProperties": {"^b": True}}, '{"a":1,"b":1}'),
    "unevaluated": ({"properties": A, "unevaluatedProperties": True}, '{"b":1}'),
    "required beside": ({"properties": A, "required": ["b"]}, '{"a":1,"b":1}'),
    "implied": ({"properties": A, "dependentRequired": {"a": ["b"]}}, '{"a":1,"b":1}'),
    "listed by another part": ({"properties": A, "allOf": [{"properties": {"b": True}}]}, '{"a":1,"b":1}'),
    "more are needed": ({"type": "object", "properties": A, "minProperties": 2}, '{"a":1,"b":1}'),
    "a part has others": ({"properties": A, "allOf": [{"additionalProperties": True}]}, '{"a":1,"b":1}'),
}
CLOSED: dict[str, tuple[Any, str, str, str]] = {
    "listed": ({"properties": A}, '{"a":1}', '{"b":1}', ""),
    "nothing is listed, in words": ({"type": "object", "properties": {}}, "{}", '{"b":1}', ""),
    "names beyond a pattern": (
        {"type": "object", "properties": A, "patternProperties": {"^b": True}},
        '{"a":1,"b":1}',
        '{"c":1}',
        "",
    ),
    "inside": (
        {"properties": {"x": {"type": "object", "properties": A}}},
        '{"x":{"a":1}}',
        '{"x":{"b":1}}',
        "/properties/x",
    ),
    "names of a bound": (
        {"type": "object", "properties": A, "propertyNames": {"maxLength": 3}},
        '{"a":1}',
        '{"b":1}',
        "",
    ),
    "in one of two": (
        {"anyOf": [{"type": "object", "properties": A, "required": ["a"]}, {"type": "string"}]},
        '{"a":1}',
        '{"a":1,"b":1}',
        "/anyOf/0",
    ),
}


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("order", ["any", "schema"])
def test_keys_that_are_spoken_of_are_written(compiler: GrammarCompiler, name: str, order: Any) -> None:
    schema, text = OPEN[name]
    spec = JsonSchema(json.dumps(schema), property_order=order, unnamed="omit")
    text = text if order == "any" else json.dumps(json.loads(text))
    assert grammar_accepts(compiler.compile(spec), text, VOCABULARY)


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("order", ["any", "schema"])
def test_others_are_left_out_and_the_receipt_says_of_which(compiler: GrammarCompiler, name: str, order: Any) -> None:
    schema, kept, left, place = CLOSED[name]
    kept, left = (kept, left) if order == "any" else (json.dumps(json.loads(text)) for text in (kept, left))
    grammar = compiler.compile(JsonSchema(json.dumps(schema), property_order=order, unnamed="omit"))
    assert grammar_accepts(grammar, kept, VOCABULARY)
    assert not grammar_accepts(grammar, left, VOCABULARY)
    assert grammar.receipt is not None
    assert place in grammar.receipt.closed
    standard = compiler.compile(JsonSchema(json.dumps(schema), property_order=order))
    assert grammar_accepts(standard, left, VOCABULARY)
    assert standard.receipt is not None
    assert standard.receipt.closed == ()


def test_no_listed_key_is_written_twice(compiler: GrammarCompiler) -> None:
    names = {f"k{number}": {"type": "integer"} for number in range(60)}
    grammar = compiler.compile(JsonSchema(json.dumps({"type": "object", "properties": names}), unnamed="omit"))
    assert grammar_accepts(grammar, '{"k1":1,"k0":2}', VOCABULARY)
    for text in ('{"k1":1,"k1":2}', '{"k1":1,"k0":2,"k1":3}'):
        assert not grammar_accepts(grammar, text, VOCABULARY)
