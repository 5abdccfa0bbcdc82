"""An automaton over the places of an instance that says where elements, or keys, must differ: plain data."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

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
