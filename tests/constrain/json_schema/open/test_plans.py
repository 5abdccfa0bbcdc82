"""Arrays that count their elements, and objects that ask for a key of some kind, against brute force."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest

from bough.constrain.json_schema.document import Document
from bough.constrain.json_schema.open.expand import Expander
from bough.constrain.json_schema.open.graph import Graph
from bough.constrain.json_schema.open.plans import Counting
from bough.constrain.json_schema.open.subschemas import Subschemas
from bough.constrain.json_schema.parse import parse_schema


def graph_of(schema: Any) -> Graph:
    subschemas = Subschemas(Document(parse_schema(json.dumps(schema))), "exact")
    return Graph(Expander(subschemas), frozenset({subschemas.literal("#", ())}))


@pytest.mark.parametrize("low", [0, 2])
@pytest.mark.parametrize("high", [None, 3])
@pytest.mark.parametrize(("least", "most"), [(1, None), (2, None), (0, 1), (1, 2)])
@pytest.mark.parametrize("prefix", [[], [{"enum": [1, 2]}]])
def test_counting_is_what_a_validator_counts(
    low: int, high: int | None, least: int, most: int | None, prefix: list[Any]
) -> None:
    schema: dict[str, Any] = {"type": "array", "contains": {"const": 1}, "minContains": least, "minItems": low}
    schema |= {"items": {"enum": [1, 3]}, "prefixItems": prefix} if prefix else {"items": {"enum": [1, 3]}}
    schema |= {"maxContains": most} if most is not None else {}
    schema |= {"maxItems": high} if high is not None else {}
    if not prefix:
        schema.pop("prefixItems", None)
    graph = graph_of(schema)
    (plan,) = graph.values[graph.root].arrays
    assert plan.counts
    counting = Counting(plan, graph.cost)
    validator = jsonschema.Draft202012Validator(schema)
    lengths = []
    for size in range(6):
        for values in itertools.product((1, 2, 3), repeat=size):
            valid = validator.is_valid(list(values))
            assert _accepts(graph, counting, values) == valid, values
            if valid:
                lengths.append(size)
    assert min(lengths) == len(list(counting.path()))
    for state in counting.edges:  # from everywhere there is a way to the end
        assert counting.accepts(state) or counting.edges[state]


def _accepts(graph: Graph, counting: Counting, values: tuple[int, ...]) -> bool:
    states = {counting.start}
    for value in values:
        states = {
            following
            for state in states
            for node, following in counting.edges.get(state, ())
            if any(shape.contains(value) for shape in graph.values[node].numbers)
        }
    return any(counting.accepts(state) for state in states)


def test_one_unnamed_key_may_be_all_that_is_asked_for() -> None:
    """A key has to be of both patterns if there is room for one only."""
    schema = {
        "type": "object",
        "maxProperties": 1,
        "allOf": [{"not": {"patternProperties": {pattern: False}}} for pattern in ("^a", "z$")],
    }
    graph = graph_of(schema)
    plans = graph.values[graph.root].objects
    assert plans
    for plan in plans:
        (key,) = [key for key in plan.wanted if key.required]
        assert key.language.contains("abcz") and not key.language.contains("ab")


@pytest.mark.parametrize(
    ("schema", "shortest"),
    [
        ({"type": "object", "required": ["ab"]}, len('{"ab": 0}')),
        ({"type": "array", "minItems": 3}, len("[0, 0, 0]")),
        ({"enum": ["abc", {"a": 1}, 12345]}, 5),
        ({"anyOf": [{"type": "object", "required": ["a"]}, {"type": "string", "minLength": 1}]}, 3),
    ],
)
def test_costs_are_lengths_of_shortest_texts(schema: Any, shortest: int) -> None:
    graph = graph_of(schema)
    assert graph.cost(graph.root) == shortest
