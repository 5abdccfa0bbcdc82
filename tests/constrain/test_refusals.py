"""Refusals quote no more than the beginning of what is long: no message is larger for a larger constraint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bough.constrain import (
    Gbnf,
    GrammarCompiler,
    GrammarError,
    InvalidSchemaError,
    JsonSchema,
    Lark,
    Regex,
    UnsupportedKeywordError,
    Vocabulary,
)
from bough.constrain.errors import MAX_QUOTED, cut, quoted
from bough.constrain.json_schema.validate import violations
from bough.constrain.spec import GrammarSpec, Structural, Tag
from bough.constrain.workers.jobs import Refused

LONG = "a" * 20_000


def schema(**keywords: Any) -> JsonSchema:
    return JsonSchema(json.dumps({name.replace("_", "$", 1): value for name, value in keywords.items()}))


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary)
    yield compiler
    compiler.close()


HOSTILE: dict[str, GrammarSpec] = {
    "a rule that is not there": Gbnf(f"root ::= {LONG}"),
    "a rule that is there twice": Gbnf(f'root ::= {LONG}\n{LONG} ::= "a"\n{LONG} ::= "b"'),
    "a rule without an end": Gbnf(f"root ::= {LONG}\n{LONG} ::= {LONG}"),
    "no rule": Gbnf(f"{LONG}"),
    "no escape": Gbnf(f'root ::= "\\{LONG}"'),
    "a name of Lark": Lark(f"start: {LONG}"),
    "a text of Lark": Lark(f'start: "{LONG}'),
    "a pattern of Lark": Lark(f"start: /({LONG[:5000]}/"),
    "a pattern": Regex(f"({LONG[:15_000]}"),
    "a property": Regex(f"\\p{{{LONG[:15_000]}}}"),
    "no type": schema(type=LONG),
    "a key of a schema without a type": schema(properties={LONG: {"type": 3}}),
    "keys in each other": schema(properties={LONG: {"properties": {LONG: {"type": 3}}}}),
    "a reference": schema(_ref=f"#/{LONG}"),
    "an anchor": schema(_ref=f"#{LONG}"),
    "a reference outside": schema(_ref=f"http://localhost/{LONG}"),
    "a reference to no address": schema(_id="http://a/", _ref=f"http://[{LONG}"),
    "a reference to another address": schema(_id="http://a/", _ref=f"http://{LONG}\u2100/"),
    "a key twice": JsonSchema(f'{{"{LONG}": 1, "{LONG}": 2}}'),
    "a count": JsonSchema(f'{{"minItems": {"9" * 4000}}}'),
    "a pattern of a schema": schema(type="string", pattern=f"({LONG[:15_000]}"),
    "a property of a schema": schema(type="string", pattern=f"\\p{{{LONG[:15_000]}}}"),
    "a pattern of keys": schema(patternProperties={f"({LONG[:15_000]}": {}}),
    "a keyword that cannot be enforced": schema(properties={LONG: {"pattern": "(a+)\\1"}}, required=[LONG]),
    "a schema in tags": Structural((Tag("<a>", schema(properties={LONG: {"type": LONG}}), "</a>"),), ("<a>",)),
    "a rule in tags": Structural((Tag("<a>", Gbnf(f"root ::= {LONG}"), "</a>"),), ("<a>",)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_refusal_is_no_larger_for_a_larger_constraint(compiler: GrammarCompiler, name: str) -> None:
    with pytest.raises(GrammarError) as e:
        compiler.compile(HOSTILE[name])
    assert len(e.value.reason) <= 1000 and len(e.value.path) <= MAX_QUOTED + len("/tags/0/content")
    assert "a" * 200 not in str(e.value) or "characters in all" in str(e.value)


def test_a_check_quotes_no_more() -> None:
    with pytest.raises(InvalidSchemaError, match=r"reference has no target: .*characters in all") as e:
        violations(json.dumps({"$ref": f"#/{LONG}"}), "1")
    assert len(str(e.value)) <= 1000
    with pytest.raises(GrammarError) as other:
        violations(json.dumps({"unevaluatedProperties": False, "patternProperties": {f"(?P<{LONG}": {}}}), '{"a": 1}')
    assert len(str(other.value)) <= 1000


def test_the_beginning_of_what_is_quoted_is_kept() -> None:
    assert quoted("it's") == repr("it's")
    assert quoted("a" * MAX_QUOTED) == repr("a" * MAX_QUOTED)
    said = quoted("b" * 100_000)
    assert said.startswith("'" + "b" * 400) and said.endswith("b'... (cut: 100000 characters in all)")
    assert len(said) <= MAX_QUOTED + 50
    assert len(quoted("\U000e0001" * 400)) <= MAX_QUOTED + 50
    assert cut("c" * MAX_QUOTED) == "c" * MAX_QUOTED
    assert cut("c" * 1000, 100) == "c" * 67 + "... (cut: 1000 characters in all)"
    assert cut(cut("c" * 1000)) == cut("c" * 1000) and len(cut("c" * 1000)) == MAX_QUOTED


def test_an_error_that_has_travelled_is_the_same() -> None:
    error = InvalidSchemaError("x" * 5000, path="/y" * 5000)
    twice = Refused.of(Refused.of(error).error()).error()
    assert (str(twice), type(twice)) == (str(error), InvalidSchemaError)
    assert len(str(UnsupportedKeywordError(LONG, path=LONG, reason=LONG))) < 2000
