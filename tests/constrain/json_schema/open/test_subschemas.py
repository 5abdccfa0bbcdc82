"""Schemas that say the same are one: what that saves, and what it must not change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bough.constrain import JsonSchema
from bough.constrain.errors import GrammarError
from bough.constrain.json_schema.open.subschemas import facts_of, only_refers, scalar_key
from bough.constrain.lower import lower


def _source(schema: dict[str, Any]) -> str:
    return lower(JsonSchema(json.dumps(schema))).source


def test_what_means_nothing_makes_no_difference() -> None:
    assert scalar_key({"type": "string", "title": "a"}) == scalar_key({"description": "b", "type": "string"})
    assert scalar_key({"const": 1}) != scalar_key({"const": True})
    assert scalar_key({"type": "array", "minItems": 1}) is None


def test_equal_schemas_are_written_once() -> None:
    few = {"type": "object", "properties": {name: {"type": ["string", "null"]} for name in "ab"}}
    described = {name: {"type": ["string", "null"], "description": f"the {name}"} for name in "ab"}
    assert _source(few) == _source({"type": "object", "properties": described})


def test_a_reference_is_what_it_leads_to() -> None:
    item = {"type": "object", "properties": {"n": {"type": "integer"}}}
    chain = {"$ref": "#/$defs/a", "title": "one", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": item}}
    lowered = lower(JsonSchema(json.dumps(chain)))
    assert lowered.source == _source(item)
    assert lowered.receipt is not None
    assert "$ref" in lowered.receipt.enforced


def test_references_that_lead_nowhere_but_back_are_refused() -> None:
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    with pytest.raises(GrammarError, match="leads back to itself"):
        _source(loop)


def test_equal_branches_of_one_of_hold_together() -> None:
    text, number = {"type": "string", "minLength": 2}, {"type": "number"}
    assert _source({"oneOf": [text, {**text, "title": "again"}, number]}) == _source(number)
    with pytest.raises(GrammarError, match="no finite value"):
        _source({"oneOf": [text, text]})
    assert _source({"not": {"oneOf": [{"type": ["object", "array"]}, {"not": text}]}, "type": ["string", "null"]})


def test_values_alone_say_what_their_types_are() -> None:
    assert facts_of({"enum": [1, "a"]}).kinds == {"number", "string"}
    assert facts_of({"enum": [1], "type": ["string", "number"]}).kinds == {"string", "number"}
    assert not only_refers({"$ref": "#", "minLength": 1})
