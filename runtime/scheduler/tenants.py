"""Tenants: the queue of each, the places that it may take, and its share of the prompt tokens of a step.

A tenant is an API key, or all requests without one (`radix.tenant_of`). Shares are max-min fair (Bertsekas and
Gallager, Data Networks, 1992, 6.5): a tenant that wants less than its share leaves the rest to the others. Shares are
in proportion to weights. The order in which tenants give up cached pages is decided in `radix.tenants`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from ...radix import EQUAL, Weights
from ..protocol.errors import OverloadedError

SHARE_OF_LEFT = 8
"""Requests that a key of weight 1 may have for each free place (dynamic thresholds; Choudhury and Hahne, IEEE/ACM ToN
6(2), 1998). A key that floods the engine leaves a ninth of all places to the others."""

RESERVED = 1 / 64
"""Fraction of all places, and of all prompt tokens, that is reserved for keys with fewer than `FEW` requests."""
FEW = 8

_NOBODY: Mapping[str, float] = MappingProxyType({})
_ROUNDING = 1e-6
_MAX_TENANTS = 4096


# Lines


class OfTenant(Protocol):
    @property
    def tenant(self) -> str: ...


Item = TypeVar("Item", bound=OfTenant)


class Waiting(Generic[Item]):
    """Queues by tenant, none of them empty, each in the order of arrival. Items are added, found and removed in O(1).

    `lines` is empty while no item waits.
    """

    def __init__(self) -> None:
        self.lines: dict[str, dict[Item, None]] = {}
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Item]:
        return chain.from_iterable(self.lines.values())

    def __contains__(self, item: Item) -> bool:
        return item in self.lines.get(item.tenant, ())

    def add(self, item: Item) -> None:
        self.lines.setdefault(item.tenant, {})[item] = None
        self._num += 1

    def remove(self, item: Item) -> None:
        line = self.lines[item.tenant]
        del line[item]
        if not line:
            del self.lines[item.tenant]
        self._num -= 1


# Places


class Places:
    """Places for waiting and running requests, and room for the tokens of their prompts, shared among tenants.

    total         requests at most; None: any number, and any number of tokens
    weights       of the tenants' shares; 1 if not given
    max_tokens    tokens of prompts at most; None: any number

    Requests without a key are bounded by the totals alone.
    """

    def __init__(self, total: int | None, weights: Weights = EQUAL, *, max_tokens: int | None = None) -> None:
        self.num_taken = 0
        self._num_tokens = 0
        self._weights = weights
        self._total = total
        self._max_tokens = max_tokens
        self._of: Counter[str] = Counter()
        self._tokens_of: Counter[str] = Counter()

    def check(self, tenant: str, count: int = 1, *, num_tokens: int = 0) -> None:
        """Raises OverloadedError if `count` places, or room for `num_tokens`, are not left, or not for this tenant."""
        if self._total is None:
            return
        left = self._total - self.num_taken - (count - 1)  # for the last one
        if left <= 0:
            raise OverloadedError(f"{self.num_taken} requests are waiting or running, of {self._total} at most")
        left -= math.ceil(self._total * RESERVED)
        own = self._of[tenant]
        if tenant and own + count - 1 >= max(FEW, SHARE_OF_LEFT * self._weights.get(tenant, 1) * left):
            raise OverloadedError(f"{own} requests of this key are waiting or running; what is left is for other keys")

        if self._max_tokens is not None:
            self._check_tokens(tenant, num_tokens, self._max_tokens)

    def most(self, tenant: str) -> int | None:
        """Returns how many requests the tenant may have while no other tenant has any. None: any number."""
        if self._total is None or not tenant:
            return self._total
        share = SHARE_OF_LEFT * self._weights.get(tenant, 1)
        left = self._total - math.ceil(self._total * RESERVED)
        return min(self._total, max(FEW, math.ceil(share * left / (1 + share))))

    def _check_tokens(self, tenant: str, num_tokens: int, total: int) -> None:
        """Raises OverloadedError if the tokens do not fit. A tenant with few requests may use all the room there is."""
        left, own = total - self._num_tokens - num_tokens, self._tokens_of[tenant] + num_tokens
        if left < 0:
            raise OverloadedError(f"{self._num_tokens} tokens of prompts are waiting or running; {total} is the limit")
        left -= math.ceil(total * RESERVED)
        if tenant and self._of[tenant] >= FEW and own > SHARE_OF_LEFT * self._weights.get(tenant, 1) * left:
            message = f"{self._tokens_of[tenant]} tokens of this key's prompts are waiting or running"
            raise OverloadedError(f"{message}; what is left is for other keys")

    def take(self, tenant: str, num_tokens: int = 0) -> None:
        self.num_taken += 1
        self._num_tokens += num_tokens
        self._of[tenant] += 1
        self._tokens_of[tenant] += num_tokens

    def give_back(self, tenant: str, num_tokens: int = 0) -> None:
        self.num_taken -= 1
        self._num_tokens -= num_tokens
        self._of[tenant] -= 1
        self._tokens_of[tenant] -= num_tokens
        if not self._of[tenant]:
            del self._of[tenant], self._tokens_of[tenant]


# Shares of a step


def divide(
    total: int, wanted: Mapping[str, int], weights: Weights = EQUAL, had: Mapping[str, float] = _NOBODY
) -> dict[str, int]:
    """Divides `total` among tenants by weighted max-min fairness, in whole numbers; none gets more than it wants.

    had     what each has had before, per unit of its weight: the tenant with least gets all until it is level with the
            next, and so on

    What rounding leaves over goes, one each, to those that then have least; ties go to the first in `wanted`.
    """
    events: list[tuple[float, int]] = []  # heights at which a tenant starts to take part, and at which it is satisfied
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
    """Tokens of prompts that tenants have had, so that those with fewest go first.

    A tenant that asks for little has its whole prompt computed at once, however many others flood the engine: a virtual
    token counter (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024). Per unit of weight, no tenant
    counts as more than `credit` tokens behind the one that had most, so that none pays for having been alone.
    """

    def __init__(self, credit: int, weights: Weights = EQUAL) -> None:
        self._credit = credit
        self._weights = weights
        self._had: dict[str, float] = {}
        self._most = 0.0

    def divide(self, total: int, wanted: Mapping[str, int]) -> dict[str, int]:
        """Divides the tokens of prompts in a step among tenants."""
        return divide(total, wanted, self._weights, {name: self._lead(name) for name in wanted})

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Counts tokens that `tenant` has been given."""
        had = self._most - self._credit + self._lead(tenant) + num_tokens / self._weights.get(tenant, 1)
        self._had[tenant] = had
        self._most = max(self._most, had)
        if len(self._had) > _MAX_TENANTS:  # a tenant that is forgotten counts as having had fewest
            ordered = sorted(self._had, key=lambda name: self._had[name])
            self._had = {name: self._had[name] for name in ordered[-_MAX_TENANTS // 2 :]}

    def _lead(self, tenant: str) -> float:
        """Returns the tokens per unit of weight that a tenant has had beyond the fewest that count."""
        return max(self._had.get(tenant, 0.0) - (self._most - self._credit), 0.0)
