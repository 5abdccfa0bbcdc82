"""Receipts of constraints: keywords that the mask enforces, and those that are checked on the finished value."""

from __future__ import annotations

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
    """Account of how a constraint is kept.

    mode          its policy: "exact" refuses what it cannot keep; "best_effort" refuses no valid schema. A constraint
                  of several schemas is "best_effort" if one of them is
    enforced      keywords that the mask enforces, sorted
    checked       JSON pointers of keywords that are checked on the finished value; empty where the text was cut, so
                  that there is no value and nothing was checked
    narrowed      JSON pointers of subschemas that exclude rare values, since their combinations are too many
    violations    findings of the check, where a value that fails is still returned ("best_effort")
    """

    mode: Policy
    enforced: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    narrowed: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
