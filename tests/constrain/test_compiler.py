"""One compilation per spec, a bounded cache, errors with names, and time-outs that hold nobody up."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
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
    MaskFiller,
    Matcher,
    Regex,
    UnsupportedKeywordError,
    Vocabulary,
)
from bough.constrain import compiler as compiler_module


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
    first = compiler.compile(JsonSchema('{"properties": {"a": {}, "b": {}}, "required": ["a", "b"], "type": "object"}'))
    second = compiler.compile(
        JsonSchema('{"properties": {"b": {}, "a": {}}, "required": ["a", "b"], "type": "object"}')
    )
    assert first.matcher().forced_tokens() != second.matcher().forced_tokens()


def test_cache_is_bounded_in_bytes(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, cache_bytes=700_000)
    for count in range(6):
        compiler.compile(Choice((f"option {count}",)))
    compiler.compile(Choice(("option 5",)))
    assert compiler.cache_hits == 1
    compiler.compile(Choice(("option 0",)))
    assert compiler.compiled == 7
    compiler.close()


def test_time_out_does_not_eat_the_pool(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    compile_grammar = compiler_module.compile_grammar

    def hang(spec: Any, tokens: Any) -> Grammar:
        if spec == Regex("hang"):
            release.wait(10)
        return compile_grammar(spec, tokens)

    monkeypatch.setattr(compiler_module, "compile_grammar", hang)
    compiler = GrammarCompiler(vocabulary, num_threads=1, timeout_s=0.2)
    stuck = compiler.submit(Regex("hang"))
    behind = compiler.submit(Regex("[a-z]"))
    with pytest.raises(GrammarTooComplexError, match=r"0\.2 s"):
        stuck.result(timeout=5)
    assert behind.result(timeout=5)
    with pytest.raises(GrammarTooComplexError):  # remembered, not tried again
        compiler.compile(Regex("hang"))
    release.set()
    assert compiler.compile(Regex("[b-z]"))
    compiler.close()


def test_close_fails_what_waits(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(compiler_module, "compile_grammar", lambda spec, tokens: release.wait(10))
    compiler = GrammarCompiler(vocabulary, num_threads=1)
    futures = [compiler.submit(Regex(f"a{i}")) for i in range(3)]
    compiler.close()
    release.set()
    for future in futures:
        with pytest.raises(GrammarError, match="closed"):
            future.result(timeout=5)


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
        (_schema(type="string", pattern="^(?=a)b$"), UnsupportedKeywordError, "/pattern"),
        (_schema(items={"pattern": r"(a)\1"}), UnsupportedKeywordError, "/items/pattern"),
        (_schema(type="integer", minimum=5, maximum=1), InvalidSchemaError, ""),
        (_schema(type="string", minLength=5, maxLength=1), InvalidSchemaError, ""),
        (_schema(type="string", minLength=10**9), GrammarTooComplexError, "/minLength"),
        (JsonSchema("[" * 100_000), GrammarTooComplexError, ""),
        (_schema(enum=list(range(10_001))), GrammarTooComplexError, ""),
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
        (_schema(type="array", items={"type": "string"}, uniqueItems=True), UnsupportedKeywordError, "/uniqueItems"),
        (_schema(items={"not": {"pattern": "a"}}), UnsupportedKeywordError, "/items/not"),
        (_schema(contains={"type": "null"}), UnsupportedKeywordError, "/contains"),
        (
            _schema(unevaluatedProperties=False, anyOf=[{"properties": {"a": {}}}]),
            UnsupportedKeywordError,
            "/unevaluatedProperties",
        ),
        (_schema(minProperties=2), UnsupportedKeywordError, "/minProperties"),
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


def test_deep_schema_is_refused(compiler: GrammarCompiler) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(250):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(GrammarTooComplexError, match="deeper"):
        compiler.compile(JsonSchema(json.dumps(schema)))


def test_batch_fill_equals_single_fills(
    compiler: GrammarCompiler, vocabulary: Vocabulary, allowed: Callable[[Matcher], list[int]]
) -> None:
    rng = random.Random(3)
    matchers: list[Matcher | None] = [None]
    for spec in (_schema(type="object"), Regex("[a-z]{3,}"), Regex("[0-9]{4}[a-z]+")):
        for num_steps in range(3):
            matcher = compiler.compile(spec).matcher()
            for _ in range(num_steps):
                choices = [token for token in allowed(matcher) if token not in vocabulary.eos_ids]
                if choices:
                    matcher.accept(rng.choice(choices))
            matchers.append(matcher)
    closed = compiler.compile(_schema(type="string", minLength=99)).matcher()
    closed.accept(allowed(closed)[0], 0)
    matchers.append(closed)
    out = np.full((len(matchers), (vocabulary.size + 31) // 32), 7, dtype=np.int32)
    assert MaskFiller(2).fill(matchers, out) == {}
    assert (out[0] == 7).all()
    for filled, row in zip(matchers[1:], out[1:], strict=True):
        assert filled is not None
        single = np.zeros_like(row)
        filled.fill_mask(single)
        assert (single == row).all()
