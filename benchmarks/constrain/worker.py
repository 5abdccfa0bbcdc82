"""Our own masks, and llguidance's, in a process that speaks as those of the peers do; see constrain_peer.py."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from llguidance import LLMatcher

from ...constrain import GrammarCompiler, GrammarSpec, JsonSchema, Regex, Vocabulary
from ...constrain.compiler import compile_grammar
from ...constrain.matchers.interface import Grammar, Matcher
from ...constrain.vocabulary.token_table import TokenTable
from ...constrain.vocabulary.vocabulary import MaskRow
from ...runtime.models.load import locate
from ...runtime.tokenizer.load import load_tokenizer
from .ours import passes_check
from .peer import Engine, State, serve

TABLE_S = 10.0


class Bough:
    """Compiles schemas on this thread, with nothing remembered. Of a regular expression it waits for the table."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos = vocabulary.eos_ids[0]
        self._vocabulary = vocabulary
        self._table = TokenTable(vocabulary)
        self._row = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)
        self._compiled: tuple[Grammar, GrammarSpec] | None = None

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        spec = JsonSchema(text) if kind == "schema" else Regex(text)
        grammar = compile_grammar(spec, self._table) if kind == "schema" else self._tabulated(spec)
        self._compiled = grammar, spec
        return lambda: _State(grammar.matcher(), self._row)

    def passes(self, tokens: Sequence[int]) -> bool:
        assert self._compiled is not None
        return passes_check(*self._compiled, self._table.text(tokens).decode())

    def _tabulated(self, spec: GrammarSpec) -> Grammar:
        """As it is served a moment after the first request: its table takes the place of the grammar."""
        deadline = time.monotonic() + TABLE_S
        while (grammar := self._compiler.compile(spec)).matcher().on_table is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return grammar

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        return GrammarCompiler(self._vocabulary)


class LLGuidance:
    """llguidance with its own compiler of JSON schemas, as it comes. It asks for a tokenizer, so it is not a peer's."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos = vocabulary.eos_ids[0]
        self._tokenizer = TokenTable(vocabulary).tokenizer
        self._row = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        grammar_of = LLMatcher.grammar_from_json_schema if kind == "schema" else LLMatcher.grammar_from_regex
        start = LLMatcher(self._tokenizer, grammar_of(text), log_level=0)
        if start.is_error():
            raise ValueError(start.get_error())
        return lambda: _LLGuidanceState(start.deep_copy(), self._row)

    def passes(self, tokens: Sequence[int]) -> bool:
        return True


class _State:
    def __init__(self, matcher: Matcher, row: MaskRow) -> None:
        self._matcher, self._row = matcher, row

    def fill(self) -> None:
        self._matcher.fill_mask(self._row)

    def allows(self, token: int) -> bool:
        return bool(self._row[token // 32] >> (token % 32) & 1)

    def accept(self, token: int) -> None:
        self._matcher.accept(token)


class _LLGuidanceState:
    def __init__(self, matcher: LLMatcher, row: MaskRow) -> None:
        self._matcher, self._row = matcher, row

    def fill(self) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())

    def allows(self, token: int) -> bool:
        return bool(self._row[token // 32] >> (token % 32) & 1)

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            raise ValueError("it refuses a token that it allowed")


ENGINES: dict[str, Callable[[Vocabulary], Engine]] = {"bough": Bough, "llguidance": LLGuidance}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bough.benchmarks.constrain.worker", description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model")
    arguments = parser.parse_args(argv)
    tokenizer = load_tokenizer(locate(arguments.model))
    engine = ENGINES[arguments.engine](tokenizer.vocabulary(tokenizer.vocab_size))
    gc.freeze()  # as the processes that lower schemas do
    return serve(engine)


if __name__ == "__main__":
    sys.exit(main())
