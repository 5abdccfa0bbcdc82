"""Answers for one engine of another project: compiles what it is sent and walks tokens through the engine's masks.

It runs by its path, in the environment of the peer, and so imports nothing of this package. Each line of the input is
a JSON object `{kind, text, walks}`: a JSON Schema or a regular expression, and lists of tokens. Each answer is a line
that begins with the mark: `{refused, compile_us, walks: [{accepted, num_tokens, mask_us, accept_us}]}`.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

MARK = "@bench "


class Vocabulary:
    """The tokens of the model: their bytes, None for control tokens."""

    def __init__(self, path: str) -> None:
        with open(path) as file:
            content = json.load(file)
        self.tokens = [None if text is None else base64.b64decode(text) for text in content["tokens"]]
        self.size: int = content["size"]
        self.eos: int = content["eos"]
        self.control = {token for token, text in enumerate(self.tokens) if not text or token == self.eos}


class State(Protocol):
    """Where a text stands."""

    def fill(self) -> None:
        """Computes the mask of what may come next."""

    def allows(self, token: int) -> bool:
        """By the mask that was computed last."""

    def accept(self, token: int) -> object:
        """Goes on by a token that the mask allows."""


class Engine(Protocol):
    """An engine. `eos` is the token that ends a text."""

    eos: int

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        """What makes a state at the start; raises whatever it raises to refuse."""

    def passes(self, tokens: Sequence[int]) -> bool:
        """What the engine finds when it checks the whole text, under what it compiled last, if it does."""


class _Row:
    """A mask that an engine fills, one bit a token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.words = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)

    def __getitem__(self, token: int) -> bool:
        return bool(self.words[0, token // 32] >> (token % 32) & 1)


class XGrammar:
    """xgrammar, each keyword as far as it goes (`strict_mode` off), one thread, nothing remembered."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar  # type: ignore[import-not-found,unused-ignore]  # in its own environment only

        self.eos = vocabulary.eos
        self._module = xgrammar
        self._row = _Row(vocabulary)
        names = [
            text if text and token != self.eos else b"<|%d|>" % token for token, text in enumerate(vocabulary.tokens)
        ]
        info = xgrammar.TokenizerInfo(names, vocab_size=vocabulary.size, stop_token_ids=[self.eos])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        if kind == "schema":
            compiled = self._compiler.compile_json_schema(text, strict_mode=False)
        else:
            compiled = self._compiler.compile_regex(text)
        return lambda: _XGrammarState(self._module.GrammarMatcher(compiled), self._row)

    def passes(self, tokens: Sequence[int]) -> bool:
        return True


class _XGrammarState:
    def __init__(self, matcher: Any, row: _Row) -> None:
        self._matcher, self._row = matcher, row

    def fill(self) -> None:
        if not self._matcher.fill_next_token_bitmask(self._row.words):
            self._row.words.fill(-1)

    def allows(self, token: int) -> bool:
        return self._row[token]

    def accept(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise ValueError("it refuses a token that it allowed")


class OutlinesCore:
    """outlines_core: a schema as a regular expression, and that as a table of states."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import outlines_core  # type: ignore[import-not-found,import-untyped,unused-ignore]

        self.eos = vocabulary.eos
        self._module = outlines_core
        self._row = _Row(vocabulary)
        by_text: dict[bytes, list[int]] = {}
        for token, text in enumerate(vocabulary.tokens):
            if text and token not in vocabulary.control:
                by_text.setdefault(text, []).append(token)
        self._vocabulary = outlines_core.Vocabulary(self.eos, by_text)

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        regex = self._module.json_schema.build_regex_from_schema(text) if kind == "schema" else text
        index = self._module.Index(regex, self._vocabulary)
        return lambda: _OutlinesState(self._module.Guide(index), self._row)

    def passes(self, tokens: Sequence[int]) -> bool:
        return True


class _OutlinesState:
    def __init__(self, guide: Any, row: _Row) -> None:
        self._guide, self._row = guide, row

    def fill(self) -> None:
        words = self._row.words
        self._guide.write_mask_into(words.ctypes.data, words.size, words.itemsize)

    def allows(self, token: int) -> bool:
        return self._row[token]

    def accept(self, token: int) -> None:
        self._guide.advance(token, return_tokens=False)


ENGINES: dict[str, Callable[[Vocabulary], Engine]] = {
    "xgrammar": XGrammar,
    "outlines_core": OutlinesCore,
}


def answer(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    """Compiles and walks."""
    started = time.perf_counter()
    try:
        start = engine.compile(request["kind"], request["text"])
        start()  # what an engine leaves to its first state belongs to the compilation, too
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return {"refused": lines[0][:200], "compile_us": (time.perf_counter() - started) * 1e6, "walks": []}
    compile_us = (time.perf_counter() - started) * 1e6
    return {
        "refused": None,
        "compile_us": compile_us,
        "walks": [_walk(engine, start, walk) for walk in request["walks"]],
    }


def _walk(engine: Engine, start: Callable[[], State], tokens: Sequence[int]) -> dict[str, Any]:
    """Whether each token is allowed in turn and the end after the last."""
    state = start()
    mask_us: list[float] = []
    accept_us: list[float] = []
    accepted, count = True, 0
    for token in (*tokens, engine.eos):
        started = time.perf_counter()
        try:
            state.fill()
            filled = time.perf_counter()
            mask_us.append((filled - started) * 1e6)
            if not state.allows(token):
                accepted = False
                break
            if token == engine.eos:
                break
            started = time.perf_counter()
            state.accept(token)
            accept_us.append((time.perf_counter() - started) * 1e6)
        except Exception:  # noqa: BLE001  an engine at its end
            accepted = False
            break
        count += 1
    accepted = accepted and engine.passes(tokens)
    return {"accepted": accepted, "num_tokens": count, "mask_us": mask_us, "accept_us": accept_us}


def serve(engine: Engine) -> int:
    """Answers one line after another, until there is no more."""
    print(MARK + json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(MARK + json.dumps(answer(engine, json.loads(line))), flush=True)
    return 0


def _limit_memory(num_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # not on this system
        return
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


if __name__ == "__main__":
    _limit_memory(16 << 30)
    sys.exit(serve(ENGINES[sys.argv[1]](Vocabulary(sys.argv[2]))))
