"""guidance's and outlines' sides of a comparison on programs: over llama.cpp, one generation after another.

guidance has its own program states, but cannot run them concurrently, nor continue after a token that ends the text, so
its answers may be shorter. outlines is used for constrained answers.
"""

from __future__ import annotations

import time
from typing import Any

import guidance  # type: ignore[import-not-found,unused-ignore]  # in its own environment only
import llama_cpp  # type: ignore[import-not-found,unused-ignore]
import outlines  # type: ignore[import-not-found,unused-ignore]
from outlines.types import Choice, Regex  # type: ignore[import-not-found,unused-ignore]

from .peer_walk import LONGEST_CHOICE, Answer, Call, Plan, Value, replay, run_serially, values_of


def _context(options: dict[str, Any]) -> dict[str, Any]:
    """`options` of a side in llama.cpp's words: threads, max_model_len."""
    threads = options["threads"]
    return {"n_ctx": options["max_model_len"], "n_threads": threads, "n_threads_batch": threads}


class GuidanceClient:
    """`options`: model_file (GGUF), threads, max_model_len."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._model = guidance.models.LlamaCpp(options["model_file"], **_context(options), echo=False)

    def run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        started = time.perf_counter()
        programs: list[list[Value] | None] = []
        for plan in plans:
            late = bool(programs) and time.perf_counter() - started > stop_s
            programs.append(None if late else self._say(plan))
        return {"seconds": time.perf_counter() - started, "programs": programs}

    def _say(self, plan: Plan) -> list[Value]:
        states = replay(
            [op for op in plan if op[0] != "join"],  # states are values: there is nothing to wait for
            self._model,
            gen=lambda name, num_tokens, pattern: guidance.gen(name, max_tokens=num_tokens, regex=pattern),
            select=lambda name, choices: guidance.select(choices, name=name),
            fork=lambda state, count: [state] * count,
        )
        named = [(branch, name, states[branch][name]) for branch, name in values_of(plan)]
        encode = self._model.engine.tokenizer.encode
        return [[branch, name, text, len(encode(text.encode()))] for branch, name, text in named]


class OutlinesClient:
    """`options`: model_file (GGUF), threads, max_model_len."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._llama = llama_cpp.Llama(options["model_file"], **_context(options), verbose=False)
        self._model = outlines.from_llamacpp(self._llama)
        self._generators: dict[str, Any] = {}  # by pattern: what it compiles to is kept

    def run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        if any(op[0] == "gen" and op[4] is None for plan in plans for op in plan):
            raise NotImplementedError("it is for constrained answers; the others are llama.cpp's own")
        return run_serially(plans, stop_s, self._answer)

    def _answer(self, call: Call) -> Answer:
        if call.choices:
            return Answer(outlines.Generator(self._model, Choice(call.choices))(call.prompt, max_tokens=LONGEST_CHOICE))
        assert call.pattern is not None
        if call.pattern not in self._generators:
            self._generators[call.pattern] = outlines.Generator(self._model, Regex(call.pattern))
        text = self._generators[call.pattern](call.prompt, max_tokens=call.num_tokens)
        return Answer(text, len(self._llama.tokenize(text.encode(), add_bos=False)))
