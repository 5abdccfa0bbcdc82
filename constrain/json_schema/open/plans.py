"""Arrays and objects made ready to be written: which keys and elements there can be, and what each must be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple, TypeAlias

from ...errors import GrammarTooComplexError
from ...regex.language import Language
from .shapes import ArrayShape, Count, KeySet, ObjectShape, Place
from .subschemas import Node

_Atom: TypeAlias = tuple[Language, frozenset[Language]]
"""A part of the keys, and the languages that it is in."""

_Want: TypeAlias = tuple[tuple[KeySet, ...], Node]
"""A key of all of the sets, with a value of the node, must be there."""

Cost: TypeAlias = Callable[[Node], float]
"""The length of a shortest text of a node; infinite if it has none."""

IMPOSSIBLE: Node = frozenset((0, 1))
"""A literal and its negation: no value satisfies both."""

MAX_IMPLICATIONS = 8
MAX_KEY_LANGUAGES = 8
MAX_COUNTS = 3
MAX_COUNTING_STATES = 2_000


# Objects


class Key(NamedTuple):
    """A key, or any key of a language, and what its value must be."""

    name: str | None
    language: Language
    node: Node
    required: bool = False


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """An object's keys.

    named      keys known by name, in the schema's order; each at most once
    others     languages of all other keys, disjoint
    wanted     of each language at least one key must be there, with that value
    low, high  how many keys there are
    closed     the places of the `properties` on account of which other keys were left out
    """

    named: tuple[Key, ...]
    others: tuple[Key, ...]
    wanted: tuple[Key, ...]
    low: int
    high: int | None
    implications: tuple[tuple[str, tuple[str, ...]], ...]
    counted: frozenset[Place]
    closed: frozenset[Place] = frozenset()

    def nodes(self) -> Iterator[Node]:
        for key in (*self.named, *self.others, *self.wanted):
            yield key.node

    def live(self, cost: Cost) -> ObjectPlan | None:
        """Without keys that can have no value; None if a required one is among them."""
        is_loose = self.high is None and not self.implications and len(self.named) + len(self.wanted) >= self.low
        if is_loose and all(cost(node) < math.inf for node in self.nodes()):
            return self
        if any(key.required and cost(key.node) == math.inf for key in (*self.named, *self.wanted)):
            return None
        named = {key.name: key for key in self.named if cost(key.node) < math.inf}
        implications = self.implications
        while True:  # what demands a key that cannot be there cannot be there itself
            broken = {name for name, keys in implications if name in named and any(key not in named for key in keys)}
            if not broken:
                break
            if any(named[name].required for name in broken):
                return None
            named = {name: key for name, key in named.items() if name not in broken}
        implications = tuple((name, keys) for name, keys in implications if name in named)
        others = tuple(key for key in self.others if cost(key.node) < math.inf)
        num_required = sum(key.required for key in named.values()) + len(self.wanted)
        if self.high is not None and max(self.low, num_required) > self.high:
            return None
        if not others and len(named) + len(self.wanted) < self.low:
            return None
        if num_required == self.high:  # there is room for no other keys
            named, others = {name: key for name, key in named.items() if key.required}, ()
        return replace(self, named=tuple(named.values()), others=others, implications=implications)

    def cost(self, cost: Cost) -> float:
        """The length of a shortest text, about."""
        if self.high is None and not self.implications:
            taken = [key for key in (*self.named, *self.wanted) if key.required]
            if len(taken) >= self.low:
                return 2 + sum([self._cost_of(key, cost) for key in taken]) + 2 * max(len(taken) - 1, 0)
        live = self.live(cost)
        if live is None:
            return math.inf
        required = [key for key in (*live.named, *live.wanted) if key.required]
        free = [key for key in (*live.named, *live.others) if not key.required]
        extra = max(live.low - len(required), 0)
        costs = [self._cost_of(key, cost) for key in required]
        if extra:
            costs += [min(self._cost_of(key, cost) for key in free)] * extra
        return 2 + sum(costs) + 2 * max(len(costs) - 1, 0)

    @staticmethod
    def _cost_of(key: Key, cost: Cost) -> float:
        return (len(key.name) if key.name is not None else 1) + 4 + cost(key.node)


def plan_object(shape: ObjectShape) -> list[ObjectPlan]:
    """The ways to write the objects of a shape: one for each named key that may be what a `some` asks for."""
    if shape.high is not None and shape.implications:  # room may run out before what is implied has come
        return [plan for choice in _without_implications(shape) for plan in plan_object(choice)]
    plans: list[ObjectPlan] = []
    for choice in product(*(_witnesses(shape, keys) for keys, _ in shape.some)):
        chosen = shape
        wanted: list[_Want] = []
        for name, (keys, node) in zip(choice, shape.some, strict=True):
            if name is None:
                wanted.append(((keys,), node))
                continue
            properties = {**chosen.properties, name: chosen.properties.get(name, frozenset()) | node}
            chosen = replace(chosen, properties=properties, required=chosen.required | {name})
        for parts in _partitions(wanted):  # one unnamed key may be what several ask for
            plans += _plans(chosen, parts)
        if len(plans) > MAX_COUNTING_STATES:
            raise GrammarTooComplexError("the schema requires keys in too many combinations")
    return plans


def _without_implications(shape: ObjectShape) -> Iterator[ObjectShape]:
    """Splits objects by which of the keys that imply others they have."""
    if len(shape.implications) > MAX_IMPLICATIONS:
        raise GrammarTooComplexError(f"more than {MAX_IMPLICATIONS} keys imply others, beside maxProperties")
    for present in product((True, False), repeat=len(shape.implications)):
        required = set(shape.required)
        properties = dict(shape.properties)
        for (name, keys), there in zip(shape.implications, present, strict=True):
            if there:
                required.update((name, *keys))
            else:
                properties[name] = properties.get(name, frozenset()) | IMPOSSIBLE
        if len(required) <= (shape.high or 0):
            yield replace(shape, properties=properties, required=frozenset(required), implications=())


def _witnesses(shape: ObjectShape, keys: KeySet) -> list[str | None]:
    """Named keys that can be the one that `some` asks for, and None for an unnamed one."""
    return [*(name for name in _names(shape) if keys.contains(name)), None]


def _names(shape: ObjectShape) -> list[str]:
    """Every key that something is said of by name."""
    names = dict.fromkeys(shape.properties)
    names.update(dict.fromkeys(sorted(shape.required)))
    for name, keys in shape.implications:
        names.update(dict.fromkeys((name, *keys)))
    for key_set, _ in (*shape.rules, *shape.some):
        names.update(dict.fromkeys(sorted(key_set.names)))
    return list(names)


def _partitions(wanted: list[_Want]) -> Iterator[list[_Want]]:
    """`wanted`, with those of each part of each partition asked of one key."""
    if not wanted:
        yield []
        return
    (keys, node), rest = wanted[0], wanted[1:]
    for parts in _partitions(rest):
        yield [(keys, node), *parts]
        for index, (others, more) in enumerate(parts):
            yield [*parts[:index], (keys + others, node | more), *parts[index + 1 :]]


def _plans(shape: ObjectShape, wanted: list[_Want]) -> list[ObjectPlan]:
    names = _names(shape)
    named = tuple(Key(name, Language.EMPTY, shape.at(name), name in shape.required) for name in names)
    languages: dict[Language, None] = {}
    for key_set in (*(keys for keys, _ in shape.rules), *(keys for sets, _ in wanted for keys in sets)):
        languages.update(dict.fromkeys(key_set.languages))
    if len(languages) > MAX_KEY_LANGUAGES:
        raise GrammarTooComplexError(f"an object's keys are distinguished by more than {MAX_KEY_LANGUAGES} patterns")
    rest = ~Language.one_of(names) if names else Language.ANY
    atoms = _atoms(rest, tuple(languages))
    others: list[Key] = []
    unruled: list[Key] = []
    for language, members in atoms:
        nodes = [extra for key_set, extra in shape.rules if _in(key_set, members)]
        others.append(Key(None, language, frozenset[int]().union(*nodes)))
        unruled += [] if nodes else others[-1:]
    closes = unruled and shape.listing and shape.low <= len(shape.required) + len(wanted)
    joined = _joined([key for key in others if not closes or key not in unruled])
    if len(joined) == 1 and not closes:  # the parts of the rest are the rest
        joined = [Key(None, rest, joined[0].node)]
    choices = [_witness_keys(others, atoms, sets, extra) for sets, extra in wanted]
    closed = shape.listing if closes else frozenset[Place]()
    return [
        ObjectPlan(named, tuple(joined), asked, shape.low, shape.high, shape.implications, shape.counted, closed)
        for asked in product(*choices)
    ]


def _witness_keys(others: list[Key], atoms: list[_Atom], sets: tuple[KeySet, ...], extra: Node) -> list[Key]:
    """The unnamed keys that can be the one of all `sets` that must be there."""
    options: dict[Node, Language] = {}
    for key, (language, members) in zip(others, atoms, strict=True):
        if all(_in(keys, members) for keys in sets):
            node = key.node | extra
            options[node] = options[node] | language if node in options else language
    return [Key(None, language, node, True) for node, language in options.items()]


def _joined(keys: list[Key]) -> list[Key]:
    """Languages with the same demands as one."""
    found: dict[Node, Key] = {}
    for key in keys:
        known = found.get(key.node)
        found[key.node] = key if known is None else Key(None, known.language | key.language, key.node)
    return list(found.values())


@lru_cache(maxsize=256)
def _atoms(rest: Language, languages: tuple[Language, ...]) -> list[_Atom]:
    """`rest` divided by which of the languages a key is in; parts that are known to be empty are left out."""
    atoms: list[_Atom] = [(rest, frozenset())]
    for language in languages:
        parted: list[_Atom] = []
        for atom, members in atoms:
            inside, outside = atom & language, atom & ~language
            word = atom.sample()  # one of the two parts has it: that one need not be searched
            within = word is not None and language.contains(word)
            if within or not inside.is_empty():
                parted.append((inside, members | {language}))
            if (word is not None and not within) or not outside.is_empty():
                parted.append((outside, members))
        atoms = parted
    return atoms


def _in(keys: KeySet, members: frozenset[Language]) -> bool:
    return keys.inverted != any(language in members for language in keys.languages)


# Arrays


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """An array's elements. `counts` are told apart by element: see `options`."""

    prefix: tuple[Node, ...]
    rest: Node
    low: int
    high: int | None
    counts: tuple[Count, ...]
    unique: frozenset[Place]

    def at(self, index: int) -> Node:
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def options(self, index: int) -> list[tuple[tuple[int, ...], Node]]:
        """Returns what element `index` may be: which of the counts it adds to, and what it must be then."""
        result: list[tuple[tuple[int, ...], Node]] = []
        live = [number for number, count in enumerate(self.counts) if index >= count.start]
        for chosen in product((True, False), repeat=len(live)):
            node = self.at(index)
            for number, counted in zip(live, chosen, strict=True):
                count = self.counts[number]
                if counted:
                    node = node | count.node
                elif count.high is not None:
                    node = node | frozenset(literal ^ 1 for literal in count.node)
            counted_by = tuple(number for number, counted in zip(live, chosen, strict=True) if counted)
            result.append((counted_by, node))
        return result

    def nodes(self) -> Iterator[Node]:
        yield from (*self.prefix, self.rest)
        if self.counts:
            starts = {*range(len(self.prefix) + 1), *(count.start for count in self.counts)}
            for index in sorted(starts):
                for _, node in self.options(index):
                    yield node

    def live(self, cost: Cost) -> ArrayPlan | None:
        """Cuts the plan to the length that elements without a value leave; None if that is too short."""
        high = self.high
        if high is None and cost(self.rest) < math.inf and all(cost(node) < math.inf for node in self.prefix):
            return self
        for index, node in enumerate(self.prefix):
            if cost(node) == math.inf:
                high = index if high is None else min(high, index)
                break
        else:
            if cost(self.rest) == math.inf:
                high = len(self.prefix) if high is None else min(high, len(self.prefix))
        if high is not None and high < self.low:
            return None
        prefix = self.prefix if high is None else self.prefix[:high]
        return ArrayPlan(prefix, self.rest, self.low, high, self.counts, self.unique)

    def cost(self, cost: Cost) -> float:
        """The length of a shortest text, about."""
        if self.low == 0 and not self.counts and (self.high is None or self.high >= 0):
            return 2
        live = self.live(cost)
        if live is None:
            return math.inf
        if live.counts:
            return Counting(live, cost).shortest
        elements = [cost(node) for node in live.prefix[: live.low]]
        if live.low > len(elements):
            elements += [cost(live.rest)] * (live.low - len(elements))
        return 2 + sum(elements) + 2 * max(live.low - 1, 0)


def plan_array(shape: ArrayShape) -> ArrayPlan:
    """The way to write the arrays of a shape, which has at most `MAX_COUNTS` counts."""
    return ArrayPlan(shape.prefix, shape.rest, shape.low, shape.high, shape.counts, shape.unique)


State: TypeAlias = tuple[int, tuple[int, ...]]
"""State of an array: the numbers of elements, and of those added to each count; both no further than it matters."""


class Counting:
    """The automaton that counts an array's elements: from each state, what may come and where it leads.

    Only states from which the array can still end are left: nothing leads into a dead end.
    """

    def __init__(self, plan: ArrayPlan, cost: Cost) -> None:
        self._plan = plan
        self._cost = cost
        self._caps = [(count.low if count.high is None else max(count.low, count.high + 1)) for count in plan.counts]
        starts = [count.start for count in plan.counts]
        self._cap = max([len(plan.prefix), plan.low, *starts, 0 if plan.high is None else plan.high])
        self.start: State = (0, (0,) * len(plan.counts))
        edges: dict[State, list[tuple[Node, State]]] = {}
        stack = [self.start]
        while stack:
            state = stack.pop()
            if state in edges:
                continue
            edges[state] = [edge for edge in self._edges(state) if cost(edge[0]) < math.inf]
            stack += [following for _, following in edges[state]]
            if len(edges) > MAX_COUNTING_STATES:
                raise GrammarTooComplexError("counting the items of an array takes too many states")
        self._distances = self._measure(edges)
        self.edges = {
            state: [edge for edge in out if edge[1] in self._distances]
            for state, out in edges.items()
            if state in self._distances
        }
        self.shortest = 2 + self._distances.get(self.start, math.inf)

    def accepts(self, state: State) -> bool:
        """Tells whether the array may end in `state`."""
        index, counted = state
        if index < self._plan.low:
            return False
        return all(
            count.low <= number and (count.high is None or number <= count.high)
            for count, number in zip(self._plan.counts, counted, strict=True)
        )

    def path(self) -> Iterator[Node]:
        """The elements of a shortest array."""
        state = self.start
        while not (self.accepts(state) and self._distances[state] == 0):
            node, state = min(self.edges[state], key=lambda edge: self._distances[edge[1]] + self._cost(edge[0]))
            yield node

    def _edges(self, state: State) -> Iterator[tuple[Node, State]]:
        index, counted = state
        if self._plan.high is not None and index >= self._plan.high:
            return
        for adds, node in self._plan.options(index):
            numbers = tuple(
                min(number + (position in adds), cap)
                for position, (number, cap) in enumerate(zip(counted, self._caps, strict=True))
            )
            tops = (count.high for count in self._plan.counts)
            if all(top is None or number <= top for number, top in zip(numbers, tops, strict=True)):
                yield node, (min(index + 1, self._cap), numbers)

    def _measure(self, edges: dict[State, list[tuple[Node, State]]]) -> dict[State, float]:
        """The lengths of shortest texts from each state to the end."""
        distances = {state: 0.0 for state in edges if self.accepts(state)}
        changed = True
        while changed:
            changed = False
            for state, out in edges.items():
                for node, following in out:
                    if following in distances:
                        distance = distances[following] + self._cost(node) + 2
                        if distance < distances.get(state, math.inf):
                            distances[state], changed = distance, True
        return distances
