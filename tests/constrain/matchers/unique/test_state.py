"""Elements and keys that must differ do: no text that repeats one is let through, all others are, in any tokens."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from bough.constrain import Grammar, GrammarCompiler, JsonSchema, MatcherError, Vocabulary, grammar_accepts
from bough.constrain.compiler import compile_grammar
from bough.constrain.json_schema.lower import lower_schema
from bough.constrain.json_schema.open import finite
from bough.constrain.lowered import Lowered
from bough.constrain.matchers.token_matcher import TokenMatcher
from bough.constrain.matchers.unique.state import DistinctState
from bough.constrain.vocabulary.token_table import TokenTable

_BYTES = rb'"ab0125[]{}: \u6trefalsn.-,'
_PIECES = (
    *(
        b'","',
        b'", "',
        b'""',
        b'"a',
        b' "a',
        b'"a"',
        b'",',
        b'"]',
        b'"]]',
        b'","a"',
        b'","a',
        b'","a","',
        b'a"',
        b'a","',
    ),
    *(
        b"],[",
        b"[]",
        b"]]",
        b"[1",
        b"1,",
        b",1",
        b", 1",
        b"1]",
        b"1,1",
        b".0",
        b"0,",
        b"2,2]",
        b"true",
        b"true,",
        b", true",
    ),
    *(
        b"null",
        b'":',
        b'{"a"',
        b'{"a":1}',
        b"},",
        b'},{"',
        b"}]",
        b"1}",
        b'":1,"',
        b"\\u0061",
        b"\\u006",
        b'\\u0061"',
        b'1"',
    ),
)
TINY = (None, *(bytes((byte,)) for byte in dict.fromkeys(_BYTES)), *_PIECES)

STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
OBJECTS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "kind": {"const": "a"}},
        "required": ["name", "kind"],
        "additionalProperties": False,
    },
    "uniqueItems": True,
}
FINITE: list[dict[str, Any]] = [
    {"items": {"enum": ["a", "b", 1, *map(str, range(70))]}, "maxItems": 2},
    {"items": {"type": "string", "pattern": "^[ab]{0,2}$"}, "prefixItems": [{"enum": ["", "a", "b"]}], "maxItems": 2},
    {"items": {"type": "integer", "minimum": 0, "maximum": 11}, "prefixItems": [{"enum": [0, 1, 2]}], "maxItems": 2},
    {"items": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 1}, "maxItems": 4},
    {"items": {"type": "array", "items": {"enum": [1, "a", True]}, "maxItems": 2}, "maxItems": 2},
    {"items": {"type": ["boolean", "null", "array"], "items": {"const": "a"}, "maxItems": 1}, "maxItems": 4},
    {"prefixItems": [{"enum": ["a", 1]}, {"enum": ["a", 1, True]}], "items": {"enum": ["a", "b", 1]}, "maxItems": 3},
    {"contains": {"const": "a"}, "items": {"enum": ["a", "b", 1]}, "maxItems": 3},
    {
        "items": {
            "type": "object",
            "properties": {"a": {"enum": ["a", "b"]}, "b": {"const": 1}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        "maxItems": 2,
    },
]
OTHERS: list[dict[str, Any]] = [
    {
        "type": "object",
        "minProperties": 2,
        "maxProperties": 3,
        "patternProperties": {"^[ab]?$": {"const": 1}},
        "additionalProperties": False,
    },
    {
        "$defs": {
            "list": {
                "type": "array",
                "uniqueItems": True,
                "maxItems": 2,
                "items": {"anyOf": [{"const": "a"}, {"type": "array", "maxItems": 1, "items": {"enum": ["a", 1]}}]},
            }
        },
        "$ref": "#/$defs/list",
    },
    {
        "anyOf": [
            {
                "type": "array",
                "uniqueItems": True,
                "maxItems": 2,
                "prefixItems": [{"enum": ["a", "b"]}],
                "items": False,
            },
            {
                "type": "object",
                "properties": {
                    "a": {
                        "type": "array",
                        "uniqueItems": True,
                        "maxItems": 2,
                        "prefixItems": [{"enum": ["a", 1]}],
                        "items": {"enum": ["a", 1]},
                    }
                },
                "additionalProperties": False,
            },
        ]
    },
]
SCHEMAS = [{"type": "array", "uniqueItems": True, **schema} for schema in FINITE] + OTHERS


@pytest.fixture(scope="module")
def tiny(greedy: Callable[[Sequence[bytes | None]], Callable[[str], list[int]]]) -> TokenTable:
    """Bytes of a small alphabet, and pieces that hold the end of an element and the beginning of the next."""
    return TokenTable(Vocabulary(tokens=TINY, eos_ids=(0,), size=len(TINY), encode=greedy(TINY)))


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists no values, so that no grammar holds them apart."""
    monkeypatch.setattr(finite, "MAX_DISTINCT", 0)


def allowed(state: Any, tokens: TokenTable) -> list[int]:
    row = np.zeros(tokens.num_words, dtype=np.int32)
    state.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    return [int(token) for token in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))]


def words(state: Any, tokens: TokenTable) -> Iterator[bytes]:
    """Every text from `state` on, whatever tokens write it."""
    stack, known = [(state.deep_copy(), b"")], {b""}
    while stack:
        here, text = stack.pop()
        if here.is_accepting():
            yield text
        for token in [] if here.is_stopped() else allowed(here, tokens):
            longer = text + (TINY[token] or b"")
            if longer not in known:
                known.add(longer)
                child = here.deep_copy()
                assert child.consume_token(token)
                stack.append((child, longer))


def read(text: bytes) -> tuple[Any, bool]:
    """The value, and whether no object in it has a key twice."""
    repeated: list[bool] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated.append(len(dict(found)) < len(found))
        return dict(found)

    return json.loads(text, object_pairs_hook=pairs), not any(repeated)


@pytest.mark.usefixtures("unlisted")
@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[36:80])
def test_masks_allow_what_is_valid_and_nothing_else(schema: dict[str, Any], order: Any, tiny: TokenTable) -> None:
    """Against all texts of the grammar alone: each mask is just what leads to those that are valid."""
    grammar = compile_grammar(JsonSchema(json.dumps(schema), property_order=order), tiny)
    assert grammar.receipt is not None
    assert grammar.receipt.checked == ()
    state = guarded(grammar)
    validator = jsonschema.Draft202012Validator(schema)
    readings = {text: read(text) for text in words(state._inner, tiny)}
    needs_keys = schema.get("type") == "object"
    good = {text for text, (value, once) in readings.items() if validator.is_valid(value) and (once or not needs_keys)}
    assert 0 < len(good) < len(readings)
    beginnings = {text[:length] for text in good for length in range(len(text) + 1)}
    rng = random.Random(0)
    for _ in range(15):
        here, text = state.deep_copy(), b""
        while True:
            assert here.is_accepting() == (text in good)
            plain = [token for token in allowed(here._inner, tiny) if token]
            right = [token for token in plain if text + (TINY[token] or b"") in beginnings]
            assert [token for token in allowed(here, tiny) if token] == right, text
            assert all(here.validate_tokens([token]) == 1 for token in right)
            if not right:
                break
            token = rng.choice(right)
            assert here.consume_token(token)
            text += TINY[token] or b""


def guarded(grammar: Grammar) -> DistinctState:
    matcher = grammar.matcher()
    assert isinstance(matcher, TokenMatcher)
    assert isinstance(matcher.state, DistinctState)
    return matcher.state


@pytest.mark.parametrize("schema", [STRINGS, OBJECTS, {"minProperties": 2}, {"type": "array", "uniqueItems": True}])
def test_copies_and_steps_back(schema: dict[str, Any], compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = compiler.compile(JsonSchema(json.dumps(schema)))
    tokens = compiler.tokens
    for seed in range(15):
        rng, matcher = random.Random(seed), grammar.matcher()
        rows: list[list[int]] = []
        for _ in range(30):
            row = np.zeros(tokens.num_words, dtype=np.int32)
            matcher.fill_mask(row)
            rows.append(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())
            likely = [token for token in rows[-1] if set(vocabulary.tokens[token] or b"\xff") <= set(b'"ab1,[]{}: ')]
            choices = [token for token in likely or rows[-1] if token not in vocabulary.eos_ids]
            if not choices:
                break
            fork = matcher.copy()
            assert fork.accept(rng.choice(rows[-1])) is not None
            matcher.accept(rng.choice(choices))
        num_taken = len(rows) - (1 if not choices else 0)
        for expected in reversed(rows[:num_taken]):
            matcher.rollback(1)
            fork = matcher.copy()
            row = np.zeros(tokens.num_words, dtype=np.int32)
            fork.fill_mask(row)
            assert np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() == expected


def test_drafts(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = compiler.compile(JsonSchema(json.dumps(STRINGS)))
    for text, num_right in (('["a", "b"]', 9), ('["a", "a", "b"]', 7)):
        drafts = [vocabulary.tokens.index(bytes((byte,))) for byte in text.encode()]
        drafts = drafts[: 8 if num_right == 9 else None]
        matcher, out = grammar.matcher(), np.zeros((1 + len(drafts), compiler.tokens.num_words), dtype=np.int32)
        assert matcher.fill_along(drafts, out) >= num_right
        for index, token in enumerate(drafts[: num_right + 1]):
            row = np.zeros(compiler.tokens.num_words, dtype=np.int32)
            matcher.fill_mask(row)
            assert np.array_equal(row, out[index])
            if row[token >> 5] >> (token & 31) & 1:
                matcher.accept(token)
        repeats = '"a", "a"' in text
        assert bool(out[8][drafts[8] >> 5] >> (drafts[8] & 31) & 1) != repeats if repeats else True


@pytest.mark.usefixtures("unlisted")
def test_forced_tokens_stop_before_a_repetition(compiler: GrammarCompiler) -> None:
    schema = {"type": "array", "prefixItems": [{"const": "alpha"}], "items": {"const": "alpha"}, "uniqueItems": True}
    spec = JsonSchema(json.dumps({**schema, "minItems": 1}), property_order="schema")
    grammar = compile_grammar(spec, compiler.tokens)
    tokens, state = compiler.tokens, guarded(grammar)
    assert state.compute_ff_bytes() == b'["alpha"'
    for token in tokens.encode(b'["alpha", '):
        assert state.consume_token(token)
    assert state._inner.compute_ff_bytes().startswith(b'"alpha"')
    assert state.compute_ff_bytes() == b'"alpha'
    assert b'"alpha'.startswith(tokens.text(state.compute_ff_tokens()))


def test_what_is_written_otherwise_is_the_same(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    strings = compiler.compile(JsonSchema(json.dumps(STRINGS)))
    texts = ['["a", "\\u0061"]', '["\\u0061", "a"]', '["/", "\\/"]', '["é", "\\u00e9"]', '["\\n", "\\u000a"]']
    assert [text for text in texts if grammar_accepts(strings, text, vocabulary)] == []
    assert all(len(set(json.loads(text))) == 1 for text in texts)
    assert grammar_accepts(strings, '["a", "\\u0062", "é", "\\u00ea", "/", "//"]', vocabulary)
    anything = compiler.compile(JsonSchema('{"uniqueItems": true}'))
    for text in (
        "[1, 1.0]",
        "[[1], [1.0]]",
        '[{"a": 1, "b": 2}, {"b": 2, "a": 1}]',
        "[0, -0]",
        '[{"a": [{}]}, {"a": [{}]}]',
    ):
        assert not grammar_accepts(anything, text, vocabulary)
    for text in (
        "[1, 10, true, 1.5]",
        "[[1], [1, 1]]",
        '[{"a": 1}, {"b": 1}]',
        '["1", 1]',
        "[[], {}]",
        '{"a": [1, 1]}',
    ):
        assert grammar_accepts(anything, text, vocabulary)


@pytest.mark.parametrize(
    "schema",
    [
        {**STRINGS, "minItems": 3},
        {**OBJECTS, "minItems": 2, "maxItems": 3},
        {**STRINGS, "items": {"type": "string", "format": "date"}, "minItems": 2, "maxItems": 4},
        {**STRINGS, "items": {"type": "integer", "minimum": 0, "maximum": 100}, "minItems": 3, "maxItems": 9},
        {"type": "object", "minProperties": 3, "maxProperties": 5, "additionalProperties": {"type": "boolean"}},
        {"type": "object", "not": {"additionalProperties": {"type": "integer"}}, "maxProperties": 3},
        {**STRINGS, "items": {"type": ["number", "null", "boolean"]}, "minItems": 3, "maxItems": 6},
    ],
    ids=lambda schema: json.dumps(schema)[:60],
)
def test_ends_valid_within_the_budget(
    schema: dict[str, Any], compiler: GrammarCompiler, generate: Callable[[Grammar, int, random.Random], bytes]
) -> None:
    grammar = compiler.compile(JsonSchema(json.dumps(schema)))
    needed = grammar.min_tokens()
    assert needed is not None
    for seed in range(12):
        text = generate(grammar, needed + 4 * seed, random.Random(seed))
        jsonschema.validate(json.loads(text), schema)


def test_elements_that_have_run_out(compiler: GrammarCompiler) -> None:
    """Checks that no element is begun if only a repetition could come."""
    endings = {**STRINGS, "items": {"type": "integer", "minimum": 0, "maximum": 69}}
    grammar = compiler.compile(JsonSchema(json.dumps(endings)))
    text = json.dumps(list(range(70)))
    matcher = grammar.matcher()
    for token in compiler.tokens.encode(text[:-1].encode()):
        matcher.accept(token)
    row = np.zeros(compiler.tokens.num_words, dtype=np.int32)
    matcher.fill_mask(row)
    left = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    assert {compiler.tokens.text([int(token)]) for token in left} <= {b"]", b".", b".0"}
    with pytest.raises(MatcherError):
        matcher.accept(compiler.tokens.encode(b",")[0])


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [('["the quick", "brown fox", "ju', 0.2e-3), ('["the quick", "brown fox", "the qui', 1e-3), ("[1, 12, 1", 2e-3)],
)
def test_takes_little_time(text: str, limit_s: float, compiler: GrammarCompiler) -> None:
    schema = {**STRINGS, "items": {"type": ["string", "integer"]}}
    state = guarded(compiler.compile(JsonSchema(json.dumps(schema))))
    assert state.try_consume_tokens(compiler.tokens.encode(text.encode()))
    row = np.zeros(compiler.tokens.num_words, dtype=np.int32)

    def measure(fill: Callable[[int, int], None]) -> float:
        times = []
        for _ in range(30):
            started = time.perf_counter()
            fill(row.ctypes.data, row.nbytes)
            times.append(time.perf_counter() - started)
        return min(times)

    assert measure(state.unsafe_compute_mask_ptr) - measure(state._inner.unsafe_compute_mask_ptr) < limit_s


def test_what_is_too_deep_is_refused(compiler: GrammarCompiler) -> None:
    state = guarded(compiler.compile(JsonSchema('{"uniqueItems": true}')))
    bracket = compiler.tokens.spelling(b"[")[0]
    assert 200 < state.try_consume_tokens([bracket] * 5_000) < 300


def test_where_arrays_differ_in_what_they_ask_for_it_is_checked() -> None:
    mixed = {"anyOf": [STRINGS, {"type": "array", "items": {"type": "string", "maxLength": 3}}]}
    lowered = lower_schema(JsonSchema(json.dumps(mixed)))
    assert lowered.distinct is None
    assert lowered.receipt is not None
    assert lowered.receipt.checked == ("/anyOf/0/uniqueItems",)


@pytest.mark.parametrize(
    ("schema", "pointers"),
    [
        (STRINGS, ("/uniqueItems",)),
        ({"properties": {"a": STRINGS, "b": {}}}, ("/properties/a/uniqueItems",)),
        ({"minProperties": 2}, ("/minProperties",)),
        ({"$defs": {"s": STRINGS}, "items": {"$ref": "#/$defs/s"}}, ("/$defs/s/uniqueItems",)),
        ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, None),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, None),
    ],
)
def test_paths(schema: dict[str, Any], pointers: tuple[str, ...] | None) -> None:
    lowered = lower_schema(JsonSchema(json.dumps(schema)))
    assert (None if lowered.distinct is None else lowered.distinct.pointers) == pointers
    assert lowered.receipt is not None
    assert lowered.receipt.checked == ()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(lowered), type=Lowered) == lowered
    assert hash(lowered) == hash(lower_schema(JsonSchema(json.dumps(schema))))
