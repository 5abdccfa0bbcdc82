"""Every conjunction that a schema's values are made of, opened, with those that have no value at all taken out."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TypeVar

from ..errors import GrammarTooComplexError
from ..languages.language import Language
from .expand import Expander
from .plans import MAX_COUNTS, ArrayPlan, ObjectPlan, plan_array, plan_object
from .shapes import ANYTHING, ArrayShape, BooleanShape, Node, NullShape, NumberShape, ObjectShape, StringShape

PlanT = TypeVar("PlanT", ArrayPlan, ObjectPlan)

MAX_NODES = 5_000
MAX_NAMES = 200


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
        """Those of arrays, then those of objects."""
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
                raise GrammarTooComplexError(f"the schema's values are of more than {MAX_NODES} kinds")
            children = [child for plan in values.plans() for child in plan.nodes()]
            stack.extend(reversed(children))
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
                    self.expander.narrowed = True
                case ArrayShape():
                    values.arrays.append(plan_array(shape))
                case ObjectShape():
                    values.objects += plan_object(shape)
        return values

    def _measure(self) -> None:
        """Falls from infinity until each node's cost is that of a finite value."""
        nodes = [(node, values, values.scalar_cost()) for node, values in reversed(self.values.items())]
        changed = True
        while changed:
            changed = False
            for node, values, cost in nodes:
                for plan in values.plans():
                    cost = min(cost, plan.cost(self.cost))
                if cost < self._costs.get(node, math.inf):
                    self._costs[node], changed = cost, True
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
    if shape.language is Language.ANY:
        return 2
    return 2 + shape.language.bounds()[0]
