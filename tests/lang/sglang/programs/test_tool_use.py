"""Python computes what the model asks for."""

from __future__ import annotations

import re

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


def calculate(expression: str) -> str:
    left, right = map(int, re.findall("[0-9]+", expression))
    return str(left * right)


def test_tool_use():
    @sgl.function
    def tool_use(s, lhs, rhs):
        s += "Use the calculator: calculate(expression) gives the result.\n"
        s += "Question: What is the product of 3 and 4?\nAnswer: The answer is calculate(3*4) = 12\n"
        s += "Question: What is the product of " + str(lhs) + " and " + str(rhs) + "?\n"
        s += "Answer: The answer is calculate(" + sgl.gen("expression", regex=r"[0-9]{3}\*[0-9]{3}", stop=")") + ") = "
        with s.var_scope("answer"):
            s += calculate(s["expression"])

    ret = tool_use(lhs=257, rhs=983, temperature=0)
    assert int(ret["answer"]) == 257 * 983
    assert ret["expression"] == "257*983"
    assert ret.text().endswith(f"calculate(257*983) = {257 * 983}")
