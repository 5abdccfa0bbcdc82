"""Arguments filled in beforehand, and a prefix computed beforehand."""

from __future__ import annotations

import pytest

import bough as sgl

PROMPT = "You are asked about capitals by a child of five years. Answer in one word, and be kind to the child.\n\n"


@sgl.function
def few_shot_qa(s, prompt, question):
    s += prompt
    s += "Q: What is the capital of France?\n"
    s += "A: Paris\n"
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", max_tokens=8)


def test_bind(default_backend):
    bound = few_shot_qa.bind(prompt=PROMPT)
    ret = bound.run(question="What is the capital of Japan?", temperature=0)
    assert ret.text().startswith(PROMPT)
    assert ret["answer"].strip() == "Tokyo"


def test_trace():
    listing = str(few_shot_qa.bind(prompt=PROMPT).trace())
    assert "question" in listing
    assert "answer" in listing


def test_cache(default_backend):
    bound = few_shot_qa.bind(prompt=PROMPT)
    cold = bound.run(question="What is the capital of Italy?", temperature=0).get_meta_info("answer")
    sgl.flush_cache()
    bound.cache(default_backend)
    warm = bound.run(question="What is the capital of Italy?", temperature=0).get_meta_info("answer")
    assert cold["cached_tokens"] < 20
    assert warm["cached_tokens"] >= 30


def test_a_first_parameter_of_any_name(default_backend):
    @sgl.function
    def count(state, start):
        state += f"{start}," + sgl.gen("rest", 4)

    assert count.run("1, 2, 3", temperature=0).text().startswith("1, 2, 3,")


def test_flushing():
    sgl.set_default_backend(None)
    with pytest.raises(sgl.ProgramError, match="no backend"):
        sgl.flush_cache()
