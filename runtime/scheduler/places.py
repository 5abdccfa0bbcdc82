"""Places for requests that wait or run, and for their prompts: so many in all, which tenants share."""

from __future__ import annotations

import math
from collections import Counter

from ...radix import EQUAL, Weights
from ..protocol.errors import OverloadedError

SHARE_OF_LEFT = 8
"""Requests that a key of weight 1 may have for each place that is left (dynamic thresholds; Choudhury and Hahne,
IEEE/ACM ToN 6(2), 1998). One that floods leaves a ninth of all places to the others."""

RESERVED = 1 / 64
FEW = 8
"""So many of all places are left to keys with few requests."""


class Places:
    """Counts the requests of each tenant, and the tokens of their prompts. Without a `total` there is always room.
    `weights` are shares, 1 for others."""

    def __init__(self, total: int | None, weights: Weights = EQUAL, *, max_tokens: int | None = None) -> None:
        self.num_taken = 0
        self._num_tokens = 0
        self._weights = weights
        self._total = total
        self._max_tokens = max_tokens
        self._of: Counter[str] = Counter()
        self._tokens_of: Counter[str] = Counter()

    def check(self, tenant: str, count: int = 1, *, num_tokens: int = 0) -> None:
        """Raises OverloadedError: there are not `count` places any more, or not so many that are this tenant's; or
        there is no room for so many tokens."""
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
        """The requests that the tenant may have while there are no others. None: any number."""
        if self._total is None or not tenant:
            return self._total
        share = SHARE_OF_LEFT * self._weights.get(tenant, 1)
        left = self._total - math.ceil(self._total * RESERVED)
        return min(self._total, max(FEW, math.ceil(share * left / (1 + share))))

    def _check_tokens(self, tenant: str, num_tokens: int, total: int) -> None:
        """Checks the tokens of prompts: those of few requests find room as long as there is any."""
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
