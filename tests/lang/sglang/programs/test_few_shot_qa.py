"""Few-shot questions, alone and in a batch."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


@sgl.function
def few_shot_qa(s, question):
    s += "Here are some questions about capitals, with their answers.\n\n"
    s += "Q: What is the capital of Spain?\n"
    s += "A: Madrid\n"
    s += "Q: What is the capital of Austria?\n"
    s += "A: Vienna\n"
    s += "Q: What is the capital of Norway?\n"
    s += "A: Oslo\n"
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", temperature=0)


def test_one_question():
    ret = few_shot_qa.run(question="What is the capital of France?")
    assert "paris" in ret["answer"].strip().lower()
    assert ret.text().endswith("\nA:" + ret["answer"])


def test_a_batch():
    rets = few_shot_qa.run_batch(
        [
            {"question": "What is the capital of Japan?"},
            {"question": "What is the capital of the United Kingdom?"},
            {"question": "What is the capital city of Germany?"},
        ],
        temperature=0.1,
    )
    answers = [ret["answer"].strip().lower() for ret in rets]
    assert answers == ["tokyo", "london", "berlin"]


def test_positional_arguments_and_a_call():
    assert few_shot_qa("What is the capital of France?")["answer"].strip() == "Paris"
    rets = few_shot_qa.run_batch([("What is the capital of Japan?",), ("What is the capital of France?",)])
    assert [ret["answer"].strip() for ret in rets] == ["Tokyo", "Paris"]
