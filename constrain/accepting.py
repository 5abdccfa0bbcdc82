"""Tests of texts: could decoding under a constraint have produced this one?"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from typing import Any, Literal, NamedTuple

import numpy as np

from .compiler import GrammarCompiler
from .errors import MatcherError
from .matchers.interface import Grammar, Matcher
from .spec import JsonSchema
from .vocabulary.adapters import as_vocabulary
from .vocabulary.vocabulary import MaskRow, Vocabulary

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
    """Returns True if decoding under `schema` could end with `text`.

    Each token of `text` must be allowed in turn, and the end of sequence after the last; what no mask can enforce is
    checked on the whole text. `schema` is a JSON Schema or its text. `tokenizer` is a `Vocabulary`, a tokenizer of
    bough or of the package `tokenizers`, or a fast one of `transformers`; its compiler is kept for later calls.

    Raises:
        GrammarError: the schema is refused, with the error that a request gets.
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
    """Returns True if the masks of `grammar`, which was compiled for `tokenizer`, accept `text`."""
    return walk(grammar, text, as_vocabulary(tokenizer)) is None


class _Compilers:
    """Compilers for the most recent tokenizers. They belong to this process; a forked one starts with none."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._found: OrderedDict[int, tuple[object, Vocabulary, GrammarCompiler]] = OrderedDict()

    def of(self, tokenizer: object) -> tuple[Vocabulary, GrammarCompiler]:
        if self._process != os.getpid():
            self._process, self._found = os.getpid(), OrderedDict()
        key = id(tokenizer)  # remains unique, since the tokenizer is kept beside it
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


MAX_ALLOWED = 300


class Refusal(NamedTuple):
    """Place at which a text is refused.

    offset         bytes of the text before the first token that is refused
    allowed        texts of tokens that are allowed there, the shortest first, at most `MAX_ALLOWED`
    may_end        the text may end there
    """

    offset: int
    allowed: tuple[bytes, ...]
    may_end: bool


def walk(grammar: Grammar, text: str, vocabulary: Vocabulary) -> Refusal | None:
    """Follows `text`. Returns None if each token and then the end are allowed, else the refusal."""
    whole = text
    try:
        data = text.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair is in no token
        whole = text[: error.start]
        data = whole.encode()
    matcher = grammar.matcher()
    mask = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)
    offset = 0
    for token in vocabulary.encode(whole):
        if matcher.finished:
            return Refusal(offset, (), True)
        _fill(matcher, mask)
        if not mask[token // 32] >> (token % 32) & 1:
            return Refusal(offset, _texts(mask, vocabulary), matcher.accepting)
        matcher.accept(token)
        offset += len(vocabulary.tokens[token] or b"")
    if whole == text and matcher.accepting:
        return None
    if matcher.finished:
        return Refusal(len(data), (), True)
    _fill(matcher, mask)
    return Refusal(len(data), _texts(mask, vocabulary), matcher.accepting)


def _fill(matcher: Matcher, mask: MaskRow) -> None:
    """Writes the tokens allowed next; none at a dead end."""
    try:
        matcher.fill_mask(mask)
    except MatcherError:
        mask[:] = 0


def _texts(mask: MaskRow, vocabulary: Vocabulary) -> tuple[bytes, ...]:
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    known = (vocabulary.tokens[token] for token in ids if token < len(vocabulary.tokens))
    texts = sorted((text for text in known if text), key=lambda text: (len(text), text))
    return tuple(texts[:MAX_ALLOWED])
