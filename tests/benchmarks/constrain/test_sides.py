"""Engines of this environment walk texts as the protocol of the peers asks: ours and llguidance alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bough.benchmarks.constrain.sides import Bough, LLGuidance, passes_check
from bough.benchmarks.peers.sides.peer_masks import MaskEngine
from bough.constrain import JsonSchema, Regex, Vocabulary
from bough.constrain.compiler import compile_grammar
from bough.constrain.vocabulary.adapters import byte_vocabulary
from bough.constrain.vocabulary.token_table import TokenTable

MIXED = {  # arrays that differ in what they ask for: whether elements are distinct is checked at the end
    "anyOf": [
        {"type": "array", "items": {"type": "string", "maxLength": 2}, "uniqueItems": True},
        {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 3},
    ]
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return byte_vocabulary()


def walked(engine: MaskEngine, kind: str, text: str, *texts: str) -> dict[str, Any]:
    encode = byte_vocabulary().encode
    return engine.walk(kind, text, [encode(each) for each in texts])


@pytest.mark.parametrize("make", [Bough, LLGuidance])
class TestEverySide:
    def test_schemas(self, make: Callable[[Vocabulary], MaskEngine], vocabulary: Vocabulary) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        found = walked(make(vocabulary), "schema", json.dumps(schema), '{"n": 12}', '{"n": "x"}', '{"n": 1')
        assert found["refused"] is None
        assert [walk["accepted"] for walk in found["walks"]] == [True, False, False]
        assert [walk["num_tokens"] for walk in found["walks"]] == [9, 6, 7]
        assert [len(walk["mask_us"]) for walk in found["walks"]] == [10, 7, 8]

    def test_patterns(self, make: Callable[[Vocabulary], MaskEngine], vocabulary: Vocabulary) -> None:
        found = walked(make(vocabulary), "regex", "[a-c]{2}-[0-9]", "ab-1", "ab-", "ad-1", "ab-12")
        assert [walk["accepted"] for walk in found["walks"]] == [True, False, False, False]

    def test_a_refusal(self, make: Callable[[Vocabulary], MaskEngine], vocabulary: Vocabulary) -> None:
        found = walked(make(vocabulary), "schema", '{"type": "nothing"}', "1")
        assert found["refused"]
        assert found["walks"] == []


def test_only_foreign_engines_have_a_version(vocabulary: Vocabulary) -> None:
    assert Bough(vocabulary).version is None
    assert LLGuidance(vocabulary).version


def test_a_finished_value_is_checked_where_masks_leave_something_open(vocabulary: Vocabulary) -> None:
    found = walked(Bough(vocabulary), "schema", json.dumps(MIXED), '["a", "b"]', '["a", "a"]')
    assert [walk["accepted"] for walk in found["walks"]] == [True, False]
    assert found["walks"][1]["num_tokens"] == len('["a", "a"]')  # masks let it through to its end


def test_a_pattern_leaves_nothing_to_check(vocabulary: Vocabulary) -> None:
    spec = Regex("a+")
    assert passes_check(compile_grammar(spec, TokenTable(vocabulary)), spec, "b")
    schema = JsonSchema('{"type": "integer"}')
    assert passes_check(compile_grammar(schema, TokenTable(vocabulary)), schema, '"b"')
