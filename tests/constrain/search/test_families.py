"""Constrained decoding is exact for the tokenizers of all families: masks are compared with a grammar over bytes."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bough.constrain import Choice, GrammarCompiler, JsonSchema, Lark, Matcher, MatcherError, Regex, Vocabulary
from bough.constrain.accepting import grammar_accepts
from bough.constrain.spec import GrammarSpec
from bough.runtime.protocol.errors import ModelError
from bough.runtime.tokenizer.load import load_tokenizer

from .families import FAMILIES, greedy, large

SPECS: tuple[GrammarSpec, ...] = (
    Choice(("true", "truely", "東京", "東北", "é\n", "Zoë 😀", "  two", "<tool>", "<|im_end|>", "▁", "<0x0A>")),
    Regex(r'[a-zé東😀]{1,6}(: |:)?"?'),
    Lark('start: "{" pair ("," pair)* "}"\npair: STRING ":" (STRING | "true")\nSTRING: /"[^"\\\\]*"/'),
    JsonSchema(
        '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "ok": {"type": "boolean"}, '
        '"n": {"type": "integer", "minimum": -20, "maximum": 1000}}, "required": ["name"], '
        '"additionalProperties": false}',
        property_order="schema",
    ),
)

ANYTHING = JsonSchema("{}")
VALUES = (
    {"name": "Ada", "tags": ["red", "the count"], "n": [1, -0.125], "ok": True, "no": None},
    {"city": "東京 is a city", "who": "Müller 😀", "é\n": '\t\\ " / \x7f'},
    ["  two spaces", "▁", "<0x0A>", "<|im_start|>", "<tool>", "", " "],
    [[], {}, [[0]], {"": {"a": []}}],
    "naïve",
    -1234.5,
    None,
)


@functools.cache
def vocabulary_of(family: str) -> Vocabulary:
    return FAMILIES[family]()


@functools.cache
def compiler_of(family: str) -> GrammarCompiler:
    return GrammarCompiler(vocabulary_of(family))


@functools.cache
def byte_compiler() -> GrammarCompiler:
    """A compiler for a vocabulary of bytes: token i + 1 is byte i."""
    return GrammarCompiler(greedy([None, *(bytes([byte]) for byte in range(256))], eos_ids=(0,)))


@pytest.fixture(scope="module", autouse=True)
def close() -> Iterator[None]:
    yield
    for family in FAMILIES:
        compiler_of(family).close()
    byte_compiler().close()


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    mask = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)
    matcher.fill_mask(mask)
    return {int(i) for i in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))}


def expected(state: Matcher, vocabulary: Vocabulary) -> set[int]:
    """The tokens of which each byte in turn can be taken by a matcher over bytes, walked through in their order."""
    found = set(vocabulary.eos_ids) if state.accepting else set()
    path = b""
    dead: bytes | None = None
    for text, token in sorted((text, token) for token, text in enumerate(vocabulary.tokens) if text):
        if token in vocabulary.eos_ids or (dead is not None and text.startswith(dead)):
            continue
        common = next(
            (i for i, pair in enumerate(zip(path, text, strict=False)) if pair[0] != pair[1]), min(len(path), len(text))
        )
        state.rollback(len(path) - common)
        path = path[:common]
        for byte in text[common:]:
            try:
                if state.finished:
                    raise MatcherError("over")
                state.accept(byte + 1)
            except MatcherError:
                dead = path + bytes([byte])
                break
            path += bytes([byte])
        else:
            found.add(token)
    state.rollback(len(path))
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_masks_are_those_of_the_bytes(family: str, spec: GrammarSpec) -> None:
    vocabulary = vocabulary_of(family)
    if family == "word_pieces" and isinstance(spec, Choice):  # some of them it cannot write
        spec = Choice(tuple(option for option in spec.options if option.isascii()))
    grammar, reference = compiler_of(family).compile(spec), byte_compiler().compile(spec)
    for seed in range(6):
        rng = random.Random(seed)
        matcher, state, text = grammar.matcher(), reference.matcher(), b""
        for _ in range(25):
            if matcher.finished:
                break
            tokens, forced = allowed(matcher, vocabulary), matcher.forced_tokens()
            if forced and len(tokens) == 1:  # what is forced may be left to the model's own token for it
                assert tokens == {forced[0]}
                assert tokens <= expected(state, vocabulary)
            else:
                assert tokens == expected(state, vocabulary), text
            going_on = sorted(tokens.difference(vocabulary.eos_ids))
            if not going_on:
                break
            token = rng.choice(going_on)
            matcher.accept(token)
            text += vocabulary.tokens[token] or b""
            for byte in vocabulary.tokens[token] or b"":
                state.accept(byte + 1)
            assert matcher.accepting == state.accepting


@pytest.mark.parametrize("family", FAMILIES)
def test_json_texts_are_accepted(family: str) -> None:
    vocabulary, grammar = vocabulary_of(family), compiler_of(family).compile(ANYTHING)
    for value in VALUES:
        for ensure_ascii in (True, False):
            text = json.dumps(value, ensure_ascii=ensure_ascii)
            if family == "word_pieces" and not text.isascii():
                continue
            said = b"".join(vocabulary.tokens[token] or b"" for token in vocabulary.encode(text))
            assert said == text.encode()
            assert grammar_accepts(grammar, text, vocabulary), text
            for broken in (text + ",", "[" + text, text.replace('"', "", 1), ""):
                if broken != text:
                    assert not grammar_accepts(grammar, broken, vocabulary), broken


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "word_pieces"])
@pytest.mark.parametrize("non_ascii", [True, False])
def test_what_is_forced_is_what_the_model_would_write(family: str, non_ascii: bool) -> None:
    vocabulary = vocabulary_of(family)
    value: dict[str, object] = {"name": "the count", "tags": ["red", "green"], "ok": True, "n": 10000}
    if non_ascii:  # which a schema lets be written in two ways
        text = json.dumps({**value, "city": "東京 ▁ Zoë 😀"}, ensure_ascii=False)
        spec: GrammarSpec = Choice((text,))
    else:
        text = json.dumps(value)
        spec = JsonSchema(json.dumps({"const": value}), property_order="schema")
    matcher, taken = compiler_of(family).compile(spec).matcher(), list[int]()
    while not matcher.finished:
        forced = matcher.forced_tokens()
        assert forced, b"".join(vocabulary.tokens[token] or b"" for token in taken)
        for token in forced:
            assert token in allowed(matcher, vocabulary)
            taken.append(matcher.accept(token))
    assert taken == vocabulary.encode(text)


def test_what_no_token_can_write_is_a_dead_end_or_refused() -> None:
    compiler = compiler_of("word_pieces")
    assert allowed(compiler.compile(Choice(("東", "yes"))).matcher(), vocabulary_of("word_pieces")) == {
        token for token, text in enumerate(vocabulary_of("word_pieces").tokens) if text in (b"y", b"ye", b"yes")
    }


@pytest.mark.parametrize("size", [128_256, 262_144])
def test_large_vocabularies(size: int) -> None:
    vocabulary = large(size)
    assert len(set(vocabulary.tokens)) == size - 1  # two control tokens
    compiler = GrammarCompiler(vocabulary)
    reference = byte_compiler()
    for spec in (SPECS[3], Regex("(the |The )?[aeiou]{1,3}n?"))[: 1 if size > 200_000 else 2]:
        matcher, state = compiler.compile(spec).matcher(), reference.compile(spec).matcher()
        rng = random.Random(1)
        for _ in range(4):
            tokens, forced = allowed(matcher, vocabulary), matcher.forced_tokens()
            assert tokens == (set(forced[:1]) or expected(state, vocabulary))
            going_on = sorted(tokens.difference(vocabulary.eos_ids))
            if not going_on:
                break
            token = rng.choice(going_on)
            matcher.accept(token)
            for byte in vocabulary.tokens[token] or b"":
                state.accept(byte + 1)
    grammar = compiler.compile(ANYTHING)
    for value in VALUES:
        assert grammar_accepts(grammar, json.dumps(value), vocabulary)
    compiler.close()


def real() -> list[Path]:
    folder = os.environ.get("BOUGH_TEST_TOKENIZERS", "")
    return sorted(path.parent for path in Path(folder).glob("*/tokenizer.json")) if folder else []


@pytest.mark.skipif(not real(), reason="BOUGH_TEST_TOKENIZERS names no folder of tokenizers")
@pytest.mark.parametrize("folder", real(), ids=lambda folder: folder.name)
def test_real_tokenizers(folder: Path) -> None:
    try:
        tokenizer = load_tokenizer(folder)
    except ModelError as error:
        pytest.skip(str(error))
    vocabulary = tokenizer.vocabulary(tokenizer.vocab_size + 271)  # more logits than tokens, as some models have
    vocabulary = dataclasses.replace(vocabulary, eos_ids=vocabulary.eos_ids or (tokenizer.vocab_size,))
    if tokenizer.decode(vocabulary.encode('{"東\x00')) != '{"東\x00':
        pytest.skip("it cannot write every text")
    compiler = GrammarCompiler(vocabulary)
    for spec in SPECS:
        grammar, reference, rng = compiler.compile(spec), byte_compiler().compile(spec), random.Random(3)
        matcher, state = grammar.matcher(), reference.matcher()
        for _ in range(6):
            tokens, forced = allowed(matcher, vocabulary), matcher.forced_tokens()
            if forced and len(tokens) == 1:
                assert tokens == {forced[0]}
            else:
                assert tokens == expected(state, vocabulary)
            going_on = sorted(tokens.difference(vocabulary.eos_ids))
            if not going_on:
                break
            token = matcher.accept(rng.choice(going_on))
            for byte in vocabulary.tokens[token] or b"":
                state.accept(byte + 1)
    grammar = compiler.compile(ANYTHING)
    for value in VALUES:
        for ensure_ascii in (True, False):
            text = json.dumps(value, ensure_ascii=ensure_ascii)
            assert tokenizer.decode(vocabulary.encode(text)) == text
            assert grammar_accepts(grammar, text, vocabulary), text
    matcher, taken = compiler.compile(Choice((text := json.dumps(VALUES[0]),))).matcher(), list[int]()
    while not matcher.finished and (forced := matcher.forced_tokens()):
        taken += [matcher.accept(token) for token in forced]
    assert taken == vocabulary.encode(text)
    compiler.close()
