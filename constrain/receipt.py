"""Receipts of constraints: keywords that the mask enforces, and those that are checked on the finished value."""

from __future__ import annotations

from sys import getsizeof
from typing import Literal, NamedTuple

import msgspec

Policy = Literal["exact", "best_effort"]


class Violation(msgspec.Struct, frozen=True):
    """A fault of a value: its place, as a JSON pointer, and a sentence."""

    pointer: str
    message: str


class Finding(NamedTuple):
    """A violation with the policy of the schema that it violates."""

    violation: Violation
    policy: Policy


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Account of how a constraint is kept. It is sent with each generation, so its lists are bounded: see `Pointers`.

    mode          its policy: "exact" refuses what it cannot keep; "best_effort" refuses no valid schema. A constraint
                  of several schemas is "best_effort" if one of them is
    enforced      keywords that the mask enforces, sorted
    checked       JSON pointers of keywords that are checked on the finished value; the root ("") where all of them are.
                  Empty where the text was cut, so that there is no value and nothing was checked
    narrowed      JSON pointers of subschemas of which rare values are left out: their combinations are too many. The
                  root ("") stands for too many of them
    closed        JSON pointers of object schemas of which keys that they do not name are left out; the root ("") also
                  where they are too many to list
    violations    what the check found, where a value that fails is returned all the same ("best_effort")
    """

    mode: Policy
    enforced: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    narrowed: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()

    @property
    def num_bytes(self) -> int:
        """About what its lists hold."""
        return sum(map(getsizeof, (*self.checked, *self.narrowed, *self.closed)))


MAX_POINTERS = 1_000
MAX_POINTERS_CHARS = 32_768
"""JSON pointers in a list of a receipt, and characters of all of them."""
TOO_MANY_TO_CHECK = (
    f"at most {MAX_POINTERS:,} places with {MAX_POINTERS_CHARS:,} characters in all their JSON pointers can be left to "
    "the check of the finished value"
)


class Pointers:
    """JSON pointers for a list of a receipt. The root stands for them where they are more than it may list: `whole`."""

    def __init__(self) -> None:
        self.whole = False
        self._found: set[str] = set()
        self._num_chars = 0

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, pointer: str) -> None:
        """Lists a place, once."""
        if self.whole or pointer in self._found:
            return
        self._found.add(pointer)
        self._num_chars += len(pointer)
        if len(self._found) > MAX_POINTERS or self._num_chars > MAX_POINTERS_CHARS:
            self.whole, self._found = True, {""}

    def listed(self) -> tuple[str, ...]:
        """Returns the pointers, sorted."""
        return tuple(sorted(self._found))
