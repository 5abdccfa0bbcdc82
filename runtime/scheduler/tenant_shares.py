"""Fair shares among tenants: of seats, of the tokens of a step, of pages.

A tenant is an API key, or all who have none (`radix.tenant_of`). Shares are max-min fair (Bertsekas and Gallager, Data
Networks, 1992, 6.5): who wants less than its part leaves the rest to the others. A tenant of weight 3 has three parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...radix import EQUAL, Weights

_NOBODY: Mapping[str, float] = MappingProxyType({})
_ROUNDING = 1e-6
_MAX_TENANTS = 4096


def divide(
    total: int, wanted: Mapping[str, int], weights: Weights = EQUAL, had: Mapping[str, float] = _NOBODY
) -> dict[str, int]:
    """Returns what each gets of `total`, in whole numbers.

    had     what each has had for each of its parts: who had least gets all until it is level with the next, and so on

    What rounding leaves over goes to who has least then, of equals to the first in `wanted`.
    """
    events: list[tuple[float, int]] = []  # heights from which on a tenant takes part, and where it has all it wants
    for name, want in wanted.items():
        weight, start = weights.get(name, 1), had.get(name, 0.0)
        events += (start, weight), (start + want / weight, -weight)
    height, parts, left = 0.0, 0, float(total)
    for at, change in sorted(events, key=lambda event: event[0]):
        if parts:
            rise = min(at - height, left / parts)
            left -= parts * rise
            height += rise
            if height < at:
                break
        height, parts = at, parts + change
    given: dict[str, int] = {}
    for name, want in wanted.items():
        due = max(height - had.get(name, 0.0), 0.0) * weights.get(name, 1)
        given[name] = min(int(due + _ROUNDING), want)
    rest = total - sum(given.values())
    for name in sorted(wanted, key=lambda name: had.get(name, 0.0) + given[name] / weights.get(name, 1)):
        if rest > 0 and given[name] < wanted[name]:
            given[name] += 1
            rest -= 1
    return given


class Service:
    """Tokens of prompts that tenants have had, so that who had fewest goes first.

    A tenant that asks for little has its whole prompt computed at once, however many others flood the engine: a virtual
    token counter (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024). None counts as having had more
    than `credit` tokens fewer, for each of its parts, than who had most: so nobody pays for having been alone.
    """

    def __init__(self, credit: int, weights: Weights = EQUAL) -> None:
        self._credit = credit
        self._weights = weights
        self._had: dict[str, float] = {}
        self._most = 0.0

    def divide(self, total: int, wanted: Mapping[str, int]) -> dict[str, int]:
        """Returns what each gets of the tokens of a step."""
        return divide(total, wanted, self._weights, {name: self._lead(name) for name in wanted})

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Counts tokens that `tenant` has been given."""
        if not num_tokens:
            return
        had = self._most - self._credit + self._lead(tenant) + num_tokens / self._weights.get(tenant, 1)
        self._had[tenant] = had
        self._most = max(self._most, had)
        if len(self._had) > _MAX_TENANTS:  # who is forgotten counts as if it had had fewest
            ordered = sorted(self._had, key=lambda name: self._had[name])
            self._had = {name: self._had[name] for name in ordered[-_MAX_TENANTS // 2 :]}

    def _lead(self, tenant: str) -> float:
        """Tokens that a tenant has had beyond the fewest that count."""
        return max(self._had.get(tenant, 0.0) - (self._most - self._credit), 0.0)
