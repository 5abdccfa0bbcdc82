"""Terminals for what is no array and no object."""

from __future__ import annotations

import json
from dataclasses import replace

from ...errors import GrammarTooComplexError
from ...regex.language import Language
from ..open.graph import Values
from ..open.shapes import NumberShape
from .writer import Writer, number_texts

MAX_MULTIPLE = 10_000
"""Of a `multipleOf` in units of its last digit: llguidance keeps a state for each remainder."""


def scalars(writer: Writer, values: Values) -> list[str]:
    """Alternatives for the scalars among `values`: one terminal, and what no terminal can hold."""
    expressions = ['"null"'] if values.null else []
    expressions += [f'"{json.dumps(value)}"' for value in sorted(values.booleans)]
    numbers, schemas = _numbers(writer, values.numbers)
    strings = Language.union(shape.language for shape in values.strings)
    if strings != Language.EMPTY:
        name = writer.string(strings)
        if not expressions and not numbers:
            return [name, *schemas]
        expressions.append(name)
    return [*writer.one_of([*expressions, *numbers]), *schemas]


def _numbers(writer: Writer, shapes: list[NumberShape]) -> tuple[list[str], list[str]]:
    """Expressions of a terminal, and schemas of what is too large for that."""
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
    return expressions, schemas
