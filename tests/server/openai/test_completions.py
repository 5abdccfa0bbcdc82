"""Completions, tokens, models and what else is served beside chats."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import openai
import pydantic
import pytest
from openai.types import Completion

from bough.runtime.protocol.request import TokenLogprob
from bough.server.openai.objects import CompletionBody
from bough.server.openai.replies import CompletionReply, Header, ShownTokens
from bough.server.openai.requests import Context, completion_job

from ..conftest import Running, Start
from ..fake_client import INFO, ByteTokenizer, FakeClient, Script


def test_a_completion_and_its_stream_agree(server: Running) -> None:
    client = server.openai()
    answer = client.completions.create(model="m", prompt="Say")
    pydantic.TypeAdapter(Completion).validate_python(answer.model_dump(), strict=True)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 5)
    options: Any = {"include_usage": True}
    chunks = list(client.completions.create(model="m", prompt="Say", stream=True, stream_options=options))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "Hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == answer.usage
    assert server.engine.asked[0].sampling.max_tokens == 16


def test_tokens_are_healed_where_the_text_is_the_clients(server: Running) -> None:
    client, healing = server.openai(), {"token_healing": True}
    messages: Any = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The sky is "}]
    client.completions.create(model="m", prompt="The sky is ", extra_body=healing)
    client.chat.completions.create(model="m", messages=messages[:1], extra_body=healing)
    open_message = {**healing, "continue_final_message": True, "add_generation_prompt": False}
    client.chat.completions.create(model="m", messages=messages, extra_body=open_message)
    client.completions.create(model="m", prompt="The sky is ")
    assert [request.sampling.token_healing for request in server.engine.asked] == [True, False, True, False]
    with pytest.raises(openai.BadRequestError, match="token_healing"):
        client.completions.create(model="m", prompt="Say", echo=True, logprobs=1, extra_body=healing)


def test_many_prompts_and_choices_are_in_order(start: Start) -> None:
    server = start(FakeClient(lambda request: Script([bytes(request.prompt).decode() + str(request.sampling.seed)])))
    answer = server.openai().completions.create(model="m", prompt=["a", "bb"], n=2, seed=5)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "a5"), (1, "a6"), (2, "bb5"), (3, "bb6")]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    tokens = server.openai().completions.create(model="m", prompt=[[97], [98, 98]])
    assert [choice.text for choice in tokens.choices] == ["aNone", "bbNone"]


def test_echo_with_logprobs_scores_the_prompt(server: Running) -> None:
    answer = server.openai().completions.create(model="m", prompt="abc", echo=True, logprobs=1, max_tokens=5)
    choice = answer.choices[0]
    assert choice.text == "abcHello"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == list("abcHello")
    assert choice.logprobs.token_logprobs == [None, -2.0, -2.0, -0.5, -0.5, -0.5, -0.5, -0.5]
    assert choice.logprobs.text_offset == list(range(8))
    assert choice.logprobs.top_logprobs is not None
    assert choice.logprobs.top_logprobs[3] == {"H": -0.5}
    assert [request.score_from for request in server.engine.asked] == [1, None]


def test_an_answer_echoes_so_many_characters(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.server.openai.requests.MAX_ECHOED_CHARS", 100)
    client = server.openai()
    answer = client.completions.create(model="m", prompt=["a" * 10] * 2, echo=True, max_tokens=0, n=5)
    assert [choice.text for choice in answer.choices] == ["a" * 10] * 10
    with pytest.raises(openai.BadRequestError, match="100 characters") as caught:
        client.completions.create(model="m", prompt=["a" * 10, "a" * 11], echo=True, max_tokens=0, n=5)
    assert caught.value.param == "echo"


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_echoes_are_bounded_before_anything_starts(
    server: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr("bough.server.openai.requests.MAX_ECHOED_LOGPROBS", 120)
    client = server.openai()
    fields: Any = {"model": "m", "echo": True, "logprobs": 2, "max_tokens": 0, "n": 2, "stream": stream}
    with pytest.raises(openai.BadRequestError, match="120 log-probabilities") as caught:
        client.completions.create(prompt=["a" * 10, "a" * 11], **fields)
    assert (caught.value.param, server.engine.asked) == ("logprobs", [])
    client.completions.create(prompt=["a" * 10] * 2, **fields)
    client.completions.create(prompt=["a" * 10, "a" * 11], **{**fields, "logprobs": None})


def test_echo_alone_generates_nothing(server: Running) -> None:
    client = server.openai()
    answer = client.completions.create(model="m", prompt="abc", echo=True, logprobs=0, max_tokens=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("abc", "length")
    assert [request.score_from for request in server.engine.asked] == [1]
    chunks = list(client.completions.create(model="m", prompt=[97, 98], echo=True, max_tokens=0, stream=True))
    assert [(chunk.choices[0].text, chunk.choices[0].finish_reason) for chunk in chunks] == [("ab", "length")]
    with pytest.raises(openai.BadRequestError, match="only with echo"):
        client.completions.create(model="m", prompt="abc", max_tokens=0)


def test_models(server: Running) -> None:
    client = server.openai()
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").owned_by == "bough"
    assert client.models.retrieve("tiny").id == "m"
    assert client.completions.create(model="tiny", prompt="x").model == "m"


def test_tokenize_and_back(server: Running) -> None:
    http = server.http()
    answer = http.post("/tokenize", json={"prompt": "aé", "return_token_strs": True}).json()
    assert answer["tokens"] == [97, 0xC3, 0xA9]
    assert (answer["count"], answer["max_model_len"]) == (3, 4096)
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "aé"}
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]}).json()
    assert chat["count"] == len("user: hi\n")
    assert http.post("/detokenize", json={"tokens": [-1]}).json()["error"]["param"] == "tokens[0]"
    too_many = http.post("/detokenize", json={"tokens": [97] * (8 * 4096 + 1)}).json()["error"]
    assert (too_many["param"], too_many["code"]) == ("tokens", "array_above_max_length")
    assert http.post("/tokenize", json={}).json()["error"]["code"] == "missing_required_parameter"


def test_health_follows_the_engine(start: Start) -> None:
    server = start()
    http = server.http()
    for path in ("/livez", "/readyz", "/health"):
        assert http.get(path).json() == {"status": "ok"}
    info = http.get("/server_info").json()
    assert info["model"]["name"] == "tiny"
    assert info["stats"]["running"] == 2
    assert "keys" not in json.dumps(info["server"])


def test_a_dead_engine_ends_the_server(start: Start) -> None:
    server = start()
    server.engine.alive = False
    assert server.wait_for(lambda: server.server.engine_died, 2.0)
    assert server.lifecycle.draining


def test_sixteen_stops_and_sixty_four_choices(server: Running) -> None:
    client = server.openai()
    answer = client.completions.create(model="m", prompt="a", n=64, stop=list("abcdefghijklmnop"))
    assert len(answer.choices) == 64
    assert server.engine.asked[0].sampling.stop == tuple("abcdefghijklmnop")
    for fields, param in (({"n": 65}, "n"), ({"stop": list("abcdefghijklmnopq")}, "stop")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="m", prompt="a", **fields)
        assert caught.value.param == param


def test_a_prompt_is_truncated_on_either_side(server: Running) -> None:
    http = server.http()

    def prompt(**fields: Any) -> bytes:
        server.engine.asked.clear()
        answer = http.post("/v1/completions", json={"model": "m", "prompt": "abcdef", **fields})
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens"] == len(server.engine.asked[0].prompt)
        return bytes(server.engine.asked[0].prompt)

    assert prompt(truncate_prompt_tokens=2) == b"ef"
    assert prompt(truncate_prompt_tokens=2, truncation_side="right") == b"ab"
    assert prompt(truncate_prompt_tokens=9) == b"abcdef"
    assert prompt(truncate_prompt_tokens=-1, prompt="x" * 5000, max_tokens=96) == b"x" * 4000
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "truncate_prompt_tokens": 3}
    assert http.post("/v1/chat/completions", json=chat).status_code == 200
    assert bytes(server.engine.asked[-1].prompt) == b"hi\n"
    for fields, param in (
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 2, "echo": True}, "truncate_prompt_tokens"),
        ({"truncation_side": "right"}, "truncation_side"),
    ):
        answer = http.post("/v1/completions", json={"model": "m", "prompt": "abcdef", **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_log_probabilities_of_prompts_have_the_form_of_vllm(server: Running) -> None:
    http = server.http()
    body = {"model": "m", "prompt": ["ab", "c"], "n": 2, "prompt_logprobs": 3}
    choices = http.post("/v1/completions", json=body).json()["choices"]
    known = {"98": {"logprob": -2.0, "rank": None, "decoded_token": "b"}}
    assert [choice["prompt_logprobs"] for choice in choices] == [[None, known], [None, known], [None], [None]]
    assert [choice["logprobs"] for choice in choices] == [None] * 4
    assert [request.sampling.logprobs for request in server.engine.asked if request.score_from] == [3]
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 0}
    answer = http.post("/v1/chat/completions", json=chat).json()
    assert [entry and next(iter(entry)) for entry in answer["prompt_logprobs"]] == [None, *map(str, b"ser: hi\n")]
    for fields in ({"stream": True}, {"token_healing": True}):
        refused = http.post("/v1/completions", json={**body, **fields})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")


def test_ranks_follow_the_alternatives_and_echoes_have_their_own_number() -> None:
    body = CompletionBody(model="m", prompt="ab", echo=True, logprobs=1, prompt_logprobs=2, max_tokens=0)
    tokenizer: Any = ByteTokenizer()
    context = Context(id="r", namespace="", tokenizer=tokenizer, info=INFO, timeout_s=1.0, max_sequences=64)
    job = completion_job(body, context)
    assert [request and request.sampling.logprobs for request in job.scores] == [2]
    top = ((99, -0.5), (98, -1.0), (100, -3.0))
    header = Header(id="cmpl-1", model="m", created=0)
    reply = CompletionReply(body, job, header, ShownTokens(tokenizer), scores=[[TokenLogprob(98, -1.0, top[:2])]])
    list(reply.begin())
    choice = reply.result().choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.top_logprobs == [None, {"c": -0.5, "b": -1.0}]
    assert msgspec.to_builtins(choice.prompt_logprobs, str_keys=True) == [
        None,
        {
            "99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"},
            "98": {"logprob": -1.0, "rank": 2, "decoded_token": "b"},
        },
    ]


@pytest.mark.parametrize("limit", ["MAX_ECHOED_LOGPROBS", "MAX_SHOWN_TOKENS"])
def test_what_is_told_of_prompts_is_bounded(server: Running, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"bough.server.openai.requests.{limit}", 20)
    name, value = {"MAX_ECHOED_LOGPROBS": ("prompt_logprobs", 0), "MAX_SHOWN_TOKENS": ("return_token_ids", True)}[limit]
    body = {"model": "m", "n": 2, name: value}
    assert server.http().post("/v1/completions", json={**body, "prompt": ["a" * 5] * 2}).status_code == 200
    refused = server.http().post("/v1/completions", json={**body, "prompt": ["a" * 5, "a" * 6]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_token_ids_are_returned_whole_and_in_streams(server: Running, path: str) -> None:
    http, chat = server.http(), path == "/v1/chat/completions"
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "ab"}
    body = {"model": "m", "return_token_ids": True, "n": 2, **prompt}
    answer = http.post(path, json=body).json()
    assert [choice["token_ids"] for choice in answer["choices"]] == [list(b"Hello")] * 2
    ids = list(b"user: hi\n") if chat else list(b"ab")
    assert [part["prompt_token_ids"] for part in ([answer] if chat else answer["choices"])] == [ids] * (
        1 if chat else 2
    )
    events = http.post(path, json={**body, "stream": True}).text.split("\n\n")[:-2]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(2):
        own = [choice for choice in choices if choice["index"] == index]
        assert [token for choice in own for token in choice.get("token_ids", ())] == list(b"Hello")
    told = [part["prompt_token_ids"] for part in (chunks if chat else choices) if "prompt_token_ids" in part]
    assert told == [ids] * (1 if chat else 2)
    plain = http.post(path, json={**body, "return_token_ids": False}).text
    assert "token_ids" not in plain
