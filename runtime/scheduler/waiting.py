"""Waiting sequences, in a line for each tenant."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar


class OfTenant(Protocol):
    @property
    def tenant(self) -> str: ...


Item = TypeVar("Item", bound=OfTenant)


class Waiting(Generic[Item]):
    """Lines of tenants, none of them empty, each in the order of arrival. One is added, found and removed at once."""

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
