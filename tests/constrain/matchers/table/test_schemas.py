"""Schemas whose values are no more than a regular language are tables: every mask is the one without a table."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from bough.constrain import GrammarCompiler, JsonSchema, Vocabulary, grammar_accepts
from bough.constrain.compiler import compile_grammar
from bough.constrain.json_schema.lower import regular_table
from bough.constrain.lower import lower
from bough.constrain.matchers.table.tables import RegularGrammar, RegularTables, is_small_job, tabulate
from bough.constrain.matchers.token_matcher import CompiledGrammar
from bough.constrain.regex.automaton import compile_regular

SCHEMAS: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"enum": ["red", "green", "blue"]},
    {"enum": ["red", "é", 3, None, 1.5, 'q"q', "tab\t"]},
    {"enum": [[1, {"a": 2}], [], {}, "x"]},
    {"const": {"a": [True, None]}},
    {"type": "integer"},
    {"type": "integer", "minimum": -5, "maximum": 300},
    {"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 40},
    {"type": "string"},
    {"type": "string", "pattern": "^[a-z]{2,5}-[0-9]+$"},
    {"type": "string", "pattern": "^a+$", "minLength": 3},
    {"type": "string", "pattern": "(?=.*[0-9])^[a-f0-9]{3,6}$"},
    {"type": "string", "not": {"const": "ab"}},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "ipv4"},
    {"anyOf": [{"const": "x"}, {"type": "null"}, {"type": "integer", "maximum": 12}]},
    {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2},
]
AT_ONCE = (0, 1, 2, 3, 4, 6)
OTHERS: list[dict[str, Any]] = [
    {"type": "array", "items": {"type": "integer"}},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 1}}, "$ref": "#/$defs/a"},
    {"type": "string", "maxLength": 100},
    {},
]


@pytest.fixture(scope="module")
def tables(compiler: GrammarCompiler) -> RegularTables:
    return RegularTables(compiler.tokens)


def pair(
    schema: Any, order: Any, compiler: GrammarCompiler, tables: RegularTables
) -> tuple[CompiledGrammar, RegularGrammar]:
    """The same schema without a table and with one."""
    plain = compile_grammar(JsonSchema(json.dumps(schema), property_order=order), compiler.tokens)
    assert isinstance(plain, CompiledGrammar)
    assert plain.tabulation is not None
    return plain, tables.grammar(tabulate(plain.tabulation.job), plain)


@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_masks_and_ends_are_the_same(
    schema: dict[str, Any], order: Any, compiler: GrammarCompiler, tables: RegularTables, vocabulary: Vocabulary
) -> None:
    plain, table = pair(schema, order, compiler, tables)
    assert table.receipt == plain.receipt
    size = (vocabulary.size + 31) // 32
    rows = np.zeros((2, size), np.int32)
    for seed in range(12):
        rng, one, two = random.Random(seed), plain.matcher(), table.matcher()
        for _ in range(30):
            assert (one.accepting, one.finished) == (two.accepting, two.finished)
            if one.finished:
                break
            one.fill_mask(rows[0])
            two.fill_mask(rows[1])
            assert np.array_equal(rows[0], rows[1])
            token = rng.choice(np.flatnonzero(np.unpackbits(rows[0].view(np.uint8), bitorder="little")).tolist())
            if token in vocabulary.eos_ids:
                break
            assert one.accept(token) == two.accept(token) == token


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_the_budget_is_kept(
    schema: dict[str, Any], compiler: GrammarCompiler, tables: RegularTables, vocabulary: Vocabulary
) -> None:
    """A text is valid if its budget allows, and parses at least."""
    plain, table = pair(schema, "any", compiler, tables)
    needed = table.min_tokens()
    assert needed is not None
    row = np.zeros((vocabulary.size + 31) // 32, np.int32)
    for max_tokens in (1, 2, needed, needed + 1, needed + 6):
        for seed in range(6):
            rng, matcher, text = random.Random(seed), table.matcher(), b""
            for remaining in reversed(range(max_tokens)):
                if matcher.finished:
                    break
                matcher.fill_mask(row)
                likely = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
                token = matcher.accept(rng.choice(likely), remaining)
                if token in vocabulary.eos_ids:
                    break
                text += vocabulary.tokens[token] or b""
            json.loads(text)
            assert matcher.accepting
            assert matcher.closed == (max_tokens < needed)
            if max_tokens >= needed:
                assert grammar_accepts(plain, text.decode(), vocabulary)


def test_a_budget_that_is_known_late_still_gives_json(compiler: GrammarCompiler, tables: RegularTables) -> None:
    _, table = pair({"enum": ["a long sentence that does not fit"]}, "any", compiler, tables)
    matcher = table.matcher()
    taken = [matcher.accept(token) for token in compiler.tokens.encode(b'"a long')]
    rest = compiler.tokens.encode(b' sentence that does not fit"')
    for remaining in (1, 0):
        taken.append(matcher.accept(rest[0], remaining))
    assert matcher.closed
    json.loads(compiler.tokens.text([token for token in taken if token not in compiler.tokens.eos_ids]))
    matcher.rollback(len(taken) - 1 if taken[-1] in compiler.tokens.eos_ids else len(taken))
    assert not matcher.closed


def test_small_ones_are_tables_at_once(compiler: GrammarCompiler) -> None:
    for index, schema in enumerate(SCHEMAS):
        spec = JsonSchema(json.dumps(schema), property_order="schema")
        tabulation = compile_grammar(spec, compiler.tokens).tabulation
        if index in AT_ONCE:
            assert tabulation is not None and is_small_job(tabulation.job), schema
            assert isinstance(compiler.compile(spec), RegularGrammar)


@pytest.mark.parametrize("schema", OTHERS, ids=json.dumps)
def test_others_are_followed_step_by_step(schema: dict[str, Any]) -> None:
    assert lower(JsonSchema(json.dumps(schema))).table is None


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        ('start: "a.b" | T\nT: /[0-9]+/', r"a\.b|[0-9]+"),
        ('start: r1 ("," r1){0,2}\nr1: "x"\n | "y" "z"?', "(x|yz?)(,(x|yz?)){0,2}"),
        ("start: T\nT: (/a*b/ & ~/ab/) | (/[bc]/ & /[cd]/)", "b|aaa*b|c"),
        ("start: T\nT: /[a-e]/ & ~(/a/ | /b/ & /[bc]/)", "[cde]"),
        ("start: T\nT: /[a-e]/ & ~~/a/", "a"),
    ],
)
def test_expressions(source: str, pattern: str) -> None:
    job = regular_table(source)
    assert job is not None
    assert tabulate(job) == compile_regular(pattern)


@pytest.mark.parametrize(
    "source",
    [
        'start: "(" start ")" | "x"',
        'start: "x"*',
        'start: "x"{2,}',
        "start: T\nT: /a/i",
        "start: T",
        "start: (T\nT: /a/",
        'start: a::0\na::_: "x" %if is_zeros(_)',
        'start: %json {"type": "integer"}',
        "start: T /b/\nT: /a/ & /[ab]/",
        "start: /(ab){99}/",
    ],
)
def test_what_is_not_known_to_be_regular(source: str) -> None:
    assert regular_table(source) is None
