"""A choice between strings."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


@sgl.function
def true_or_false(s, statement):
    s += "Say of each statement below whether it is True, False, or Unknown.\n"
    s += "Statement: The sun rises in the west.\n"
    s += "Answer: False\n"
    s += "Statement: " + statement + "\n"
    s += "Answer:" + sgl.select("answer", ["True", "False", "Unknown"])


@pytest.mark.parametrize("statement", ["The capital of Germany is Berlin.", "Green is nicer than purple."])
def test_a_choice_is_one_of_them(statement):
    ret = true_or_false.run(statement=statement)
    assert ret["answer"] in ["True", "False", "Unknown"]
    assert ret.text().endswith(ret["answer"])


def test_gen_with_choices():
    @sgl.function
    def tool(s, question):
        s += "To answer this question: " + question + ", "
        s += "I need to use a " + sgl.gen("tool", choices=["calculator", "search engine"], max_tokens=8) + ". "
        if s["tool"] == "calculator":
            s += "The expression is" + sgl.gen("expression", max_tokens=4)
        elif s["tool"] == "search engine":
            s += "The key word is" + sgl.gen("word", max_tokens=4)

    states = tool.run_batch([{"question": "What is 5 + 5?"}, {"question": "Who wrote Hamlet?"}])
    for state in states:
        assert state["tool"] in ("calculator", "search engine")
        assert ("expression" in state) == (state["tool"] == "calculator")
        assert ("word" in state) == (state["tool"] == "search engine")
        first, second = state.get_meta_info("tool")["input_token_logprobs"]
        assert all(logprob <= 0 and isinstance(token, int) for logprob, token, _ in (*first, *second))
        means = state.get_meta_info("tool")["normalized_prompt_logprobs"]
        assert means[0] == pytest.approx(sum(entry[0] for entry in first) / len(first))


def test_a_temperature_is_refused():
    with pytest.raises(ValueError, match="temperature must be 0"):
        sgl.select("x", ["a", "b"], 0.7)
