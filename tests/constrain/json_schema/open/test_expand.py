"""Combinations of schemas: every value of a cut union is valid, and what is impossible is found to be so."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from bough.constrain import GrammarError, JsonSchema, Vocabulary, accepts
from bough.constrain.json_schema.open.expand import MAX_SHAPES
from bough.constrain.json_schema.open.shapes import KeySet
from bough.constrain.lower import lower
from bough.constrain.regex.language import Language


def overlapping(num_branches: int) -> dict[str, Any]:
    """Branches that exclude each other only by what the others have."""
    branches = [
        {
            "properties": {f"k{index}": {"type": "string"}, f"m{index}": {"type": "integer"}, "name": True},
            "required": [f"k{index}"],
        }
        for index in range(num_branches)
    ]
    return {"type": "object", "oneOf": branches}


def test_many_overlapping_branches_allow_less_but_never_more(vocabulary: Vocabulary) -> None:
    schema = overlapping(7)
    validator = jsonschema.Draft202012Validator(schema)
    for value in (
        {"k0": "a", "m0": 1},
        {"k3": "a", "name": 1},
        {"k0": "a", "k1": "b"},
        {"k0": "a", "k1": 1},
        {"k0": "a", "m1": "b", "k1": "c"},
        {"name": 1},
    ):
        accepted = accepts(schema, json.dumps(value), vocabulary)
        assert validator.is_valid(value) or not accepted
    assert accepts(schema, '{"k3": "a", "name": 1}', vocabulary)


def test_a_long_union_is_never_cut(vocabulary: Vocabulary) -> None:
    names = [f"kind{index}" for index in range(4 * MAX_SHAPES)]
    branches = [{"properties": {"kind": {"const": name}, name: True}, "required": ["kind", name]} for name in names]
    schema = {"type": "object", "oneOf": branches, "maxProperties": 3}
    for name in names:
        assert accepts(schema, json.dumps({"kind": name, name: 1}), vocabulary)
    assert not accepts(schema, '{"kind": "kind1", "kind2": 1}', vocabulary)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"enum": [1, 2]}, {"enum": [3]}]},
        {"oneOf": [{"type": "integer"}, {"type": "integer"}]},
        {"not": {"anyOf": [{"type": "string"}, {"not": {"type": "string"}}]}},
        {"type": "string", "pattern": "^a", "allOf": [{"pattern": "^b"}]},
        {"type": "object", "required": ["a"], "propertyNames": {"maxLength": 0}},
        {"type": "array", "contains": {"const": 1}, "items": {"const": 2}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
    ],
)
def test_what_nothing_satisfies_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarError, match="no finite value"):
        lower(JsonSchema(json.dumps(schema)))


@pytest.mark.parametrize("schema", [{"": {}}, {"type": "string", "": True}, {"not": {"": False, "type": "null"}}])
def test_a_keyword_without_a_name_says_nothing(schema: dict[str, Any], vocabulary: Vocabulary) -> None:
    assert accepts(schema, '"x"', vocabulary)


KEYS = ("", "a", "ab", "b", "c")
SETS = (
    KeySet(frozenset({"a", "b"})),
    KeySet(frozenset({"a"}), (Language.one_of(["ab", "c"]),)),
    KeySet(inverted=True),
    KeySet(frozenset({"a"}), inverted=True),
    KeySet(frozenset({"c"}), (Language.one_of(["a"]),), inverted=True),
)


@pytest.mark.parametrize("first", SETS)
@pytest.mark.parametrize("second", SETS)
def test_key_sets_are_sets(first: KeySet, second: KeySet) -> None:
    for key in KEYS:
        assert (first | second).contains(key) == (first.contains(key) or second.contains(key))
        assert (~first).contains(key) != first.contains(key)
        assert first.language.contains(key) == first.contains(key)


@pytest.mark.parametrize("extra", [{}, {"minLength": 1}, {"anyOf": [{"maxLength": 9}, {"pattern": "x"}]}])
def test_strings_of_many_patterns(extra: dict[str, Any], vocabulary: Vocabulary) -> None:
    """Their intersection is computed once, when all are known."""
    schema = {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b"}, {"pattern": "c$"}], **extra}
    assert accepts(schema, '"axbc"', vocabulary)
    assert not accepts(schema, '"axc"', vocabulary)
    schema["allOf"] = [*schema["allOf"], {"pattern": "^[^b]*$"}]
    with pytest.raises(GrammarError, match="no finite value"):
        lower(JsonSchema(json.dumps(schema)))


def test_keys_divided_by_patterns(vocabulary: Vocabulary) -> None:
    """A pattern divides a set of keys in two; a part without a key of its own is left out."""
    patterns = {"^a": {"type": "integer"}, "^ab": {"minimum": 3}, "b$": {"maximum": 9}, "^": {"type": "number"}}
    schema = {"type": "object", "patternProperties": patterns, "minProperties": 1}
    validator = jsonschema.Draft202012Validator(schema)
    for name in ("a", "ab", "abb", "xb", "b", "", "x", "abx"):
        for number in (2, 5, 10, 2.5):
            value = {name: number}
            assert accepts(schema, json.dumps(value), vocabulary) == validator.is_valid(value), value
