"""Holdings: the pages of each tenant in the tree, and the tenant that gives up pages when they run out.

A tenant is the part of a namespace before its first slash. While it is in use, it is entitled to a share of all pages
in the tree; shares are equal, or in proportion to the tenants' weights. Idle tenants give up pages first, then those
that hold more than their share, each time the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

Weights = Mapping[str, int]
"""Weight of a tenant's share in what tenants divide; 1 if not given."""

EQUAL: Weights = MappingProxyType({})

IN_USE = 1 << 14
"""Releases, of all tenants, after which a tenant without one of its own is idle."""

_RECOUNT = 256  # ticks after which the tenants in use are counted again


@lru_cache(maxsize=4096)
def tenant_of(namespace: str) -> str:
    """Returns the tenant of a namespace: the part before the slash, so that a `cache_salt` makes no other tenant."""
    return namespace.partition("/")[0]


class Holding:
    """The pages of one tenant.

    num_pages   in the tree, locked or not
    num_cached  of these, unlocked
    num_roots   namespaces that it has in the tree
    last_used   tick of its last release, or of the last namespace of its that entered the tree
    weight      of its share of the tree's pages
    heap        candidates for eviction as (last_used, serial, node), at most one entry per node. An entry is stale if
                its node has been locked, or has got children, since; that is checked when it comes to the top
    """

    __slots__ = ("heap", "last_used", "num_cached", "num_pages", "num_roots", "weight")

    def __init__(self, weight: int = 1) -> None:
        self.weight = weight
        self.num_pages = 0
        self.num_cached = 0
        self.num_roots = 0
        self.last_used = 0
        self.heap: list[tuple[int, int, Any]] = []


class Holdings:
    """All tenants with a namespace in the tree. `tick` counts releases, `total` is the number of pages in the tree."""

    def __init__(self, weights: Weights = EQUAL) -> None:
        self.by_tenant: dict[str, Holding] = {}
        self._weights = weights
        self._giver: Holding | None = None
        self._num_parts = 0
        self._counted_at = -_RECOUNT

    def enter(self, namespace: str, tick: int) -> Holding:
        """Counts a namespace that enters the tree; returns its tenant's holding."""
        tenant = tenant_of(namespace)
        holding = self.by_tenant.get(tenant)
        if holding is None:
            holding = self.by_tenant[tenant] = Holding(self._weights.get(tenant, 1))
            self._counted_at = -_RECOUNT
        holding.num_roots += 1
        holding.last_used = tick
        return holding

    def leave(self, namespace: str) -> None:
        """Counts out an empty namespace that leaves the tree."""
        holding = self.by_tenant[tenant_of(namespace)]
        holding.num_roots -= 1
        if not holding.num_roots:
            del self.by_tenant[tenant_of(namespace)]
            self._counted_at = -_RECOUNT
            if holding is self._giver:
                self._giver = None

    def giver(self, tick: int, total: int) -> tuple[Holding, int] | None:
        """Returns the tenant that gives up pages next, and how many at most; None if no tenant has a surplus."""
        part = self._part(tick, total)
        giver = self._giver
        if giver is None or not _surplus(giver, part, tick):
            surplus = {holding: _surplus(holding, part, tick) for holding in self.by_tenant.values()}
            idle = [holding for holding, spare in surplus.items() if spare and not _in_use(holding, tick)]
            over = [holding for holding, spare in surplus.items() if spare]
            self._giver = giver = max(idle or over, key=_size, default=None)
        return None if giver is None else (giver, _surplus(giver, part, tick))

    def spare(self, tenant: str, tick: int, total: int) -> int:
        """Returns how many pages can be evicted for a tenant without cutting into the share of another one."""
        part = self._part(tick, total)
        return sum(
            holding.num_cached if name == tenant else _surplus(holding, part, tick)
            for name, holding in self.by_tenant.items()
        )

    def _part(self, tick: int, total: int) -> float:
        """Returns the pages in the tree for each unit of weight of the tenants in use."""
        if tick - self._counted_at >= _RECOUNT:
            self._counted_at = tick
            self._num_parts = sum(holding.weight for holding in self.by_tenant.values() if _in_use(holding, tick))
        return total / max(self._num_parts, 1)


def _surplus(holding: Holding, part: float, tick: int) -> int:
    """Returns how many unlocked pages a tenant has to give up: all if it is idle, else those beyond its share."""
    if not _in_use(holding, tick):
        return holding.num_cached
    return max(min(holding.num_cached, holding.num_pages - int(holding.weight * part)), 0)


def _in_use(holding: Holding, tick: int) -> bool:
    return holding.last_used > tick - IN_USE


def _size(holding: Holding) -> float:
    return holding.num_pages / holding.weight
