"""One compilation per spec, a bounded cache, errors with names, and time-outs that hold nobody up."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from bough.constrain import (
    Choice,
    Grammar,
    GrammarCompiler,
    GrammarError,
    GrammarTooComplexError,
    InvalidSchemaError,
    JsonSchema,
    Lark,
    Regex,
    UnsupportedKeywordError,
    Vocabulary,
    grammar_accepts,
)
from bough.constrain import compiler as compiler_module
from bough.constrain.receipt import Receipt


def _schema(**keywords: Any) -> JsonSchema:
    return JsonSchema(json.dumps(keywords))


def test_equal_specs_share_one_grammar(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    futures = [compiler.submit(_schema(type="integer")) for _ in range(8)]
    assert len({id(future.result()) for future in futures}) == 1
    assert compiler.compile(_schema(type="integer")) is futures[0].result()
    assert (compiler.compiled, compiler.cache_hits) == (1, 8)
    compiler.close()


def test_key_order_matters(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    texts = ('{"properties": {"a": {}, "b": {}}, ', '{"properties": {"b": {}, "a": {}}, ')
    first, second = (
        compiler.compile(JsonSchema(text + '"required": ["a", "b"], "type": "object"}', property_order="schema"))
        for text in texts
    )
    assert first is not second
    assert first.matcher().forced_tokens() != second.matcher().forced_tokens()


def test_cache_is_bounded_in_bytes(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, cache_bytes=700_000)
    for count in range(6):
        compiler.compile(Choice((f"option {count}",)))
    compiler.compile(Choice(("option 5",)))
    assert compiler.cache_hits == 1
    compiler.compile(Choice(("option 0",)))
    deadline = time.monotonic() + 5
    while compiler.compiled < 7 and time.monotonic() < deadline:  # it is counted after it is given
        time.sleep(0.001)
    assert compiler.compiled == 7
    compiler.close()


def test_receipts_count_as_bytes_of_their_grammars(vocabulary: Vocabulary) -> None:
    def num_bytes(name: str) -> int:
        """Counts a grammar with a hundred places to check that are all in `name`."""
        leaf = {"not": {"type": "array", "uniqueItems": True}}
        inside = {"type": "object", "properties": {f"p{index}": leaf for index in range(100)}}
        schema = {"$ref": f"#/$defs/{name}", "$defs": {name: inside}}
        with closing(GrammarCompiler(vocabulary)) as compiler:
            receipt = compiler.compile(_schema(**schema)).receipt
            assert receipt is not None
            assert len(receipt.checked) == 100
            return compiler.cached_bytes

    assert num_bytes("L" * 201) - num_bytes("L") >= 100 * 200


def test_time_out_does_not_eat_the_pool(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    compile_grammar = compiler_module.compile_grammar

    def hang(spec: Any, *rest: Any) -> Grammar:
        if spec == Regex("hang"):
            while not release.is_set():
                pass
        return compile_grammar(spec, *rest)

    monkeypatch.setattr(compiler_module, "compile_grammar", hang)
    compiler = GrammarCompiler(vocabulary, num_threads=1, timeout_s=1.0)
    stuck = compiler.submit(Regex("hang"))
    behind = compiler.submit(Regex("[a-z]"))
    with pytest.raises(GrammarTooComplexError, match=r"1(\.0)? s"):
        stuck.result(timeout=5)
    assert behind.result(timeout=5)
    with pytest.raises(GrammarTooComplexError):  # remembered, not tried again
        compiler.compile(Regex("hang"))
    release.set()
    assert compiler.compile(Regex("[b-z]"))
    compiler.close()


def test_close_fails_what_waits(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(compiler_module, "compile_grammar", lambda *_: release.wait(10))
    compiler = GrammarCompiler(vocabulary, num_threads=1)
    futures = [compiler.submit(Regex(f"a{i}")) for i in range(3)]
    compiler.close()
    release.set()
    for future in futures:
        with pytest.raises(GrammarError, match="closed"):
            future.result(timeout=5)


def test_a_check_that_was_given_up_is_not_begun(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    release, begun, checked = threading.Event(), threading.Event(), list[str]()

    def compile_grammar(*_: Any) -> None:
        begun.set()
        release.wait(10)

    def check_parts(spec: Any, text: str, *_: Any) -> list[Any]:
        checked.append(text)
        return []

    monkeypatch.setattr(compiler_module, "compile_grammar", compile_grammar)
    monkeypatch.setattr(compiler_module, "_check_parts", check_parts)
    compiler = GrammarCompiler(vocabulary, num_threads=1)
    compiler.submit(Regex("a"))
    assert begun.wait(5)
    given_up, wanted = (compiler.check(JsonSchema("{}"), text, None) for text in ("1", "2"))
    compiler.abandon(given_up)
    release.set()
    assert wanted.result(timeout=5) == [] and checked == ["2"]
    with pytest.raises(GrammarError, match="no longer needed"):
        given_up.result(timeout=5)
    compiler.close()


@pytest.mark.parametrize(
    ("spec", "error", "path"),
    [
        (JsonSchema("{"), InvalidSchemaError, ""),
        (JsonSchema("[]"), InvalidSchemaError, ""),
        (JsonSchema('{"type": "string"}\0'), InvalidSchemaError, ""),
        (JsonSchema('{"minimum": NaN}'), InvalidSchemaError, ""),
        (JsonSchema('{"type": "string", "type": "integer"}'), InvalidSchemaError, ""),
        (JsonSchema('{"const": "\\ud800"}'), InvalidSchemaError, ""),
        (JsonSchema("false"), InvalidSchemaError, ""),
        (_schema(type="strnig"), InvalidSchemaError, "/type"),
        (_schema(properties={"a/b": {"minLength": "3"}}), InvalidSchemaError, "/properties/a~1b/minLength"),
        (_schema(type="string", pattern="("), InvalidSchemaError, "/pattern"),
        (_schema(type="string", pattern="^(?=a)b$"), InvalidSchemaError, ""),
        (_schema(items={"pattern": r"(a)\1"}), UnsupportedKeywordError, "/items/pattern"),
        (_schema(type="integer", minimum=5, maximum=1), InvalidSchemaError, ""),
        (_schema(type="string", minLength=5, maxLength=1), InvalidSchemaError, ""),
        (_schema(type="string", minLength=10**9), GrammarTooComplexError, "/minLength"),
        (JsonSchema("[" * 100_000), GrammarTooComplexError, ""),
        (_schema(enum=list(range(10_001))), GrammarTooComplexError, "/enum"),
        (_schema(items={"oneOf": [{"const": i} for i in range(1_001)]}), GrammarTooComplexError, "/items/oneOf"),
        (_schema(pattern="a{1,1000000}"), GrammarTooComplexError, "/pattern"),
        (_schema(pattern="x" * 20_000), GrammarTooComplexError, "/pattern"),
        (_schema(patternProperties={"^a{99999}$": {}}), GrammarTooComplexError, "/patternProperties/^a{99999}$"),
        (JsonSchema('{"a": "' + "x" * 1_000_000 + '"}'), GrammarTooComplexError, ""),
        (_schema(**{"$ref": "#/$defs/none"}), InvalidSchemaError, "/$ref"),
        (_schema(**{"$ref": "http://169.254.169.254/s.json"}), InvalidSchemaError, "/$ref"),
        (_schema(**{"$ref": "#"}), InvalidSchemaError, ""),
        (
            _schema(**{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
            InvalidSchemaError,
            "/$defs/a",
        ),
        (_schema(type="object", properties={"a": {"$ref": "#"}}, required=["a"]), InvalidSchemaError, ""),
        (Regex(""), GrammarError, ""),
        (Regex("("), GrammarError, ""),
        (Regex("a\0"), GrammarError, ""),
        (Choice(()), GrammarError, ""),
        (Choice(("a", "")), GrammarError, "/options/1"),
        (Lark('x: "a"'), GrammarError, ""),
        (Lark("start: <|im_end|>"), GrammarError, ""),
    ],
)
def test_refusals(compiler: GrammarCompiler, spec: Any, error: type[GrammarError], path: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.compile(spec)
    assert type(caught.value) is error
    assert caught.value.path == path


@pytest.mark.parametrize("error", [GrammarTooComplexError("no"), UnsupportedKeywordError("pattern")])
def test_best_effort_refuses_no_schema_that_is_one(
    compiler: GrammarCompiler, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, error: GrammarError
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(compiler_module, "_lower_elsewhere", refuse)
    text = json.dumps({"type": "string", "pattern": r"^(a+)-\1$", "title": str(error)})
    with pytest.raises(type(error)):
        compiler.compile(JsonSchema(text))
    spec = JsonSchema(text, policy="best_effort")
    grammar = compiler.compile(spec)
    assert grammar.receipt == Receipt(mode="best_effort", enforced=("type",), checked=("",))
    assert grammar_accepts(grammar, '"aa-a"', vocabulary)
    assert not grammar_accepts(grammar, "12", vocabulary)
    assert compiler.check(spec, '"aa-aa"', grammar.receipt).result() == []
    found = compiler.check(spec, '"aa-a"', grammar.receipt).result()
    assert [(finding.violation.pointer, finding.policy) for finding in found] == [("", "best_effort")]
    with pytest.raises(InvalidSchemaError):
        compiler.compile(JsonSchema(json.dumps({"type": "strnig", "title": str(error)}), policy="best_effort"))


def test_a_constraint_submitted_again_is_not_measured_again(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[object] = []
    monkeypatch.setattr(compiler_module, "excess_of", measured.append)
    spec = Regex("a{3}")
    for _ in range(64):
        compiler.submit(spec)
    assert len(measured) == 1


def test_the_receipt_of_other_constraints_names_their_kind(compiler: GrammarCompiler) -> None:
    assert compiler.compile(Regex("[a-z]+")).receipt == Receipt(mode="exact", enforced=("regex",))
    assert compiler.compile(Choice(("a", "b"))).receipt == Receipt(mode="exact", enforced=("choice",))


def test_deep_schema_is_refused(compiler: GrammarCompiler) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(250):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(GrammarTooComplexError, match="deeper"):
        compiler.compile(JsonSchema(json.dumps(schema)))
