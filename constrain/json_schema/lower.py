"""A JSON Schema as a grammar."""

from __future__ import annotations

import math

from llguidance import LLMatcher

from ..context_free.lark_regular import regular_table
from ..errors import GrammarTooComplexError, InvalidSchemaError
from ..lowered import Lowered
from ..receipt import Receipt
from ..spec import JsonSchema
from .document import Document
from .emit import emit
from .open.expand import Expander
from .open.graph import Graph, shortest_text
from .open.subschemas import Subschemas
from .parse import parse_schema
from .unique_paths import distinct_paths


def lower_schema(spec: JsonSchema) -> Lowered:
    """The grammar of the values that satisfy a schema.

    Raises:
        InvalidSchemaError: it is no schema, or nothing satisfies it.
        UnsupportedKeywordError: a keyword can be neither enforced nor checked under the policy.
        GrammarTooComplexError: it passes a limit.
    """
    document = Document(parse_schema(spec.schema))
    subschemas = Subschemas(document, spec.policy)
    expander = Expander(subschemas)
    graph = Graph(expander, frozenset({subschemas.literal("#", ())}))
    if graph.cost(graph.root) == math.inf:
        if subschemas.narrowed:
            raise GrammarTooComplexError("the schema's combinations are too many to be written out")
        raise InvalidSchemaError("no finite value satisfies the schema")
    distinct, uncovered = distinct_paths(graph)
    for literal, keyword in uncovered:
        subschemas.check(literal, keyword)
    source = emit(graph, spec.property_order)
    enforced, checked = tuple(sorted(subschemas.enforced)), tuple(sorted(subschemas.checked))
    narrowed = tuple(sorted(subschemas.narrowed))
    receipt = Receipt(mode=spec.policy, enforced=enforced, checked=checked, narrowed=narrowed)
    return Lowered(
        LLMatcher.grammar_from_lark(source),
        json=True,
        growth=graph.growth,
        names=graph.names,
        receipt=receipt,
        witness=shortest_text(graph),
        distinct=distinct,
        table=regular_table(source) if distinct is None else None,
    )
