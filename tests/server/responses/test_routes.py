"""Responses through the official client: made, streamed, followed, stored, cancelled and deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent

from bough.runtime.protocol.errors import ErrorInfo, OverloadedError
from bough.runtime.protocol.request import Request
from bough.server.http.keys import parse_keys

from ..conftest import Running, Start
from ..fake_client import ByteTokenizer, FakeClient, Script

CALLS = "tools <tool_call> arguments"
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
KEYS = parse_keys(["a key-a-0123456789", "b key-b-0123456789"])


def create(server: Running, **fields: Any) -> Any:
    return server.openai().responses.create(**{"model": "m", "input": "hi", **fields})


def saying(*pieces: str, template: str = "", **script: Any) -> FakeClient:
    return FakeClient(lambda _: Script(pieces, **script), tokenizer=ByteTokenizer(template=template))


def post(server: Running, **fields: Any) -> Any:
    return server.http().post("/v1/responses", json={"model": "m", "input": "hi", **fields})


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each with the strict type."""
    events = []
    for part in text.split("\n\n")[:-1]:
        if part.startswith(":"):
            continue
        data = part.partition("\ndata: ")[2]
        pydantic.TypeAdapter[Any](ResponseStreamEvent).validate_json(data, strict=True)
        events.append(json.loads(data))
    return events


# Made


def test_a_response_has_text_usage_and_the_strict_types(server: Running) -> None:
    response = post(server)
    answer = pydantic.TypeAdapter(Response).validate_json(response.content, strict=True)
    assert (answer.status, answer.output_text) == ("completed", "Hello")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len("user: hi\n"), 5)
    assert answer.usage.input_tokens_details.cached_tokens == 3
    assert response.headers["x-request-id"].removeprefix("req_") == answer.id.removeprefix("resp_")


def test_a_stream_has_the_strict_types_and_no_done_mark(server: Running) -> None:
    response = post(server, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_of(response.text)
    assert [event["sequence_number"] for event in events] == list(range(10))
    assert events[-1]["type"] == "response.completed"
    assert "[DONE]" not in response.text


def test_the_stream_helper_agrees_with_the_whole(server: Running) -> None:
    with server.openai().responses.stream(model="m", input="hi") as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert said == final.output_text == create(server).output_text == "Hello"


def test_the_async_client_streams(server: Running) -> None:
    async def collect() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.responses.create(model="m", input="hi", stream=True)
            return [event.type async for event in stream]

    assert asyncio.run(collect())[-1] == "response.completed"


class City(pydantic.BaseModel):
    name: str
    population: int


def test_parse_returns_an_object_and_passes_its_schema_on(start: Start) -> None:
    server = start(saying('{"name": "Rome",', ' "population": 3}'))
    answer = server.openai().responses.parse(model="m", input="hi", text_format=City)
    assert answer.output_parsed == City(name="Rome", population=3)
    grammar: Any = server.engine.asked[0].grammar
    assert list(json.loads(grammar.schema)["properties"]) == ["name", "population"]
    with server.openai().responses.stream(model="m", input="hi", text_format=City) as stream:
        assert stream.get_final_response().output_parsed == City(name="Rome", population=3)


def test_a_call_and_its_output_make_a_conversation(start: Start) -> None:
    def script(request: Request) -> Script:
        if b"Sunny" in bytes(request.prompt):
            return Script(["It is sunny."])
        return Script(['<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'])

    server = start(FakeClient(script, tokenizer=ByteTokenizer(template=CALLS)))
    given: list[Any] = [{"role": "user", "content": "Is it sunny in Oslo?"}]
    first = create(server, input=given, tools=[TOOL])
    (call,) = first.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Oslo"})
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}
    assert create(server, input=[*given, *first.output, output], tools=[TOOL]).output_text == "It is sunny."
    followed = create(server, input=[output], tools=[TOOL], previous_response_id=first.id)
    assert followed.output_text == "It is sunny."
    assert server.engine.asked[1].prompt == server.engine.asked[2].prompt
    with server.openai().responses.stream(model="m", input=given, tools=[TOOL]) as stream:
        streamed: Any = stream.get_final_response().output[0]
    assert (streamed.type, streamed.arguments) == ("function_call", call.arguments)


def test_a_quiet_stream_sends_comments(start: Start) -> None:
    server = start(saying("a", "b", delay_s=0.2), ping_interval_s=0.05)
    assert ": ping\n\n" in post(server, stream=True).text


# Errors


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"model": "other"}, openai.NotFoundError, "model_not_found"),
        ({"temperature": 3}, openai.BadRequestError, "decimal_above_max_value"),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "unsupported_value"),
        ({"tools": [{"type": "mcp", "server_label": "s", "server_url": "u"}]}, openai.BadRequestError,
         "unsupported_value"),
        ({"conversation": "conv_1"}, openai.BadRequestError, "unsupported_parameter"),
        ({"extra_body": {"lora_path": "x"}}, openai.BadRequestError, "unsupported_parameter"),
        ({"previous_response_id": "resp_x"}, openai.BadRequestError, "previous_response_not_found"),
        ({"background": True, "store": False}, openai.BadRequestError, "invalid_value"),
        ({"extra_body": {"stream_options": {}}}, openai.BadRequestError, "invalid_value"),
    ],
)  # fmt: skip
def test_errors_are_those_of_the_other_routes(server: Running, fields: Any, kind: Any, code: str) -> None:
    with pytest.raises(kind) as caught:
        create(server, **fields)
    assert caught.value.code == code


def test_unknown_fields_are_counted_or_refused(start: Start) -> None:
    assert post(start(), surprise=1).status_code == 200
    refused = post(start(strict_params=True), surprise=1).json()["error"]
    assert (refused["code"], refused["param"]) == ("unknown_parameter", "surprise")


def test_a_refused_generation_is_a_plain_error(start: Start) -> None:
    server = start(FakeClient(lambda _: Script(refuse=OverloadedError("full"))))
    for fields in ({}, {"stream": True}, {"background": True}):
        assert post(server, **fields).status_code == 503
    assert server.wait_for(lambda: server.lifecycle.num_running == 0, 5.0)


def test_a_failure_in_mid_stream_is_a_failed_response(start: Start) -> None:
    server = start(saying("Hel", die=RuntimeError("secret /etc/passwd")))
    response = post(server, stream=True)
    last = events_of(response.text)[-1]
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert "secret" not in response.text
    stored = server.openai().responses.retrieve(last["response"]["id"])
    assert (stored.status, stored.output_text) == ("failed", "Hel")
    assert post(server).status_code == 500


def test_a_failed_generation_has_its_own_code(start: Start) -> None:
    error = ErrorInfo(code="generation_timeout", message="Too late.")
    server = start(saying("Hel", reason="error", error=error))
    assert events_of(post(server, stream=True).text)[-1]["response"]["error"]["type"] == "generation_timeout"
    assert post(server).json()["error"]["code"] == "generation_timeout"


def test_a_client_that_leaves_ends_its_response_which_is_not_stored(start: Start) -> None:
    server = start(saying(*"abcdefgh" * 20, delay_s=0.05))
    stream = create(server, stream=True)
    first = next(iter(stream))
    stream.close()
    assert server.wait_for(lambda: len(server.engine.aborted) == 1, 5.0)
    with pytest.raises(openai.NotFoundError):
        server.openai().responses.retrieve(first.response.id)


def test_a_stream_that_the_server_cuts_off_ends_with_an_error_event(start: Start) -> None:
    server = start(saying(*"Hello" * 100, delay_s=0.05))
    stream = create(server, stream=True)
    next(stream)
    server.server.should_exit = True
    last = list(stream)[-1]
    assert (last.type, last.code) == ("error", "shutting_down")
    assert last.sequence_number > 0


# Stored


def test_a_response_is_stored_until_it_is_deleted(server: Running) -> None:
    client = server.openai()
    for response in (create(server, metadata={"k": "v"}), list(create(server, stream=True))[-1].response):
        assert client.responses.retrieve(response.id) == response
        client.responses.delete(response.id)
        for missing in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError) as caught:
                missing(response.id)
            assert (caught.value.code, caught.value.param) == ("response_not_found", "response_id")
    deleted = server.http().delete(f"/v1/responses/{create(server).id}").json()
    assert (deleted["object"], deleted["deleted"]) == ("response", True)


def test_what_is_not_to_be_stored_is_not(server: Running) -> None:
    response = create(server, store=False)
    with pytest.raises(openai.NotFoundError):
        server.openai().responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError):
        create(server, previous_response_id=response.id)


def test_a_server_may_store_nothing(start: Start) -> None:
    server = start(max_responses=0)
    response = post(server).json()
    assert response["store"] is False
    assert server.http().get(f"/v1/responses/{response['id']}").status_code == 404
    for name in ("store", "background"):
        refused = post(server, **{name: True}).json()["error"]
        assert (refused["code"], refused["param"]) == ("unsupported_value", name)


def test_a_conversation_shares_its_prefix(server: Running) -> None:
    first = create(server, input="one", instructions="Be brief.")
    second = create(server, input="two", instructions="Be brief.", previous_response_id=first.id)
    third = create(server, input="three", previous_response_id=second.id)
    asked = [bytes(request.prompt).decode() for request in server.engine.asked]
    assert asked[1] == f"{asked[0]}assistant: Hello\nuser: two\n"
    assert asked[2] == "user: one\nassistant: Hello\nuser: two\nassistant: Hello\nuser: three\n"
    assert third.previous_response_id == second.id


def test_items_of_stored_responses_can_be_referred_to(server: Running) -> None:
    first = create(server, input="one")
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    create(server, input=[reference, {"role": "user", "content": "two"}])
    assert bytes(server.engine.asked[1].prompt).decode() == "assistant: Hello\nuser: two\n"
    missing: Any = {"type": "item_reference", "id": "msg_other"}
    with pytest.raises(openai.NotFoundError):
        create(server, input=[missing])


def test_input_items_come_in_pages(server: Running) -> None:
    client = server.openai()
    given: Any = [{"role": "user", "content": f"{index}"} for index in range(5)]
    response = create(server, input=given)
    page = server.http().get(f"/v1/responses/{response.id}/input_items?limit=2").json()
    pydantic.TypeAdapter(ResponseItemList).validate_json(json.dumps(page), strict=True)
    assert [item["content"][0]["text"] for item in page["data"]] == ["4", "3"]
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][1]["id"])
    assert page["has_more"] is True
    listed: list[Any] = list(client.responses.input_items.list(response.id, limit=2, order="asc"))
    assert [item.content[0].text for item in listed] == ["0", "1", "2", "3", "4"]
    assert len(list(client.responses.input_items.list(response.id))) == 5


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=msg_other", "limit=²"])
def test_a_wrong_page_is_refused(server: Running, query: str) -> None:
    answer = server.http().get(f"/v1/responses/{create(server).id}/input_items?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


def test_no_key_sees_or_changes_what_another_has(start: Start) -> None:
    server = start(saying("a", "b", delay_s=0.2), keys=KEYS, max_responses=2)
    mine, theirs = (server.openai(key=key) for key in ("key-a-0123456789", "key-b-0123456789"))
    done = mine.responses.create(model="m", input="secret")
    running = mine.responses.create(model="m", input="secret", background=True)
    tries: list[Callable[[str], Any]] = [
        theirs.responses.retrieve,
        theirs.responses.cancel,
        theirs.responses.delete,
        theirs.responses.input_items.list,
    ]
    for response in (done, running):
        for attempt in tries:
            with pytest.raises(openai.NotFoundError):
                attempt(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        theirs.responses.create(model="m", input="x", previous_response_id=done.id)
    assert caught.value.code == "previous_response_not_found"
    reference: Any = [{"type": "item_reference", "id": done.output[0].id}]
    with pytest.raises(openai.NotFoundError):
        theirs.responses.create(model="m", input=reference)
    for _ in range(3):  # more than there is room for, by the other key
        theirs.responses.create(model="m", input="x")
    assert mine.responses.retrieve(done.id) == done
    assert server.wait_for(lambda: mine.responses.retrieve(running.id).status == "completed", 5.0)


# In the background


def finished(server: Running, response_id: str) -> Any:
    responses = server.openai().responses
    assert server.wait_for(lambda: responses.retrieve(response_id).status not in ("queued", "in_progress"), 5.0)
    return responses.retrieve(response_id)


def test_a_response_in_the_background_is_made_without_its_client(start: Start) -> None:
    server = start(saying(*"Hello", delay_s=0.2))
    response = create(server, background=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    assert server.openai().responses.retrieve(response.id).status == "in_progress"
    done = finished(server, response.id)
    assert (done.status, done.output_text, done.usage.output_tokens) == ("completed", "Hello", 5)
    assert create(server, previous_response_id=response.id).output_text == "Hello"
    assert server.wait_for(lambda: server.lifecycle.num_running == 0, 5.0)


def test_a_response_that_is_not_over_cannot_be_followed_on(start: Start) -> None:
    server = start(saying(*"ab", delay_s=1.0))
    response = create(server, background=True)
    with pytest.raises(openai.BadRequestError) as caught:
        create(server, previous_response_id=response.id)
    assert caught.value.code == "response_in_progress"


def test_cancelling_ends_the_generation_and_may_be_repeated(start: Start) -> None:
    server = start(saying(*"Hello" * 100, delay_s=0.05))
    client = server.openai()
    response = create(server, background=True)
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert len(server.engine.aborted) == 1
    assert client.responses.cancel(response.id) == cancelled == client.responses.retrieve(response.id)
    assert server.wait_for(lambda: server.lifecycle.num_running == 0, 5.0)


def test_only_the_background_can_be_cancelled_or_streamed_again(server: Running) -> None:
    response = create(server)
    with pytest.raises(openai.BadRequestError, match="background"):
        server.openai().responses.cancel(response.id)
    with pytest.raises(openai.BadRequestError, match="background"):
        server.openai().responses.retrieve(response.id, stream=True)


def test_deleting_ends_the_generation(start: Start) -> None:
    server = start(saying(*"Hello" * 100, delay_s=0.05))
    response = create(server, background=True)
    server.openai().responses.delete(response.id)
    assert len(server.engine.aborted) == 1
    with pytest.raises(openai.NotFoundError):
        server.openai().responses.retrieve(response.id)
    assert server.wait_for(lambda: server.lifecycle.num_running == 0, 5.0)


def test_who_follows_a_response_that_is_ended_hears_of_it(start: Start) -> None:
    server = start(saying(*"Hello" * 100, delay_s=0.05))
    for end in (server.openai().responses.delete, server.openai().responses.cancel):
        stream = create(server, background=True, stream=True)
        end(next(stream).response.id)
        last = list(stream)[-1]
        assert (last.type, last.response.status) == ("response.incomplete", "cancelled")


def test_events_of_the_background_can_be_followed_from_anywhere(start: Start) -> None:
    server = start(saying(*"Hello", delay_s=0.05), ping_interval_s=0.02)
    stream = create(server, background=True, stream=True)
    seen = [next(stream) for _ in range(4)]
    stream.close()
    response_id = seen[0].response.id
    rest = list(server.openai().responses.retrieve(response_id, stream=True, starting_after=3))
    numbers = [event.sequence_number for event in (*seen, *rest)]
    assert numbers == list(range(len(numbers)))
    assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert rest[-1].type == "response.completed"
    again = server.http().get(f"/v1/responses/{response_id}?stream=true").text
    assert [event["sequence_number"] for event in events_of(again)] == numbers
    with server.openai().responses.stream(response_id=response_id, starting_after=5) as helper:
        assert helper.get_final_response().output_text == "Hello"
    assert not server.engine.aborted
    answer = server.http().get(f"/v1/responses/{response_id}?stream=true&starting_after=-1")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")


def test_a_failure_in_the_background_is_told_by_the_response(start: Start) -> None:
    server = start(saying("Hel", delay_s=0.2, die=RuntimeError("secret")))
    failed = finished(server, create(server, background=True).id)
    assert (failed.status, failed.error.code, failed.output_text) == ("failed", "server_error", "Hel")
    assert "secret" not in failed.error.message


def test_a_response_in_the_background_counts_as_a_running_request_of_its_key(start: Start) -> None:
    keys = parse_keys(["a key-a-0123456789 concurrent_requests=2 tokens_per_minute=1000"])
    server = start(saying(*"Hello" * 100, delay_s=0.05), keys=keys)
    client = server.openai(key="key-a-0123456789")
    running = [client.responses.create(model="m", input="hi", background=True) for _ in range(2)]
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="m", input="hi", background=True)
    assert client.responses.cancel(running[0].id).status == "cancelled"
    client.responses.delete(running[1].id)
    assert client.responses.create(model="m", input="hi", background=True).status == "queued"


def test_the_background_has_bounded_room(start: Start) -> None:
    server = start(saying(*"ab", delay_s=1.0), max_responses=1)
    create(server, background=True)
    with pytest.raises(openai.RateLimitError, match="in the background"):
        create(server, background=True)
    assert server.wait_for(lambda: len(server.engine.aborted) == 1, 5.0)


def test_a_server_that_ends_fails_what_is_in_the_background(start: Start) -> None:
    server = start(saying(*"Hello" * 100, delay_s=0.05))
    stream = create(server, background=True, stream=True)
    next(stream)
    server.server.should_exit = True
    last = list(stream)[-1]
    assert last.type in ("response.failed", "error")
