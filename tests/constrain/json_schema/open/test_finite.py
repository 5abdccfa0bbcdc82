"""Arrays of values that can be listed and must differ: just these texts, and no mask leads into a dead end."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest

from bough.constrain import GrammarError, JsonSchema, Vocabulary
from bough.constrain.compiler import compile_grammar
from bough.constrain.json_schema.lower import lower_schema
from bough.constrain.matchers.interface import Grammar
from bough.constrain.matchers.token_matcher import TokenMatcher
from bough.constrain.vocabulary.token_table import TokenTable

_PIECES = (
    *(b"[[", b"]]", b"],", b"],[", b"], [", b"[]", b" []", b"[],", b"[1", b"[1,", b"1]", b"1,", b"1,1", b".0", b"12"),
    *(b", ", b'",', b'", "', b'"12', b'"]', b'["', b"{}", b'{"', b'{"a', b'":', b'":1', b"}]", b"},{", b"true", b"tr"),
)
TOKENS = (None, *(bytes((byte,)) for byte in b'"ab012[]{}: ,.\\u69etrulfasn-'), *_PIECES)

ENUMS: list[list[Any]] = [
    [[], True, "12"],
    [[], [[]], 1],
    [[1], [1, 2], [1, 2, 1]],
    [{}, {"a": 1}, "a"],
    [{"a": 1, "b": 2}, {"a": 1}, 12],
    [{"a": [1, {}]}, {"a": [1]}, None],
    [1, 12, "1", "12", -1],
    [[True, None], [True], "é"],
]
SCHEMAS: list[dict[str, Any]] = [
    *({"items": {"enum": values}, "maxItems": 2} for values in ENUMS),
    {"items": {"enum": [[], 1]}, "minItems": 1},
    {"items": {"enum": ENUMS[4]}, "minItems": 1, "maxItems": 2},
    {"items": {"type": "array", "items": {"enum": [1, "a"]}, "maxItems": 1}},
    {"items": {"type": "array", "items": {"enum": [1, []]}, "uniqueItems": True, "minItems": 2}, "maxItems": 2},
    {
        "items": {
            "type": "object",
            "properties": {"a": {"enum": [1, []]}, "b": {"const": 1}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "maxItems": 2,
    },
    {"prefixItems": [{"enum": [1, 2]}, {"enum": [1]}], "items": {"enum": [[], 1]}, "minItems": 2, "maxItems": 2},
    {"prefixItems": [{"enum": [1, [1]]}, {"enum": [1]}, {"enum": [2, [1]]}], "items": False, "minItems": 3},
    {"items": {"enum": [[1], 1, {"a": 1}]}, "contains": {"type": "array"}, "maxItems": 2},
    {"items": {"enum": [[1], [2], 1]}, "contains": {"type": "array"}, "maxContains": 1},
    {"items": {"enum": [[1], [2], 1]}, "contains": {"type": "array"}, "minContains": 2},
    {
        "items": {"anyOf": [{"enum": [{"a": 1}, 1]}, {"type": "array", "items": {"const": 2}, "maxItems": 2}]},
        "maxItems": 2,
    },
]


@pytest.fixture(scope="module")
def tokens(greedy: Callable[[Sequence[bytes | None]], Callable[[str], list[int]]]) -> TokenTable:
    return TokenTable(Vocabulary(tokens=TOKENS, eos_ids=(0,), size=len(TOKENS), encode=greedy(TOKENS)))


def arrays(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "uniqueItems": True, **schema}


def words(grammar: Grammar, tokens: TokenTable) -> Iterator[bytes]:
    """Every text that the masks lead to, whatever tokens write it. Fails at a dead end."""
    matcher = grammar.matcher()
    assert isinstance(matcher, TokenMatcher)
    stack, known = [(matcher.state, b"")], {b""}
    row = np.zeros(tokens.num_words, dtype=np.int32)
    while stack:
        state, text = stack.pop()
        row[:] = 0
        if not state.is_stopped():
            state.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        assert allowed or state.is_accepting(), text
        if state.is_accepting():
            yield text
        for token in allowed:
            longer = text + (TOKENS[token] or b"")
            if longer not in known:
                known.add(longer)
                child = state.deep_copy()
                assert child.consume_token(token)
                stack.append((child, longer))


def values_of(texts: set[bytes]) -> set[str]:
    return {json.dumps(json.loads(text), sort_keys=True) for text in texts}


@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_words_are_the_valid_ones_of_those_that_may_repeat(
    schema: dict[str, Any], order: Any, tokens: TokenTable
) -> None:
    validator = jsonschema.Draft202012Validator(arrays(schema))
    lowered = lower_schema(JsonSchema(json.dumps(arrays(schema)), property_order=order))
    assert lowered.distinct is None
    assert lowered.receipt is not None
    assert lowered.receipt.checked == ()
    found = set(words(compile_grammar(JsonSchema(json.dumps(arrays(schema)), property_order=order), tokens), tokens))
    assert found
    assert all(validator.is_valid(json.loads(text)) for text in found)
    repeating = {**arrays(schema), "uniqueItems": False, "maxItems": schema.get("maxItems", 3)}
    free = set(words(compile_grammar(JsonSchema(json.dumps(repeating), property_order=order), tokens), tokens))
    assert found == {text for text in free if validator.is_valid(json.loads(text))}


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"enum": [[], 1]}, "minItems": 3},
        {"items": {"enum": [[], 1]}, "prefixItems": [{"enum": [1, []]}], "minItems": 3},
        {"prefixItems": [{"const": [1]}, {"const": [1]}], "minItems": 2},
        {"items": {"enum": [[1], 2]}, "contains": {"type": "array"}, "minContains": 2},
        {"prefixItems": [{"enum": [1, 2]}, {"enum": [1, 2]}, {"enum": [1, 2]}, True], "minItems": 4},
    ],
    ids=json.dumps,
)
def test_arrays_that_cannot_differ_are_refused(schema: dict[str, Any], tokens: TokenTable) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_grammar(JsonSchema(json.dumps(arrays(schema))), tokens)
    assert caught.value.code == "invalid_json_schema"


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("values", ENUMS, ids=json.dumps)
def test_drawn_evenly_every_word_comes_to_its_end(values: list[Any], wrapped: bool, tokens: TokenTable) -> None:
    schema = arrays({"items": {"enum": values}})
    if wrapped:  # the arrays differ as well, of which there are too many to be listed
        schema = {
            "type": "array",
            "uniqueItems": True,
            "items": {"anyOf": [schema, {"type": "boolean"}]},
            "maxItems": 3,
        }
    grammar = compile_grammar(JsonSchema(json.dumps(schema)), tokens)
    validator = jsonschema.Draft202012Validator(schema)
    row = np.zeros(tokens.num_words, dtype=np.int32)
    for seed in range(25):
        rng, matcher, text = random.Random(seed), grammar.matcher(), b""
        for remaining in reversed(range(80)):
            if matcher.finished:
                break
            matcher.fill_mask(row)
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
            token = matcher.accept(rng.choice(allowed), remaining)
            text += TOKENS[token] or b""
            if token == 0:
                break
        assert validator.is_valid(json.loads(text)), text
