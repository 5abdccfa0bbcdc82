"""Functions as chats had them before tools, through the official client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from bough.constrain.spec import Structural

from ..conftest import Running, Start
from ..fake_client import ByteTokenizer, FakeClient, Script

HI: Any = [{"role": "user", "content": "hi"}]
FUNCTIONS: Any = [{"name": "f", "parameters": {"type": "object", "properties": {}}}, {"name": "g"}]
CALL = ["Well. <tool_call>", '\n{"name": "f", "arguments": ', '{"a": 1}', "}\n</tool_call>"]


@pytest.fixture
def calling(start: Start) -> Running:
    tokenizer = ByteTokenizer(template="tools <tool_call> arguments")
    return start(FakeClient(lambda _: Script(CALL), tokenizer=tokenizer))


def create(server: Running, **fields: Any) -> Any:
    return server.openai().chat.completions.create(model="m", **{"messages": HI, "functions": FUNCTIONS, **fields})


def test_a_call_is_answered_in_the_older_form(calling: Running) -> None:
    answer = create(calling)
    message = answer.choices[0].message
    assert (message.content, message.tool_calls) == ("Well. ", None)
    assert (message.function_call.name, message.function_call.arguments) == ("f", '{"a": 1}')
    assert answer.choices[0].finish_reason == "function_call"
    request = calling.engine.asked[0]
    assert bytes(request.prompt).startswith(b"[f,g]")
    assert isinstance(request.grammar, Structural)
    assert request.grammar.stop_after_first


def test_a_stream_has_the_call_in_deltas(calling: Running) -> None:
    choices = [chunk.choices[0] for chunk in create(calling, stream=True)]
    calls = [choice.delta.function_call for choice in choices if choice.delta.function_call is not None]
    assert [call.name for call in calls] == ["f", *[None] * (len(calls) - 1)]
    assert "".join(call.arguments for call in calls) == '{"a": 1}'
    assert all(choice.delta.tool_calls is None for choice in choices)
    assert choices[-1].finish_reason == "function_call"


def test_a_function_by_name_is_forced(calling: Running) -> None:
    answer = create(calling, function_call={"name": "g"})
    assert answer.choices[0].finish_reason == "stop"
    assert bytes(calling.engine.asked[0].prompt).startswith(b"[g]")
    create(calling, function_call="none")
    assert bytes(calling.engine.asked[1].prompt).startswith(b"user")


def test_calls_and_results_of_the_history_are_those_of_tools(calling: Running) -> None:
    rendered: list[Any] = []
    tokenizer = calling.engine.tokenizer
    encode = tokenizer.encode_chat

    def encode_chat(messages: Any, **options: Any) -> Any:
        rendered.extend(messages)
        return encode(messages, **options)

    tokenizer.encode_chat = encode_chat
    history = [
        *HI,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "3"},
    ]
    create(calling, messages=history)
    assert rendered[1]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]
    assert rendered[2] == {"role": "tool", "name": "f", "tool_call_id": "call_1", "content": "3"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "functions"),
        ({"tool_choice": "auto"}, "functions"),
        ({"function_call": {"name": "h"}}, "function_call.name"),
        ({"functions": [], "function_call": {"name": "f"}}, "function_call"),
        ({"functions": [{"name": "f", "parameters": {"type": 7}}]}, "functions[0].parameters"),
        ({"functions": [{"name": "f"}, {"name": "f", "description": "x"}]}, "functions[1].name"),
        ({"messages": [*HI, {"role": "function", "content": "3"}]}, "messages[1].name"),
    ],
)
def test_errors_name_the_fields_that_were_sent(calling: Running, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        create(calling, **fields)
    assert caught.value.param == param
