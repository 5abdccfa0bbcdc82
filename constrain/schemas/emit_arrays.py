"""Rules for arrays."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from ..languages.language import Language
from .graph import Graph, Values
from .plans import ArrayPlan, Counting, State
from .shapes import Node
from .values import value_key
from .writer import Writer, number_texts

MAX_DISTINCT = 60


def array_rule(writer: Writer, plan: ArrayPlan) -> str:
    """The name of a new rule for the arrays of `plan`."""
    if plan.unique and not needs_distinct_items(writer.graph, plan):
        values = distinct_values(writer.graph.values[plan.rest]) if not plan.prefix and not plan.counts else None
        if values is not None and (plan.high is None or plan.high > 1):
            return _distinct(writer, plan, values)
    return _counted(writer, plan) if plan.counts else _plain(writer, plan)


def needs_distinct_items(graph: Graph, plan: ArrayPlan) -> bool:
    """Whether elements must differ, and the rule for `plan` does not see to it."""
    if not plan.unique or (plan.high is not None and plan.high <= 1):
        return False
    return bool(plan.prefix or plan.counts) or distinct_values(graph.values[plan.rest]) is None


def _plain(writer: Writer, plan: ArrayPlan) -> str:
    """Elements in order: those of the prefix in a chain of rules, the rest in a repetition."""
    name = writer.fresh()
    can_start = plan.high is None or plan.high > 0
    if not plan.prefix:
        alternatives = ['"[" "]"'] if plan.low == 0 else []
        if can_start:
            rest = writer.node(plan.rest)
            alternatives.append(f'"[" {rest} {_more(writer, plan, 1)}"]"')
        writer.rule(name, alternatives)
        return name
    following = writer.fresh()
    alternatives = ['"[" "]"'] if plan.low == 0 else []
    if can_start:
        alternatives.append(f'"[" {writer.node(plan.prefix[0])} {following}')
    writer.rule(name, alternatives)
    for index in range(1, len(plan.prefix) + 1):
        rule, following = following, writer.fresh()
        if index == len(plan.prefix):
            writer.rule(rule, [f'{_more(writer, plan, index)}"]"'])
            break
        alternatives = ['"]"'] if index >= plan.low else []
        if plan.high is None or index < plan.high:
            alternatives.append(f"{writer.comma} {writer.node(plan.prefix[index])} {following}")
        writer.rule(rule, alternatives)
    return name


def _more(writer: Writer, plan: ArrayPlan, num_before: int) -> str:
    """What may stand between element `num_before` - 1 and the closing bracket."""
    low = max(plan.low - num_before, 0)
    high = None if plan.high is None else plan.high - num_before
    if high == 0:
        return ""
    item = f"({writer.comma} {writer.node(plan.rest)})"
    if high is None:
        return f"{item}* " if low == 0 else f"{item}{{{low},}} "
    return f"{item}{{{low},{high}}} "


def _counted(writer: Writer, plan: ArrayPlan) -> str:
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
    start = writer.fresh()
    empty = ['"[" "]"'] if counting.accepts(counting.start) else []
    writer.rule(start, [*empty, *steps(counting.start, '"[" ')])
    return start


def _reached_again(counting: Counting) -> bool:
    return any(following == counting.start for out in counting.edges.values() for _, following in out)


def distinct_values(values: Values) -> list[Any] | None:
    """All values of a node, each once, if they are few scalars."""
    if values.anything or values.arrays or values.objects:
        return None
    found: list[Any] = [None] if values.null else []
    found += sorted(values.booleans)
    for shape in values.numbers:
        listed = shape.values if shape.values is not None else shape.numbers.values(MAX_DISTINCT)
        if listed is None or any(isinstance(value, Decimal) for value in listed):
            return None
        found += listed
    for string in values.strings:
        texts = string.language.strings(MAX_DISTINCT)
        if texts is None:
            return None
        found += texts
    unique = list({value_key(value): value for value in found}.values())
    return unique if len(unique) <= MAX_DISTINCT else None


def _distinct(writer: Writer, plan: ArrayPlan, values: list[Any]) -> str:
    """Each value at most once: a bit for each in the rules' parameter."""
    start, first, after = writer.fresh(), writer.fresh(), writer.fresh()
    high = len(values) if plan.high is None else min(plan.high, len(values))
    end = f'"]" %if bit_count_ge(_, {plan.low})' if plan.low else '"]"'
    writer.rule(start, [*(['"[" "]"'] if plan.low == 0 else []), *([f'"[" {first}::0'] if high else [])])
    writer.rule(f"{after}::_", [end, f"{writer.comma} {first}::_ %if bit_count_lt(_, {high})"])
    writer.rule(
        f"{first}::_",
        [f"{_scalar(writer, value)} {after}::set_bit({bit}) %if bit_clear({bit})" for bit, value in enumerate(values)],
    )
    return start


def _scalar(writer: Writer, value: Any) -> str:
    """The terminal of one scalar, however it may be written."""
    if isinstance(value, str):
        return writer.string(Language.literal(value))
    if isinstance(value, bool) or value is None:
        return f'"{json.dumps(value)}"'
    return writer.terminal(number_texts(value, writer.layout.canonical))
