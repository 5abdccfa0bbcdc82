"""The places that a text with marked parts goes through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...vocabulary.token_table import TokenTable
from ...vocabulary.triggers import FIRST_CONTROL, Symbols, Triggers
from ...vocabulary.vocabulary import MaskRow
from ..token_matcher import CompiledGrammar


@dataclass(frozen=True)
class Scan:
    """Text that is free until one of `triggers` has appeared.

    targets     the place after a match, by what `triggers.matched` tells
    may_end     the end of sequence is allowed here
    suspects    tokens that hold a trigger and more
    path        where it is not: the pattern that leads to the shortest end
    num_after   and the tokens needed after it
    rows        by state of the search, what is allowed where that is not everything; that of state 0, and a bounded
                number of others as states are met
    paths       by state, the tokens that complete `path`
    """

    triggers: Triggers
    targets: Mapping[tuple[int, ...], int]
    may_end: bool
    suspects: tuple[int, ...] = ()
    path: int = 0
    num_after: int = 0
    rows: dict[int, MaskRow | None] = field(default_factory=dict)
    paths: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Body:
    """Text under a grammar.

    leaves_to    the place after the first complete word; None: nothing follows the grammar's words
    suspects     tokens that may end the word and go on with something that is not allowed there
    """

    grammar: CompiledGrammar
    leaves_to: int | None
    suspects: tuple[int, ...] = ()


Place = Scan | Body


def encode(tokens: TokenTable, symbols: Symbols) -> list[int]:
    """The model's tokens for a text with control tokens in it."""
    result: list[int] = []
    text = bytearray()
    for symbol in symbols:
        if symbol < FIRST_CONTROL:
            text.append(symbol)
            continue
        result += [*tokens.encode(bytes(text)), symbol - FIRST_CONTROL] if text else [symbol - FIRST_CONTROL]
        text.clear()
    return result + tokens.encode(bytes(text)) if text else result
