"""Our own masks as a subject of the judge."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ...constrain import GrammarError, JsonSchema, MatcherError, Vocabulary
from ...constrain.compiler import compile_grammar
from ...constrain.json_schema.parse import checked_formats
from ...constrain.json_schema.validate import violations
from ...constrain.matchers.interface import Grammar
from ...constrain.spec import GrammarSpec
from ...constrain.vocabulary.token_table import TokenTable
from .judge import Refused, Walk


class Ours:
    """Compiles here and now, on one thread, with nothing remembered."""

    name = "bough"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.table = TokenTable(vocabulary)

    def compile(self, schema: str) -> Callable[[str], Walk]:
        return self.compile_spec(JsonSchema(schema))

    def compile_spec(self, spec: GrammarSpec) -> Callable[[str], Walk]:
        """The same for any constraint."""
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


def passes_check(grammar: Grammar, spec: GrammarSpec, text: str) -> bool:
    """Whether a finished text satisfies what the masks leave to be checked, if they leave anything."""
    if not isinstance(spec, JsonSchema) or grammar.receipt is None or not grammar.receipt.checked:
        return True
    return not violations(spec.schema, text, formats=checked_formats(spec.schema, grammar.receipt.checked))


def walk(grammar: Grammar, text: str, vocabulary: Vocabulary) -> Walk:
    """Whether each token of `text` is allowed in turn and the end after the last, with the time of each mask."""
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
