"""The places where elements must differ are those at which a validator finds that they do not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from bough.constrain.json_schema.document import Document
from bough.constrain.json_schema.emit import unseen_places
from bough.constrain.json_schema.open.expand import Expander
from bough.constrain.json_schema.open.graph import Graph
from bough.constrain.json_schema.open.subschemas import Subschemas
from bough.constrain.json_schema.parse import parse_schema
from bough.constrain.json_schema.unique_paths import distinct_paths
from bough.constrain.json_text.reader import NOWHERE, DistinctPaths
from bough.constrain.receipt import MAX_POINTERS_CHARS, Policy

LETTERS = {"enum": ["a", "b", "c"]}
STRINGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}

SCHEMAS: dict[str, Any] = {
    "the whole": STRINGS,
    "a property": {"type": "object", "properties": {"tags": STRINGS, "more": {"type": "array"}}},
    "arrays of arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    },
    "both levels": {"type": "array", "items": STRINGS, "uniqueItems": True},
    "a place of a tuple": {"type": "array", "prefixItems": [{"type": "integer"}, STRINGS], "items": {"type": "string"}},
    "other keys": {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": STRINGS},
    "a schema that holds itself": {
        "type": "object",
        "properties": {"tags": STRINGS, "child": {"$ref": "#"}},
        "additionalProperties": False,
    },
    "two branches": {
        "anyOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "tags": STRINGS}, "required": ["kind"]},
            {"type": "array", "items": {"type": "array", "items": {"type": "number"}, "uniqueItems": True}},
        ]
    },
}


def find(schema: Any, policy: Policy = "best_effort") -> tuple[DistinctPaths | None, set[str]]:
    """The paths that `schema` holds apart, and the keywords that they leave to a check."""
    subschemas = Subschemas(Document(parse_schema(json.dumps(schema))), policy)
    graph = Graph(Expander(subschemas), frozenset({subschemas.literal("#", ())}))
    paths, uncovered = distinct_paths(graph, unseen_places(graph))
    return paths, {keyword for _, keyword in uncovered}


def sample(schema: Any, rng: random.Random, depth: int = 3) -> Any:
    """A value of `schema`, but that elements may be equal; mostly they are few letters and digits."""
    if schema == {"$ref": "#"}:
        return sample(SCHEMAS["a schema that holds itself"], rng, depth - 1)
    if "anyOf" in schema:
        return sample(rng.choice(schema["anyOf"]), rng, depth)
    match schema.get("const", schema.get("type")):
        case "array":
            prefix, rest = schema.get("prefixItems", []), schema.get("items", {"type": "integer"})
            return [sample([*prefix, *[rest] * 3][index], rng, depth) for index in range(rng.randrange(4))]
        case "object":
            named = schema.get("properties", {})
            others = {key: schema["additionalProperties"] for key in "xy" if schema.get("additionalProperties")}
            return {
                key: sample(inner, rng, depth)
                for key, inner in {**named, **others}.items()
                if key in schema.get("required", ()) or (depth and rng.random() < 0.7)
            }
        case "integer" | "number":
            return rng.randrange(5)
        case "string":
            return rng.choice("abcde")
        case const:
            return const


def repeated(
    paths: DistinctPaths, value: Any, state: int = 0, at: tuple[str | int, ...] = ()
) -> Iterator[tuple[str | int, ...]]:
    """The places of arrays in `value` that `paths` wants distinct and that hold something twice."""
    if state == NOWHERE:
        return
    known = paths.states[state]
    if isinstance(value, list):
        if known.items and any(element in value[:index] for index, element in enumerate(value)):
            yield at
        for index, element in enumerate(value):
            inner = known.prefix[index] if index < len(known.prefix) else known.rest
            yield from repeated(paths, element, inner, (*at, index))
    elif isinstance(value, dict):
        for key, element in value.items():
            yield from repeated(paths, element, dict(known.names).get(key, known.other), (*at, key))


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_places_are_a_validators(name: str) -> None:
    schema = SCHEMAS[name]
    paths, uncovered = find(schema)
    assert paths is not None and not uncovered
    validator = jsonschema.Draft202012Validator(schema)
    rng = random.Random(7)
    wrong = 0
    for _ in range(500):
        value = sample(schema, rng)
        errors = [leaf for error in validator.iter_errors(value) for leaf in (error.context or [error])]
        expected = {tuple(error.absolute_path) for error in errors if error.validator == "uniqueItems"}
        assert set(repeated(paths, value)) == expected, value
        wrong += bool(expected)
    assert 20 < wrong < 480


def test_nothing_is_watched_without_need() -> None:
    assert find({"type": "array", "items": {"type": "string"}}) == (None, set())
    assert find({"type": "array", "items": LETTERS, "maxItems": 1, "uniqueItems": True}) == (None, set())


def test_what_may_run_out_is_counted() -> None:
    paths, _ = find({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "uniqueItems": True})
    assert paths is not None
    assert paths.states[0].most_items == 100 and paths.states[0].scarce
    paths, _ = find(STRINGS)
    assert paths is not None
    assert paths.states[0].most_items is None and not paths.states[0].scarce and paths.states[0].open


def test_arrays_that_may_repeat_are_not_held_apart() -> None:
    schema = {"anyOf": [STRINGS, {"type": "array", "items": {"type": "string"}, "minItems": 3}]}
    paths, uncovered = find(schema)
    assert paths is None and uncovered == {"uniqueItems"}


def test_the_pointers_to_what_it_takes_care_of_are_bounded() -> None:
    name = "L" * (MAX_POINTERS_CHARS // 10)
    properties = {f"p{index}": {"$ref": f"#/$defs/{name}/$defs/{index}"} for index in range(12)}
    items = {str(index): {**STRINGS, "items": {"type": "string", "maxLength": 9 + index}} for index in range(12)}
    paths, uncovered = find({"type": "object", "properties": properties, "$defs": {name: {"$defs": items}}})
    assert paths is not None
    assert paths.pointers == ("",)
    assert not uncovered
