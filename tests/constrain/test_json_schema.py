"""A schema's masks let through what a validator of JSON Schema accepts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Literal

import jsonschema
import pytest

from bough.constrain import (
    GrammarError,
    InvalidSchemaError,
    JsonSchema,
    UnsupportedKeywordError,
    Vocabulary,
    accepts,
)
from bough.constrain.errors import GrammarTooComplexError
from bough.constrain.lower import lower

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
    for size, values in ((1, (1, "a", "b")), (2, (1, "a", "b")), (3, (1, "b")))
    for keys in itertools.combinations(KEYS, size)
    for pairs in itertools.product(*([(key, value) for value in values] for key in keys))
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
    {"type": "string", "format": "int32", "contentEncoding": "base64", "x-note": 1, "examples": [1]},
    {"not": {"additionalProperties": {"type": "integer"}}},
    {"type": "object", "not": {"patternProperties": {"^[ab]": {"const": 1}}}},
    {"type": "object", "not": {"propertyNames": {"enum": ["a", "kind"]}}},
    {"type": "object", "required": ["a"], "minProperties": 2, "maxProperties": 2},
    {"type": "object", "properties": {key: {"const": 1} for key in "abc"}, "minProperties": 2},
    {"type": "object", "dependentRequired": {"a": ["b"]}, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^a|b$": {"type": "string"}, "^[b-z]": {"minLength": 1}}},
    {"type": "array", "contains": {"const": 2}, "maxItems": 2},
    {"type": "array", "contains": {"type": "integer"}, "minContains": 2, "maxContains": 2},
    {"type": "array", "not": {"items": {"type": "integer"}}},
    {"type": "array", "prefixItems": [{"const": 1}], "unevaluatedItems": {"const": 2}},
    {"type": "array", "contains": {"const": 1}, "unevaluatedItems": False},
    {
        "type": "object",
        "anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"properties": {"b": True}}],
        "unevaluatedProperties": False,
    },
    {
        "not": {
            "anyOf": [{"properties": {"a": True}}, {"properties": {"b": {"const": 1}}}],
            "unevaluatedProperties": False,
        }
    },
    {"type": "string", "pattern": "^(?!ab)[a-z]", "maxLength": 2},
    {"type": ["integer", "number"], "not": {"multipleOf": 2}},
    {"oneOf": [{"multipleOf": 1}, {"minimum": 1.5}], "type": "number"},
    {"const": [1, 2]},
    {"enum": [{"a": 1, "b": "a"}, [], "x1"]},
    {"not": {"enum": [[1], {"a": "b"}, {}]}},
    {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {"type": ["object", "string"], "additionalProperties": {"$ref": "#/$defs/tree"}}},
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_any_order_is_what_a_validator_accepts(schema: Any, vocabulary: Vocabulary) -> None:
    valid = _validator(schema)
    num_valid = 0
    for instance in INSTANCES:
        orders = [instance]
        if isinstance(instance, dict):
            orders = [dict(pairs) for pairs in itertools.permutations(instance.items())]
        for order in orders:
            assert accepts(schema, json.dumps(order), vocabulary) == valid(instance), order
        num_valid += valid(instance)
    assert num_valid


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_the_order_of_the_schema_is_one_of_those(schema: Any, vocabulary: Vocabulary) -> None:
    valid = _validator(schema)
    for instance in INSTANCES:
        orders = [instance]
        if isinstance(instance, dict):
            orders = [dict(pairs) for pairs in itertools.permutations(instance.items())]
        texts = [json.dumps(order) for order in orders]
        accepted = [accepts(schema, text, vocabulary, property_order="schema") for text in texts]
        assert any(accepted) == valid(instance), instance


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
@pytest.mark.parametrize("order", ["any", "schema"])
def test_the_known_short_text_is_valid(schema: Any, order: Literal["any", "schema"], vocabulary: Vocabulary) -> None:
    witness = lower(JsonSchema(json.dumps(schema), property_order=order)).witness
    assert witness is not None
    assert _validator(schema)(json.loads(witness))
    assert accepts(schema, witness, vocabulary, property_order=order)


def _validator(schema: Any) -> Callable[[Any], bool]:
    validator_class = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = validator_class(schema, format_checker=validator_class.FORMAT_CHECKER)
    return lambda value: bool(validator.is_valid(value))


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "é", "n": 3}',
        '{"name":"\\u00e9","n":3.0}',
        '{"n": 3,"name": "\\ud83d\\ude00"}',
    ],
)
def test_both_layouts_of_json_dumps(text: str, vocabulary: Vocabulary) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 1}, "n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    assert accepts(schema, text, vocabulary)
    assert accepts(schema, text, vocabulary, property_order="schema") == (text == '{"name": "é", "n": 3}')


@pytest.mark.parametrize("text", ['["é"', '["é"] ', '["\n"]', '[ "é"]', '["é",  "a"]', '["é", "a",]', '["é", 1]'])
def test_layouts_that_are_never_generated(text: str, vocabulary: Vocabulary) -> None:
    assert not accepts({"type": "array", "items": {"type": "string"}}, text, vocabulary)


def test_a_key_comes_once(vocabulary: Vocabulary) -> None:
    schema = {"properties": {"a": {"type": "integer"}, "b": True}, "required": ["b"]}
    assert accepts(schema, '{"b": 1, "a": 2}', vocabulary)
    assert not accepts(schema, '{"b": 1, "a": 2, "a": 3}', vocabulary)
    assert not accepts(schema, '{"b": 1, "\\u0061": "x"}', vocabulary)


@pytest.mark.parametrize("num_keys", [64, 65, 130])
def test_more_keys_than_a_rule_has_bits(num_keys: int, vocabulary: Vocabulary) -> None:
    names = [f"k{index}" for index in range(num_keys)]
    schema = {"properties": {name: {"const": index} for index, name in enumerate(names)}, "required": names[:10]}
    value = {name: index for index, name in enumerate(names)}
    assert accepts(schema, json.dumps(dict(reversed(value.items()))), vocabulary)
    assert not accepts(schema, json.dumps({name: value[name] for name in names[1:]}), vocabulary)
    assert accepts({**schema, "required": names}, json.dumps(value), vocabulary)


def test_what_cannot_be_masked_is_checked(vocabulary: Vocabulary) -> None:
    lowered = lower(JsonSchema('{"items": {"type": "object"}, "uniqueItems": true, "contains": {"minProperties": 1}}'))
    assert lowered.receipt is not None
    assert lowered.receipt.checked or lowered.distinct is not None
    schema = {"type": "array", "items": {"type": "object"}, "uniqueItems": True}
    assert accepts(schema, '[{"a": 1}, {"a": 2}]', vocabulary)
    assert not accepts(schema, '[{"a": 1}, {"a": 1}]', vocabulary)


@pytest.mark.parametrize(
    ("schema", "kind", "pointer"),
    [
        (False, InvalidSchemaError, ""),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, InvalidSchemaError, ""),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, InvalidSchemaError, ""),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "minItems": 1, "type": "array"}}},
            InvalidSchemaError,
            "",
        ),
        ({"allOf": [{"$ref": "#"}]}, InvalidSchemaError, ""),
        ({"properties": {"a": {"$ref": "other.json"}}}, InvalidSchemaError, "/properties/a/$ref"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, InvalidSchemaError, "/properties/a/$ref"),
        ({"properties": {"a/b": {"pattern": "(a)\\1"}}}, UnsupportedKeywordError, "/properties/a~1b/pattern"),
        ({"properties": {"a": {"pattern": "("}}}, InvalidSchemaError, "/properties/a/pattern"),
        ({"type": "integer", "multipleOf": 123456789}, GrammarTooComplexError, ""),
    ],
)
def test_refusals_name_the_place(schema: Any, kind: type[GrammarError], pointer: str) -> None:
    with pytest.raises(kind) as caught:
        lower(JsonSchema(json.dumps(schema)))
    assert caught.value.path == pointer


def test_best_effort_refuses_no_valid_schema(vocabulary: Vocabulary) -> None:
    schema = {"type": "string", "pattern": "^(a|b)\\1$"}
    receipt = lower(JsonSchema(json.dumps(schema), policy="best_effort")).receipt
    assert receipt is not None
    assert receipt.mode == "best_effort" and receipt.checked == ("/pattern",)


# Drafts and references


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"$schema": "http://json-schema.org/draft-04/schema#", "id": "x", "const": 1}, ["2"], []),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3, "exclusiveMaximum": True}, ["2"], ["3"]),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$ref": "#/definitions/a",
                "minimum": 9,
                "definitions": {"a": {"type": "integer"}},
            },
            ["1"],
            ["1.5"],
        ),
        (
            {
                "$schema": "https://json-schema.org/draft/2019-09/schema",
                "items": [{"const": 1}],
                "additionalItems": {"const": 2},
            },
            ["[1, 2]"],
            ["[2]", "[1, 3]"],
        ),
        (
            {
                "$schema": "https://json-schema.org/draft/2019-09/schema",
                "$recursiveAnchor": True,
                "type": "object",
                "properties": {"a": {"$recursiveRef": "#"}},
                "additionalProperties": False,
            },
            ['{"a": {}}'],
            ['{"a": 1}'],
        ),
        (
            {
                "$id": "https://example.org/root",
                "$ref": "part#here",
                "$defs": {"p": {"$id": "part", "$defs": {"q": {"$anchor": "here", "const": 1}}}},
            },
            ["1"],
            ["2"],
        ),
        ({"$id": "urn:example:root", "$ref": "#/$defs/a%20b", "$defs": {"a b": {"const": 1}}}, ["1"], ["2"]),
        ({"components": {"schemas": {"A": {"type": "null"}}}, "$ref": "#/components/schemas/A"}, ["null"], ["1"]),
        (
            {
                "$ref": "list",
                "$id": "https://example.org/strings",
                "$defs": {
                    "item": {"$dynamicAnchor": "item", "type": "string"},
                    "list": {
                        "$id": "list",
                        "type": "array",
                        "items": {"$dynamicRef": "#item"},
                        "$defs": {"any": {"$dynamicAnchor": "item"}},
                    },
                },
            },
            ['["a"]'],
            ["[1]"],
        ),
    ],
)
def test_drafts_and_references(schema: Any, valid: list[str], invalid: list[str], vocabulary: Vocabulary) -> None:
    assert all(accepts(schema, text, vocabulary) for text in valid)
    assert not any(accepts(schema, text, vocabulary) for text in invalid)


def test_the_metaschema_is_at_hand(vocabulary: Vocabulary) -> None:
    schema = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
    assert accepts(schema, '{"type": "string", "minLength": 1}', vocabulary)
    assert not accepts(schema, '{"type": "text"}', vocabulary)


D4, D7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
OVERLAP = {"anyOf": [{"type": "integer", "minimum": low, "maximum": low + 2} for low in (1, 2)]}
HOSTNAME = {"type": "string", "format": "hostname"}


@pytest.mark.parametrize(
    ("schema", "text", "accepted"),
    [
        # A format that is not regular leaves strings out, which proves nothing of them.
        ({"type": "object", "not": {"propertyNames": {"format": "hostname"}}}, '{"xn--nxasmq6b": 1}', False),
        ({"oneOf": [{"type": "string", "pattern": "^xn--"}, HOSTNAME]}, '"xn--nxasmq6b"', False),
        ({"oneOf": [{"type": "string", "pattern": "^xn--"}, HOSTNAME]}, '"abc.de"', True),
        # Each draft has formats and keywords of its own.
        ({"type": "string", "format": "color"}, '"red"', True),
        ({"$schema": D7, "type": "string", "format": "uuid"}, '"x"', False),
        ({"$schema": D4, "type": "integer"}, "1.0", False),
        ({"$schema": D4, "type": "integer"}, "12", True),
        ({"$schema": D4, "if": "foo", "type": "integer"}, "1", True),
        # Names of old drafts.
        (
            {
                "$schema": D7,
                "$id": "urn:example:x",
                "properties": {"foo": {"$ref": "urn:example:x#here"}},
                "definitions": {"named": {"$id": "#here", "const": 1}},
            },
            '{"foo": 2}',
            False,
        ),
        ({"$schema": D4, "$ref": "#here", "definitions": {"bar": {"id": "#here", "type": "string"}}}, '"a"', True),
        # Values that are listed.
        ({"const": 10**400}, "1", False),
        ({"type": "integer", "minimum": 0, "not": {"enum": list(range(1500))}}, "1600", True),
        ({"oneOf": [{"const": f"c{index}"} for index in range(300)]}, '"c7"', True),
        ({"oneOf": [{"const": "a"}, {"const": 1}, {"enum": [1.0, 2]}]}, "1", False),
        ({"oneOf": [{"const": "a"}, {"const": 1}, {"enum": [1.0, 2]}]}, "2", True),
        # Elements that must differ.
        (
            {
                "type": "array",
                "prefixItems": [{"const": 1}],
                "items": {"const": 2},
                "contains": {"type": "integer"},
                "minContains": 2,
                "uniqueItems": True,
            },
            "[1, 2]",
            True,
        ),
        (
            {
                "type": "array",
                "uniqueItems": True,
                "items": {"type": "number", "multipleOf": 0.12345678901234567, "minimum": 0, "maximum": 2},
            },
            "[0]",
            True,
        ),
        ({"uniqueItems": True, "items": {"enum": [0.5, "日本", True, 2]}}, '["\\u65e5\\u672c", 2.0]', True),
        ({"uniqueItems": True, "items": {"enum": [0.5, "日本", True, 2]}}, '["\\u65e5\\u672c", "日本"]', False),
        # A short text with several keys that nobody has named.
        ({"not": {"patternProperties": {"c": {"maxProperties": 1}}}}, '{"c": {"a": 1, "b": 2}}', True),
    ],
)
def test_what_was_once_wrong(schema: Any, text: str, accepted: bool, vocabulary: Vocabulary) -> None:
    assert accepts(schema, text, vocabulary) == accepted


@pytest.mark.parametrize(
    "schema",
    [
        '{"const": 1e400}',
        '{"maxLength": 1e400}',
        '{"type": "string", "not": {"format": "color"}}',
        json.dumps({"type": "array", "items": OVERLAP, "uniqueItems": True, "minItems": 5}),
        '{"allOf": [{"$ref": "#/allOf/²"}, {}]}',
        '{"$id": "http://x/y", "$ref": "http://[foo"}',
        '{"$id": "http://[foo", "$ref": "#a"}',
    ],
)
def test_what_is_wrong_is_refused_in_order(schema: str) -> None:
    with pytest.raises(InvalidSchemaError):
        lower(JsonSchema(schema))


def test_best_effort_keeps_what_a_negation_cannot_say(vocabulary: Vocabulary) -> None:
    schema = {"type": "string", "not": {"pattern": r"(a)\1"}}
    assert accepts(schema, '"b"', vocabulary, policy="best_effort")


def _overlapping(num_branches: int) -> dict[str, Any]:
    branches = [{"properties": {"x": {"minimum": i}}, "required": [f"k{i}"]} for i in range(num_branches)]
    return {"type": "object", "oneOf": branches}


@pytest.mark.parametrize(
    ("schema", "narrowed"),
    [
        (_overlapping(3), ()),
        (_overlapping(8), ("",)),
        ({"properties": {"a": _overlapping(8), "b": _overlapping(2)}}, ("/properties/a",)),
        ({"$defs": {"x": _overlapping(8)}, "items": {"$ref": "#/$defs/x"}}, ("/$defs/x",)),
        ({"enum": [{"a": [number]} for number in range(40)]}, ()),
    ],
    ids=["few", "many", "inside", "by reference", "constants"],
)
def test_a_receipt_tells_where_values_are_left_out(schema: dict[str, Any], narrowed: tuple[str, ...]) -> None:
    receipt = lower(JsonSchema(json.dumps(schema))).receipt
    assert receipt is not None
    assert receipt.narrowed == narrowed


@pytest.mark.parametrize("order", ["schema", "any"])
def test_objects_of_too_many_keys_at_one_place_are_refused_when_compiled(
    vocabulary: Vocabulary, order: Literal["schema", "any"]
) -> None:
    keys = {f"k{index}": {"type": "integer"} for index in range(2500)}
    schema = {"type": "object", "properties": keys}
    with pytest.raises(GrammarTooComplexError, match="2500 keys that may come in the same place"):
        lower(JsonSchema(json.dumps(schema), property_order=order))
    some = [f"k{index}" for index in range(0, 2500, 600)]
    if order == "schema":  # the required ones part them
        assert lower(JsonSchema(json.dumps({**schema, "required": some}), property_order=order))
    most = {"schema": 660, "any": 1980}[order]
    last = {"type": "object", "properties": dict(list(keys.items())[:most])}
    assert accepts(last, json.dumps({"k1": 1, f"k{most - 1}": 2}), vocabulary, property_order=order)


def test_keys_in_order_that_are_counted_take_less_room(vocabulary: Vocabulary) -> None:
    keys = {f"k{index}": {"type": "integer"} for index in range(900)}
    schema = {"type": "object", "properties": keys, "minProperties": 2}
    assert accepts(schema, json.dumps({"k1": 1, "k899": 2}), vocabulary, property_order="schema")
