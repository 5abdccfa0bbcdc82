"""Text as it comes: of a whole program, of a variable, and on an event loop."""

from __future__ import annotations

import asyncio

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


@sgl.function
def qa(s, question_1, question_2="Why?"):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=8))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=8))


def test_the_whole_text():
    state = qa(question_1="Name three rivers.", stream=True)
    out = ""
    for chunk in state.text_iter():
        out += chunk
    assert state["answer_1"] in out
    assert out.endswith(state["answer_2"])


def test_a_variable():
    state = qa.run(question_1="Name three rivers.", stream=True, temperature=0)
    chunks = list(state.text_iter(var_name="answer_2"))
    assert len(chunks) > 1
    assert "".join(chunks) == state["answer_2"]


def test_a_program_that_has_ended():
    state = qa.run("Name a river.", temperature=0)
    assert "".join(state.text_iter("answer_1")) == state["answer_1"]


def test_on_an_event_loop():
    async def main():
        state = qa.run(question_1="Name three rivers.", stream=True, temperature=0)
        return "".join([chunk async for chunk in state.text_async_iter(var_name="answer_2")]), state

    text, state = asyncio.run(main())
    assert text == state["answer_2"]


def test_with_what_is_known_about_it():
    async def main():
        state = qa.run(question_1="Name three rivers.", stream=True, temperature=0)
        return [item async for item in state.text_async_iter("answer_1", return_meta_data=True)], state

    items, state = asyncio.run(main())
    assert "".join(text for text, _ in items) == state["answer_1"]
    assert all(text for text, _ in items)
    assert all(meta["id"] == items[0][1]["id"] for _, meta in items)
    assert items[0][1]["finish_reason"] is None
    assert items[-1][1]["completion_tokens"] == state.get_meta_info("answer_1")["completion_tokens"] > 0


def test_with_the_log_probabilities_of_all_tokens_so_far():
    async def main():
        state = qa.run("Name three rivers.", stream=True, temperature=0, return_logprob=True, top_logprobs_num=2)
        return [item async for item in state.text_async_iter("answer_1", return_meta_data=True)], state

    items, state = asyncio.run(main())
    assert len(items) > 2
    text, num_tokens = "", 0
    for piece, meta in items:
        assert piece
        text += piece
        entries = meta["output_token_logprobs"]
        assert len(entries) == meta["output_token_logprobs_length"] == meta["completion_tokens"] > num_tokens
        assert len(meta["output_top_logprobs"]) == len(entries) and len(meta["output_top_logprobs"][0]) == 2
        assert "".join(said for _, _, said in entries).startswith(text)
        assert meta["input_token_logprobs"] == []
        num_tokens = len(entries)
    assert text == state["answer_1"]
    whole = state.get_meta_info("answer_1")
    assert items[-1][1] == whole
    for _, meta in items[:-1]:
        assert meta["finish_reason"] is None
        assert meta["output_token_logprobs"] == whole["output_token_logprobs"][: meta["completion_tokens"]]


def test_branches_stream_too():
    @sgl.function
    def both(s):
        s += "A list:"
        forks = s.fork(2)
        forks += sgl.gen("item", max_tokens=4)
        s["streams"] = ["".join(fork.text_iter("item")) for fork in forks]
        forks.join()

    state = both.run(temperature=0)
    assert state["streams"] == state["item"]
