"""Quotas of shared resources: no program gets its client's whole share, and no client gets everything."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ...radix import tenant_of


class Owner(NamedTuple):
    """Program and client on whose behalf a tool is called. Without clients, or without keys, the client is ""."""

    client: str
    program: str

    @classmethod
    def of(cls, namespace: str, program_id: str) -> Owner:
        return cls(tenant_of(namespace), program_id)


class Shares:
    """Counts the use of each program and each client; `total` counts all. Use without an owner is not limited here.

    Not thread-safe.
    """

    def __init__(self, of_program: int, of_client: int) -> None:
        self.total = 0
        self._limits = max(of_program, 1), max(of_client, 1)
        self._programs: Counter[Owner] = Counter()
        self._clients: Counter[str] = Counter()

    def add(self, owner: Owner | None) -> None:
        self.total += 1
        if owner is not None:
            self._programs[owner] += 1
            self._clients[owner.client] += 1

    def remove(self, owner: Owner | None) -> None:
        self.total -= 1
        if owner is None:
            return
        self._programs[owner] -= 1
        self._clients[owner.client] -= 1
        if not self._programs[owner]:
            del self._programs[owner]
        if not self._clients[owner.client]:
            del self._clients[owner.client]

    def of_client(self, owner: Owner | None) -> int:
        """Returns the use of the owner's client."""
        return 0 if owner is None else self._clients[owner.client]

    def who_is_full(self, owner: Owner | None) -> str | None:
        """Returns "program" or "client" if that has used up its share; None if neither has."""
        if owner is None:
            return None
        of_program, of_client = self._limits
        if self._programs[owner] >= of_program:
            return "program"
        return "client" if self._clients[owner.client] >= of_client else None

    def load(self, owner: Owner | None) -> tuple[int, int]:
        """Returns a sort key by which the owners with the least use come first."""
        return (0, 0) if owner is None else (self._clients[owner.client], self._programs[owner])
