"""Sides of a comparison of masks: bough's and llguidance's, each in a separate process."""

from __future__ import annotations

import gc
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from llguidance import LLMatcher

from ...constrain import GrammarCompiler, GrammarSpec, JsonSchema, Regex, Vocabulary
from ...constrain.compiler import compile_grammar
from ...constrain.json_schema.parse import checked_formats
from ...constrain.json_schema.validate import violations
from ...constrain.matchers.interface import Grammar
from ...constrain.vocabulary.token_table import TokenTable
from ...runtime.models.load import locate
from ...runtime.tokenizer.load import load_tokenizer
from ..peers.sides.peer_masks import MaskEngine, State

TABLE_S = 10.0


class Bough(MaskEngine):
    """Compiles schemas on this thread, with nothing remembered. Of a regular expression it waits for the table."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary.size, vocabulary.eos_ids[0])
        self._vocabulary = vocabulary
        self._table = TokenTable(vocabulary)
        self._compiled: tuple[Grammar, GrammarSpec] | None = None

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        spec = JsonSchema(text) if kind == "schema" else Regex(text)
        if kind == "schema":
            grammar = compile_grammar(spec, self._table)
        else:  # the table that takes the grammar's place a moment after the first request
            deadline = time.monotonic() + TABLE_S
            while (grammar := self._compiler.compile(spec)).matcher().on_table is None and time.monotonic() < deadline:
                time.sleep(0.01)
        self._compiled = grammar, spec

        def start() -> State:
            matcher = grammar.matcher()
            return lambda: matcher.fill_mask(self.row), matcher.accept

        return start

    def passes(self, tokens: Sequence[int]) -> bool:
        assert self._compiled is not None
        return passes_check(*self._compiled, self._table.text(tokens).decode())

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        return GrammarCompiler(self._vocabulary)


def passes_check(grammar: Grammar, spec: GrammarSpec, text: str) -> bool:
    """Says whether a finished text satisfies what the masks leave to be checked, if they leave anything."""
    if not isinstance(spec, JsonSchema) or grammar.receipt is None or not grammar.receipt.checked:
        return True
    return not violations(spec.schema, text, formats=checked_formats(spec.schema, grammar.receipt.checked))


class LLGuidance(MaskEngine):
    """llguidance with its own compiler of JSON schemas, as it comes. It asks for a tokenizer, so it is not a peer's."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary.size, vocabulary.eos_ids[0])
        self.version = importlib.metadata.version("llguidance")
        self._tokenizer = TokenTable(vocabulary).tokenizer

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        grammar_of = LLMatcher.grammar_from_json_schema if kind == "schema" else LLMatcher.grammar_from_regex
        first = LLMatcher(self._tokenizer, grammar_of(text), log_level=0)
        if first.is_error():
            raise ValueError(first.get_error())

        def start() -> State:
            matcher = first.deep_copy()

            def fill() -> None:
                matcher.unsafe_compute_mask_ptr(self.row.ctypes.data, self.row.nbytes)
                if matcher.is_error():
                    raise ValueError(matcher.get_error())

            return fill, matcher.consume_token

        return start


def bough(options: dict[str, Any]) -> MaskEngine:
    """Our engine; `options`: model, whose tokens they are."""
    engine = Bough(_vocabulary(options))
    gc.freeze()  # as the processes that lower schemas do
    return engine


def llguidance(options: dict[str, Any]) -> MaskEngine:
    """llguidance, with the options of `bough`."""
    return LLGuidance(_vocabulary(options))


def _vocabulary(options: dict[str, Any]) -> Vocabulary:
    tokenizer = load_tokenizer(locate(options["model"]))
    return tokenizer.vocabulary(tokenizer.vocab_size)
