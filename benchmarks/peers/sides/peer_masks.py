"""Grammar engines of peers, whose masks are followed token by token: xgrammar and outlines_core, in their environments.

bough and llguidance are followed in the same way: see constrain/sides.py.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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

    def walk(self, kind: str, text: str, walks: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Compiles a JSON Schema or a regular expression (`kind`), and walks lists of tokens."""
        started = time.perf_counter()
        try:
            start = self.compile(kind, text)
            start()  # what an engine leaves to its first state belongs to the compilation, too
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  panics of Rust derive from it
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return {"refused": lines[0][:200], "compile_us": (time.perf_counter() - started) * 1e6, "walks": []}
        compile_us = (time.perf_counter() - started) * 1e6
        return {"refused": None, "compile_us": compile_us, "walks": [self._walk(start, walk) for walk in walks]}

    def _walk(self, start: Callable[[], State], tokens: Sequence[int]) -> dict[str, Any]:
        """Asks whether each token is allowed in turn and the end after the last."""
        fill, accept = start()
        mask_us: list[float] = []
        accepted, count = True, 0
        try:
            for token in (*tokens, self.eos):
                started = time.perf_counter()
                fill()
                mask_us.append((time.perf_counter() - started) * 1e6)
                is_allowed = bool(self.row[token // 32] >> (token % 32) & 1)
                accepted = is_allowed and (token == self.eos or accept(token) is not False)
                if not accepted or token == self.eos:
                    break
                count += 1
        except Exception:  # noqa: BLE001  an engine at its end
            accepted = False
        return {"accepted": accepted and self.passes(tokens), "num_tokens": count, "mask_us": mask_us}


class PeerVocabulary:
    """The tokens of the model: their bytes, None for control tokens."""

    def __init__(self, path: str) -> None:
        content = json.loads(Path(path).read_text())
        self.tokens = [None if text is None else text.encode("latin-1") for text in content["tokens"]]
        self.size: int = content["size"]
        self.eos: int = content["eos"]


class _Peer(MaskEngine):
    """An engine in at most 16 GiB of memory. `options`: vocabulary, a file."""

    package: str

    def __init__(self, options: dict[str, Any]) -> None:
        with contextlib.suppress(ImportError):  # not on every system
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        self._vocabulary = PeerVocabulary(options["vocabulary"])
        super().__init__(self._vocabulary.size, self._vocabulary.eos)
        self._module = importlib.import_module(self.package)
        self.version = importlib.metadata.version(self.package)


class XGrammar(_Peer):
    """xgrammar, each keyword as far as it goes (`strict_mode` off), one thread, nothing remembered."""

    package = "xgrammar"

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        named = enumerate(self._vocabulary.tokens)
        names = [text if text and token != self.eos else b"<|%d|>" % token for token, text in named]
        info = self._module.TokenizerInfo(names, vocab_size=self._vocabulary.size, stop_token_ids=[self.eos])
        self._compiler = self._module.GrammarCompiler(info, max_threads=1, cache_enabled=False)

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


class OutlinesCore(_Peer):
    """outlines_core: a schema as a regular expression, and that as a table of states."""

    package = "outlines_core"

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        by_text: dict[bytes, list[int]] = {}
        for token, text in enumerate(self._vocabulary.tokens):
            if text and token != self.eos:
                by_text.setdefault(text, []).append(token)
        self._tokens = self._module.Vocabulary(self.eos, by_text)

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        regex = self._module.json_schema.build_regex_from_schema(text) if kind == "schema" else text
        index, row = self._module.Index(regex, self._tokens), self.row

        def start() -> State:
            guide = self._module.Guide(index)
            return (
                lambda: guide.write_mask_into(row.ctypes.data, row.size, row.itemsize),
                lambda token: guide.advance(token, return_tokens=False),
            )

        return start
