"""A small byte-level vocabulary, and what the tests of constrained decoding share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from bough.constrain import Choice, Grammar, GrammarCompiler, JsonSchema, Lark, Matcher, Regex, Vocabulary

_WORDS = """the and name type value text city country Paris Berlin alpha beta gamma red green blue yes no first second
 items list count
 price date user email street number age tags score title description note label long"""
_MARKS = r"""{" "} "}] "}} ]} }] }} ]] [] {} "" "] ": ", ", null true false
 // :// 00 000 -01 2026- \n \" \u"""


def _inventory() -> tuple[bytes | None, ...]:
    words = _WORDS.split()
    texts: list[bytes] = [bytes([byte]) for byte in range(256)]
    texts += [mark.encode() for mark in _MARKS.split()]
    texts += [f"{high}{low}".encode() for high in range(10) for low in range(10) if f"{high}{low}" != "00"]
    texts += [word.encode() for word in words if len(word) > 1] + [f" {word}".encode() for word in words]
    texts += [b' "', b' ""', b" [", b" {", b" 1", *(text.encode() for text in ("é", "ü", " 東"))]
    return (None, None, *dict.fromkeys(texts), None)


Encoder = Callable[[str], list[int]]


@pytest.fixture(scope="session")
def greedy() -> Callable[[Sequence[bytes | None]], Encoder]:
    """The encoder of a vocabulary that takes the longest token each time."""

    def greedy(tokens: Sequence[bytes | None]) -> Encoder:
        ids = {text: token for token, text in enumerate(tokens) if text}
        longest = max(map(len, ids))

        def encode(text: str) -> list[int]:
            data, start, result = text.encode(), 0, []
            while start < len(data):
                stop = next(end for end in range(min(start + longest, len(data)), start, -1) if data[start:end] in ids)
                result.append(ids[data[start:stop]])
                start = stop
            return result

        return encode

    return greedy


@pytest.fixture(scope="session")
def vocabulary(greedy: Callable[[Sequence[bytes | None]], Encoder]) -> Vocabulary:
    """Bytes, common pieces of JSON, words; two ids that end a generation; ten ids without a token."""
    tokens = _inventory()
    return Vocabulary(tokens=tokens, eos_ids=(1, len(tokens) - 1), size=len(tokens) + 10, encode=greedy(tokens))


@pytest.fixture(scope="session")
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary)
    yield compiler
    compiler.close()


@pytest.fixture(scope="session")
def allowed(vocabulary: Vocabulary) -> Callable[[Matcher], list[int]]:
    """The tokens that a matcher's mask allows."""

    def allowed(matcher: Matcher) -> list[int]:
        mask = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)
        matcher.fill_mask(mask)
        return [int(i) for i in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]

    return allowed


@pytest.fixture(scope="session")
def generate(
    vocabulary: Vocabulary, allowed: Callable[[Matcher], list[int]]
) -> Callable[[Grammar, int, random.Random], bytes]:
    """Generates at most so many tokens, each drawn evenly from those allowed, as the engine does."""

    def generate(grammar: Grammar, max_tokens: int, rng: random.Random) -> bytes:
        matcher, taken = grammar.matcher(), []
        for remaining in reversed(range(max_tokens)):
            if matcher.finished:
                break
            token = matcher.accept(rng.choice(allowed(matcher)), remaining)
            if token in vocabulary.eos_ids:
                break
            taken.append(token)
        return b"".join(vocabulary.tokens[token] or b"" for token in taken)

    return generate


SPECS = (
    JsonSchema('{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'),
    Regex("[a-c]+-[0-9]{2}"),
    Choice(("Paris", "Par", "Berlin")),
    Lark('start: "(" WORD ")"\nWORD: /[a-z]+/'),
)


@pytest.fixture(params=SPECS, ids=lambda spec: type(spec).__name__)
def grammar(request: pytest.FixtureRequest, compiler: GrammarCompiler) -> Grammar:
    """A grammar of each kind in turn."""
    return compiler.compile(request.param)
