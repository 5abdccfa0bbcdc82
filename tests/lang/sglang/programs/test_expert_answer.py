"""A generated text goes into the text that follows."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


def test_expert_answer():
    @sgl.function
    def expert_answer(s, question):
        s += "Question: " + question + "\n"
        s += "Someone who knows the answer is" + sgl.gen("expert", stop=[".", "\n"], max_tokens=8) + ".\n"
        s += "Asked about it," + s["expert"] + " would say that " + sgl.gen("answer", stop=".", max_tokens=8) + "."

    ret = expert_answer.run(question="What is the capital of France?", temperature=0.1)
    assert f"Asked about it,{ret['expert']} would say that {ret['answer']}." in ret.text()
    assert "." not in ret["expert"]
