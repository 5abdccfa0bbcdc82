"""Thought, action, observation: a loop that ends when the model says so."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")

EXAMPLE = """
Question: In which country was the composer of the Ode to Joy born?
Thought 1: I have to find out who composed the Ode to Joy.
Action 1: Search [composer of the Ode to Joy].
Observation 1: Ludwig van Beethoven composed it.
Thought 2: I have to find out where Beethoven was born.
Action 2: Search [birthplace of Beethoven].
Observation 2: Beethoven was born in Bonn, Germany.
Thought 3: The answer is Germany.
Action 3: Finish [Germany].

"""


def test_react():
    @sgl.function
    def react(s, question):
        s += EXAMPLE
        s += "Question: " + question + "\n"
        for i in range(1, 3):
            s += f"Thought {i}:" + sgl.gen(stop=[".", "\n"], max_tokens=8) + ".\n"
            s += f"Action {i}: " + sgl.select(f"action_{i}", ["Search", "Finish"] if i < 2 else ["Finish"])
            if s[f"action_{i}"] == "Search":
                s += " [" + sgl.gen(stop="]", max_tokens=6) + "].\n"
                s += f"Observation {i}:" + sgl.gen(stop=[".", "\n"], max_tokens=8) + ".\n"
            else:
                s += " [" + sgl.gen("answer", stop="]", max_tokens=6) + "].\n"
                break

    ret = react.run(question="In which country was the inventor of Linux born?", temperature=0.1)
    assert isinstance(ret["answer"], str)
    assert ret["action_1"] in ("Search", "Finish")
    assert ret.text().rstrip().endswith(f"Finish [{ret['answer']}].")
