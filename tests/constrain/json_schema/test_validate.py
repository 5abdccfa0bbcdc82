"""The judge of finished values: exact numbers, ECMA's patterns, local references, and no way to hang it."""

from __future__ import annotations

import json
import socket
import time
from decimal import Decimal
from typing import Any

import pytest

from bough.constrain import GrammarTooComplexError, InvalidSchemaError
from bough.constrain.json_schema.parse import value_key
from bough.constrain.json_schema.validate import MAX_VIOLATIONS, _exact_key, compile_pattern, violations


def judge(schema: Any, text: str, **options: Any) -> list[tuple[str, str]]:
    return [(each.pointer, each.message) for each in violations(json.dumps(schema), text, **options)]


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"multipleOf": 0.1}, ["0.3", "1e2", "7", '"x"'], ["0.35", "1e-2"]),
        ({"multipleOf": 1e-8}, ["12391239123"], ["1e-9"]),
        ({"type": "integer"}, ["1.0", "1e2", "-0.0"], ["1.5", "true", '"1"']),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True},
            ["1.1"],
            ["1", "1.0"],
        ),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]}}, ["{}"], ['{"a": 1}']),
        ({"const": 1}, ["1", "1.0"], ["true", "2"]),
        ({"enum": [[False], {"a": 0}]}, ["[false]", '{"a": 0.0}'], ["[0]", '{"a": false}']),
        ({"uniqueItems": True}, ["[1, true]", '["1", 1]'], ["[1, 1.0]", '[{"a": 1}, {"a": 1.0}]']),
        ({"minimum": 0.1}, ["0.1"], ["0.09999999999999999999"]),
        ({"$defs": {"n": {"type": "null"}}, "items": {"$ref": "#/$defs/n"}}, ["[null]"], ["[1]"]),
        ({"$ref": "http://json-schema.org/draft-07/schema#"}, ["{}", "true"], ['{"type": 1}']),
        (
            {"properties": {"a": {}}, "patternProperties": {"^b": {}}, "additionalProperties": False},
            ['{"b1": 1}'],
            ['{"c": 1}'],
        ),
        ({"unevaluatedProperties": False, "anyOf": [{"properties": {"a": {}}}]}, ['{"a": 1}'], ['{"b": 1}']),
        (False, [], ["1"]),
    ],
)
def test_verdicts(schema: Any, valid: list[str], invalid: list[str]) -> None:
    assert [text for text in valid if judge(schema, text)] == []
    assert [text for text in invalid if not judge(schema, text)] == []


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (r"^\d+$", ["12"], ["١", "12\n"]),
        (r"^\w$", ["a", "_"], ["é"]),
        (r"^[\w-]+$", ["a-b"], ["é"]),
        (r"^[^\W]$", ["a"], ["é", "-"]),
        (r"^\S$", ["é"], ["\u00a0", "\ufeff"]),
        (r"^[\S]$", ["é", "\x00"], ["\u00a0", "\u2003"]),
        (r"^\p{L}+$", ["né"], ["1"]),
        (r"^.$", ["\x0b", "\U0001f600"], ["\n", "\u2028"]),
        (r"^\u{1F600}$", ["\U0001f600"], ["1F600"]),
        (r"^\cJ$", ["\n"], ["J"]),
        (r"^[^]$", ["\n", "a"], [""]),
        (r"^a[[]b$", ["a[b"], ["ab"]),
        (r"^[.$]$", [".", "$"], ["a"]),
        (r"\bé", [], ["é"]),
        (r"a\b", ["a", "aé"], ["ab"]),
        (r"^\-\/$", ["-/"], []),
    ],
)
def test_patterns_mean_what_ecma_says(pattern: str, matching: list[str], others: list[str]) -> None:
    schema = {"pattern": pattern}
    assert [text for text in matching if judge(schema, json.dumps(text))] == []
    assert [text for text in others if not judge(schema, json.dumps(text))] == []


def test_a_pattern_that_is_not_understood_blames_no_value() -> None:
    assert compile_pattern("(") is None
    assert judge({"pattern": "("}, '"x"') == []


def test_places_are_pointers() -> None:
    schema = {"properties": {"a/b": {"items": {"type": "string"}}}}
    ((pointer, message),) = judge(schema, '{"a/b": ["x", 1.50]}')
    assert pointer == "/a~1b/1"
    assert "1.50" in message and "/properties/a~1b/items/type" in message


def test_so_many_are_enough() -> None:
    assert len(judge({"items": {"type": "null"}}, json.dumps([1] * 100))) == MAX_VIOLATIONS


def test_formats_are_looked_at_where_asked() -> None:
    assert judge({"format": "ipv4"}, '"x"') == []
    assert judge({"format": "ipv4"}, '"x"', formats=["ipv4", "no such format"])
    assert judge({"format": "ipv4"}, '"10.0.0.1"', formats=["ipv4"]) == []


@pytest.mark.parametrize("text", ["", "{", "[1,]", "NaN", "1e999999", '"\n"'])
def test_what_is_not_json_is_told(text: str) -> None:
    ((pointer, message),) = judge(True, text)
    assert (pointer, message[:20]) == ("", "the text is not JSON")


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("a connection"))
    with pytest.raises(InvalidSchemaError, match="has no target"):
        judge({"$ref": "http://169.254.169.254/s.json"}, "1")
    with pytest.raises(InvalidSchemaError, match="has no target"):
        judge({"$ref": "#/nowhere"}, "1")


def test_what_does_not_end_is_refused() -> None:
    with pytest.raises(GrammarTooComplexError, match="form a cycle"):
        judge({"$ref": "#"}, "1")


def test_a_hostile_pattern_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.constrain.json_schema.validate.REGEX_TIMEOUT_S", 0.1)
    with pytest.raises(GrammarTooComplexError, match="too long"):
        judge({"pattern": "^(a|aa)+$"}, json.dumps("a" * 200 + "!"))


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(a|a)*$"},
        {"patternProperties": {"^(a|a)*$": True}},
        {"additionalProperties": False, "patternProperties": {"^(a|a)*$": True}},
        {"anyOf": [{"pattern": "^(a|a)*$"}, {"pattern": "^(a|aa)+$"}]},
    ],
)
def test_a_pattern_takes_no_more_than_the_time_that_is_left(schema: Any) -> None:
    text = "a" * 40 + "!"
    started = time.thread_time()
    with pytest.raises(GrammarTooComplexError, match="too long"):
        violations(json.dumps(schema), json.dumps({text: 1} if "Properties" in str(schema) else text), timeout_s=0.1)
    assert time.thread_time() - started < 0.5


def test_keys_of_unique_items_are_equal_where_the_values_are() -> None:
    numbers = ["0", "-0.0", "0e9", "1", "1.0", "10e-1", "100", "1e2", "1e5000", "1.5", "15e-1", "-1", "10"]
    numbers += ["123456789012345678901234567890123456789", "123456789012345678901234567890123456788"]
    texts = [*numbers, "true", "false", "null", '"1"', '"true"', "[1,2]", "[1.0,2]", "[12]", "[]", "[[]]", "{}"]
    texts += ['{"a":1,"b":2}', '{"b":2.0,"a":1}', '{"a,b":1}', '["a","b"]', '["a,b"]']

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, bool) or isinstance(b, bool):
            return a is b
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(equal, a, b))
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
        return bool(a == b)

    values = [json.loads(text, parse_float=Decimal) for text in texts]
    for first, a in zip(texts, values, strict=True):
        for second, b in zip(texts, values, strict=True):
            assert (judge({"uniqueItems": True}, f"[{first},{second}]") == []) == (not equal(a, b)), (first, second)


def test_keys_of_unique_items_cannot_be_made_to_collide() -> None:
    numbers = [number * (2**61 - 1) for number in range(1, 2_001)]
    assert len(set(map(hash, numbers))) == 1
    for values in (numbers, [Decimal(number) for number in numbers], [[number] for number in numbers]):
        assert len({hash(value_key(value, _exact_key)) for value in values}) == len(values)
