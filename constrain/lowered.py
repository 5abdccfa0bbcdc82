"""A constraint written as a grammar: plain data, so that it can be made in another process."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from .receipt import Receipt
from .regex.automaton import Conjunction

NOWHERE = -1
"""The state of a value that needs no looking at, nor does anything in it."""


class PathState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of the value at some place of an instance.

    items, keys              if it is an array, no two elements are equal; if it is an object, no two keys are
    most_items, most_keys    how many different ones there are at all, if that is known
    scarce                   they may run out: there are few at some place
    open                     strings among them, or keys, may go on in any way from wherever they could end
    prefix, rest             the states of an array's elements
    names, other             the states of an object's values, by key
    """

    items: bool = False
    keys: bool = False
    most_items: int | None = None
    most_keys: int | None = None
    scarce: bool = False
    open: bool = False
    prefix: tuple[int, ...] = ()
    rest: int = NOWHERE
    names: tuple[tuple[str, int], ...] = ()
    other: int = NOWHERE

    def steps(self) -> Iterator[int]:
        """The states of all that is in it."""
        yield from (*self.prefix, self.rest, *(following for _, following in self.names), self.other)


class DistinctPaths(msgspec.Struct, frozen=True):
    """An automaton over the places of an instance: state 0 is the whole value.

    pointers    JSON pointers of the keywords that it takes care of
    """

    states: tuple[PathState, ...]
    pointers: tuple[str, ...]


class Tabulate(msgspec.Struct, frozen=True, tag="tabulate"):
    """Make the automaton of regular expressions (Rust syntax), or (without any) of words. Answered by Tabulated."""

    parts: tuple[Conjunction, ...] = ()
    words: tuple[str, ...] = ()


class Lowered(msgspec.Struct, frozen=True):
    """A grammar's source.

    json       its words are JSON texts
    growth     about how many characters one token can add to what must still be written
    names      keys that objects are likely to need
    words      texts that strings are likely to need
    receipt    what the grammar enforces, and what must be checked on the finished value
    witness    a short word, if one is known
    distinct   where elements or keys must differ in ways that the grammar does not see to
    table      what makes the automaton of its words; None if they are not known to be regular
    """

    source: str
    json: bool = False
    growth: int = 64
    names: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    receipt: Receipt | None = None
    witness: str | None = None
    distinct: DistinctPaths | None = None
    table: Tabulate | None = None
