"""Random schemas and values near them: what the masks let through, a validator accepts."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from bough.constrain import Vocabulary

from .fuzz import Fuzzer, Tally, run
from .random_schemas import DRAFTS, Schemas
from .shrink import shrink
from .values import Values, layouts

FULL = os.environ.get("BOUGH_ACCEPTANCE") == "full"
VALIDATORS = {draft: jsonschema.validators.validator_for({"$schema": uri}) for draft, uri in DRAFTS.items()}


def test_nothing_invalid_is_let_through(vocabulary: Vocabulary) -> None:
    tally = run(Fuzzer(vocabulary, pairs=20, words=2), seed=0, num_pairs=3_000)
    assert_sound(tally)
    assert tally.accepted > 500, "too little is let through to show anything"


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.skipif(not FULL, reason="part of the acceptance at full size")
def test_nothing_invalid_of_many_is_let_through(vocabulary: Vocabulary) -> None:
    assert_sound(run(Fuzzer(vocabulary, pairs=20, words=2), seed=1_000_000, num_pairs=100_000))


def assert_sound(tally: Tally) -> None:
    wrong = tally.of("unsound") + tally.of("broken")
    assert wrong == [], f"{len(wrong)} of: {tally}"


@pytest.mark.parametrize("draft", DRAFTS)
def test_what_is_tried_is_worth_trying(draft: int) -> None:
    """The schemas are schemas, and of the values near them some are valid and some are not."""
    num_valid = num_values = 0
    for seed in range(60):
        rng = random.Random(seed)
        schema = Schemas(rng, draft).root()
        VALIDATORS[draft].check_schema(schema)
        values = Values(rng, schema)
        verdicts = [VALIDATORS[draft](schema).is_valid(values.near()) for _ in range(10)]
        num_valid, num_values = num_valid + sum(verdicts), num_values + len(verdicts)
    assert 0.2 < num_valid / num_values < 0.8


def test_layouts_are_of_the_value() -> None:
    rng = random.Random(0)
    value: dict[str, Any] = {"a": [1, 2.5, "é", None], "b": {"x1": 'q"q'}}
    for _ in range(50):
        for text, canonical in layouts(value, rng):
            assert not canonical or json.loads(text) == value
            assert list(json.loads(text)) == ["a", "b"]


class TestShrink:
    def test_leaves_what_shows_it(self) -> None:
        schema = {"type": "object", "properties": {"a": {"minimum": 3, "pattern": "x"}, "b": True}, "required": ["b"]}

        def shows(schema: Any, value: Any) -> bool:
            try:
                return "minimum" in schema["properties"]["a"] and value["a"] == 7
            except (LookupError, TypeError):
                return False

        assert shrink(schema, {"a": 7, "b": [1, 2]}, shows) == ({"properties": {"a": {"minimum": True}}}, {"a": 7})

    def test_ends(self, counted: Callable[[Any, Any], bool]) -> None:
        assert shrink({"a": [1, {"b": 2}]}, "text", counted) == ({}, True)


@pytest.fixture
def counted() -> Callable[[Any, Any], bool]:
    """Anything shows it."""
    return lambda schema, value: isinstance(schema, dict)
