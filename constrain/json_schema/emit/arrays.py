"""Rules for arrays."""

from __future__ import annotations

from ..open.finite import DistinctItems
from ..open.graph import Graph
from ..open.plans import ArrayPlan, Counting, State
from ..open.shapes import Node
from .unique_arrays import distinct_alternatives
from .writer import Writer


def array_alternatives(writer: Writer, plan: ArrayPlan) -> list[str]:
    """Alternatives of a rule for the arrays of `plan`."""
    items = DistinctItems.of(writer.graph.finite, plan) if _may_repeat(plan) else None
    if items is not None:
        return distinct_alternatives(writer, plan, items)
    return _counted(writer, plan) if plan.counts else _plain(writer, plan)


def needs_distinct_items(graph: Graph, plan: ArrayPlan) -> bool:
    """Whether elements must differ, and the rule for `plan` does not see to it."""
    return _may_repeat(plan) and DistinctItems.of(graph.finite, plan) is None


def _may_repeat(plan: ArrayPlan) -> bool:
    """Whether elements must differ, and there can be two."""
    return bool(plan.unique) and (plan.high is None or plan.high > 1)


def _plain(writer: Writer, plan: ArrayPlan) -> list[str]:
    """Elements in order: those of the prefix in a chain of rules, the rest in a repetition."""
    alternatives = ['"[""]"'] if plan.low == 0 else []
    if plan.high == 0:
        return alternatives
    nodes = [writer.node(node) for node in plan.prefix[: plan.high] or (plan.rest,)]
    text = f'{_more(writer, plan, len(nodes))}"]"'
    for index in range(len(nodes) - 1, 0, -1):
        text = f"{writer.comma} {nodes[index]} {text}"
        if index >= plan.low:
            name = writer.fresh()
            writer.rule(name, ['"]"', text])
            text = name
    return [*alternatives, f'"["{nodes[0]} {text}']


def _more(writer: Writer, plan: ArrayPlan, num_before: int) -> str:
    """What may stand between element `num_before` - 1 and the closing bracket."""
    low = max(plan.low - num_before, 0)
    high = None if plan.high is None else plan.high - num_before
    if high == 0:
        return ""
    item = f"({writer.comma} {writer.node(plan.rest)})"
    if high is None:
        return f"{item}*" if low == 0 else f"{item}{{{low},}}"
    return f"{item}{{{low},{high}}}"


def _counted(writer: Writer, plan: ArrayPlan) -> list[str]:
    """A rule for each state of the automaton that counts."""
    counting = Counting(plan, writer.graph.cost)
    names: dict[State, str] = {state: writer.fresh() for state in counting.edges}

    def steps(state: State, lead: str) -> list[str]:
        merged: dict[tuple[Node, State], None] = dict.fromkeys(counting.edges[state])
        return [f"{lead}{writer.node(node)} {names[following]}" for node, following in merged]

    for state, name in names.items():
        if state == counting.start and state[0] == 0 and not _reached_again(counting):
            continue
        writer.rule(name, [*(['"]"'] if counting.accepts(state) else []), *steps(state, f"{writer.comma} ")])
    empty = ['"[""]"'] if counting.accepts(counting.start) else []
    return [*empty, *steps(counting.start, '"["')]


def _reached_again(counting: Counting) -> bool:
    return any(following == counting.start for out in counting.edges.values() for _, following in out)
