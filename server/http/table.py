"""Table of open connections: limits their number, shares it among keys, and chooses which to close when it is full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

C = TypeVar("C")

CLAIM = "bough.claim"
"""Key of a request's scope: takes the name of the key that its connection belongs to; false if that has too many."""

LEFT = "bough.left"
"""Key of a request's scope: a future that is done once its connection is lost."""

KEEP_ALIVE_S = 75
KEEP_ALIVE_SHORT_S = 5
"""The same where more than half of the table is taken."""


class ConnectionTable(Generic[C]):
    """Open connections by the key that they last sent; those that have sent none count as one key, "".

    A connection rests while it has no request under way. Only one that rests gives way to a new one.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._keys: dict[C, str] = {}
        self._counts: Counter[str] = Counter()
        self._resting: dict[str, dict[C, None]] = {}  # by key, the longest at rest first

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def keep_alive_s(self) -> int:
        """Seconds for which a connection is kept without a request."""
        return KEEP_ALIVE_SHORT_S if len(self) > self.most // 2 else KEEP_ALIVE_S

    def enter(self, connection: C) -> None:
        """Takes in a new connection, which rests."""
        self._keys[connection] = ""
        self._counts[""] += 1
        self.rest(connection)

    def leave(self, connection: C) -> None:
        """Forgets a connection; it may have left before."""
        if connection in self._keys:
            self.begin(connection)
            self._count_out(self._keys.pop(connection))

    def begin(self, connection: C) -> None:
        """A request of the connection's is under way."""
        key = self._keys.get(connection, "")
        resting = self._resting.get(key, {})
        resting.pop(connection, None)
        if not resting:
            self._resting.pop(key, None)

    def rest(self, connection: C) -> None:
        """The connection has no request under way from now on."""
        if connection in self._keys:
            self._resting.setdefault(self._keys[connection], {})[connection] = None

    def claim(self, connection: C, key: str) -> bool:
        """Gives a connection that has a request under way to a key; returns false if this key has too many.

        A key may have one, and three times as many under way as are left to all: one alone takes three quarters of the
        table, two that want all take three sevenths each, and there is room for others (dynamic thresholds; Choudhury
        and Hahne, IEEE/ACM ToN 6(2), 1998).
        """
        self._give(connection, key)
        busy = {name: count - len(self._resting.get(name, ())) for name, count in self._counts.items() if name}
        if not key or busy.get(key, 0) <= max(3 * (self.most - sum(busy.values())), 1):
            return True
        self._give(connection, "")  # it is about to be closed
        return False

    def _give(self, connection: C, key: str) -> None:
        if connection in self._keys:
            self._count_out(self._keys[connection])
            self._keys[connection] = key
            self._counts[key] += 1

    def give_way(self, may: Callable[[C], bool]) -> C | None:
        """Takes out the connection that has rested longest, of the key that has the most; None if all are busy."""
        for key in sorted(self._resting, key=self._counts.__getitem__, reverse=True):
            for connection in self._resting[key]:
                if may(connection):
                    self.leave(connection)
                    return connection
        return None

    def _count_out(self, key: str) -> None:
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
