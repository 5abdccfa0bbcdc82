"""Nodes whose values can be listed, and arrays of such values that must all differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import islice, product
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..parse import value_key
from .plans import ArrayPlan, ObjectPlan
from .shapes import NumberShape, StringShape, lesser
from .subschemas import Node

MAX_DISTINCT = 60
"""Values of a node that are listed: a bit of a rule's parameter for each."""
MAX_DEPTH = 8
"""Deepest nesting of values."""
MAX_TRIED = 2_000
"""Combinations of elements or members that are looked at to list the arrays or objects of one plan."""
MAX_STATES = 300
"""Most states of an automaton of `DistinctItems`."""


class NodeValues(Protocol):
    """Questions about the values of a node: see `graph.Values`."""

    anything: bool
    null: bool
    booleans: frozenset[bool]
    numbers: list[NumberShape]
    strings: list[StringShape]
    arrays: list[ArrayPlan]
    objects: list[ObjectPlan]


class Finite:
    """Lists the values of nodes, of each once. `nodes` may still grow."""

    def __init__(self, nodes: Mapping[Node, NodeValues]) -> None:
        self._nodes = nodes
        self._known: dict[Node, list[Any] | None] = {}

    def values(self, node: Node, depth: int = 0) -> list[Any] | None:
        """All values of a node, if they are at most `MAX_DISTINCT`; None if there are more, as far as is known.

        Objects have their keys in the schema's order; one with its keys in two orders is there twice.
        """
        if depth > MAX_DEPTH:
            return None
        if node not in self._known:
            found = self._list(self._nodes[node], depth)
            if found is None and depth:  # perhaps it was only too deep
                return None
            self._known[node] = found
        return self._known[node]

    def most_distinct(self, plan: ArrayPlan, depth: int = 0) -> int | None:
        """Returns how many elements of `plan` can all differ at most, by what each may be; None: no bound is known.

        Whether the first n elements can differ is a matching of them with values.
        """
        choices: list[list[str]] = []
        element_of: dict[str, int] = {}

        def place(index: int, tried: set[str]) -> bool:
            for key in choices[index]:
                if key not in tried:
                    tried.add(key)
                    if key not in element_of or place(element_of[key], tried):
                        element_of[key] = index
                        return True
            return False

        while plan.high is None or len(choices) < plan.high:
            index = len(choices)
            values = self.values(plan.at(index), depth)
            if values is None and index >= len(plan.prefix):
                return None
            choices.append([] if values is None else list(dict.fromkeys(map(value_key, values))))
            if values is not None and not place(index, set()):
                return index
        return None

    def _list(self, values: NodeValues, depth: int) -> list[Any] | None:
        if values.anything:
            return None
        found: list[Any] = [None] if values.null else []
        found += sorted(values.booleans)
        for shape in values.numbers:
            numbers = shape.values if shape.values is not None else shape.numbers.values(MAX_DISTINCT)
            if numbers is None or any(isinstance(value, Decimal) for value in numbers):
                return None
            found += numbers
        for string in values.strings:
            texts = string.language.strings(MAX_DISTINCT)
            if texts is None:
                return None
            found += texts
        parts = [self._arrays(plan, depth) for plan in values.arrays]
        parts += [self._objects(plan, depth) for plan in values.objects]
        for part in parts:
            if part is None:
                return None
            found += part
        unique = list({written(value): value for value in found}.values())
        return unique if len(unique) <= MAX_DISTINCT else None

    def _arrays(self, plan: ArrayPlan, depth: int) -> list[Any] | None:
        if plan.counts:
            return None
        high = lesser(plan.high, self.most_distinct(plan, depth + 1)) if plan.unique else plan.high
        found: list[Any] = []
        elements: list[list[Any]] = []
        while True:
            if len(elements) >= plan.low:
                tried = list(islice(product(*elements), MAX_TRIED + 1))
                if len(tried) > MAX_TRIED:
                    return None
                found += [list(items) for items in tried if not plan.unique or _all_differ(items)]
            if len(found) > MAX_DISTINCT or len(elements) > MAX_DISTINCT:
                return None
            if len(elements) == high:
                return found
            values = self.values(plan.at(len(elements)), depth + 1)
            if values is None:
                return None
            if not values:
                return found
            elements.append(values)

    def _objects(self, plan: ObjectPlan, depth: int) -> list[Any] | None:
        if plan.wanted or any(self.values(key.node, depth + 1) != [] for key in plan.others):
            return None
        members: list[list[tuple[tuple[str, Any], ...]]] = []
        for key in plan.named:
            values = self.values(key.node, depth + 1)
            if values is None or key.name is None:
                return None
            name = key.name
            members.append([*(() for _ in range(not key.required)), *(((name, value),) for value in values)])
        tried = list(islice(product(*members), MAX_TRIED + 1))
        if len(tried) > MAX_TRIED:
            return None
        found = (dict(pair for pairs in chosen for pair in pairs) for chosen in tried)
        return [value for value in found if _fits(value, plan)]


def written(value: Any) -> str:
    """Returns the same for equal values, but for objects with their keys in another order."""
    return value_key(value) if not isinstance(value, list | dict) else value_key(value) + json.dumps(value)


def _all_differ(items: tuple[Any, ...]) -> bool:
    return len(set(map(value_key, items))) == len(items)


def _fits(value: dict[str, Any], plan: ObjectPlan) -> bool:
    if len(value) < plan.low or (plan.high is not None and len(value) > plan.high):
        return False
    return all(name not in value or value.keys() >= set(names) for name, names in plan.implications)


class Choices(NamedTuple):
    """State of the automaton: a bit for each value there is, and how many elements added to each count, as far as it
    matters."""

    used: int
    counted: tuple[int, ...]


Edge: TypeAlias = tuple[int, Choices]
"""A value, by its number, and the state after it."""


class DistinctItems:
    """The arrays of a plan whose elements must differ, if their values can be listed: which may come after which.

    values     what elements there can be: all writings of each value
    plain      any value may come at any place
    edges      else, by state; nothing leads into a dead end
    """

    def __init__(self, values: list[list[Any]], plain: bool, edges: dict[Choices, list[Edge]], plan: ArrayPlan) -> None:
        self.values = values
        self.plain = plain
        self.edges = edges
        self.start = Choices(0, (0,) * len(plan.counts))
        self._plan = plan

    @classmethod
    def of(cls, finite: Finite, plan: ArrayPlan) -> DistinctItems | None:
        """Builds the automaton; None if the values are too many, or known of too few."""
        numbers: dict[str, int] = {}
        values: list[list[Any]] = []
        for node in dict.fromkeys(plan.nodes() if plan.counts else (*plan.prefix, plan.rest)):
            found = finite.values(node) if _is_used(plan, node) else []
            if found is None:
                return None
            for value in found:
                number = numbers.setdefault(value_key(value), len(numbers))
                if number == len(values):
                    values.append([])
                if written(value) not in map(written, values[number]):
                    values[number].append(value)
        if len(values) > MAX_DISTINCT:
            return None
        items = cls(values, not plan.prefix and not plan.counts, {}, plan)
        return items if items.plain or items._build(finite, numbers) else None

    @property
    def possible(self) -> bool:
        """Tells whether there is any such array. If any value may come at any place, the plan's bounds say it."""
        return self.plain or self.start in self.edges

    def accepts(self, state: Choices) -> bool:
        """Tells whether the array may end in `state`."""
        counts = zip(self._plan.counts, state.counted, strict=True)
        return state.used.bit_count() >= self._plan.low and all(
            count.low <= number and (count.high is None or number <= count.high) for count, number in counts
        )

    def _build(self, finite: Finite, numbers: dict[str, int]) -> bool:
        """Tells whether the automaton is small."""
        allowed: dict[Node, list[int]] = {}
        edges: dict[Choices, list[Edge]] = {}
        stack = [self.start]
        while stack:
            state = stack.pop()
            if state not in edges:
                edges[state] = list(dict.fromkeys(self._edges(finite, state, numbers, allowed)))
                stack += [following for _, following in edges[state]]
                if len(edges) > MAX_STATES:
                    return False
        live = {state for state in edges if self.accepts(state)}
        fresh = True
        while fresh:
            fresh = False
            for state, out in edges.items():
                if state not in live and any(following in live for _, following in out):
                    live.add(state)
                    fresh = True
        self.edges = {state: [edge for edge in edges[state] if edge[1] in live] for state in edges if state in live}
        return True

    def _edges(
        self, finite: Finite, state: Choices, numbers: dict[str, int], allowed: dict[Node, list[int]]
    ) -> Iterator[Edge]:
        plan, index = self._plan, state.used.bit_count()
        if plan.high is not None and index >= plan.high:
            return
        caps = [count.low if count.high is None else max(count.low, count.high + 1) for count in plan.counts]
        for adds, node in plan.options(index):
            if node not in allowed:
                allowed[node] = [numbers[value_key(value)] for value in finite.values(node) or ()]
            counted = tuple(
                min(number + (place in adds), cap)
                for place, (number, cap) in enumerate(zip(state.counted, caps, strict=True))
            )
            tops = (count.high for count in plan.counts)
            if any(top is not None and number > top for number, top in zip(counted, tops, strict=True)):
                continue
            for number in allowed[node]:
                if not state.used >> number & 1:
                    yield number, Choices(state.used | 1 << number, counted)


def _is_used(plan: ArrayPlan, node: Node) -> bool:
    """Tells whether an element can be of `node`: there may be no room for it."""
    return bool(plan.counts) or plan.high is None or plan.high > len(plan.prefix) or node in plan.prefix
