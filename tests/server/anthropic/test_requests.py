"""Bodies of the Messages API: the chats that are made of them, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from bough.server.anthropic.objects import FIELDS, MessagesBody
from bough.server.anthropic.requests import message_job, to_chat
from bough.server.errors import ApiError
from bough.server.openai.requests import Context, Job, decode_openai, to_messages
from bough.server.openai.tools import Toolbox, to_toolbox

from ..fake_client import INFO, ByteTokenizer

HI: Any = {"role": "user", "content": "hi"}
USE: Any = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
RESULT: Any = {"type": "tool_result", "tool_use_id": "t1", "content": "3"}
CALL: Any = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
TOOL: Any = {"name": "f", "input_schema": {"type": "object"}}


def body(*messages: Any, **fields: Any) -> MessagesBody:
    given = {"model": "m", "max_tokens": 2000, "messages": messages or [HI], **fields}
    return decode_openai(json.dumps(given, separators=(",", ":")).encode(), MessagesBody, names=FIELDS)[0]


def converted(*messages: Any, **fields: Any) -> list[dict[str, Any]]:
    """The messages as a template gets them."""
    return to_messages(to_chat(body(*messages, **fields)).messages, Toolbox(), knows_tools=True)[0]


def job(*messages: Any, template: str = "", **fields: Any) -> Job:
    tokenizer: Any = ByteTokenizer(template=template)
    context = Context(id="r", namespace="", tokenizer=tokenizer, info=INFO, timeout_s=1.0, max_sequences=64)
    return message_job(body(*messages, **fields), context)


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


# Messages


def test_the_system_prompt_is_text_or_blocks() -> None:
    expected = [{"role": "system", "content": "a\nb"}, {"role": "user", "content": "hi"}]
    blocks = [text("a"), {**text("b"), "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    assert converted(system=blocks) == converted(system="a\nb") == expected
    assert converted({"role": "system", "content": "a\nb"}, HI) == expected


def test_messages_of_one_role_are_one_turn() -> None:
    given = [HI, HI, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": [text("b"), USE]}]
    assert converted(*given, {"role": "user", "content": [RESULT]}) == [
        {"role": "user", "content": "hi\nhi"},
        {"role": "assistant", "content": "a\nb", "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "t1"},
    ]


def test_results_and_texts_keep_their_order() -> None:
    second = {**USE, "id": "t2"}
    content = [RESULT, {**RESULT, "tool_use_id": "t2", "content": [text("4"), text("5")]}, text("So?")]
    assert converted(HI, {"role": "assistant", "content": [USE, second]}, {"role": "user", "content": content})[2:] == [
        {"role": "tool", "content": "3", "tool_call_id": "t1"},
        {"role": "tool", "content": "4\n5", "tool_call_id": "t2"},
        {"role": "user", "content": "So?"},
    ]


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"content": "no such city", "is_error": True}, "Error: no such city"),
        ({"content": [text("a"), text("b")], "is_error": True}, "Error: a\nb"),
        ({"content": None, "is_error": True}, "Error: "),
        ({"content": None}, ""),
        ({"content": []}, ""),
    ],
)
def test_the_text_of_a_result(result: Any, shown: str) -> None:
    block = {"type": "tool_result", "tool_use_id": "t1", **result}
    messages = converted(HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [block]})
    assert messages[-1]["content"] == shown


def test_earlier_thinking_is_given_to_the_template() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    answer = converted(HI, {"role": "assistant", "content": [thought, text("Yes.")]}, HI)[1]
    assert answer == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}


def test_the_last_answer_is_continued_unless_it_is_empty() -> None:
    chat = to_chat(body(HI, {"role": "assistant", "content": "The "}))
    assert (chat.continue_final_message, chat.add_generation_prompt) == (True, False)
    nothing: tuple[Any, ...] = ("", [])
    for content in nothing:
        chat = to_chat(body(HI, {"role": "assistant", "content": content}))
        assert (chat.continue_final_message, chat.add_generation_prompt, len(chat.messages)) == (False, True, 1)


# Tools


@pytest.mark.parametrize(
    ("choice", "mode", "parallel"),
    [
        (None, "auto", True),
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "f"}, "required", True),
        ({"type": "none"}, "none", True),
    ],
)
def test_choices_of_tools(choice: Any, mode: str, parallel: bool) -> None:
    toolbox = to_toolbox(to_chat(body(tools=[{**TOOL, "type": "custom", "strict": True}], tool_choice=choice)))
    assert (toolbox.mode, toolbox.parallel) == (mode, parallel) or choice == {"type": "tool", "name": "f"}
    assert toolbox.forced == (choice == {"type": "tool", "name": "f"})
    assert toolbox.functions["f"].strict is True


# Limits and thinking


def test_max_tokens_ends_with_the_context() -> None:
    prompt = len("user: hi\n")
    for given, limit in ((5, 5), (INFO.max_model_len, INFO.max_model_len - prompt)):
        (request,) = job(max_tokens=given).requests
        assert request.sampling.max_tokens == limit


@pytest.mark.parametrize(
    ("thinking", "template", "separated"),
    [
        (None, "", False),
        (None, "enable_thinking <think> </think>", False),
        ({"type": "adaptive"}, "", False),
        ({"type": "adaptive"}, "enable_thinking <think> </think>", True),
        ({"type": "enabled", "budget_tokens": 1024}, "enable_thinking <think> </think>", True),
    ],
)
def test_when_reasoning_is_told_apart(thinking: Any, template: str, separated: bool) -> None:
    found = job(thinking=thinking, template=template)
    assert (found.reasoning_end is not None) == separated
    budget = None if thinking is None else thinking.get("budget_tokens")
    assert (found.requests[0].grammar is None) == (budget is None)


def test_a_template_that_opens_the_reasoning_cannot_be_told_not_to() -> None:
    opened: Any = {"role": "user", "content": "hi <think>"}
    assert job(opened, template="<think> </think>").reasoning_end == "</think>"
    with pytest.raises(ApiError, match="always begins with reasoning") as caught:
        job(opened, template="<think> </think>", thinking={"type": "disabled"})
    assert caught.value.param == "thinking.type"


# Refusals

BLOCK = "messages[0].content[0]"
SERVER_TOOL = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}


@pytest.mark.parametrize(
    ("block", "code", "param"),
    [
        ({"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}, "unsupported_content", "type"),
        ({"type": "document", "source": {"type": "text", "data": "a"}}, "unsupported_content", "type"),
        ({"type": "redacted_thinking", "data": "a"}, "unsupported_content", "type"),
        ({"type": "server_tool_use", "id": "t", "name": "web_search", "input": {}}, "unsupported_content", "type"),
        ({"type": "no-such-type"}, "unsupported_content", "type"),
        ({"type": "text"}, "missing_required_parameter", "text"),
        (USE, "invalid_value", "type"),
        ({"type": "thinking", "thinking": "a"}, "invalid_value", "type"),
        (RESULT, "invalid_value", "tool_use_id"),
        ({"type": "tool_result", "content": "a"}, "missing_required_parameter", "tool_use_id"),
    ],
)
def test_blocks_that_are_refused(block: Any, code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        to_chat(body({"role": "user", "content": [block]}))
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, f"{BLOCK}.{param}")


def test_an_image_in_a_result_is_refused() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    result = {**RESULT, "content": [text("a"), image]}
    with pytest.raises(ApiError, match="'image'") as caught:
        to_chat(body(HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [result]}))
    assert caught.value.param == "messages[2].content[0].content[1].type"


@pytest.mark.parametrize(
    ("last", "fields", "param"),
    [
        ([USE], {}, "messages[1].content"),
        ([text("a"), USE], {}, "messages[1].content"),
        ([{"type": "thinking", "thinking": "a"}], {}, "messages[1].content"),
        ("a", {"thinking": {"type": "adaptive"}}, "thinking"),
        ("{", {"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
    ],
)
def test_answers_that_cannot_be_continued(last: Any, fields: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        to_chat(body(HI, {"role": "assistant", "content": last}, **fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [SERVER_TOOL]}, "tools[0].type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{**TOOL, "input_examples": [{"a": 1}]}]}, "tools[0].input_examples"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.type"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 9}}}, "output_config.task_budget"),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
                "output_format": {"type": "json_schema", "schema": {}},
            },
            "output_format",
        ),
    ],
)
def test_options_that_are_refused(fields: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        job(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_message_is_needed() -> None:
    with pytest.raises(ApiError) as caught:
        to_chat(body({"role": "assistant", "content": ""}))
    assert caught.value.param == "messages"


def test_the_input_of_a_call_is_an_object() -> None:
    for given in (None, [1], "a"):
        with pytest.raises(ApiError) as caught:
            to_chat(body(HI, {"role": "assistant", "content": [{**USE, "input": given}]}, HI))
        assert caught.value.param == "messages[1].content[0].input"


@pytest.mark.parametrize("field", ["service_tier", "inference_geo", "metadata", "cache_control", "stream"])
def test_fields_without_effect_are_known(field: str) -> None:
    value: Any = {"metadata": {"user_id": "u"}, "cache_control": {"type": "ephemeral"}, "stream": None}.get(field, "a")
    data = msgspec.json.encode({"model": "m", "max_tokens": 9, "messages": [HI], field: value})
    assert decode_openai(data, MessagesBody, strict=True, names=FIELDS)[1] == 0
