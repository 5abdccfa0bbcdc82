"""Masks agree with `accept`; rollback, copies and the end of sequence; words end within the budget."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest

from bough.constrain import Choice, Grammar, GrammarCompiler, JsonSchema, Lark, Matcher, MatcherError, Regex, Vocabulary
from bough.constrain.spec import GrammarSpec
from bough.constrain.vocabulary.token_table import MAX_FORCED_BYTES

Allowed = Callable[[Matcher], list[int]]
Generate = Callable[[Grammar, int, random.Random], bytes]

SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["age"]},
    {"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 3},
    {"type": "string", "pattern": "^[a-z]+@[a-z]+[.]com$"},
    {"type": "string", "format": "date-time"},
    {"type": "number", "minimum": 3.5, "maximum": 1200},
    {"enum": ["red", "green", {"a": [1, None]}]},
    {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"value": {"type": "integer"}, "left": {"$ref": "#/$defs/tree"}, "note": {}},
                "required": ["value", "note"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, k: {}}, "required": ["kind"]} for k in "ab"]},
    {"type": "object", "patternProperties": {"^x-": {"type": "array", "items": {"type": "boolean"}}}},
    {},
]


@pytest.mark.parametrize("seed", range(3))
def test_mask_is_what_accept_takes(grammar: Grammar, vocabulary: Vocabulary, allowed: Allowed, seed: int) -> None:
    rng, matcher = random.Random(seed), grammar.matcher()
    for _ in range(12):
        tokens = allowed(matcher)
        assert tokens
        assert matcher.accepting == any(token in tokens for token in vocabulary.eos_ids)
        assert matcher.accepting == all(token in tokens for token in vocabulary.eos_ids)
        assert all(token in vocabulary.eos_ids or vocabulary.tokens[token] for token in tokens)
        for token in rng.sample(range(vocabulary.size), 40):
            trial = matcher.copy()
            if token in tokens:
                assert trial.accept(token) == token
            else:
                with pytest.raises(MatcherError):
                    trial.accept(token)
                assert allowed(trial) == tokens  # a refused token leaves the matcher as it was
        choices = [token for token in tokens if token not in vocabulary.eos_ids]
        assert matcher.finished == (not choices)
        if not choices:
            break
        matcher.accept(rng.choice(choices))


def test_rollback_and_copy(grammar: Grammar, vocabulary: Vocabulary, allowed: Allowed) -> None:
    rng, matcher = random.Random(1), grammar.matcher()
    masks = [allowed(matcher)]
    for _ in range(6):
        choices = [token for token in masks[-1] if token not in vocabulary.eos_ids]
        if not choices:
            break
        matcher.accept(rng.choice(choices))
        masks.append(allowed(matcher))
    fork = matcher.copy()
    for expected in reversed(masks[:-1]):
        matcher.rollback(1)
        assert allowed(matcher) == expected
    assert allowed(fork) == masks[-1]
    with pytest.raises(MatcherError):
        matcher.rollback(1)


def test_forced_tokens_are_canonical(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    schema = {
        "type": "object",
        "properties": {"country": {"const": "Berlin"}, "count": {"const": 7}},
        "required": ["country", "count"],
        "additionalProperties": False,
    }
    matcher = compiler.compile(JsonSchema(json.dumps(schema), property_order="schema")).matcher()
    taken: list[int] = []
    while forced := matcher.forced_tokens():
        taken += [matcher.accept(token) for token in forced]
    text = '{"country": "Berlin", "count": 7}'
    assert taken == vocabulary.encode(text)[: len(taken)]
    assert len(taken) > 5


@pytest.mark.parametrize("kind", ["lexer", "table"])
def test_a_long_forced_text_is_never_encoded_whole(kind: str, vocabulary: Vocabulary) -> None:
    """Masks, drafts and masks along drafts of each step look at a bounded beginning, and write the model's tokens."""
    lengths: list[int] = []

    def encode(text: str) -> list[int]:
        lengths.append(len(text))
        return vocabulary.encode(text)

    text = " ".join(random.Random(0).choices(["name", "text", "é", "Paris", "2026", "東", "xq"], k=800))
    compiler = GrammarCompiler(dataclasses.replace(vocabulary, encode=encode))
    spec: GrammarSpec = Choice((text, "zz")) if kind == "table" else Lark(f'start: "{text}" /[a-z]+/')
    matcher = compiler.compile(spec).matcher()
    whole = vocabulary.encode(text)
    if kind == "table":
        matcher.accept(whole[0])
    lengths.clear()
    row, rows = np.zeros((vocabulary.size + 31) // 32, np.int32), np.zeros((5, (vocabulary.size + 31) // 32), np.int32)
    for place in range(len(matcher.taken), len(whole) - 10):
        forced = matcher.forced_tokens()
        assert forced == whole[place : place + len(forced)]
        assert forced or (vocabulary.tokens[whole[place]] or b"")[0] & 0xC0 == 0x80
        matcher.fill_mask(row)
        if forced:
            assert np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() == forced[:1]
            assert matcher.fill_along(forced[:4], rows) == 1 + len(forced[:4])
        matcher.accept(whole[place])
    assert matcher.forced_tokens()
    compiler.close()
    assert 0 < max(lengths) <= MAX_FORCED_BYTES


def test_wrong_row_is_refused(grammar: Grammar) -> None:
    with pytest.raises(MatcherError, match="int32"):
        grammar.matcher().fill_mask(np.zeros(1, dtype=np.int32))


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_enough_budget_validates(schema: dict[str, Any], compiler: GrammarCompiler, generate: Generate) -> None:
    grammar = compiler.compile(JsonSchema(json.dumps(schema)))
    shortest = grammar.min_tokens()
    assert shortest is not None
    rng = random.Random(0)
    for slack in (0, 1, 2, 5, 10, 30, 100):
        for _ in range(3):
            value = json.loads(generate(grammar, shortest + slack, rng))
            jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_any_budget_parses(schema: dict[str, Any], compiler: GrammarCompiler, generate: Generate) -> None:
    grammar = compiler.compile(JsonSchema(json.dumps(schema)))
    rng = random.Random(1)
    for max_tokens in [*range(8, 60, 3), 200]:
        json.loads(generate(grammar, max_tokens, rng))


@pytest.mark.parametrize(
    ("spec", "check"),
    [
        (Regex("[a-z ]+;[0-9]{3}"), lambda text: text[-4] == ";" and text[-3:].isdigit()),
        (
            Choice(("Paris and Berlin", "first", "second " * 5)),
            lambda text: text in ("Paris and Berlin", "first", "second " * 5),
        ),
        (Lark('start: "(" (WORD | start)+ ")"\nWORD: /[a-z]+/'), lambda text: text.count("(") == text.count(")") > 0),
    ],
    ids=["regex", "choice", "lark"],
)
def test_other_grammars_end_in_time(
    spec: GrammarSpec, check: Callable[[str], bool], compiler: GrammarCompiler, generate: Generate
) -> None:
    grammar = compiler.compile(spec)
    shortest = grammar.min_tokens()
    assert shortest is not None
    rng = random.Random(2)
    for slack in (0, 1, 3, 8, 40):
        assert check(generate(grammar, shortest + slack, rng).decode(errors="replace"))


def test_too_small_a_budget_closes_the_text(compiler: GrammarCompiler, allowed: Allowed) -> None:
    schema = {"type": "object", "properties": {"country": {"type": "string", "minLength": 40}}, "required": ["country"]}
    matcher = compiler.compile(JsonSchema(json.dumps(schema))).matcher()
    taken: list[int] = []
    for remaining in reversed(range(6)):
        taken.append(matcher.accept(allowed(matcher)[0], remaining))
    assert matcher.finished
    assert matcher.accepting
    mask = allowed(matcher)
    matcher.rollback(2)
    assert not matcher.finished
    assert allowed(matcher) != mask


def test_looking_for_an_end_takes_a_bounded_time(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state of open arrays that must differ costs a millisecond to look at; there were very many."""
    monkeypatch.setattr("bough.constrain.matchers.completion.SEARCH_TIME_S", 0.1)
    enum = [{"c": 10}, 5, {"b": "tab\there"}]
    schema = {"type": "array", "uniqueItems": True, "contains": {"enum": enum}, "minContains": 2, "maxContains": 2}
    compiler = GrammarCompiler(vocabulary, timeout_s=30.0)
    try:
        compiler.compile(JsonSchema(json.dumps(schema)))
    finally:
        compiler.close()
