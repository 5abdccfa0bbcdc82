"""What a schema's mask lets through is what a validator of JSON Schema accepts."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bough.constrain import GrammarCompiler, GrammarError, JsonSchema, Vocabulary, accepts, grammar_accepts

SHARED = Path(__file__).parents[3] / "shared" / "data"

LEAVES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    2,
    7,
    -3,
    1.5,
    "",
    "a",
    "ab",
    "abc",
    "x1",
    "2026-01-31",
    [],
    [1],
    [1, 2],
    ["a"],
    {},
]
KEYS = ("a", "b", "c", "kind")
OBJECTS = [
    dict(pairs)
    for size in (1, 2, 3)
    for keys in itertools.combinations(KEYS, size)
    for pairs in itertools.product(*([(key, value) for value in (1, "a", "b")] for key in keys))
]
INSTANCES = LEAVES + OBJECTS

SCHEMAS: list[Any] = [
    True,
    {"type": ["integer", "null"]},
    {"not": {"type": ["string", "object"]}},
    {"not": {"const": "a"}},
    {"not": {"enum": [1, "ab", None]}, "type": ["integer", "string", "null"]},
    {"type": "object", "not": {"required": ["a"]}},
    {"type": "object", "not": {"properties": {"a": {"const": 1}}}},
    {"type": "string", "not": {"minLength": 2}},
    {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]},
    {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}]},
    {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, key: {"type": "integer"}},
                "required": ["kind", key],
            }
            for kind, key in (("a", "b"), ("b", "c"))
        ]
    },
    {"type": "object", "dependentRequired": {"a": ["b", "c"]}},
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "dependencies": {"a": ["b"], "c": {"properties": {"b": {"type": "string"}}}},
    },
    {
        "type": "object",
        "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
        "then": {"required": ["b"]},
    },
    {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
    {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False, "minProperties": 1},
    {"type": "object", "properties": dict.fromkeys(KEYS, True), "additionalProperties": False, "maxProperties": 2},
    {"type": "object", "minProperties": 1},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}},
    {"type": "object", "propertyNames": {"pattern": "^[ab]$"}},
    {"type": "object", "propertyNames": {"maxLength": 1}},
    {"allOf": [{"properties": {"a": {"type": "string"}}}, {"required": ["a"]}], "type": "object"},
    {"allOf": [{"type": "object", "properties": {"a": {}}}], "properties": {"b": {}}, "unevaluatedProperties": False},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 1, "uniqueItems": True},
    {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
    {"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "minimum": 1, "exclusiveMinimum": True},
    {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}], "additionalItems": False},
    {"$defs": {"word": {"$anchor": "word", "type": "string"}}, "properties": {"a": {"$ref": "#word"}}},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "color", "contentEncoding": "base64", "x-note": 1, "examples": [1]},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_agrees_with_a_validator(schema: Any, compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    validator_class = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = validator_class(schema, format_checker=validator_class.FORMAT_CHECKER)
    grammar = compiler.compile(JsonSchema(json.dumps(schema)))
    num_valid = 0
    for instance in INSTANCES:
        valid = validator.is_valid(instance)
        num_valid += valid
        orders = [instance]
        if isinstance(instance, dict):  # keys come in one order; which one is the grammar's affair
            orders = [dict(pairs) for pairs in itertools.permutations(instance.items())]
        texts = [json.dumps(order) for order in orders]
        assert any(grammar_accepts(grammar, text, vocabulary) for text in texts) == valid, instance
    assert num_valid


def test_accepts_reads_a_schema(vocabulary: Vocabulary) -> None:
    schema = '{"type": "array", "items": {"type": "string"}}'
    assert accepts(schema, '["é", "a\\n"]', vocabulary)
    assert not accepts(schema, '["é", 1]', vocabulary)
    assert not accepts(schema, '["é"', vocabulary)
    assert not accepts(schema, '["é"] ', vocabulary)
    assert not accepts(schema, '["\n"]', vocabulary)


def _suite_files() -> list[Path]:
    return sorted((SHARED / "json-schema-test-suite" / "draft2020-12").glob("*.json"))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared test data is not here")
def test_official_suite_is_never_undercut(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    wrong, num_compiled = [], 0
    for path in _suite_files():
        for group in json.loads(path.read_text()):
            try:
                grammar = compiler.compile(JsonSchema(json.dumps(group["schema"])))
            except GrammarError:
                continue
            num_compiled += 1
            for test in group["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False)
                if not test["valid"] and grammar_accepts(grammar, text, vocabulary):
                    wrong.append((path.name, group["description"], test["description"]))
    assert num_compiled > 200
    assert wrong == []


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared test data is not here")
def test_real_schemas(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    num_compiled = num_right = 0
    paths = sorted((SHARED / "maskbench-sample").glob("*.json"))
    for path in paths:
        case = json.loads(path.read_text())
        try:
            grammar = compiler.compile(JsonSchema(json.dumps(case["schema"])))
        except GrammarError:
            continue
        num_compiled += 1
        right = True
        for test in case["tests"]:
            accepted = grammar_accepts(grammar, json.dumps(test["data"], ensure_ascii=False), vocabulary)
            assert test["valid"] or not accepted, path.name
            right &= accepted == test["valid"]
        num_right += right
    assert num_compiled >= 0.9 * len(paths)
    assert num_right >= 0.86 * len(paths)
