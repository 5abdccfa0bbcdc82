"""A short text that a schema accepts: what shows that a generation can still end, and how soon."""

from __future__ import annotations

import json
import math

from ...regex.language import Language
from .graph import Graph, Values
from .plans import ArrayPlan, Counting, ObjectPlan
from .shapes import Node, StringShape

MAX_LENGTH = 20_000


class _NoTextError(Exception):
    """None was found with little effort, which says nothing of whether there is one."""


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
    """Of its texts, in quotes."""
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
