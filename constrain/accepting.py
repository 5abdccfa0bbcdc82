"""Asks whether decoding under a constraint could have produced a text."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from typing import Any, Literal

from .compiler import GrammarCompiler
from .matchers.interface import Grammar
from .spec import JsonSchema
from .vocabulary.adapters import as_vocabulary
from .vocabulary.vocabulary import Vocabulary
from .walk import walk

MAX_COMPILERS = 4
CACHE_BYTES = 64 << 20


def accepts(
    schema: str | dict[str, Any] | bool,
    text: str,
    tokenizer: Any,
    *,
    property_order: Literal["any", "schema"] = "any",
    policy: Literal["exact", "best_effort"] = "exact",
) -> bool:
    """Whether decoding under `schema` could end with `text`.

    Each token of `text` must be allowed in turn, and the end of sequence after the last; and what no mask can enforce
    is checked on the whole. `schema` is a JSON Schema or its text. `tokenizer` is a `Vocabulary`, a tokenizer of ours,
    of the package `tokenizers`, or a fast one of `transformers`; what is made of it is kept for the next calls.

    Raises:
        GrammarError: the schema is refused; it is the error that a request with it gets.
    """
    source = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    spec = JsonSchema(source, property_order=property_order, policy=policy)
    vocabulary, compiler = _COMPILERS.of(tokenizer)
    grammar = compiler.compile(spec)
    if not grammar_accepts(grammar, text, vocabulary):
        return False
    needs_check = grammar.receipt is not None and grammar.receipt.checked
    return not needs_check or not compiler.check(spec, text, grammar.receipt).result()


def grammar_accepts(grammar: Grammar, text: str, tokenizer: Any) -> bool:
    """Whether the masks of `grammar`, which was compiled for `tokenizer`, let `text` through."""
    return walk(grammar, text, as_vocabulary(tokenizer)) is None


class _Compilers:
    """A compiler for each of the last few tokenizers. They belong to this process: one that was forked off has none."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._found: OrderedDict[int, tuple[object, Vocabulary, GrammarCompiler]] = OrderedDict()

    def of(self, tokenizer: object) -> tuple[Vocabulary, GrammarCompiler]:
        if self._process != os.getpid():
            self._process, self._found = os.getpid(), OrderedDict()
        key = id(tokenizer)  # which stays its own, since it is kept beside
        if key not in self._found:
            vocabulary = as_vocabulary(tokenizer)
            self._found[key] = tokenizer, vocabulary, GrammarCompiler(vocabulary, cache_bytes=CACHE_BYTES)
            if len(self._found) > MAX_COMPILERS:
                _, (_, _, dropped) = self._found.popitem(last=False)
                dropped.close()
        self._found.move_to_end(key)
        _, vocabulary, compiler = self._found[key]
        return vocabulary, compiler


_COMPILERS = _Compilers()
