"""Reasoning and answer as two variables. The default model does not reason, so that some answers are given to it."""

from __future__ import annotations

import pytest

import bough as sgl

WRITTEN = "<think>\nTwo and two\nare four.\n</think>\n\nFour."


def program(model_type: str | None = None, **options):
    @sgl.function
    def reason(s, question):
        s += sgl.user(question)
        s += sgl.assistant("Hm. " + sgl.separate_reasoning(sgl.gen("answer", **options), model_type=model_type))
        s += sgl.user("Are you sure?")
        s += sgl.assistant(sgl.gen("sure", max_tokens=4))

    return reason


def run(written: str, model_type: str | None = None, **options):
    return program(model_type, **options).run("2 + 2?", backend=sgl.MockBackend({"answer": written}))


@pytest.mark.parametrize("model_type", [None, "qwen3", "deepseek-v3", "glm45", "deepseek-r1", "qwen3-thinking"])
def test_two_variables(model_type):
    state = run(WRITTEN, model_type)
    assert state["answer"] == "Four."
    assert state["answer_reasoning_content"] == "Two and two\nare four."
    assert "answer_reasoning_content" in state


def test_a_template_that_begins_the_reasoning():
    state = run("Two and two.\n</think>\n\nFour.")
    assert (state["answer"], state["answer_reasoning_content"]) == ("Four.", "Two and two.")
    cut_off = run("Two and", "deepseek-r1")
    assert (cut_off["answer"], cut_off["answer_reasoning_content"]) == ("", "Two and")
    cut_off = run("<think>Two and", "qwen3")
    assert (cut_off["answer"], cut_off["answer_reasoning_content"]) == ("", "Two and")


def test_in_a_stream_the_answer_comes_as_a_whole():
    backend = sgl.MockBackend({"answer": WRITTEN})
    state = program().run("2 + 2?", backend=backend, stream=True)
    assert list(state.text_iter("answer")) == ["Four."]
    assert "".join(state.text_iter("answer_reasoning_content")) == "Two and two\nare four."
    assert state.get_meta_info("answer")["finish_reason"]["type"] == "stop"


def test_the_answer_alone_is_no_reference():
    @sgl.function
    def reason(s):
        s += sgl.separate_reasoning("Think: " + sgl.gen("answer"))
        with pytest.raises(sgl.ProgramError, match="only part of a generated text"):
            s += s.ref("answer")
        s += "So: " + s["answer"]
        forks = s.fork(2)
        forks += sgl.separate_reasoning(sgl.gen("again"))
        forks.join()

    state = reason.run(backend=sgl.MockBackend({"answer": WRITTEN, "again": WRITTEN}))
    assert state.text() == f"Think: {WRITTEN}So: Four."
    assert state["again"] == ["Four."] * 2
    assert state["again_reasoning_content"] == ["Two and two\nare four."] * 2


def test_other_marks():
    state = run("◁think▷Two and two.◁/think▷Four.", "kimi")
    assert (state["answer"], state["answer_reasoning_content"]) == ("Four.", "Two and two.")


def test_samples_and_types():
    state = run(WRITTEN, n=2)
    assert state["answer"] == ["Four."] * 2
    assert state["answer_reasoning_content"] == ["Two and two\nare four."] * 2
    state = run("<think>One and three.</think>4", dtype=int)
    assert state["answer"] == 4
    assert state["answer_reasoning_content"] == "One and three."


@pytest.mark.usefixtures("default_backend")
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_does_not_reason(stream):
    state = program(max_tokens=8).run("A colour?", temperature=0, stream=stream)
    assert state["answer_reasoning_content"] == ""
    assert state["answer"]
    assert state["sure"]
    assert "Hm. " + state["answer"] in state.text()
    assert state.messages()[-3]["content"] == "Hm. " + state["answer"]


def test_an_unknown_model_type_is_refused():
    with pytest.raises(ValueError, match="model_type must be one of deepseek-r1"):
        sgl.separate_reasoning(sgl.gen("answer"), model_type="gpt-oss")
