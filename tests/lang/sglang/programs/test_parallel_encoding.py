"""Texts computed side by side, and put one behind the other."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


def test_parallel_encoding():
    @sgl.function
    def parallel_encoding(s, question, *contexts):
        s += "USER: I will ask a question about some statements.\n"
        forks = s.fork(len(contexts))
        forks += lambda i: f"Statement {i}: " + contexts[i] + "\n"
        forks.join(mode="concate_and_append")
        s += "Question: " + question + "\n"
        s += "ASSISTANT:" + sgl.gen("answer", max_tokens=8, stop="\n")

    ret = parallel_encoding.run(
        "Who is the father of Julian?",
        "Ethan is the father of Liam.",
        "Noah is the father of Julian.",
        "Oliver is the father of Carlos.",
        temperature=0,
    )
    text = ret.text()
    assert text.index("Statement 0: Ethan") < text.index("Statement 1: Noah") < text.index("Statement 2: Oliver")
    assert text.endswith("ASSISTANT:" + ret["answer"])
