"""Schemas that say the same are one: what that saves, and what it must not change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bough.constrain import JsonSchema
from bough.constrain.errors import GrammarError, GrammarTooComplexError
from bough.constrain.json_schema.open.subschemas import facts_of, only_refers, scalar_key
from bough.constrain.lower import lower
from bough.constrain.receipt import MAX_POINTERS, MAX_POINTERS_CHARS, Pointers, Policy, Receipt


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


# Receipts that repeat what a schema says once


def _receipt(schema: dict[str, Any], policy: Policy) -> Receipt:
    receipt = lower(JsonSchema(json.dumps(schema), policy=policy)).receipt
    assert receipt is not None
    return receipt


def _left_to_the_check(num_places: int, name: str) -> dict[str, Any]:
    """A schema with `num_places` keywords that no mask can enforce, the pointer to each of which holds `name`."""
    leaf = {"not": {"type": "array", "uniqueItems": True}}
    properties = {f"p{index}": leaf for index in range(num_places)}
    return {
        "$ref": f"#/$defs/{name}",
        "$defs": {name: {"type": "object", "additionalProperties": False, "properties": properties}},
    }


@pytest.mark.parametrize(
    ("num_places", "name"), [(MAX_POINTERS + 1, "a"), (20, "L" * (MAX_POINTERS_CHARS // 20)), (1, "L" * 400_000)]
)
def test_the_places_of_a_receipt_are_bounded(num_places: int, name: str) -> None:
    schema = _left_to_the_check(num_places, name)
    with pytest.raises(GrammarTooComplexError, match="at most 1,000 places with 32,768 characters") as caught:
        _receipt(schema, "exact")
    assert caught.value.path.startswith(f"/$defs/{name[:100]}")
    receipt = _receipt(schema, "best_effort")  # which refuses no valid schema: all of it is checked
    assert receipt.checked == ("",)
    assert "additionalProperties" in receipt.enforced


def test_places_within_the_limits_are_all_listed() -> None:
    receipt = _receipt(_left_to_the_check(20, "L" * (MAX_POINTERS_CHARS // 20 - 50)), "exact")
    assert len(receipt.checked) == 20


def test_of_too_many_places_left_out_the_root_is_named() -> None:
    branches = [{"type": "object", "required": [f"k{index}"], "properties": {f"k{index}": {}}} for index in range(8)]
    crowd = {"allOf": [{"anyOf": branches}, {"anyOf": [{"properties": {f"k{i}": {"minimum": i}}} for i in range(8)]}]}
    few = _receipt({"$ref": "#/$defs/a", "$defs": {"a": crowd}}, "exact")
    assert few.narrowed and "" not in few.narrowed
    name = "L" * MAX_POINTERS_CHARS
    many = _receipt({"$ref": f"#/$defs/{name}", "$defs": {name: crowd}}, "exact")
    assert many.narrowed == ("",)


def test_pointers_count_each_place_once() -> None:
    pointers = Pointers()
    for _ in range(3):
        for index in range(MAX_POINTERS):
            pointers.add(f"/{index}")
    assert not pointers.whole
    assert len(pointers.listed()) == MAX_POINTERS
    pointers.add("/one/more")
    assert pointers.whole
    assert pointers.listed() == ("",)
