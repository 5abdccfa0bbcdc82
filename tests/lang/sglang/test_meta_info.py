"""Meta information about a value."""

from __future__ import annotations

from math import exp

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


@sgl.function
def capital(s):
    s += "The capital of France is" + sgl.gen("city", max_tokens=3, stop=["."])


def test_the_fields():
    info = capital.run(temperature=0).get_meta_info("city")
    assert {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "e2e_latency"} <= set(info)
    assert info["finish_reason"]["type"] in ("stop", "length")
    assert info["prompt_tokens"] == 5
    assert info["e2e_latency"] > 0
    assert isinstance(info["id"], str)


def test_how_it_ended():
    @sgl.function
    def count(s):
        s += "1, 2, 3," + sgl.gen("short", max_tokens=4) + " 5," + sgl.gen("stopped", max_tokens=32, stop="7")

    state = count.run(temperature=0)
    assert state.get_meta_info("short")["finish_reason"] == {"type": "length", "length": 4, "matched": None}
    assert state.get_meta_info("stopped")["finish_reason"] == {"type": "stop", "matched": "7"}


def test_logprobs():
    state = capital.run(temperature=0, return_logprob=True, top_logprobs_num=3, return_text_in_logprobs=True)
    info = state.get_meta_info("city")
    assert len(info["output_token_logprobs"]) == info["completion_tokens"] == info["output_token_logprobs_length"]
    for (logprob, token, text), top in zip(info["output_token_logprobs"], info["output_top_logprobs"], strict=True):
        assert logprob <= 0
        assert isinstance(token, int)
        assert isinstance(text, str)
        assert len(top) == 3
        assert tuple(top[0]) == (logprob, token, text)
    assert info["output_token_logprobs"][0][2] == " Paris"


def test_from_each_of_the_likeliest_first_tokens():
    @sgl.function
    def decode(s, question, get_top_k):
        s += "Question: " + question + "\nAnswer:"
        step_0 = s.fork(1)[0]
        forks = s.fork(get_top_k)
        step_0 += sgl.gen("first", max_tokens=1, return_logprob=True, top_logprobs_num=get_top_k, temperature=0,
                          return_text_in_logprobs=True)  # fmt: skip
        logprobs = step_0.get_meta_info("first")["output_top_logprobs"][0]
        s["gaps"] = []
        for fork, (_, _, text) in zip(forks, logprobs, strict=True):
            fork += text
            fork += sgl.gen("answer", temperature=0, max_tokens=8, return_logprob=True, top_logprobs_num=2)
            top = fork.get_meta_info("answer")["output_top_logprobs"]
            s["gaps"] += [sum(exp(first[0]) - exp(second[0]) for first, second in top) / len(top)]
        s["texts"] = [text + fork["answer"] for fork, (_, _, text) in zip(forks, logprobs, strict=True)]

    state = decode.run("How many eggs are in a dozen?", 3)
    assert len(set(state["texts"])) == 3
    assert all(0 <= gap <= 1 for gap in state["gaps"])


def test_logprobs_of_the_prompt_are_refused():
    with pytest.raises(ValueError, match="logprob_start_len=0"):
        sgl.gen("x", return_logprob=True, logprob_start_len=0)
    assert sgl.gen("x", return_logprob=True, logprob_start_len=-1)
