"""Answers as items and events: each piece of what was generated has its place, and a stream tells all in order."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from bough.constrain.receipt import Receipt
from bough.runtime.protocol.request import Finish, RequestOutput, TokenLogprob, Usage
from bough.server.errors import ApiError
from bough.server.openai.replies import ShownTokens
from bough.server.openai.requests import Context
from bough.server.responses import reply as module
from bough.server.responses.objects import ResponseBody
from bough.server.responses.reply import ResponseReply
from bough.server.responses.requests import translate

from ..fake_client import INFO, ByteTokenizer

EVENT: Any = pydantic.TypeAdapter(ResponseStreamEvent)
RESPONSE = pydantic.TypeAdapter(Response)
THINKING = "enable_thinking <think> </think>"
CALLS = "tools <tool_call> arguments"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}


def begun(template: str = "", **fields: Any) -> ResponseReply:
    body = msgspec.json.decode(json.dumps({"model": "m", "input": "hi", **fields}), type=ResponseBody)
    tokenizer: Any = ByteTokenizer(template=template)
    context = Context(id="r", namespace="", tokenizer=tokenizer, info=INFO, timeout_s=9.0, max_sequences=8)
    asked = translate(body, context, (), {}, "n")
    return ResponseReply(body, asked, ShownTokens(tokenizer), name="n", model="m", stored=True)


def output(text: str = "", finish: Finish | None = None, *, logprobs: bool = False) -> RequestOutput:
    tokens = tuple(text.encode())
    entries = tuple(TokenLogprob(token, -0.5, ((token, -0.5),)) for token in tokens) if logprobs else None
    return RequestOutput(id="r", text=text, tokens=tokens, logprobs=entries, finish=finish)


def stop(reason: Any = "stop", **fields: Any) -> Finish:
    return Finish(reason=reason, usage=Usage(prompt_tokens=9, cached_tokens=3, completion_tokens=5), **fields)


def read(events: list[bytes]) -> list[dict[str, Any]]:
    """The events, which have the strict types and are numbered without a gap."""
    read = []
    for event in events:
        name, data, *rest = event.decode().split("\n")
        assert rest == ["", ""]
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        EVENT.validate_json(data.removeprefix("data: "), strict=True)
        read.append(value)
    return read


def streamed(reply: ResponseReply, *pieces: str, finish: Finish | None = None, logprobs: bool = False) -> list[Any]:
    events = reply.begin()
    for piece in pieces:
        events += reply.add(output(piece, logprobs=logprobs))
    events += reply.add(output("", finish or stop()))
    told = read(events)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    final = RESPONSE.validate_json(reply.final, strict=True)
    assert told[-1]["response"] == json.loads(reply.final)
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert done == told[-1]["response"]["output"]
    assert final.id == told[0]["response"]["id"] == "resp_n"
    return told


def types(told: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in told]


def test_a_text_is_told_in_order() -> None:
    told = streamed(begun(stream=True), "Hel", "lo")
    assert types(told) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    assert [event["delta"] for event in told if "delta" in event] == ["Hel", "lo"]
    assert told[2]["item"] == {
        "type": "message", "id": "msg_n_0", "status": "in_progress", "role": "assistant", "content": [],
    }  # fmt: skip
    assert {event["item_id"] for event in told if "item_id" in event} == {"msg_n_0"}
    assert told[-1]["response"]["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0, "forced_tokens": 0},
        "total_tokens": 14,
    }


def test_without_a_stream_there_are_no_events_and_the_same_response() -> None:
    whole, parts = begun(), begun(stream=True)
    streamed(parts, "Hel", "lo")
    assert whole.begin() == whole.add(output("Hello", stop())) == []
    ours, theirs = json.loads(whole.final), json.loads(parts.final)
    assert [value.pop(name) > 0 for value in (ours, theirs) for name in ("created_at", "completed_at")] == [True] * 4
    assert ours == theirs


def test_reasoning_is_an_item_of_its_own_and_its_tokens_are_counted() -> None:
    told = streamed(begun(THINKING, stream=True), "<think>\nhm", "m</think>\n\nO", "k")
    assert types(told)[2:] == [
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    response = told[-1]["response"]
    assert response["output"][0] == {
        "type": "reasoning", "id": "rs_n_0", "status": "completed", "summary": [],
        "content": [{"type": "reasoning_text", "text": "hmm"}],
    }  # fmt: skip
    assert response["output"][1]["content"][0]["text"] == "Ok"
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == len("<think>\nhmm</think>")


@pytest.mark.parametrize("pieces", [["plain ", "text"], ["<th", "ink"], ["<", "b>"], ["plain </think> text"]])
def test_an_answer_that_opens_no_reasoning_has_none(pieces: list[str]) -> None:
    told = streamed(begun(THINKING, stream=True), *pieces)
    (item,) = told[-1]["response"]["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "".join(pieces))
    assert told[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] == 0


def test_calls_are_items_with_the_text_around_them() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": %d}}\n</tool_call>'
    reply = begun(CALLS, stream=True, tools=[TOOL])
    told = streamed(reply, "I look. ", call % 1, call % 22)
    response = told[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "function_call"]
    calls = response["output"][1:]
    assert [call["arguments"] for call in calls] == ['{"a": 1}', '{"a": 22}']
    assert [call["call_id"] for call in calls] == ["call_n_0", "call_n_1"]
    assert [call["status"] for call in calls] == ["completed", "completed"]
    added = [event["item"] for event in told if event["type"] == "response.output_item.added"]
    assert added[1] == {**calls[0], "status": "in_progress", "arguments": ""}
    deltas = [event for event in told if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(event["delta"] for event in deltas if event["output_index"] == 2) == '{"a": 22}'
    done = [event for event in told if event["type"] == "response.function_call_arguments.done"]
    assert [(event["name"], event["item_id"]) for event in done] == [("f", "fc_n_1"), ("f", "fc_n_2")]


def test_log_probabilities_stand_with_their_text() -> None:
    include = ["message.output_text.logprobs"]
    told = streamed(begun(THINKING, stream=True, include=include), "<think>x", "</think>ab", "c", logprobs=True)
    deltas = [event["logprobs"] for event in told if event["type"] == "response.output_text.delta"]
    assert [[entry["token"] for entry in entries] for entries in deltas] == [["a", "b"], ["c"]]
    part = told[-1]["response"]["output"][1]["content"][0]
    assert part["logprobs"] == [*deltas[0], *deltas[1]]
    assert part["logprobs"][0] == {
        "token": "a", "logprob": -0.5, "bytes": [97],
        "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [(["<", "b>", "c"], "<b>c"), (["plain"], "plain"), (["<think>\n\n</think>\n\nab"], "\n\nab"), (["<th"], "<th")],
)
def test_log_probabilities_begin_where_the_reasoning_ends_if_there_is_any(pieces: list[str], tokens: str) -> None:
    told = streamed(begun(THINKING, stream=True, include=["message.output_text.logprobs"]), *pieces, logprobs=True)
    part = told[-1]["response"]["output"][-1]["content"][0]
    assert "".join(entry["token"] for entry in part["logprobs"]) == tokens


def test_log_probabilities_are_of_the_text_before_a_call_in_the_same_output() -> None:
    reply = begun(CALLS, tools=[TOOL], include=["message.output_text.logprobs"])
    reply.begin()
    text = 'Yes.<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    reply.add(output(text, stop(), logprobs=True))
    part = json.loads(reply.final)["output"][0]["content"][0]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"] == "Yes."


def test_log_probabilities_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RESPONSE_LOGPROBS", 4)
    reply = begun(include=["message.output_text.logprobs"])
    reply.add(output("ab", logprobs=True))
    with pytest.raises(ApiError, match="at most 4 log-probabilities"):
        reply.add(output("c", logprobs=True))


def test_an_answer_that_was_cut_off_is_incomplete() -> None:
    told = streamed(begun(stream=True), "Hel", finish=stop("length"))
    response = told[-1]["response"]
    assert told[-1]["type"] == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    assert response["completed_at"] is None


def test_an_empty_answer_is_an_empty_message() -> None:
    told = streamed(begun(stream=True))
    assert types(told)[2:5] == ["output_item.added", "content_part.added", "output_text.done"]
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_a_failure_keeps_what_there_is() -> None:
    reply = begun(stream=True)
    reply.begin()
    reply.add(output("Hel"))
    (last,) = read(reply.fail(ApiError(504, "generation_timeout", "Too late.")))
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {
        "code": "server_error", "message": "Too late.", "param": None, "type": "generation_timeout",
    }  # fmt: skip
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert RESPONSE.validate_json(reply.final, strict=True).status == "failed"


def test_a_cancelled_response_says_so() -> None:
    reply = begun(stream=True, background=True)
    assert types(read(reply.begin())) == ["created", "queued", "in_progress"]
    (last,) = read(reply.cancel())
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert json.loads(reply.final)["background"] is True


def test_a_stream_that_is_cut_off_ends_with_an_error_event() -> None:
    reply = begun(stream=True)
    reply.begin()
    (last,) = read([reply.error_event(ApiError(503, "shutting_down", "Bye.", param="p"))])
    assert last == {"type": "error", "sequence_number": 2, "code": "shutting_down", "message": "Bye.", "param": "p"}


def test_the_response_repeats_what_was_asked_for() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    fields: dict[str, Any] = {
        "instructions": "Be brief.", "metadata": {"k": "v"}, "max_output_tokens": 9, "temperature": 0.5, "top_p": 0.9,
        "text": {"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}, "verbosity": "low"},
        "tools": [{**TOOL, "description": "d", "strict": True}], "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False, "reasoning": {"effort": "low", "summary": "auto"}, "truncation": "auto",
        "user": "u", "safety_identifier": "s", "prompt_cache_key": "p", "max_tool_calls": 3,
    }  # fmt: skip
    reply = begun(**fields, service_tier="flex")
    response = json.loads(reply.encoded())
    assert {name: response[name] for name in fields} == fields
    assert response["service_tier"] == "default"
    RESPONSE.validate_python(Response.model_validate(response))


def test_the_report_of_a_constraint_is_part_of_the_response() -> None:
    reply = begun(regex="a+")
    reply.begin()
    reply.add(output("a", stop(constraint=Receipt(mode="exact", enforced=("pattern",), checked=()))))
    assert json.loads(reply.final)["constraint"] == {"mode": "exact", "enforced": ["pattern"], "checked": []}
