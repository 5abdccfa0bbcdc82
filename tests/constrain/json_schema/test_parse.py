"""The first look at a schema takes time linear in its text, whatever it holds, and little of it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from bough.constrain.errors import GrammarError, GrammarTooComplexError, InvalidSchemaError
from bough.constrain.json_schema.parse import MAX_PATTERN_CHARS, parse_schema

TWICE = '{"properties":{' + ",".join(f'"{index}":{{}}' for index in range(50_000)) + ',"49999":{}}}'


def look(text: str) -> tuple[float, str]:
    """Seconds of the processor that a look at a schema takes, and what is wrong with it."""
    began, said = time.thread_time(), ""
    try:
        parse_schema(text)
    except GrammarError as error:
        said = str(error)
    return time.thread_time() - began, said


@pytest.mark.parametrize(
    "schema",
    [
        {"type": [1, *map(str, range(60_000))]},
        {"type": "x" * 500_000},
        {"type": ["string", "null"] * 30_000},
        {"anyOf": [{}] * 100_000},
        {"prefixItems": [{}] * 300_000},
        {"properties": {str(index): {"type": "string"} for index in range(9_000)}},
        {"required": [str(index) for index in range(90_000)]},
        {"prefixItems": [{"pattern": "[" * MAX_PATTERN_CHARS}] * 40},
        {"prefixItems": [{"pattern": "[^" * (MAX_PATTERN_CHARS // 2)}] * 40},
        {"patternProperties": {f"{index}" + "{1," * 5_000: {} for index in range(40)}},
        {"enum": [int("9" * 4_000)] * 200},
        TWICE,
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_no_schema_takes_long(schema: Any) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema, separators=(",", ":"))
    assert len(text) < 1_000_000
    seconds, said = min(look(text) for _ in range(2))
    assert seconds < 1.0
    assert len(said) < 1000


def test_a_key_that_stands_twice_is_named() -> None:
    with pytest.raises(InvalidSchemaError, match="'49999' twice"):
        parse_schema(TWICE)


@pytest.mark.parametrize("pattern", ["a{99999}", "[]a{99999}", "[^]a{99999}", "[][]a{0,99999}", "[a\\]]{99999}"])
def test_a_repetition_beside_classes_is_counted(pattern: str) -> None:
    with pytest.raises(GrammarTooComplexError, match="99999}, at most"):
        parse_schema(json.dumps({"pattern": pattern}))


@pytest.mark.parametrize("pattern", ["[a{99999}]", "[^{99999}]", "\\{99999}"])
def test_a_repetition_in_a_class_is_none(pattern: str) -> None:
    parse_schema(json.dumps({"pattern": pattern}))
