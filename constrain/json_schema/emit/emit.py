"""Writes a graph of values as a Lark grammar for llguidance: a rule for each conjunction."""

from __future__ import annotations

from ...regex.language import Language
from ...regex.numbers.sets import NumberSet
from ..open.graph import Graph, Values
from .arrays import array_alternatives
from .objects import object_alternatives
from .scalars import scalars
from .writer import LAYOUTS, Order, Writer


def emit(graph: Graph, order: Order) -> str:
    """The grammar of the values of the graph's root. Raises GrammarTooComplexError."""
    writer = Writer(graph, LAYOUTS[order], scalars)
    start = writer.node(graph.root)
    while writer.waiting:
        name, node = writer.waiting.pop()
        writer.rule(name, _alternatives(writer, graph.values[node]))
    return writer.text(start)


def _alternatives(writer: Writer, values: Values) -> list[str]:
    if values.anything:
        return _anything(writer)
    result = scalars(writer, values)
    for array in values.arrays:
        result += array_alternatives(writer, array)
    for plan in values.objects:
        result += object_alternatives(writer, plan)
    return result


def _anything(writer: Writer) -> list[str]:
    string, value = writer.string(Language.ANY), writer.node(frozenset())
    pair, comma = f"{writer.key_of(Language.ANY)} {value}", writer.comma
    number = NumberSet().terminal(writer.layout.canonical)
    assert number is not None
    return [
        *writer.one_of([string, number, '"true"', '"false"', '"null"']),
        *('"[""]"', f'"["{value}({comma} {value})*"]"'),
        *('"{""}"', f'"{{"{pair}({comma} {pair})*"}}"'),
    ]
