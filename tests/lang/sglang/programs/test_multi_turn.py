"""Two turns of a chat: messages as expressions, as blocks, and by their beginnings and ends."""

from __future__ import annotations

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


@sgl.function
def interview(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1"))
    with s.user():
        s += question_2
    with s.assistant():
        s += sgl.gen("answer_2")


def test_two_turns():
    ret = interview.run(
        question_1="Write a post about a week on Sicily.",
        question_2="Shorten it to one sentence.",
        temperature=0.7,
        max_new_tokens=8,
    )
    messages = ret.messages()
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[2]["content"].strip() == ret["answer_1"].strip()
    assert messages[4]["content"].strip() == ret["answer_2"].strip()
    assert all(isinstance(message["content"], str) for message in messages)


def test_beginnings_and_ends():
    @sgl.function
    def chat(s, question):
        s += sgl.system_begin() + "Answer in one word." + sgl.system_end()
        s += sgl.user_begin()
        s += question
        s += sgl.user_end()
        s += sgl.assistant_begin()
        s += sgl.gen("answer", max_tokens=4, temperature=0)
        s += sgl.assistant_end()

    ret = chat.run(question="Is the sky blue?")
    roles = [(message["role"], message["content"]) for message in ret.messages()]
    assert roles == [
        ("system", "Answer in one word."),
        ("user", "Is the sky blue?"),
        ("assistant", ret["answer"]),
    ]


def test_messages_by_methods():
    @sgl.function
    def chat(s, question):
        s.system("Answer briefly.")
        s.user(question)
        s.assistant(sgl.gen("answer", max_tokens=8))

    ret = chat.run(question="Name a colour.", temperature=0)
    assert [message["role"] for message in ret.messages()] == ["system", "user", "assistant"]


def test_the_template_s_own_system_message():
    @sgl.function
    def chat(s):
        s += sgl.user("Hello")
        s += sgl.assistant(sgl.gen("answer", max_tokens=2))

    ret = chat.run()
    assert ret.text().startswith("<|im_start|>system\n")
    assert len(ret.messages()) in (2, 3)
