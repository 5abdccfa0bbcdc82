"""Answers for one grammar engine: compiles what it is sent and walks tokens through the engine's masks.

For xgrammar and outlines_core it runs by its path, in the environment of the peer, and so imports nothing of this
package; sides.py serves bough and llguidance with it. Each line of the input is a JSON object `{kind, text, walks}`: a
JSON Schema or a regular expression, and lists of tokens. Each answer is a line that begins with the mark:
`{refused, compile_us, walks: [{accepted, num_tokens, mask_us}]}`. The first line is `{version}`.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MARK = "@bench "

State = tuple[Callable[[], object], Callable[[int], object]]
"""A text's way through an engine: filling the row with what may come next, and taking a token (False: refused)."""


class MaskEngine:
    """An engine of `size` tokens. `row` is the mask that was filled last, a bit a token; `eos` ends a text."""

    version: str | None = None

    def __init__(self, size: int, eos: int) -> None:
        self.eos = eos
        self.row = np.zeros((size + 31) // 32, dtype=np.int32)

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        """Returns what makes a state at the start; raises whatever it raises to refuse."""
        raise NotImplementedError

    def passes(self, tokens: Sequence[int]) -> bool:
        """The engine's check of a whole text under what it compiled last, if it has one."""
        return True


class PeerVocabulary:
    """The tokens of the model: their bytes, None for control tokens."""

    def __init__(self, path: str) -> None:
        with open(path) as file:
            content = json.load(file)
        self.tokens = [None if text is None else base64.b64decode(text) for text in content["tokens"]]
        self.size: int = content["size"]
        self.eos: int = content["eos"]


class XGrammar(MaskEngine):
    """xgrammar, each keyword as far as it goes (`strict_mode` off), one thread, nothing remembered."""

    def __init__(self, vocabulary: PeerVocabulary) -> None:
        import xgrammar  # type: ignore[import-not-found,unused-ignore]  # in its own environment only

        super().__init__(vocabulary.size, vocabulary.eos)
        self._module = xgrammar
        self.version = importlib.metadata.version("xgrammar")
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
        rows = self.row.reshape(1, -1)

        def start() -> State:
            matcher = self._module.GrammarMatcher(compiled)

            def fill() -> None:
                if not matcher.fill_next_token_bitmask(rows):
                    rows.fill(-1)

            return fill, matcher.accept_token

        return start


class OutlinesCore(MaskEngine):
    """outlines_core: a schema as a regular expression, and that as a table of states."""

    def __init__(self, vocabulary: PeerVocabulary) -> None:
        import outlines_core  # type: ignore[import-not-found,import-untyped,unused-ignore]

        super().__init__(vocabulary.size, vocabulary.eos)
        self._module = outlines_core
        self.version = importlib.metadata.version("outlines_core")
        by_text: dict[bytes, list[int]] = {}
        for token, text in enumerate(vocabulary.tokens):
            if text and token != self.eos:
                by_text.setdefault(text, []).append(token)
        self._vocabulary = outlines_core.Vocabulary(self.eos, by_text)

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        regex = self._module.json_schema.build_regex_from_schema(text) if kind == "schema" else text
        index, row = self._module.Index(regex, self._vocabulary), self.row

        def start() -> State:
            guide = self._module.Guide(index)
            return (
                lambda: guide.write_mask_into(row.ctypes.data, row.size, row.itemsize),
                lambda token: guide.advance(token, return_tokens=False),
            )

        return start


PEERS: dict[str, Callable[[PeerVocabulary], MaskEngine]] = {"xgrammar": XGrammar, "outlines_core": OutlinesCore}


def answer(engine: MaskEngine, request: dict[str, Any]) -> dict[str, Any]:
    """Compiles and walks."""
    started = time.perf_counter()
    try:
        start = engine.compile(request["kind"], request["text"])
        start()  # what an engine leaves to its first state belongs to the compilation, too
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  panics of Rust derive from it
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return {"refused": lines[0][:200], "compile_us": (time.perf_counter() - started) * 1e6, "walks": []}
    compile_us = (time.perf_counter() - started) * 1e6
    walks = [_walk(engine, start, walk) for walk in request["walks"]]
    return {"refused": None, "compile_us": compile_us, "walks": walks}


def _walk(engine: MaskEngine, start: Callable[[], State], tokens: Sequence[int]) -> dict[str, Any]:
    """Asks whether each token is allowed in turn and the end after the last."""
    fill, accept = start()
    mask_us: list[float] = []
    accepted, count = True, 0
    for token in (*tokens, engine.eos):
        started = time.perf_counter()
        try:
            fill()
            mask_us.append((time.perf_counter() - started) * 1e6)
            accepted = bool(engine.row[token // 32] >> (token % 32) & 1)
            if not accepted or token == engine.eos:
                break
            accepted = accept(token) is not False
            if not accepted:
                break
        except Exception:  # noqa: BLE001  an engine at its end
            accepted = False
            break
        count += 1
    accepted = accepted and engine.passes(tokens)
    return {"accepted": accepted, "num_tokens": count, "mask_us": mask_us}


def serve(engine: MaskEngine) -> int:
    """Tells the engine's version, then answers one line after another until there is no more."""
    print(MARK + json.dumps({"version": engine.version}), flush=True)
    for line in sys.stdin:
        print(MARK + json.dumps(answer(engine, json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(ImportError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    sys.exit(serve(PEERS[sys.argv[1]](PeerVocabulary(sys.argv[2]))))
