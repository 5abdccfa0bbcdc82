"""Lines of tenants, against a plain list."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from bough.runtime.scheduler.waiting import Waiting


@dataclass(eq=False)
class Item:
    tenant: str


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(0, 100))))
def test_lines_are_those_of_a_list(moves: list[tuple[bool, str, int]]) -> None:
    waiting: Waiting[Item] = Waiting()
    items: list[Item] = []
    for adds, tenant, place in moves:
        if adds:
            items.append(Item(tenant))
            waiting.add(items[-1])
        elif items:
            gone = items.pop(place % len(items))
            waiting.remove(gone)
            assert gone not in waiting
        assert len(waiting) == len(items) and all(item in waiting for item in items)
        lines = {tenant: [item for item in items if item.tenant == tenant] for tenant in {i.tenant for i in items}}
        assert {tenant: list(line) for tenant, line in waiting.lines.items()} == lines
        assert set(waiting) == set(items)
