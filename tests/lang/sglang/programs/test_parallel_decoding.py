"""A skeleton, and each of its points written out by a branch."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


def test_parallel_decoding():
    max_tokens, fork_size = 6, 4

    @sgl.function
    def parallel_decoding(s, topic):
        s += "USER: Give me tips for " + topic + ".\n"
        s += "ASSISTANT: Here are " + str(fork_size) + " short tips:\n"
        for i in range(1, 1 + fork_size):
            s += f"{i}." + sgl.gen(max_tokens=5, stop=[".", "\n"]) + ".\n"

        forks = s.fork(fork_size)
        for i in range(fork_size):
            forks[i] += f"Now tip {i + 1} in detail:\nTip {i + 1}:"
            forks[i] += sgl.gen("detailed_tip", max_tokens, stop=["\n\n"])
        forks.join()

        s += "The tips in detail:\n"
        for i in range(fork_size):
            s += f"Tip {i + 1}:" + forks[i]["detailed_tip"] + "\n"
        s += "\nIn summary," + sgl.gen("summary", max_tokens=6)

    ret = parallel_decoding.run(topic="writing a letter", temperature=0.3)
    assert isinstance(ret["summary"], str)
    assert len(ret["detailed_tip"]) == fork_size
    for i, tip in enumerate(ret["detailed_tip"]):
        assert f"\nTip {i + 1}:{tip}\n" in ret.text()
    assert "Now tip" not in ret.text()


def test_branches_without_a_join():
    @sgl.function
    def tips(s):
        s += "Two tips for staying healthy: 1. Eat well. 2. Sleep enough.\n\n"
        forks = s.fork(2)
        for i, f in enumerate(forks):
            f += f"Tip {i + 1} in detail:\n"
            f += sgl.gen("detailed_tip", max_tokens=8, stop="\n\n")
        s += "Tip 1:" + forks[0]["detailed_tip"] + "\n"
        s += "Tip 2:" + forks[1]["detailed_tip"] + "\n"
        s += "In summary" + sgl.gen("summary", max_tokens=8)

    ret = tips.run(temperature=0)
    assert ret.text().endswith("In summary" + ret["summary"])
    assert "detailed_tip" not in ret


def test_parallel_samples():
    @sgl.function
    def parallel_sample(s, question, n):
        s += "Question: Compute 1 + 2\nReasoning: I need a calculator.\nTool: calculator\nAnswer: 3\n"
        s += "Question: " + question + "\n"
        forks = s.fork(n)
        forks += "Reasoning:" + sgl.gen("reasoning", stop="\n", max_tokens=6) + "\n"
        forks += "Tool:" + sgl.gen("tool", choices=["calculator", "browser"]) + "\n"
        forks += "Answer:" + sgl.gen("answer", stop="\n", max_tokens=6) + "\n"
        forks.join()

    state = parallel_sample.run(question="Compute 5 + 2.", n=3, temperature=1.0)
    for name in ("reasoning", "tool", "answer"):
        assert len(state[name]) == 3
    assert set(state["tool"]) <= {"calculator", "browser"}


def test_a_list_for_the_branches():
    @sgl.function
    def colours(s):
        s += "Colours: "
        forks = s.fork(2)
        forks += ["The sky is" + sgl.gen("colour", 3), "Grass is" + sgl.gen("colour", 3)]
        forks += lambda i: f" ({i})"
        forks.join(mode="gather_variable")

    assert len(colours.run(temperature=0)["colour"]) == 2
