"""Follows a text through the masks of a grammar, token by token, as decoding does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .errors import MatcherError
from .matchers.interface import Grammar, Matcher
from .vocabulary.vocabulary import MaskRow, Vocabulary

MAX_ALLOWED = 300


class Refusal(NamedTuple):
    """Where a text is not let through.

    offset         bytes of the text before the first token that is refused
    allowed        texts of tokens that are allowed there, the shortest first, at most `MAX_ALLOWED`
    may_end        the text may end there
    """

    offset: int
    allowed: tuple[bytes, ...]
    may_end: bool


def walk(grammar: Grammar, text: str, vocabulary: Vocabulary) -> Refusal | None:
    """None if each token of `text` is allowed in turn, and then the end; else where it is refused."""
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
    """The tokens allowed next: none at a dead end."""
    try:
        matcher.fill_mask(mask)
    except MatcherError:
        mask[:] = 0


def _texts(mask: MaskRow, vocabulary: Vocabulary) -> tuple[bytes, ...]:
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    known = (vocabulary.tokens[token] for token in ids if token < len(vocabulary.tokens))
    texts = sorted((text for text in known if text), key=lambda text: (len(text), text))
    return tuple(texts[:MAX_ALLOWED])
