"""The Messages API over HTTP, as its official client sees it: answers, streams, tools, counts, keys and errors."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import jsonschema
import pytest
from anthropic.types import Message
from pydantic import BaseModel, TypeAdapter

from bough.runtime.protocol.errors import ErrorInfo, OverloadedError
from bough.server.http.keys import parse_keys

from ..conftest import Running, Start
from ..fake_client import INFO, ByteTokenizer, FakeClient, Script

HI: Any = [{"role": "user", "content": "hi"}]
MESSAGES = "/v1/messages"
BODY: Any = {"model": "m", "max_tokens": 64, "messages": HI}
WEATHER: Any = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
TAGGED = "tools <tool_call> arguments"
THINKING = "enable_thinking <think> </think>"


def serve(start: Start, *pieces: str, template: str = "tools", **script: Any) -> Running:
    return start(FakeClient(lambda _: Script(pieces, **script), tokenizer=ByteTokenizer(template=template)))


def create(server: Running, **fields: Any) -> Message:
    """An answer; the newest client has no parameters for some of the fields that it may be asked with."""
    message = server.anthropic().messages.create(**BODY, extra_body=fields)
    TypeAdapter(Message).validate_python(message.to_dict(), strict=True)
    return message


def without_id(answer: BaseModel) -> dict[str, Any]:
    return answer.model_dump(exclude_none=True) | {"id": ""}


def events(server: Running, **fields: Any) -> list[tuple[str, Any]]:
    """The events of a stream as they are sent, by name."""
    text = server.http().post(MESSAGES, json={**BODY, "stream": True, **fields}).text
    found = []
    for part in text.split("\n\n")[:-1]:
        name, data = part.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        assert found[-1][1]["type"] == found[-1][0]
    return found


# Answers and streams


def test_an_answer(server: Running) -> None:
    message = create(server, system="Be brief.", temperature=0.5, top_k=5, top_p=0.9, stop_sequences=["\n"])
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello", "citations": None}]
    assert (message.role, message.model, message.stop_reason, message.stop_sequence) == (
        "assistant", "m", "end_turn", None,
    )  # fmt: skip
    assert message.id.startswith("msg_") and message._request_id == f"req_{message.id.removeprefix('msg_')}"
    prompt = "system: Be brief.\nuser: hi\n"
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == len(prompt)
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens, usage.output_tokens) == (3, 0, 5)
    (request,) = server.engine.asked
    sampling = request.sampling
    assert bytes(request.prompt).decode() == prompt
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.max_tokens) == (0.5, 5, 0.9, 64)
    assert sampling.stop_strings == ("\n",)


def test_a_stream_is_what_the_whole_is(server: Running) -> None:
    whole = create(server)
    with server.anthropic().messages.stream(**BODY) as stream:
        texts = list(stream.text_stream)
        streamed = stream.get_final_message()
    assert "".join(texts) == "Hello" and len(texts) == 2
    assert without_id(streamed) == without_id(whole)


def test_the_events_of_a_stream(server: Running) -> None:
    found = events(server)
    assert [name for name, _ in found] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    begun = found[0][1]["message"]
    assert (begun["content"], begun["stop_reason"], begun["type"], begun["role"]) == ([], None, "message", "assistant")
    assert begun["usage"] == {
        "input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3, "output_tokens": 0,
    }  # fmt: skip
    assert found[1][1]["content_block"] == {"type": "text", "text": "", "citations": None}
    assert found[2][1] == {
        "type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"},
    }  # fmt: skip
    assert found[-2][1] == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {**begun["usage"], "output_tokens": 5},
    }


def test_a_rest_before_the_first_event_is_bridged(start: Start) -> None:
    engine = FakeClient(lambda _: Script(delay_s=0.3))
    server = start(engine, ping_interval_s=0.05)
    text = server.http().post(MESSAGES, json={**BODY, "stream": True}).text
    assert text.startswith(": ping\n\n") and text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')
    with server.anthropic().messages.stream(**BODY) as stream:
        assert stream.get_final_text() == "Hello"


@pytest.mark.parametrize(
    ("script", "fields", "expected"),
    [
        ({}, {}, ("end_turn", None)),
        ({"matched": 256}, {"stop_sequences": ["."]}, ("end_turn", None)),
        ({"matched": "."}, {"stop_sequences": ["!", "."]}, ("stop_sequence", ".")),
        ({"reason": "length"}, {}, ("max_tokens", None)),
        ({"reason": "length"}, {"max_tokens": INFO.max_model_len}, ("model_context_window_exceeded", None)),
    ],
)
def test_why_an_answer_stopped(start: Start, script: Any, fields: Any, expected: Any) -> None:
    server = serve(start, "A", **script)
    message = create(server, **fields)
    assert (message.stop_reason, message.stop_sequence) == expected
    assert events(server, **fields)[-2][1]["delta"] == dict(
        zip(("stop_reason", "stop_sequence"), expected, strict=True)
    )


def test_max_tokens_beyond_the_context_is_what_the_context_has_left(server: Running) -> None:
    create(server, max_tokens=1_000_000)
    (request,) = server.engine.asked
    assert request.sampling.max_tokens == INFO.max_model_len - len(request.prompt)


def test_an_answer_that_is_begun_is_continued(start: Start) -> None:
    server = serve(start, "lo")
    message = create(server, messages=[*HI, {"role": "assistant", "content": "Hel"}])
    assert message.content[0].text == "lo"  # type: ignore[union-attr]
    (options,) = server.engine.tokenizer.options
    assert (options["continue_final_message"], options["add_generation_prompt"]) == (True, False)


# Tools


@pytest.mark.parametrize("template", ["tools", TAGGED])
@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_call(start: Start, template: str, choice: Any) -> None:
    text = CALL if template == "tools" else f"<tool_call>\n{CALL}\n</tool_call>"
    server = serve(start, *text, template=template)
    message = create(server, tools=[WEATHER], tool_choice=choice)
    (block,) = message.content
    assert block.type == "tool_use"
    assert (block.name, block.input, message.stop_reason) == ("weather", {"city": "Rome"}, "tool_use")
    assert block.id.startswith("toolu_")
    with server.anthropic().messages.stream(**BODY, tools=[WEATHER], tool_choice=choice) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        (streamed,) = stream.get_final_message().content
    assert json.loads("".join(parts)) == {"city": "Rome"}
    assert streamed.type == "tool_use" and streamed.input == {"city": "Rome"}


def test_text_and_several_calls(start: Start) -> None:
    call = f"<tool_call>\n{CALL}\n</tool_call>"
    server = serve(start, *f"Let me see.\n{call}\n{call}", template=TAGGED)
    message = create(server, tools=[WEATHER])
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    assert len({block.id for block in message.content[1:]}) == 2  # type: ignore[union-attr]
    with server.anthropic().messages.stream(**BODY, tools=[WEATHER]) as stream:
        final = stream.get_final_message()
    assert list(map(without_id, final.content)) == list(map(without_id, message.content))
    indexes = [data["index"] for name, data in events(server, tools=[WEATHER]) if name == "content_block_stop"]
    assert indexes == [0, 1, 2]


def test_a_conversation_with_tools(start: Start) -> None:
    server = serve(start, *CALL)
    client = server.anthropic()
    asked: list[Any] = [{"role": "user", "content": "Is it warm?"}]
    answer = client.messages.create(**{**BODY, "messages": asked}, tools=[WEATHER])
    (call,) = answer.content
    assert call.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "31 degrees"}
    asked += [answer.to_param(), {"role": "user", "content": [result, {"type": "text", "text": "So?"}]}]
    client.messages.create(**{**BODY, "messages": asked}, tools=[WEATHER])
    assert server.engine.tokenizer.rendered[-1] == (
        "[weather]user: Is it warm?\nassistant: \ntool: 31 degrees\nuser: So?\n"
    )


def test_a_call_that_is_cut_off(start: Start) -> None:
    server = serve(start, '{"name": "weather", "arguments": {"ci', reason="length")
    message = create(server, tools=[WEATHER], tool_choice={"type": "any"})
    assert message.stop_reason == "max_tokens"
    assert message.content[0].input == {}  # type: ignore[union-attr]


# Formats


class City(BaseModel):
    name: str
    days: int


def test_a_format_is_enforced_and_parsed(start: Start) -> None:
    server = serve(start, '{"name": "Rome", "days": 3}')
    message = server.anthropic().messages.parse(**BODY, output_format=City)
    assert message.parsed_output == City(name="Rome", days=3)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "schema": schema}
    create(server, output_config={"format": form})
    server.http().post(MESSAGES, json={**BODY, "output_format": form}).raise_for_status()
    parsed, new, old = server.engine.asked
    assert new.grammar == old.grammar
    assert json.loads(new.grammar.schema) == schema  # type: ignore[union-attr]
    jsonschema.validate({"name": "Rome", "days": 3}, json.loads(parsed.grammar.schema))  # type: ignore[union-attr]


# Thinking


def test_thinking_is_a_block_of_its_own(start: Start) -> None:
    server = serve(start, *"<think>\nTwo and two.</think>\n\nFour.", template=THINKING)
    fields: Any = {"max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    message = create(server, **fields)
    thought, said = message.content
    assert thought.type == "thinking" and thought.thinking == "Two and two."
    assert said.type == "text" and said.text == "Four."
    with server.anthropic().messages.stream(**{**BODY, **fields}) as stream:
        thoughts = [event.thinking for event in stream if event.type == "thinking"]
        assert list(map(without_id, stream.get_final_message().content)) == list(map(without_id, message.content))
    assert "".join(thoughts) == "Two and two."
    fields["thinking"]["display"] = "omitted"
    assert create(server, **fields).content[0].thinking == ""  # type: ignore[union-attr]
    for request, options in zip(server.engine.asked, server.engine.tokenizer.options, strict=True):
        assert request.grammar.reasoning_budget == 1024  # type: ignore[union-attr]
        assert options["template_kwargs"]["enable_thinking"] is True


def test_adaptive_thinking_may_be_none(start: Start) -> None:
    server = serve(start, *"<three", template=THINKING)
    message = create(server, thinking={"type": "adaptive"})
    assert [(block.type, block.text) for block in message.content] == [("text", "<three")]  # type: ignore[union-attr]


def test_thinking_is_off_unless_it_is_asked_for(start: Start) -> None:
    server = serve(start, "Four.", template=THINKING)
    for fields in ({}, {"thinking": {"type": "disabled"}}):
        assert [block.type for block in create(server, **fields).content] == ["text"]
    assert [each["template_kwargs"]["enable_thinking"] for each in server.engine.tokenizer.options] == [False, False]


# Counts


def test_tokens_are_counted_as_they_are_asked(server: Running) -> None:
    prompt: Any = {"model": "m", "system": "Be brief.", "messages": HI, "tools": [WEATHER]}
    counted = server.anthropic().messages.count_tokens(**prompt).input_tokens
    usage = create(server, **prompt).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert len(server.engine.asked) == 1
    long: Any = [{"role": "user", "content": "x" * (INFO.max_model_len + 1)}]
    assert server.anthropic().messages.count_tokens(model="m", messages=long).input_tokens > INFO.max_model_len


# Keys


def test_the_client_s_key_opens(start: Start) -> None:
    server = start(keys=parse_keys(["alice key-a", "bob key-b"]))
    for client in (server.anthropic(key="key-a"), server.anthropic(auth_token="key-b", key=None)):  # type: ignore[arg-type]
        assert client.messages.create(**BODY).stop_reason == "end_turn"
    assert [request.namespace for request in server.engine.asked] == ["alice", "bob"]
    with pytest.raises(anthropic.AuthenticationError) as caught:
        server.anthropic(key="key-x").messages.create(**BODY)
    assert caught.value.type == "authentication_error"
    assert caught.value.body["request_id"] == caught.value.request_id  # type: ignore[index]


# Errors


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"temperature": 1.5}, "temperature: "),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"messages": []}, "messages: "),
        ({"messages": "hi"}, "messages: "),
        ({"top_p": 2}, "top_p: "),
        ({"stop_sequences": [""]}, "stop_sequences.0: "),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role: "),
        ({"container": "c"}, "container is not supported"),
        ({"mcp_servers": [{"type": "url", "url": "https://a.example", "name": "a"}]}, "mcp_servers is not supported"),
        ({"tools": [{"name": "f", "input_schema": {"type": "no"}}]}, "tools.0.input_schema: "),
        ({"output_config": {"format": {"type": "json_schema", "schema": "a"}}}, "output_config.format.schema: "),
    ],
)
def test_a_request_that_is_wrong(server: Running, fields: Any, told: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(server, **fields)
    assert caught.value.type == "invalid_request_error"
    message = caught.value.body["error"]["message"]  # type: ignore[index]
    assert message.startswith(told), message


@pytest.mark.parametrize("num_chars", [INFO.max_model_len, 1_000_000])
def test_a_prompt_that_is_too_long_is_known_by_its_words(server: Running, num_chars: int) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        create(server, messages=[{"role": "user", "content": "x" * num_chars}])


def test_a_missing_field_is_named(server: Running) -> None:
    response = server.http().post(MESSAGES, json={"model": "m", "messages": HI})
    assert response.status_code == 400
    assert response.json() == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "Missing required parameter: max_tokens",
            "details": {"error_code": "missing_required_parameter"},
        },
        "request_id": response.headers["request-id"],
    }


def test_errors_have_the_classes_of_the_client(start: Start) -> None:
    server = serve(start, refuse=OverloadedError("the queue is full"))
    client = server.anthropic()
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**{**BODY, "model": "other"})
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic._exceptions.OverloadedError) as overloaded:
        client.messages.create(**BODY)
    assert (overloaded.value.status_code, overloaded.value.type) == (529, "overloaded_error")
    assert int(overloaded.value.response.headers["retry-after"]) >= 1
    response = server.http().post("/v1/messages/batches", json={})
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
    response = server.http().get(MESSAGES)
    assert (response.status_code, response.json()["error"]["type"]) == (405, "invalid_request_error")


def test_overloads_are_tried_again(start: Start) -> None:
    refusals = iter([OverloadedError("the queue is full"), None])
    server = start(FakeClient(lambda _: Script(refuse=next(refusals))))
    assert server.anthropic(max_retries=1).messages.create(**BODY).stop_reason == "end_turn"


def test_a_body_that_is_too_large(start: Start) -> None:
    server = start(max_body_bytes=1000)
    with pytest.raises(anthropic.APIStatusError) as caught:
        server.anthropic().messages.create(**{**BODY, "system": "x" * 2000})
    assert (caught.value.status_code, caught.value.type) == (413, "request_too_large")


def test_a_server_that_ends_says_so(start: Start) -> None:
    server = start()
    server.lifecycle.drain()
    with pytest.raises(anthropic.InternalServerError) as caught:
        server.anthropic().messages.create(**BODY)
    assert (caught.value.status_code, caught.value.type) == (503, "overloaded_error")


def test_a_stream_that_fails_ends_with_an_error(start: Start) -> None:
    error = ErrorInfo(code="engine_overloaded", message="no room")
    server = serve(start, "Hel", reason="error", error=error)
    name, told = events(server)[-1]
    assert (name, told["error"]["type"], told["error"]["message"]) == ("error", "overloaded_error", "no room")
    assert told["request_id"].startswith("req_")
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(server.anthropic().messages.create(**BODY, stream=True))
    assert caught.value.type == "overloaded_error"


def test_clients_of_beta_features_are_served(server: Running) -> None:
    client = server.anthropic().beta.messages
    assert client.create(**BODY, betas=["some-beta-2026-01-01"]).stop_reason == "end_turn"
    with client.stream(**BODY) as stream:
        assert stream.get_final_text() == "Hello"


def test_headers_of_the_protocol_change_nothing(server: Running) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "prompt-caching-2024-07-31"}
    assert create(server, extra_headers=headers).stop_reason == "end_turn"
