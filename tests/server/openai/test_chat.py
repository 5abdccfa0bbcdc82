"""Chats through the official client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from bough.constrain.spec import Choice, Gbnf, JsonSchema, Lark, Regex
from bough.runtime.protocol.request import Request

from ..conftest import Running, Start
from ..fake_client import FakeClient, Script

HI: Any = [{"role": "user", "content": "hi"}]


def create(server: Running, **fields: Any) -> Any:
    fields.setdefault("messages", HI)
    return server.openai().chat.completions.create(model="m", **fields)


def test_an_answer_has_text_usage_and_the_strict_types(server: Running) -> None:
    response = server.http().post("/v1/chat/completions", json={"model": "m", "messages": HI})
    answer = pydantic.TypeAdapter(ChatCompletion).validate_json(response.content, strict=True)
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("user: hi\n")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert response.headers["x-request-id"].startswith("req_")


def test_a_stream_has_the_exact_form(server: Running) -> None:
    body = {"model": "m", "messages": HI, "stream": True, "stream_options": {"include_usage": True}}
    response = server.http().post("/v1/chat/completions", json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert "content-length" not in response.headers
    *events, done, empty = response.text.split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    for chunk in chunks:
        pydantic.TypeAdapter(ChatCompletionChunk).validate_json(json.dumps(chunk), strict=True)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "Hel"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "lo"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}],
        [],
    ]
    assert "usage" not in chunks[0]
    assert chunks[-1]["usage"]["completion_tokens"] == 5


def test_the_async_client_streams(server: Running) -> None:
    async def collect() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(collect()) == "Hello"


class City(pydantic.BaseModel):
    name: str
    population: int


def test_parse_returns_an_object_and_passes_its_schema_on(start: Start) -> None:
    server = start(FakeClient(lambda _: Script(['{"name": "Rome",', ' "population": 3}'])))
    answer = server.openai().chat.completions.parse(model="m", messages=HI, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Rome", population=3)
    grammar = server.engine.asked[0].grammar
    assert isinstance(grammar, JsonSchema)
    assert list(json.loads(grammar.schema)["properties"]) == ["name", "population"]


def test_three_choices_have_seeds_of_their_own_and_agree_with_the_stream_helper(start: Start) -> None:
    server = start(FakeClient(lambda request: Script([f"seed {request.sampling.seed}"])))
    answer = create(server, n=3, seed=7)
    assert [choice.message.content for choice in answer.choices] == ["seed 7", "seed 8", "seed 9"]
    assert answer.usage.completion_tokens == 18
    assert answer.usage.prompt_tokens == len("user: hi\n")
    with server.openai().chat.completions.stream(model="m", messages=HI, n=3, seed=7) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["seed 7", "seed 8", "seed 9"]


def test_logprobs_come_with_bytes_and_no_infinities(start: Start) -> None:
    server = start(FakeClient(lambda _: Script(["a", "é"])))
    answer = create(server, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert bytes(byte for entry in content for byte in entry.bytes).decode() == "aé"
    assert content[0].top_logprobs[1].logprob == -9999.0
    assert server.engine.asked[0].sampling.logprobs == 2
    chunks = list(create(server, logprobs=True, stream=True))
    streamed = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in content]


def test_sampling_fields_reach_the_engine(server: Running) -> None:
    extra = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 1,
        "stop_token_ids": [9],
        "ignore_eos": True,
    }
    create(
        server, temperature=0.5, top_p=0.9, max_completion_tokens=50, stop=["x", "y"], logit_bias={"65": -5},
        presence_penalty=0.1, frequency_penalty=0.2, extra_body={**extra, "stop_token_ids": [9]},
    )  # fmt: skip
    sampling = msgspec.structs.asdict(server.engine.asked[0].sampling)
    expected = {
        "temperature": 0.5, "top_p": 0.9, "max_tokens": 50, "stop": ("x", "y"), "logit_bias": {65: -5.0},
        "presence_penalty": 0.1, "frequency_penalty": 0.2, **extra, "stop_token_ids": (9,),
    }  # fmt: skip
    assert {name: sampling[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, JsonSchema('{"type":"object"}')),
        ({"response_format": {"type": "json_object", "schema": {"type": "integer"}}}, JsonSchema('{"type":"integer"}')),
        (
            {"response_format": {"type": "json_object", "schema": {"required": ["a"]}}},
            JsonSchema('{"type":"object","required":["a"]}'),
        ),
        ({"response_format": {"type": "json_object", "schema": {}}}, JsonSchema('{"type":"object"}')),
        ({"response_format": {"type": "json_schema", "schema": {"type": "integer"}}}, JsonSchema('{"type":"integer"}')),
        ({"response_format": {"type": "json", "value": {"type": "integer"}}}, JsonSchema('{"type":"integer"}')),
        ({"response_format": {"type": "regex", "value": "a+"}}, Regex("a+")),
        ({"response_format": {"type": "regex", "pattern": "a+"}}, Regex("a+")),
        ({"response_format": {"type": "grammar", "grammar": 'root ::= "a"'}}, Gbnf('root ::= "a"')),
        ({"response_schema": {"type": "integer"}}, JsonSchema('{"type":"integer"}')),
        ({"output_format": {"type": "json_schema", "schema": {"type": "integer"}}}, JsonSchema('{"type":"integer"}')),
        ({"format": "json"}, JsonSchema('{"type":"object"}')),
        ({"format": {"type": "integer"}}, JsonSchema('{"type":"integer"}')),
        ({"format": ""}, None),
        ({"grammar": 'root ::= "a"'}, Gbnf('root ::= "a"')),
        ({"guided_json_object": True}, JsonSchema('{"type":"object"}')),
        ({"guided_json_object": False}, None),
        ({"structural_tag": '{"format": {"type": "regex", "pattern": "a+"}}'}, Regex("a+")),
        ({"structural_tag": {"format": {"type": "regex", "pattern": "a+"}}}, Regex("a+")),
        ({"guided_json": {"type": "integer"}}, JsonSchema('{"type":"integer"}')),
        ({"guided_json": '{"type": "integer"}'}, JsonSchema('{"type": "integer"}')),
        ({"guided_regex": "a+"}, Regex("a+")),
        ({"guided_choice": ["a", "b"]}, Choice(("a", "b"))),
        ({"guided_grammar": 'start: "a"'}, Lark('start: "a"')),
        ({"regex": "a+"}, Regex("a+")),
        ({"ebnf": 'start: "a"'}, Lark('start: "a"')),
        ({"structured_outputs": {"json": {"b": 1, "a": 2}}}, JsonSchema('{"b":1,"a":2}')),
        ({"structured_outputs": {"regex": "a+"}}, Regex("a+")),
        ({"structured_outputs": {"choice": ["a"]}}, Choice(("a",))),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Lark('start: "a"')),
        ({"ebnf": 'root ::= "a"'}, Gbnf('root ::= "a"')),
        ({"guided_grammar": 'root ::= "a"'}, Gbnf('root ::= "a"')),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, Gbnf('root ::= "a"')),
        (
            {"guided_json": {"type": "integer"}, "constraint_policy": "best_effort"},
            JsonSchema('{"type":"integer"}', policy="best_effort"),
        ),
        ({"guided_regex": "a+", "constraint_policy": "best_effort"}, Regex("a+")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}, "strict": True}}},
            JsonSchema("{}", property_order="schema"),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}, "strict": False}}},
            JsonSchema("{}"),
        ),
    ],
)
def test_every_spelling_of_a_constraint(server: Running, fields: dict[str, Any], grammar: object) -> None:
    response = server.http().post("/v1/chat/completions", json={"model": "m", "messages": HI, **fields})
    assert response.status_code == 200, response.text
    assert server.engine.asked[0].grammar == grammar


def test_continuing_with_a_key_and_a_salt_stays_in_its_namespace(server: Running) -> None:
    create(server, extra_body={"cache_salt": "s"})
    create(server)
    assert [request.namespace for request in server.engine.asked] == ["/s", ""]


def test_a_failure_in_mid_stream_is_the_last_event(start: Start) -> None:
    server = start(FakeClient(lambda _: Script(["Hel"], die=RuntimeError("secret /etc/passwd"))))
    body = {"model": "m", "messages": HI, "stream": True}
    response = server.http().post("/v1/chat/completions", json=body)
    last = response.text.split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert "[DONE]" not in response.text
    with pytest.raises(openai.APIError, match="failed"):
        list(create(server, stream=True))


def test_a_quiet_stream_sends_comments(start: Start) -> None:
    server = start(FakeClient(lambda _: Script(["a", "b"], delay_s=0.2)), ping_interval_s=0.05)
    response = server.http().post("/v1/chat/completions", json={"model": "m", "messages": HI, "stream": True})
    assert ": ping\n\n" in response.text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in create(server, stream=True)) == "ab"


def test_the_rest_of_the_context_is_the_default_budget(server: Running) -> None:
    def max_tokens(request: Request) -> int | None:
        return request.sampling.max_tokens

    create(server)
    create(server, max_tokens=4096 - len("user: hi\n"))
    assert [max_tokens(request) for request in server.engine.asked] == [None, 4087]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens") as caught:
        create(server, max_tokens=4088)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_tokens")
