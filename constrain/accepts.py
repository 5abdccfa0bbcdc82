"""Asks whether decoding under a schema could have produced a text."""

from __future__ import annotations

import numpy as np

from .compiler import compile_grammar
from .grammar import Grammar
from .spec import JsonSchema
from .tokens import TokenTable
from .vocabulary import Vocabulary


def accepts(schema: str, text: str, vocabulary: Vocabulary) -> bool:
    """Whether each token of `text` is allowed in turn, and the end of sequence after the last, under `schema`.

    The text must have the layout that is generated: that of `json.dumps` with `ensure_ascii=False`.

    Raises:
        GrammarError: the schema is not supported.
    """
    return grammar_accepts(compile_grammar(JsonSchema(schema), TokenTable(vocabulary)), text, vocabulary)


def grammar_accepts(grammar: Grammar, text: str, vocabulary: Vocabulary) -> bool:
    """The same for a compiled grammar."""
    matcher = grammar.matcher()
    mask = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)
    for token in vocabulary.encode(text):
        if matcher.finished:
            return False
        matcher.fill_mask(mask)
        if not mask[token // 32] >> (token % 32) & 1:
            return False
        matcher.accept(token)
    return matcher.accepting
