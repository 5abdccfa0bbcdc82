"""Finished texts are judged part by part, each by the schema that governs it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from bough.constrain import GrammarCompiler, GrammarSpec, JsonSchema, Structural, Tag
from bough.constrain.json_schema.parse import checked_formats
from bough.constrain.receipt import Receipt
from bough.constrain.vocabulary.adapters import byte_vocabulary
from bough.runtime.tools.forms import HERMES, call_or_answer

ODD = '{"type": "object", "properties": {"n": {"type": "integer", "not": {"multipleOf": 2}}}, "required": ["n"]}'
ANY = '{"type": "object"}'


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(byte_vocabulary())
    yield made
    made.close()


def policies(compiler: GrammarCompiler, spec: GrammarSpec, text: str) -> list[str]:
    """Policies of the violations that are found."""
    receipt = compiler.compile(spec).receipt
    return [found.policy for found in compiler.check(spec, text, receipt).result(20.0)]


def test_a_call_or_an_answer_is_judged_as_what_it_is(compiler: GrammarCompiler) -> None:
    spec = call_or_answer(HERMES, [("f", JsonSchema(ODD, policy="best_effort"))], JsonSchema(ANY))
    assert policies(compiler, spec, '{"n": 2}') == []
    assert policies(compiler, spec, HERMES.begin("f") + '{"n": 3}' + HERMES.after) == []
    assert policies(compiler, spec, "\n\n" + HERMES.begin("f") + '{"n": 2}' + HERMES.after) == ["best_effort"]


def test_what_is_found_has_the_policy_of_its_schema(compiler: GrammarCompiler) -> None:
    exact, loose = Tag("<a>", JsonSchema(ODD), "</a>"), Tag("<b>", JsonSchema(ODD, policy="best_effort"), "</b>")
    spec = Structural((exact, loose), ("<a>", "<b>"))
    assert policies(compiler, spec, '<a>{"n": 1}</a><b>{"n": 2}</b>') == ["best_effort"]
    assert policies(compiler, spec, '<a>{"n": 2}</a><b>{"n": 2}</b>') == ["exact", "best_effort"]


def test_of_two_tags_that_begin_alike_one_must_fit(compiler: GrammarCompiler) -> None:
    spec = Structural((Tag("<a>", JsonSchema(ODD), "</a>"), Tag("<a>", JsonSchema('{"type": "integer"}'), "</a>")))
    assert policies(compiler, spec, "<a>4</a>") == [] == policies(compiler, spec, '<a>{"n": 1}</a>')
    assert policies(compiler, spec, '<a>{"n": 2}</a>') == ["exact"]
    loose = Tag("<a>", JsonSchema('{"type": "null"}', policy="best_effort"), "</a>")
    assert policies(compiler, Structural((loose, *spec.tags)), '<a>{"n": 2}</a>') == ["exact"]


def test_a_tag_that_should_be_there_is_missed(compiler: GrammarCompiler) -> None:
    spec = Structural((Tag("<a>", JsonSchema(ODD), "</a>"),), ("<a>",), at_least_one=True)
    assert policies(compiler, spec, "nothing") == ["exact"]


def test_formats_are_those_of_the_receipt_whatever_else_it_names(compiler: GrammarCompiler) -> None:
    schema = JsonSchema('{"type": "object", "properties": {"u": {"type": "string", "format": "regex"}}}')
    spec = Structural((Tag("<a>", schema, "</a>"), Tag("<b>", JsonSchema('{"anyOf": [true]}'), "</b>")))
    receipt = Receipt(mode="exact", checked=("/properties/u/format", "/anyOf/1/format", "/anyOf/0/x/format"))
    text = '<b>1</b><a>{"u": "("}</a>'  # was never compiled: nothing is in the cache
    assert [found.violation.pointer for found in compiler.check(spec, text, receipt).result(20.0)] == ["/u"]
    assert compiler.check(spec, text, None).result(20.0) == []


@pytest.mark.parametrize(
    ("pointer", "names"),
    [
        ("/properties/a~1b/format", ("email",)),
        ("/anyOf/0/format", ("uri",)),
        ("/anyOf/1/format", ()),
        ("/anyOf/x/format", ()),
        ("/anyOf/0/format/format", ()),
        ("/properties/format", ()),
        ("/nowhere/at/all/format", ()),
        ("/anyOf/0/pattern", ()),
    ],
)
def test_pointers_to_formats(pointer: str, names: tuple[str, ...]) -> None:
    schema = {"properties": {"a/b": {"format": "email"}, "format": {}}, "anyOf": [{"format": "uri", "pattern": "a"}]}
    assert checked_formats(json.dumps(schema), [pointer, pointer]) == names
