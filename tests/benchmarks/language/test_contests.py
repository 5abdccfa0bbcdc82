"""Programs written by hand with a client do what those of the language do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bough import MockBackend
from bough.benchmarks.language import contests
from bough.benchmarks.language import programs as language_programs


class FakeCaller:
    """Answers as `answer` does, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    async def chat(self, messages: list[dict[str, str]], max_tokens: int, **options: Any) -> list[str]:
        self.calls += 1
        return [answer(messages[-1]["content"]) for _ in range(options.get("n", 1))]

    async def complete(self, prompt: str, max_tokens: int, regex: str) -> str:
        self.calls += 1
        return complete(prompt)


def answer(asked: str) -> str:
    return f"({asked[-12:]})"


def complete(prompt: str) -> str:
    return "a town]" if prompt.endswith("Finish[") else " That is odd.\nAction: Search[a town]\n"


@pytest.mark.parametrize(
    ("name", "num_calls"),
    [("tree_of_thought", 30), ("judge", 7), ("self_consistency", 16), ("self_consistency_n", 1), ("react", 5)],
)
def test_programs_by_hand_do_what_the_programs_do(name: str, num_calls: int) -> None:
    def scripted(prompt: str, _: str) -> str:
        if prompt.endswith("<|assistant|>\n"):
            return answer(prompt.removesuffix("<|end|>\n<|assistant|>\n"))
        return complete(prompt)

    backend = MockBackend(scripted)
    arguments: tuple[Any, ...] = ("Why is the sky blue?",) if name == "react" else ("Why is the sky blue?", 4)
    state = getattr(language_programs, name.removesuffix("_n")).run(*arguments, backend=backend)
    caller = FakeCaller()
    assert asyncio.run(getattr(contests, name)(caller, *arguments)) == state.ret_value
    assert caller.calls == num_calls
    assert len(backend.requests) == 1
