"""Constraints that are wrong: found on the line of the `gen`, on every backend, before anything is sent."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from bough import JsonSchema, Lark, MockBackend, Regex, RequestError, function, gen, var
from bough.constrain.compiler import GrammarCompiler
from bough.constrain.errors import GrammarError
from bough.constrain.spec import Choice, Gbnf, GrammarSpec, Structural, Tag
from bough.constrain.vocabulary.adapters import byte_vocabulary
from bough.lang.types.schema import check_constraint

WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"regex": "("}, "invalid_grammar", "'\\(' cannot be used: unclosed group"),
    ({"regex": r"(a)\1"}, "invalid_grammar", "backreferences are not supported"),
    ({"regex": "(?=a)b"}, "invalid_grammar", "look-ahead"),
    ({"regex": ""}, "invalid_grammar", "empty"),
    ({"regex": 5}, "invalid_value", "regex must be a regular expression"),
    ({"regex": "(", "dtype": int}, "invalid_grammar", "unclosed group"),
    ({"ebnf": "start: zz"}, "invalid_grammar", 'unknown name: "zz"'),
    ({"ebnf": "garbage"}, "invalid_grammar", "Expected token"),
    ({"grammar": Lark("start: b")}, "invalid_grammar", "unknown name"),
    ({"grammar": 5}, "invalid_value", "a grammar's text or value"),
    ({"json_schema": {"type": "zzz"}}, "invalid_json_schema", "type must be one of"),
    ({"json_schema": {"$ref": "#/x"}}, "invalid_json_schema", "has no target"),
    ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "invalid_json_schema", "satisfies"),
    ({"json_schema": {"type": "string", "pattern": r"(a)\1"}}, "unsupported_json_schema", "'pattern'"),
    ({"json_schema": '{"type":'}, "invalid_value", "is not JSON"),
    ({"dtype": "integer"}, "invalid_value", "dtype must be a type"),
    ({"type": "hello"}, "invalid_value", "type must be a type"),
]


@pytest.mark.parametrize(("constraint", "code", "said"), WRONG)
def test_what_is_wrong_is_said_where_it_is_recorded(constraint: dict[str, Any], code: str, said: str) -> None:
    backend = MockBackend()

    @function
    def program(s: Any) -> None:
        s += gen("first")
        s += gen("second", **constraint)

    with pytest.raises(RequestError, match=said) as caught:
        program.run(backend=backend)
    assert caught.value.code == code
    assert caught.value.param in constraint
    assert not backend.requests


def test_patterns_of_conditions() -> None:
    with pytest.raises(RequestError, match="unclosed group"):
        var("x").matches("(")


class Item(BaseModel):
    name: str = Field(pattern="^[a-z]+$", max_length=20)
    kind: Literal["a", "b"] | None = None
    children: list[Item] = []


SPECS: list[GrammarSpec] = [
    Regex("a+"),
    Regex("^a|b$"),
    Regex("("),
    Regex(r"(a)\1"),
    Regex("(?i)abc"),
    Regex("(?=a)b"),
    Regex(r"\d{4}-\d\d"),
    Regex(r"[[:alpha:]]+\p{L}?"),
    Regex("a{,3}"),
    Regex("(?P<x>a)"),
    Regex(r"\bx\b"),
    Regex("a*?b"),
    Regex("é|\U0001f600"),
    Regex("$"),
    Lark('start: "a" b\nb: /x+/'),
    Lark('start: "a" b'),
    Lark('start: "a" start'),
    Lark("start: <x>"),
    Lark('%ignore /x/\nstart: "a"'),
    Choice(("a", "b")),
    Choice(()),
    Choice(("a", "")),
    Gbnf('root ::= "a"+'),
    Structural(tags=(Tag("<a>", JsonSchema('{"type": "integer"}'), "</a>"),), triggers=("<a>",)),
    Structural(tags=(Tag("<a>", Regex("("), "</a>"),), triggers=("<a>",)),
    JsonSchema("{"),
    JsonSchema("true"),
    JsonSchema("false"),
    JsonSchema('{"type": "string", "pattern": "(a)\\\\1"}', policy="best_effort"),
    *(
        JsonSchema(json.dumps(schema), property_order=order)
        for order in ("any", "schema")
        for schema in (
            Item.model_json_schema(),
            {"type": "string", "pattern": "(?=a)a"},
            {"type": "string", "pattern": "["},
            {"type": "string", "minLength": 3, "maxLength": 2},
            {"type": "array", "items": {"$ref": "#"}},
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            {"type": "string", "properties": {"a": {"pattern": r"(a)\1"}}},
            {"$defs": {"x": {"pattern": r"(a)\1"}}, "type": "integer"},
            {"anyOf": [{"type": "string", "pattern": r"(a)\1"}, {"type": "integer"}]},
            {"not": {"type": "string"}},
            {"oneOf": [{"type": "string"}, {"minLength": 2}]},
            {"type": "string", "format": "date-time"},
            {"type": "string", "format": "nonsense"},
            {"type": "array", "prefixItems": [{"type": "integer"}], "items": False, "minItems": 2},
            {"type": ["integer", "null"], "exclusiveMinimum": 0, "maximum": 1000},
            {"enum": [1, "a", None]},
            {"const": {"a": 1}},
            {"unknown": 1},
        )
    ),
]


@functools.cache
def engine_takes(spec: GrammarSpec) -> bool:
    compiler = GrammarCompiler(byte_vocabulary(), num_threads=1)
    try:
        compiler.compile(spec)
    except GrammarError:
        return False
    finally:
        compiler.close()
    return True


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_nothing_is_refused_that_the_engine_takes(spec: GrammarSpec) -> None:
    try:
        check_constraint(spec, "grammar")
    except RequestError:
        assert not engine_takes(spec)


def test_many_wrong_ones_are_found() -> None:
    found = 0
    for spec in SPECS:
        try:
            check_constraint(spec, "grammar")
        except RequestError:
            found += 1
    assert found >= 0.8 * sum(not engine_takes(spec) for spec in SPECS)


def test_importing_the_package_stays_light() -> None:
    code = "import sys, bough; sys.exit(any(name in sys.modules for name in ('llguidance', 'numpy', 'regex')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
