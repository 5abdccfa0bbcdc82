"""Receipts of constraints: keywords that the mask enforces, and those that are checked on the finished value."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

Policy = Literal["exact", "best_effort"]


class Violation(msgspec.Struct, frozen=True):
    """A fault of a value: where in it (a JSON pointer), and a sentence."""

    pointer: str
    message: str


class Finding(NamedTuple):
    """A violation, and by the policy of which schema."""

    violation: Violation
    policy: Policy


class Receipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Account of how a constraint is kept.

    mode          its policy: what "exact" cannot keep it refuses; "best_effort" refuses no valid schema. A constraint
                  of several schemas is "best_effort" if one of them is
    enforced      keywords that the mask enforces, sorted
    checked       JSON pointers of keywords that are checked on the finished value; empty where the text was cut, so
                  that there is no value and nothing was checked
    narrowed      JSON pointers of subschemas of which rare values are left out: their combinations are too many
    closed        JSON pointers of object schemas of which keys that they do not name are left out
    violations    what the check found, where a value that fails is returned all the same ("best_effort")
    """

    mode: Policy
    enforced: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    narrowed: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
