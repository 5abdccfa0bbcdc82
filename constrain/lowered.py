"""Lowered constraints: grammars as plain data, so that another process can produce them."""

from __future__ import annotations

import msgspec

from .json_text.reader import DistinctPaths
from .receipt import Receipt
from .regex.automaton import Conjunction


class Tabulate(msgspec.Struct, frozen=True, tag="tabulate"):
    """Asks for the automaton of regular expressions (Rust syntax) or, without any, of words. Answer: Tabulated."""

    parts: tuple[Conjunction, ...] = ()
    words: tuple[str, ...] = ()


class Lowered(msgspec.Struct, frozen=True):
    """Source of a grammar.

    json       its words are JSON texts
    ambiguous  a word may have many derivations, which a parser follows all at once
    growth     about how many characters one token can add to what must still be written
    names      keys that objects are likely to need
    words      texts that strings are likely to need
    receipt    what the grammar enforces, and what must be checked on the finished value
    witness    a short word, if one is known
    distinct   places whose elements or keys must differ in ways that the grammar does not enforce
    table      job that builds the automaton of its words; None if they are not known to be regular
    """

    source: str
    json: bool = False
    ambiguous: bool = False
    growth: int = 64
    names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    receipt: Receipt | None = None
    witness: str | None = None
    distinct: DistinctPaths | None = None
    table: Tabulate | None = None
