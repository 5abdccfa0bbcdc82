"""Rules for arrays of values that can be listed and must all differ."""

from __future__ import annotations

import json
from typing import Any

from ...regex.language import Language
from ..open.finite import DistinctItems, State
from ..open.plans import ArrayPlan
from .writer import Writer, number_texts


def distinct_alternatives(writer: Writer, plan: ArrayPlan, items: DistinctItems) -> list[str]:
    """Alternatives of a rule for the arrays of `plan`, each value at most once."""
    names = [_any_of(writer, writings) for writings in items.values]
    return _by_bits(writer, plan, names) if items.plain else _by_states(writer, items, names)


def _by_bits(writer: Writer, plan: ArrayPlan, names: list[str]) -> list[str]:
    """A bit for each value in the rules' parameter."""
    first, after = writer.fresh(), writer.fresh()
    high = len(names) if plan.high is None else min(plan.high, len(names))
    end = f'"]" %if bit_count_ge(_, {plan.low})' if plan.low else '"]"'
    writer.rule(f"{after}::_", [end, f"{writer.comma} {first}::_ %if bit_count_lt(_, {high})"])
    writer.rule(
        f"{first}::_",
        [f"{name} {after}::set_bit({bit}) %if bit_clear({bit})" for bit, name in enumerate(names)],
    )
    return [*(['"[""]"'] if plan.low == 0 else []), *([f'"["{first}::0'] if high else [])]


def _by_states(writer: Writer, items: DistinctItems, names: list[str]) -> list[str]:
    """A rule for each state of the automaton."""
    rules = {state: writer.fresh() for state in items.edges}

    def steps(state: State, lead: str) -> list[str]:
        return [f"{lead}{names[number]} {rules[following]}" for number, following in items.edges[state]]

    for state, rule in rules.items():
        if state != items.start:
            writer.rule(rule, [*(['"]"'] if items.accepts(state) else []), *steps(state, f"{writer.comma} ")])
    empty = ['"[""]"'] if items.accepts(items.start) else []
    return [*empty, *steps(items.start, '"["')]


def _any_of(writer: Writer, writings: list[Any]) -> str:
    """The symbol of one value, which may have its keys in several orders."""
    if writer.layout.order == "any" or len(writings) == 1:
        return _value(writer, writings[0])
    name = writer.fresh()
    writer.rule(name, [_value(writer, value) for value in writings])
    return name


def _value(writer: Writer, value: Any) -> str:
    """The symbol of one value, however it may be written."""
    if isinstance(value, str):
        return writer.string(Language.literal(value))
    if isinstance(value, bool) or value is None:
        return f'"{json.dumps(value)}"'
    if isinstance(value, int | float):
        return writer.terminal(number_texts(value, writer.layout.canonical))
    name = writer.fresh()
    if isinstance(value, list):
        inner = f" {writer.comma} ".join(_value(writer, item) for item in value)
        writer.rule(name, [f'"["{inner}"]"'])
        return name
    pairs = [f"{writer.key_of(Language.literal(key))} {_value(writer, item)}" for key, item in value.items()]
    if writer.layout.order == "schema" or len(pairs) <= 1:
        inner = f" {writer.comma} ".join(pairs)
        writer.rule(name, [f'"{{"{inner}"}}"'])
    else:
        _in_any_order(writer, name, pairs)
    return name


def _in_any_order(writer: Writer, name: str, pairs: list[str]) -> None:
    """The rule `name` for an object of all of `pairs`: a bit for each that is there."""
    member, after = writer.fresh(), writer.fresh()
    writer.rule(name, [f'"{{"{member}::0'])
    writer.rule(
        f"{member}::_", [f"{pair} {after}::set_bit({bit}) %if bit_clear({bit})" for bit, pair in enumerate(pairs)]
    )
    some_left = f"bit_count_lt(_, {len(pairs)})"
    writer.rule(f"{after}::_", [f'"}}" %if is_ones([0:{len(pairs)}])', f"{writer.comma} {member}::_ %if {some_left}"])
