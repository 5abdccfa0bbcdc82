"""Writes a graph of values as a Lark grammar for llguidance: a rule for each conjunction."""

from __future__ import annotations

import json
from dataclasses import replace

from ..errors import GrammarTooComplexError
from ..languages.language import Language
from ..languages.numbers import NumberSet
from .emit_arrays import array_rule
from .emit_objects import object_rule
from .graph import Graph, Values
from .shapes import NumberShape
from .writer import LAYOUTS, Order, Writer, number_texts

MAX_MULTIPLE = 10_000
"""Of a `multipleOf` in units of its last digit: llguidance keeps a state for each remainder."""


def emit(graph: Graph, order: Order) -> str:
    """The grammar of the values of the graph's root. Raises GrammarTooComplexError."""
    writer = Writer(graph, LAYOUTS[order])
    start = writer.node(graph.root)
    while writer.waiting:
        name, node = writer.waiting.pop()
        writer.rule(name, _alternatives(writer, graph.values[node]))
    return writer.text(start)


def _alternatives(writer: Writer, values: Values) -> list[str]:
    if values.anything:
        return _anything(writer)
    result = ['"null"'] if values.null else []
    result += [f'"{json.dumps(value)}"' for value in sorted(values.booleans)]
    if values.numbers:
        result += _numbers(writer, values.numbers)
    strings = Language.union(shape.language for shape in values.strings)
    if strings != Language.EMPTY:
        result.append(writer.string(strings))
    result += [array_rule(writer, plan) for plan in values.arrays]
    result += [object_rule(writer, plan) for plan in values.objects]
    return result


def _numbers(writer: Writer, shapes: list[NumberShape]) -> list[str]:
    expressions: list[str] = []
    schemas: list[str] = []
    draft = writer.graph.expander.subschemas.document.draft
    for shape in shapes:
        if shape.values is not None:
            expressions += [number_texts(value, writer.layout.canonical) for value in shape.values]
            continue
        # In draft 4 a number with a point is no integer.
        canonical = writer.layout.canonical or (draft.year == 4 and shape.numbers.multiple is not None)
        expression = shape.numbers.terminal(canonical)
        if expression is not None:
            expressions.append(expression)
            continue
        wider = replace(shape.numbers, others=frozenset())
        if shape.numbers.others:  # what may not divide the number is looked at in the end
            for literal, keyword in sorted(shape.excluding):
                writer.graph.expander.subschemas.check(literal, keyword)
        expression = wider.terminal(canonical)
        schema = wider.schema() if wider.multiple is None or wider.multiple.numerator <= MAX_MULTIPLE else None
        if expression is not None:
            expressions.append(expression)
        elif schema is not None:
            schemas.append(f"%json {json.dumps(schema)}")
        else:
            raise GrammarTooComplexError("a set of numbers is too large to be written as a grammar")
    return [*([writer.terminal(" | ".join(dict.fromkeys(expressions)))] if expressions else []), *schemas]


def _anything(writer: Writer) -> list[str]:
    key, value = writer.string(Language.ANY), writer.node(frozenset())
    array, members = writer.fresh(), writer.fresh()
    writer.rule(array, ['"[" "]"', f'"[" {value} ({writer.comma} {value})* "]"'])
    pair = f"{key} {writer.colon} {value}"
    writer.rule(members, ['"{" "}"', f'"{{" {pair} ({writer.comma} {pair})* "}}"'])
    number = NumberSet().terminal(writer.layout.canonical)
    assert number is not None
    return [key, writer.terminal(number), '"true"', '"false"', '"null"', array, members]
