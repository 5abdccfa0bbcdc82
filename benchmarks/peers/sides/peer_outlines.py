"""outlines' side of a comparison on programs: constrained answers over llama.cpp, one after the other."""

from __future__ import annotations

from typing import Any

import llama_cpp  # type: ignore[import-not-found,unused-ignore]  # in its own environment only
import outlines  # type: ignore[import-not-found,unused-ignore]
from outlines.types import Choice, Regex  # type: ignore[import-not-found,unused-ignore]

from .peer_walk import Answer, Call, Plan, run_serially

_LONGEST_CHOICE = 64  # tokens


class OutlinesClient:
    """`options`: model_file (GGUF), threads, max_model_len."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._llama = llama_cpp.Llama(
            options["model_file"],
            n_ctx=options["max_model_len"],
            n_threads=options["threads"],
            n_threads_batch=options["threads"],
            verbose=False,
        )
        self._model = outlines.from_llamacpp(self._llama)
        self._generators: dict[str, Any] = {}  # by pattern: what it compiles to is kept

    def run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        if any(op[0] == "gen" and op[4] is None for plan in plans for op in plan):
            raise NotImplementedError("it is for constrained answers; the others are llama.cpp's own")
        return run_serially(plans, stop_s, self._answer)

    def _answer(self, call: Call) -> Answer:
        if call.choices:
            text = outlines.Generator(self._model, Choice(call.choices))(call.prompt, max_tokens=_LONGEST_CHOICE)
            return Answer(text)
        assert call.pattern is not None
        if call.pattern not in self._generators:
            self._generators[call.pattern] = outlines.Generator(self._model, Regex(call.pattern))
        text = self._generators[call.pattern](call.prompt, max_tokens=call.num_tokens)
        return Answer(text, len(self._llama.tokenize(text.encode(), add_bos=False)))
