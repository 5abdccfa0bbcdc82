"""guidance's side of a comparison on programs: its own states over llama.cpp, one generation after the other.

It has no way to run states side by side, nor to go on after a token that ends the text: answers may be shorter.
"""

from __future__ import annotations

import time
from typing import Any

import guidance  # type: ignore[import-not-found,unused-ignore]  # in its own environment only

from .peer_walk import Plan


class GuidanceClient:
    """`options`: model_file (GGUF), threads, max_model_len."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._model = guidance.models.LlamaCpp(
            options["model_file"],
            n_ctx=options["max_model_len"],
            n_threads=options["threads"],
            n_threads_batch=options["threads"],
            echo=False,
        )

    def run(self, plans: list[Plan], at_once: int, stop_s: float) -> dict[str, Any]:
        started = time.perf_counter()
        programs: list[list[list[Any]] | None] = []
        for plan in plans:
            late = bool(programs) and time.perf_counter() - started > stop_s
            programs.append(None if late else self._walk(plan))
        return {"seconds": time.perf_counter() - started, "programs": programs}

    def _walk(self, plan: Plan) -> list[list[Any]]:
        states = {0: self._model}
        values = []
        for kind, branch, *rest in plan:
            if kind == "text":
                for part in rest[0]:
                    states[branch] += part if isinstance(part, str) else states[part[0]][part[1]]
            elif kind == "fork":
                states |= dict.fromkeys(rest[0], states[branch])
            elif kind in ("gen", "select"):
                name, what, *pattern = rest
                if kind == "select":
                    states[branch] += guidance.select(what, name=name)
                else:
                    states[branch] += guidance.gen(name, max_tokens=what, regex=pattern[0])
                text = states[branch][name]
                values.append([branch, name, text, len(self._model.engine.tokenizer.encode(text.encode()))])
        return values
