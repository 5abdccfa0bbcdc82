"""Opens every conjunction that a schema's values are made of, and takes out those that have no value at all.

From the graph, a short text that the schema accepts: what shows that a generation can still end, and how soon.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from ...errors import GrammarTooComplexError
from ...regex.language import Language
from .expand import Expander
from .finite import DistinctItems, Finite
from .plans import MAX_COUNTS, ArrayPlan, Counting, ObjectPlan, plan_array, plan_object
from .shapes import ANYTHING, ArrayShape, BooleanShape, Count, NullShape, NumberShape, ObjectShape, StringShape, lesser
from .subschemas import Node

PlanT = TypeVar("PlanT", ArrayPlan, ObjectPlan)

MAX_NODES = 5_000
MAX_NAMES = 200
MAX_COUNT = 64
MAX_COUNT_DEPTH = 8
COUNT_BUDGET = 2_000


@dataclass(slots=True)
class Values:
    """The values of one conjunction, by type. `anything`: all values, and the rest is empty."""

    anything: bool = False
    null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: list[NumberShape] = field(default_factory=list)
    strings: list[StringShape] = field(default_factory=list)
    arrays: list[ArrayPlan] = field(default_factory=list)
    objects: list[ObjectPlan] = field(default_factory=list)

    def plans(self) -> list[ArrayPlan | ObjectPlan]:
        """Returns the plans of arrays, then those of objects."""
        return [*self.arrays, *self.objects]

    def scalar_cost(self) -> float:
        """The length of a shortest text that is no array or object."""
        costs = [4.0] if self.null else []
        if self.anything:
            return 1
        costs += [4.0 if value else 5.0 for value in self.booleans]
        costs += [_number_cost(shape) for shape in self.numbers]
        costs += [_string_cost(shape) for shape in self.strings]
        return min(costs, default=math.inf)


class Graph:
    """The conjunctions reachable from `root`, in the order found, with the length of a shortest text of each."""

    def __init__(self, expander: Expander, root: Node) -> None:
        self.root = root
        self.expander = expander
        self._costs: dict[Node, float] = {}
        self.values: dict[Node, Values] = {}
        stack = [root]
        while stack:
            node = stack.pop()
            if node in self.values:
                continue
            values = self.values[node] = self._open(node)
            if len(self.values) > MAX_NODES:
                raise GrammarTooComplexError(f"the schema has more than {MAX_NODES} kinds of values")
            children = [child for plan in values.plans() for child in plan.nodes()]
            stack.extend(reversed(children))
        self._bound_distinct()
        self._measure()

    def cost(self, node: Node) -> float:
        """The length of a shortest text of a node, about; infinite exactly if it has no value."""
        return self._costs.get(node, math.inf)

    @property
    def growth(self) -> int:
        """About how many characters one step into a new value can add to what must still be written."""
        return int(3 * max(self._costs.values(), default=0))

    @property
    def names(self) -> tuple[str, ...]:
        """Keys that objects need, the first of them."""
        plans = (plan for values in self.values.values() for plan in values.objects)
        required = (key.name for plan in plans for key in plan.named if key.required and key.name is not None)
        return tuple(dict.fromkeys(required))[:MAX_NAMES]

    def _open(self, node: Node) -> Values:
        if node == ANYTHING:
            return Values(anything=True)
        values = Values()
        shapes = [shape for kind in self.expander.kinds(node) for shape in self.expander.shapes(node, kind)]
        for shape in shapes:
            match shape:
                case NullShape():
                    values.null = True
                case BooleanShape():
                    values.booleans |= shape.values
                case NumberShape():
                    values.numbers.append(shape)
                case StringShape():
                    values.strings.append(shape)
                case ArrayShape() if len(shape.counts) > MAX_COUNTS:
                    self.expander.subschemas.narrow(node)
                case ArrayShape():
                    values.arrays.append(plan_array(shape))
                case ObjectShape():
                    values.objects += plan_object(shape)
        return values

    def _bound_distinct(self) -> None:
        """Elements that must differ are at most as many as there are values."""
        for values in self.values.values():
            for index, plan in enumerate(values.arrays):
                number = self.count(plan.rest) if plan.unique else None
                if number is not None:
                    high = lesser(plan.high, len(plan.prefix) + number)
                    plan = values.arrays[index] = replace(plan, high=high)
                if plan.unique:
                    plan = values.arrays[index] = replace(plan, high=lesser(plan.high, self.finite.most_distinct(plan)))
                items = DistinctItems.of(self.finite, plan) if plan.unique and plan.counts else None
                if items is not None and not items.possible:
                    values.arrays[index] = replace(plan, low=1, high=0)
                if plan.unique and any(self._lacks(plan, count) for count in plan.counts):
                    values.arrays[index] = replace(plan, low=1, high=0)  # no array is like that

    def _lacks(self, plan: ArrayPlan, count: Count) -> bool:
        """Tells whether there are fewer values than a count asks for."""
        node = plan.rest | count.node
        number = self.count(node) if node in self.values else None
        return number is not None and number + max(len(plan.prefix) - count.start, 0) < count.low

    @cached_property
    def finite(self) -> Finite:
        """The lists of values of those nodes that have few."""
        return Finite(self.values)

    def count(self, node: Node, depth: int = 0) -> int | None:
        """Returns how many values satisfy a node at most; None: more than `MAX_COUNT`, as far as is known."""
        values = self.values[node]
        if values.anything or depth > MAX_COUNT_DEPTH:
            return None
        numbers = [shape.values or shape.numbers.values(MAX_COUNT) for shape in values.numbers]
        texts = Language.union(shape.language for shape in values.strings).strings(MAX_COUNT, COUNT_BUDGET)
        listed = (
            None if any(some is None for some in numbers) else {number for some in numbers for number in some or ()}
        )
        counts = [None if some is None else len(some) for some in (listed, texts)]
        counts += [self._count_arrays(plan, depth) for plan in values.arrays]
        counts += [self._count_objects(plan, depth) for plan in values.objects]
        total = int(values.null) + len(values.booleans)
        for number in counts:
            if number is None or total + number > MAX_COUNT:
                return None
            total += number
        return total

    def _count_arrays(self, plan: ArrayPlan, depth: int) -> int | None:
        if plan.high is None or plan.high > MAX_COUNT:
            return None
        total, product = 0, 1
        for size in range(plan.high + 1):
            total += product if size >= plan.low else 0
            number = self.count(plan.at(size), depth + 1) if size < plan.high else 1
            if number is None or total > MAX_COUNT:
                return None
            product *= number
        return total

    def _count_objects(self, plan: ObjectPlan, depth: int) -> int | None:
        product = 1
        for key in (*plan.named, *plan.others, *plan.wanted):
            number = self.count(key.node, depth + 1)
            if number == 0 and not key.required:
                continue
            if number is None or key.name is None or product * (number + (not key.required)) > MAX_COUNT:
                return None
            product *= number + (not key.required)
        return product

    def _measure(self) -> None:
        """Falls from infinity until each node's cost is that of a finite value."""
        nodes = [(node, values.plans(), values.scalar_cost()) for node, values in reversed(self.values.items())]
        costs = self._costs
        early = False  # a cost was asked for before it was known: children mostly come first

        def cost_of(node: Node) -> float:
            nonlocal early
            found = costs.get(node)
            if found is None:
                early = True
                return math.inf
            return found

        changed = True
        while changed:
            changed = False
            for node, plans, least in nodes:
                cost = min([least, *[plan.cost(cost_of) for plan in plans]]) if plans else least
                if cost < costs.get(node, math.inf):
                    costs[node], changed = cost, early
            nodes = [entry for entry in nodes if entry[1]]
        for values in self.values.values():
            values.arrays = [_living(plan.live(self.cost)) for plan in values.arrays if self._lives(plan)]
            values.objects = [_living(plan.live(self.cost)) for plan in values.objects if self._lives(plan)]

    def _lives(self, plan: ArrayPlan | ObjectPlan) -> bool:
        return plan.cost(self.cost) < math.inf


def _living(plan: PlanT | None) -> PlanT:
    assert plan is not None
    return plan


def _number_cost(shape: NumberShape) -> float:
    return 1 if shape.values is None else min(len(json.dumps(value)) for value in shape.values)


def _string_cost(shape: StringShape) -> float:
    if shape.language == Language.EMPTY:
        return math.inf
    if shape.language is Language.ANY:
        return 2
    return 2 + shape.language.bounds()[0]


MAX_LENGTH = 20_000


class _NoTextError(Exception):
    """Raised when no text is found with little effort; there may be one all the same."""


def shortest_text(graph: Graph) -> str | None:
    """A text of the root about as short as any, in the layout of `json.dumps`; None if none was found."""
    if graph.cost(graph.root) > MAX_LENGTH:
        return None
    try:
        return _text(graph, graph.root)
    except (_NoTextError, RecursionError, ValueError):
        return None


def _text(graph: Graph, node: Node) -> str:
    values = graph.values[node]
    if values.anything:
        return "0"
    plans = values.plans()
    cost = min((plan.cost(graph.cost) for plan in plans), default=math.inf)
    if values.scalar_cost() <= cost:
        return _scalar(values)
    plan = next(plan for plan in plans if plan.cost(graph.cost) == cost)
    return _array(graph, plan) if isinstance(plan, ArrayPlan) else _object(graph, plan)


def _scalar(values: Values) -> str:
    texts = ["null"] if values.null else []
    texts += ["true" if value else "false" for value in values.booleans]
    for shape in values.numbers:
        texts += [json.dumps(value) for value in shape.values] if shape.values else [shape.numbers.shortest()]
    for string in sorted(values.strings, key=_least_length):
        if texts and min(map(len, texts)) <= _least_length(string):
            break
        text = string.language.shortest()
        if text is not None:
            texts.append(json.dumps(text, ensure_ascii=False))
    if not texts:
        raise _NoTextError
    return min(texts, key=len)


def _least_length(string: StringShape) -> int:
    """Returns the length of its shortest text, in quotes."""
    return 2 + string.language.bounds()[0]


def _array(graph: Graph, plan: ArrayPlan) -> str:
    if plan.unique and plan.low > 1:
        values = graph.finite.values(plan.rest) if not plan.prefix and not plan.counts else None
        if values is None:
            raise _NoTextError
        texts = sorted((json.dumps(value, ensure_ascii=False) for value in values), key=len)[: plan.low]
        if len(texts) < plan.low:
            raise _NoTextError
    elif plan.counts:
        texts = [_text(graph, node) for node in Counting(plan, graph.cost).path()]
    else:
        texts = [_text(graph, plan.at(index)) for index in range(plan.low)]
    return f"[{', '.join(texts)}]"


def _object(graph: Graph, plan: ObjectPlan) -> str:
    keys = [key for key in (*plan.named, *plan.wanted) if key.required]
    free = sorted((key for key in plan.named if not key.required), key=lambda key: graph.cost(key.node))
    missing = plan.low - len(keys)
    if missing > 0:
        keys += free[:missing]
        missing -= len(free[:missing])
    if missing > 0 and not plan.others:
        raise _NoTextError
    keys += plan.others[:1] * max(missing, 0)
    present = {key.name for key in keys}
    if any(name in present and not present.issuperset(implied) for name, implied in plan.implications):
        raise _NoTextError
    keys.sort(key=lambda key: plan.named.index(key) if key in plan.named else len(plan.named))
    taken: list[str] = []
    members: list[str] = []
    for key in keys:
        name = key.name if key.name is not None else (key.language & ~Language.one_of(taken)).shortest()
        if name is None or name in taken:
            raise _NoTextError
        taken.append(name)
        members.append(f"{json.dumps(name, ensure_ascii=False)}: {_text(graph, key.node)}")
    return f"{{{', '.join(members)}}}"
