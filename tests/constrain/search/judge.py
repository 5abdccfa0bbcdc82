"""Judges our own masks here and now: walks instances through them and tells what was let through, where and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
import numpy as np

from bough.benchmarks.constrain.cases import SchemaCase
from bough.benchmarks.constrain.contest import Outcome, Score
from bough.benchmarks.constrain.sides import passes_check
from bough.constrain import GrammarError, JsonSchema, MatcherError, Vocabulary
from bough.constrain.compiler import compile_grammar
from bough.constrain.matchers.interface import Grammar
from bough.constrain.vocabulary.token_table import TokenTable


class Refused(Exception):  # noqa: N818  # an outcome, not a mistake
    """The schema was refused, with the reason given.

    impossible  because no value satisfies it
    """

    def __init__(self, reason: str, *, impossible: bool = False) -> None:
        super().__init__(reason)
        self.impossible = impossible


class Walk(msgspec.Struct):
    """A text's way through the masks. `at` is the byte at which it was refused, None if it was not.

    mask_us     time of each mask that was computed on the way
    """

    accepted: bool
    at: int | None
    mask_us: list[float]
    why: str = ""


class Subject(Protocol):
    """An engine under test."""

    def compile(self, schema: str) -> Callable[[str], Walk]:
        """Returns what walks texts through the schema's masks. Raises Refused."""


def judge(case: SchemaCase, subject: Subject) -> Outcome:
    """Compiles the case's schema and walks its instances."""
    started = time.perf_counter()
    try:
        walker = subject.compile(case.schema)
    except Refused as error:
        compile_ms = (time.perf_counter() - started) * 1e3
        return Outcome.of(case, compile_ms, str(error), impossible=error.impossible)
    outcome = Outcome.of(case, (time.perf_counter() - started) * 1e3)
    for index, instance in enumerate(case.instances):
        walk = walker(instance.text)
        outcome.mask_us += walk.mask_us
        if instance.valid and not walk.accepted:
            outcome.over.append((index, -1 if walk.at is None else walk.at, walk.why))
        if walk.accepted and not instance.valid:
            outcome.under.append(index)
    return outcome


def by_group(outcomes: Iterable[Outcome]) -> dict[str, Score]:
    """Scores of the groups, in the order in which they first occur."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.group, []).append(outcome)
    return {name: Score.of(found) for name, found in groups.items()}


class Ours:
    """Our own masks: compiles on this thread, with nothing remembered."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.table = TokenTable(vocabulary)

    def compile(self, schema: str) -> Callable[[str], Walk]:
        spec = JsonSchema(schema)
        try:
            grammar = compile_grammar(spec, self.table)
        except GrammarError as error:
            impossible = error.code == "invalid_json_schema" and "satisf" in error.reason
            raise Refused(f"{error.code}: {error}", impossible=impossible) from error

        def walked(text: str) -> Walk:
            found = walk(grammar, text, self.vocabulary)
            if found.accepted and not passes_check(grammar, spec, text):
                found.accepted, found.why = False, "the finished value does not satisfy what is checked"
            return found

        return walked


def walk(grammar: Grammar, text: str, vocabulary: Vocabulary) -> Walk:
    """Asks whether each token of `text` is allowed in turn and the end after the last, and times each mask."""
    matcher = grammar.matcher()
    mask = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)
    times: list[float] = []
    at = 0
    for token in vocabulary.encode(text):
        if matcher.finished:
            return Walk(False, at, times, "the value had ended")
        started = time.perf_counter()
        try:
            matcher.fill_mask(mask)
        except MatcherError as error:
            return Walk(False, at, times, str(error))
        times.append((time.perf_counter() - started) * 1e6)
        if not mask[token // 32] >> (token % 32) & 1:
            return Walk(False, at, times, f"token {vocabulary.tokens[token]!r} is not allowed")
        matcher.accept(token)
        at += len(vocabulary.tokens[token] or b"")
    if not matcher.accepting:
        return Walk(False, at, times, "the end is not allowed")
    return Walk(True, None, times)
