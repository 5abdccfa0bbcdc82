"""Memory accounting for programs: the tokens that their states hold, and the share of each key."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ..protocol.errors import OverloadedError

SHARE_OF_LEFT = 8
"""Tokens that a key may hold for each free one (dynamic thresholds, as for places in the queue): a key that floods the
engine leaves a ninth of the memory to the others."""

FEW = 1 / 64
"""Fraction of the memory that a key may always hold while any is free."""


class Memory:
    """Counts the tokens that the states of each tenant hold, `total` at most. Programs without a key have no share.

    make_room   frees memory of the tenant or, if all of it is taken, of any tenant; set by the owner of the states
    """

    def __init__(self, total: Callable[[], float] = lambda: math.inf) -> None:
        self.make_room: Callable[[str], None] = lambda tenant: None
        self._total = total
        self._held: Counter[str] = Counter()
        self.num_held = 0

    def held(self, tenant: str) -> int:
        return self._held[tenant]

    @property
    def full(self) -> bool:
        return self.num_held > self._total()

    def over(self, tenant: str) -> bool:
        """Returns True if the tenant holds more than its share, or all tenants hold more than the total."""
        total = self._total()
        left = total - self.num_held
        return left < 0 or (bool(tenant) and self._held[tenant] > max(total * FEW, SHARE_OF_LEFT * left))

    def add(self, tenant: str, count: int) -> None:
        self.num_held += count
        self._held[tenant] += count
        if not self._held[tenant]:
            del self._held[tenant]


@dataclass(eq=False, slots=True)
class Account:
    """Account of the tokens that one state holds. A closed account counts nothing more."""

    memory: Memory
    tenant: str
    num_held: int = 0
    closed: bool = False

    def add(self, count: int) -> None:
        """Counts added tokens, or removed ones if `count` is negative."""
        if not self.closed:
            self.num_held += count
            self.memory.add(self.tenant, count)

    def take(self, count: int) -> None:
        """Counts tokens if there is room for them. Raises OverloadedError: there is none, and nothing is counted."""
        self.add(count)
        try:
            self.check()
        except OverloadedError:
            self.add(-count)
            raise

    def check(self) -> None:
        """Raises OverloadedError if there is no room even after idle states have been dropped."""
        memory = self.memory
        if self.closed or not memory.over(self.tenant):
            return
        memory.make_room(self.tenant)
        if memory.full:
            raise OverloadedError("the programs of all keys hold as much text as there is room for")
        if memory.over(self.tenant):
            num_held = memory.held(self.tenant)
            message = f"the programs of this key hold {num_held} tokens; what is left is for other keys"
            raise OverloadedError(message)

    def close(self) -> None:
        self.add(-self.num_held)
        self.closed = True
