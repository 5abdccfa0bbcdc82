"""Requests: the messages that templates get for those that clients send."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from bough.runtime.tokenizer.tokenizer import MAX_TOKEN_CHARS
from bough.server.errors import ApiError
from bough.server.openai.objects import ChatBody, CompletionBody, Message
from bough.server.openai.requests import Context, chat_job, completion_job, encode_chat, to_messages
from bough.server.openai.tools import Toolbox, to_toolbox

from ..fake_client import INFO, ByteTokenizer

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def converted(*given: dict[str, Any], knows_tools: bool = True) -> list[dict[str, Any]]:
    messages = msgspec.json.decode(json.dumps(given), type=list[Message])
    return to_messages(messages, Toolbox(), knows_tools=knows_tools)[0]


def test_developers_are_systems_and_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert converted({"role": "developer", "content": parts}) == [{"role": "system", "content": "a\nb"}]


def test_an_old_answer_may_have_no_content() -> None:
    assert converted({"role": "assistant", "refusal": "no"}) == [{"role": "assistant", "content": ""}]
    answer = converted({"role": "assistant", "content": None, "tool_calls": [CALL]})[0]
    assert (answer["content"], answer["tool_calls"]) == ("", [CALL])


def test_calls_become_text_where_the_template_knows_none() -> None:
    history = (
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, {**CALL, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c2", "content": "3"},
    )
    assert converted(*history, knows_tools=False) == [
        {
            "role": "assistant",
            "content": 'Let me see.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
            '\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        },
        {"role": "user", "content": "Result of f: 3"},
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_of_earlier_answers_reaches_the_template(name: str) -> None:
    answer = {"role": "assistant", "content": "b", name: "a"}
    for knows_tools in (False, True):
        assert converted(answer, knows_tools=knows_tools) == [
            {"role": "assistant", "content": "b", "reasoning_content": "a"}
        ]
    assert converted({"role": "user", "content": "b", name: "a"}) == [{"role": "user", "content": "b"}]


@pytest.mark.parametrize("name", ["prefix", "partial"])
def test_a_message_may_say_that_it_is_continued(name: str) -> None:
    tokenizer: Any = TellingTokenizer("")
    context = Context(id="r", namespace="", tokenizer=tokenizer, info=INFO, timeout_s=1.0, max_sequences=64)

    def job(*messages: dict[str, Any]) -> None:
        chat_job(msgspec.convert({"model": "m", "messages": messages}, ChatBody), context)

    answer = {"role": "assistant", "content": "The", name: True}
    job(HI, answer)
    assert tokenizer.told["continue_final_message"] is True
    job(HI, {**answer, name: False})
    assert tokenizer.told["continue_final_message"] is False
    for messages, place in (((answer, HI), 0), ((HI, {**HI, name: True}), 1)):
        with pytest.raises(ApiError) as caught:
            job(*messages)
        assert caught.value.param == f"messages[{place}].{name}"


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ({"role": "assistant"}, "missing_required_parameter", "messages[0].content"),
        ({"role": "tool", "content": "x"}, "missing_required_parameter", "messages[0].tool_call_id"),
        ({"role": "user", "content": [{"type": "text"}]}, "missing_required_parameter", "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "unsupported_content", "messages[0].content[0].type"),
    ],
)
def test_what_is_missing_or_not_text_is_named(message: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        converted(message)
    assert (caught.value.code, caught.value.param) == (code, param)


# Far too long

HI = {"role": "user", "content": "hi"}


def described(num_chars: int) -> dict[str, Any]:
    return {
        "messages": [HI],
        "tools": [{"type": "function", "function": {"name": "f", "description": "x" * num_chars}}],
    }


def called(num_chars: int) -> dict[str, Any]:
    call = {**CALL, "function": {"name": "f", "arguments": '{"a": "%s"}' % ("x" * (num_chars - 9))}}
    return {"messages": [{"role": "assistant", "tool_calls": [call]}]}


@pytest.mark.parametrize("template", ["", "tools"])
@pytest.mark.parametrize(("made", "param"), [(described, "tools"), (called, "messages")])
def test_what_is_far_too_long_is_refused_before_it_is_rendered(made: Any, param: str, template: str) -> None:
    """Tools and calls that the template writes, and those that it has as text in the messages."""
    tokenizer: Any = ByteTokenizer(template=template)

    def encode(num_chars: int) -> list[int]:
        body = msgspec.convert({"model": "m", **made(num_chars)}, ChatBody)
        return encode_chat(body, to_toolbox(body), tokenizer, max_tokens=100)

    most = 100 * MAX_TOKEN_CHARS
    assert encode(most - 400)
    assert len(tokenizer.rendered) == 1
    with pytest.raises(ApiError) as caught:
        encode(most + 1)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == (param if template else "messages")
    assert len(tokenizer.rendered) == 1


def test_the_generations_of_a_prompt_share_it() -> None:
    """Each had a copy: 64 of long prompts took 70 MB."""
    tokenizer: Any = ByteTokenizer()
    context = Context(id="r", namespace="", tokenizer=tokenizer, info=INFO, timeout_s=1.0, max_sequences=64)
    for job in (
        completion_job(CompletionBody(model="m", prompt=[[97, 98], [99]], n=3), context),
        chat_job(ChatBody(model="m", messages=[Message(role="user", content="hi")], n=3), context),
    ):
        for index, request in enumerate(job.requests):
            assert request.prompt is job.prompts[index // 3]


# What a template is told beside the messages


class TellingTokenizer(ByteTokenizer):
    """Keeps the options that a template was given."""

    def __init__(self, template: str) -> None:
        super().__init__(template=template)
        self.told: dict[str, Any] = {}

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        self.told = options
        return [97]


def told(template: str, **fields: Any) -> dict[str, Any]:
    tokenizer: Any = TellingTokenizer(template)
    body = msgspec.convert({"model": "m", "messages": [HI], **fields}, ChatBody)
    encode_chat(body, to_toolbox(body), tokenizer, max_tokens=100)
    return tokenizer.told


@pytest.mark.parametrize(
    ("template", "fields", "kwargs"),
    [
        ("", {"reasoning_effort": "low"}, None),
        ("reasoning_effort", {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ("enable_thinking", {"reasoning_effort": "low"}, {"enable_thinking": True}),
        ("enable_thinking", {"reasoning_effort": "none"}, {"enable_thinking": False}),
        (
            "enable_thinking",
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True, "a": 1}},
            {"enable_thinking": True, "a": 1},
        ),
    ],
)
def test_effort_is_told_in_the_words_of_the_template(template: str, fields: dict[str, Any], kwargs: Any) -> None:
    assert told(template, **fields)["template_kwargs"] == kwargs


def test_documents_are_for_templates_that_show_them() -> None:
    documents = [{"title": "t", "text": "x"}]
    assert told("documents", documents=documents)["documents"] == documents
    assert "documents" not in told("documents")
    for template, given, code in (
        ("", documents, "unsupported_parameter"),
        ("documents", [{"text": "x" * 100 * MAX_TOKEN_CHARS}, {"text": "x"}], "context_length_exceeded"),
    ):
        with pytest.raises(ApiError) as caught:
            told(template, documents=given)
        assert (caught.value.code, caught.value.param) == (code, "documents")
