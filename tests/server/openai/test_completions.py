"""Completions, tokens, models and what else is served beside chats."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest
from openai.types import Completion

from ..conftest import Running, Start
from ..fake_client import FakeClient, Script


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
