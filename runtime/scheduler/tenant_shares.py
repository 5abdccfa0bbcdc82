"""Fair shares among tenants: of seats, of the tokens of a step, of pages.

A tenant is an API key, or all who have none (`radix.tenant_of`). Shares are max-min fair (Bertsekas and Gallager, Data
Networks, 1992, 6.5): who wants less than its part leaves the rest to the others. A tenant of weight 3 has three parts.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...radix import EQUAL, Weights


def divide(total: int, wanted: Mapping[str, int], weights: Weights = EQUAL) -> dict[str, int]:
    """Returns what each gets of `total`, in whole numbers; what is left over goes to the first in `wanted`."""
    given: dict[str, int] = {}
    left = total
    parts = sum(weights.get(name, 1) for name in wanted)
    for name, want in sorted(wanted.items(), key=lambda item: item[1] / weights.get(item[0], 1)):
        weight = weights.get(name, 1)
        given[name] = min(want, left * weight // parts)
        left -= given[name]
        parts -= weight
    for name, want in wanted.items():
        if left and given[name] < want:
            given[name] += 1
            left -= 1
    return given
