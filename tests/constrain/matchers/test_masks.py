"""Masks along drafts, in one call or one by one, are those of the matcher step by step; the matcher stays in place."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import pytest

from bough.constrain import Grammar, GrammarCompiler, JsonSchema, Lark, Matcher, Vocabulary

Allowed = Callable[[Matcher], list[int]]


def rows_for(drafts: list[int], vocabulary: Vocabulary) -> np.ndarray:
    return np.full((1 + len(drafts), (vocabulary.size + 31) // 32), 7, dtype=np.int32)


def follow(matcher: Matcher, drafts: list[int], vocabulary: Vocabulary) -> list[np.ndarray]:
    """The masks before and after each draft, of a copy."""
    trial, found = matcher.copy(), []
    for token in [*drafts, -1]:
        row = np.zeros((vocabulary.size + 31) // 32, np.int32)
        trial.fill_mask(row)
        found.append(row)
        if token >= 0:
            trial.accept(token)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_rows_along_drafts(grammar: Grammar, vocabulary: Vocabulary, allowed: Allowed, seed: int) -> None:
    rng, matcher = random.Random(seed), grammar.matcher()
    for _ in range(4):
        drafts: list[int] = []
        trial = matcher.copy()
        while len(drafts) < 4:
            choices = [token for token in allowed(trial) if token not in vocabulary.eos_ids]
            if not choices:
                break
            drafts.append(trial.accept(rng.choice(choices)))
        rows = rows_for(drafts, vocabulary)
        before = allowed(matcher)
        assert matcher.fill_along(drafts, rows) == 1 + len(drafts)
        assert all(
            (row == expected).all() for row, expected in zip(rows, follow(matcher, drafts, vocabulary), strict=True)
        )
        assert allowed(matcher) == before
        if not drafts:
            break
        matcher.accept(drafts[0])


def test_rows_after_a_draft_that_is_not_allowed_are_void(
    grammar: Grammar, vocabulary: Vocabulary, allowed: Allowed
) -> None:
    matcher = grammar.matcher()
    first = allowed(matcher)[0]
    trial = matcher.copy()
    trial.accept(first)
    wrong = next(token for token in range(2, 300) if token not in allowed(trial))
    rows = rows_for([first, wrong, first], vocabulary)
    assert matcher.fill_along([first, wrong, first], rows) == 2
    expected = follow(matcher, [first], vocabulary)
    assert (rows[0] == expected[0]).all() and (rows[1] == expected[1]).all()
    assert matcher.fill_along([wrong if wrong not in allowed(matcher) else -1, first], rows) == 1


def test_a_text_that_is_being_closed(compiler: GrammarCompiler, vocabulary: Vocabulary, allowed: Allowed) -> None:
    matcher = compiler.compile(JsonSchema(json.dumps({"type": "string", "minLength": 99}))).matcher()
    matcher.accept(allowed(matcher)[0], 0)
    drafts = matcher.forced_tokens()
    rows = rows_for(drafts, vocabulary)
    assert matcher.fill_along(drafts, rows) == 1 + len(drafts)
    assert all((row == expected).all() for row, expected in zip(rows, follow(matcher, drafts, vocabulary), strict=True))


BRANCHES = """start: "(" (first | second)
first: "a" (END ("]" | "!") | ";")
second: "b" (END ("}" | "?") | ";")
END: "]"
"""
"""The rule alone tells apart what may follow: the lexemes after "a" and "b" begin alike."""


@pytest.mark.parametrize("way", ["draft", "rollback"])
def test_what_was_tried_leaves_no_trace(compiler: GrammarCompiler, vocabulary: Vocabulary, way: str) -> None:
    def masks(matcher: Matcher, text: str) -> list[bytes | None]:
        row = np.zeros((vocabulary.size + 31) // 32, np.int32)
        for token in vocabulary.encode(text):
            matcher.accept(token)
        matcher.fill_mask(row)
        return [
            vocabulary.tokens[token] for token in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        ]

    grammar = compiler.compile(Lark(BRANCHES))
    matcher = grammar.matcher()
    masks(matcher, "(")
    if way == "draft":
        drafts = vocabulary.encode("a")
        assert matcher.fill_along(drafts, rows_for(drafts, vocabulary)) == 2
    else:
        assert masks(matcher, "a") == [b";", b"]", b"]]"]
        matcher.rollback(1)
    assert masks(matcher, "b") == masks(grammar.matcher(), "(b") == [b";", b"]", b"]}"]
