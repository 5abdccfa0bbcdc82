"""Paths in a schema's values at which elements, or keys, must differ in ways that no grammar can express."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from ..json_text.reader import NOWHERE, DistinctPaths, PathState
from ..receipt import Pointers
from ..regex.language import Language
from .document import pointer_of
from .emit import needs_distinct_items, needs_distinct_keys
from .open.graph import Graph, Values
from .open.plans import ArrayPlan, ObjectPlan
from .open.shapes import ANYTHING, Place
from .open.subschemas import Node
from .parse import pointer_to

MAX_STATES = 500
MAX_LISTED = 1_000
"""Elements or keys of which it is known how many there are at all."""
BUDGET = 4_000

_Nodes: TypeAlias = frozenset[Node]


def distinct_paths(graph: Graph, needed: frozenset[Place]) -> tuple[DistinctPaths | None, frozenset[Place]]:
    """The paths to the places that are `needed`, None if there are none; and keywords that they do not cover.

    A state is the set of nodes that a value may be of. Elements are held apart only where every array that is possible
    there asks for it: elsewhere that would refuse valid values. Keys can be held apart anywhere: none is needed twice.
    """
    automaton = _PathAutomaton(graph)
    if not automaton.build():
        return None, needed
    covered = needed - automaton.uncovered
    states = _pruned(automaton.states)
    if not covered or not states:
        return None, needed
    place = graph.expander.subschemas.place
    pointers = Pointers()
    for literal, keyword in covered:
        pointers.add(pointer_to(pointer_of(place(literal)[0]), keyword))
    return DistinctPaths(tuple(states), pointers.listed()), automaton.uncovered


class _PathAutomaton:
    """The subset construction over a graph's nodes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._numbers: dict[_Nodes, int] = {}
        self._pending: list[_Nodes] = []
        self.states: list[PathState] = []
        self.uncovered: frozenset[Place] = frozenset()

    def build(self) -> bool:
        """Tells whether it is small enough."""
        uncovered: set[Place] = set()
        self._number(frozenset({self._graph.root}))
        for nodes in self._pending:  # it grows while it is walked
            if len(self._pending) > MAX_STATES:
                return False
            self.states.append(self._state(nodes, uncovered))
        self.uncovered = frozenset(uncovered)
        return True

    def _number(self, nodes: Iterable[Node]) -> int:
        key = frozenset(node for node in nodes if self._graph.cost(node) < math.inf)
        if not key or key == {ANYTHING}:
            return NOWHERE
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._pending)
            self._pending.append(key)
        return number

    def _state(self, nodes: _Nodes, uncovered: set[Place]) -> PathState:
        found = [self._graph.values[node] for node in sorted(nodes, key=sorted)]
        anything = any(values.anything for values in found)
        arrays = [plan for values in found for plan in values.arrays]
        objects = [plan for values in found for plan in values.objects]
        asking = [plan for plan in arrays if needs_distinct_items(self._graph, plan)]
        items = bool(asking)
        if items and (anything or not all(plan.unique or _at_most_one(plan) for plan in arrays)):
            items = False
            uncovered.update(place for plan in asking for place in plan.unique)
        keys = any(needs_distinct_keys(plan) for plan in objects)
        free = {ANYTHING} if anything else set()
        elements = {node for plan in arrays for node in plan.nodes()} if items else set()
        names = dict.fromkeys(key.name for plan in objects for key in plan.named if key.name is not None)
        keys_open = not keys or all(_is_open(_keys(plan)) for plan in objects)
        length = max((_length(plan) for plan in arrays), default=0)

        def step(parts: Iterable[set[Node]]) -> int:
            return self._number(free.union(*parts))

        return PathState(
            items=items,
            keys=keys,
            most_items=self._num_items(arrays) if items else None,
            most_keys=_num_keys(objects) if keys and not anything else None,
            scarce=any(map(self._is_scarce, elements)) or (keys and any(map(_has_few_keys, objects))),
            open=all(map(self._has_open_strings, elements)) and keys_open,
            prefix=tuple(step(_items(plan, index) for plan in arrays) for index in range(length)),
            rest=step(_items(plan, length) for plan in arrays),
            names=tuple((name, step(_named(plan, name) for plan in objects)) for name in names),
            other=step(_others(plan) for plan in objects),
        )

    def _num_items(self, arrays: list[ArrayPlan]) -> int | None:
        """Returns how many different elements there are."""
        nodes = {node for plan in arrays for node in plan.nodes()}
        if len(nodes) != 1 or any(plan.prefix or plan.counts for plan in arrays):
            return None
        return _num_values(self._graph.values[nodes.pop()])

    def _is_scarce(self, node: Node, depth: int = 2) -> bool:
        """Tells whether a node has values, all of those of some type, that may run out."""
        values = self._graph.values[node]
        if values.anything:
            return False
        if values.strings and _strings(values).strings(MAX_LISTED, BUDGET) is not None:
            return True
        if values.numbers and all(
            shape.values is not None or shape.numbers.values(MAX_LISTED) is not None for shape in values.numbers
        ):
            return True
        plans: list[ArrayPlan | ObjectPlan] = [*values.arrays, *values.objects]
        if not plans:
            return not values.strings and not values.numbers
        return depth > 0 and any(all(self._is_scarce(child, depth - 1) for child in _parts(plan)) for plan in plans)

    def _has_open_strings(self, node: Node) -> bool:
        values = self._graph.values[node]
        return values.anything or _is_open(_strings(values))


def _parts(plan: ArrayPlan | ObjectPlan) -> Iterable[Node]:
    """Returns what a value of `plan` differs from others by."""
    if isinstance(plan, ObjectPlan):
        return [key.node for key in (*plan.named, *plan.others)]
    return plan.nodes() if plan.high is None or plan.high > len(plan.prefix) else plan.prefix


def _at_most_one(plan: ArrayPlan) -> bool:
    return plan.high is not None and plan.high <= 1


def _length(plan: ArrayPlan) -> int:
    """Returns the number of the element from which on all are alike."""
    return max([len(plan.prefix), *(count.start for count in plan.counts)])


def _items(plan: ArrayPlan, index: int) -> set[Node]:
    if plan.high is not None and index >= plan.high:
        return set()
    return {node for _, node in plan.options(index)} if plan.counts else {plan.at(index)}


def _named(plan: ObjectPlan, name: str) -> set[Node]:
    own = {key.node for key in plan.named if key.name == name}
    return own or {key.node for key in (*plan.others, *plan.wanted) if key.language.contains(name)}


def _others(plan: ObjectPlan) -> set[Node]:
    return {key.node for key in (*plan.others, *plan.wanted)}


def _strings(values: Values) -> Language:
    return Language.union(string.language for string in values.strings)


def _keys(plan: ObjectPlan) -> Language:
    names = [key.name for key in plan.named if key.name is not None]
    return Language.union(key.language for key in (*plan.others, *plan.wanted)) | Language.one_of(names)


def _is_open(language: Language) -> bool:
    """Tells whether every text of it with anything after it is one of it, too."""
    return bool((language + Language.ANY).subset_of(language, BUDGET))


def _has_few_keys(plan: ObjectPlan) -> bool:
    return not plan.others or _keys(plan).strings(MAX_LISTED, BUDGET) is not None


def _num_values(values: Values) -> int | None:
    """Returns how many values a node has, if they are scalars and not too many."""
    if values.anything or values.arrays or values.objects:
        return None
    number = int(values.null) + len(values.booleans)
    numbers: set[Any] = set()
    for shape in values.numbers:
        listed = shape.values if shape.values is not None else shape.numbers.values(MAX_LISTED)
        if listed is None:
            return None
        numbers.update(listed)
    texts = _strings(values).strings(MAX_LISTED, BUDGET)
    return None if texts is None else number + len(numbers) + len(texts)


def _num_keys(objects: list[ObjectPlan]) -> int | None:
    """Returns how many different keys there are, if there is one kind of object."""
    if len(objects) != 1:
        return None
    texts = _keys(objects[0]).strings(MAX_LISTED, BUDGET)
    return None if texts is None else len(texts)


def _pruned(states: list[PathState]) -> list[PathState]:
    """Without steps to states from which nothing is held apart; empty if the first is one of them."""
    live = {number for number, state in enumerate(states) if state.items or state.keys}
    changed = bool(live)
    while changed:
        leading = {number for number, state in enumerate(states) if live.intersection(state.steps())}
        changed = not leading <= live
        live |= leading
    if 0 not in live:
        return []
    numbers = {old: new for new, old in enumerate(sorted(live))}

    def step(number: int) -> int:
        return numbers.get(number, NOWHERE)

    return [
        msgspec.structs.replace(
            states[number],
            prefix=tuple(map(step, states[number].prefix)),
            rest=step(states[number].rest),
            names=tuple((name, step(following)) for name, following in states[number].names),
            other=step(states[number].other),
        )
        for number in sorted(live)
    ]
