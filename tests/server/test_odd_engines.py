"""A whole engine behind the server that does odd things: each answer says what it was, and the next one is right."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from bough.constrain import MatcherError
from bough.constrain.spec import Regex
from bough.runtime.client.local import EngineLoop, LocalClient
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.tokenizer.load import load_tokenizer
from bough.server.config import ServerConfig

from ..runtime.engine.test_engine_faults import BrokenGrammar
from ..support.fakes import FakeRunner, fake_engine, write_byte_tokenizer
from .conftest import running

EOS = 257
PROMPT = {"model": "m", "prompt": "hello", "temperature": 0, "max_tokens": 20}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


class Stack:
    """The server, and the engine and the model that it serves."""

    def __init__(self, http: httpx.Client, client: LocalClient, engine: Engine, runner: FakeRunner) -> None:
        self.http, self.client, self.engine, self.runner = http, client, engine, runner

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json=PROMPT | fields)

    def choice(self, **fields: Any) -> tuple[str, str]:
        """The text and the reason of its end, the same whether streamed or not."""
        (whole,) = self.complete(**fields).raise_for_status().json()["choices"]
        parts = self.complete(**fields, stream=True).text.split("\n\n")
        assert parts[-2:] == ["data: [DONE]", ""]
        chunks = [json.loads(part.removeprefix("data: "))["choices"][0] for part in parts[:-2]]
        assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
        assert chunks[-1]["finish_reason"] == whole["finish_reason"]
        return whole["text"], whole["finish_reason"]


@pytest.fixture
def stack() -> Iterator[Stack]:
    engine, runner = fake_engine()
    client = LocalClient(EngineLoop(engine, EngineConfig()))
    config = ServerConfig(port=0, served_model_name="m", request_log=False)
    with running(client, config) as server:  # type: ignore[arg-type]
        made = Stack(server.http(), client, engine, runner)
        expected = made.choice()
        yield made
        runner.bias.clear()
        assert made.choice() == expected, "the next one is not as before"
    client.close()


def assert_error(answer: httpx.Response, status: int, code: str, param: str | None = None) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert answer.headers.get("x-should-retry") == ("false" if status == 500 else None)


# The model


def test_a_model_that_only_ends(stack: Stack) -> None:
    stack.runner.bias[EOS] = 1e6
    assert stack.choice() == ("", "stop")
    text, reason = stack.choice(min_tokens=7)
    assert len(text) > 0 and reason == "stop"
    assert stack.choice(ignore_eos=True) == ("", "length")  # as many ends as tokens, none of which is text
    answer = stack.http.post("/v1/chat/completions", json=CHAT).json()
    assert answer["choices"][0]["message"]["content"] == "" and answer["usage"]["completion_tokens"] <= 1


def test_a_model_that_never_ends(stack: Stack) -> None:
    stack.runner.bias[ord("A")] = 1e6
    text, reason = stack.choice(max_tokens=1500)
    assert (text, reason) == ("A" * 1500, "length")
    assert stack.choice(max_tokens=1500, stop=["A" * 64]) == ("", "stop")


@pytest.mark.parametrize(("byte", "num_tokens", "text"), [(0xFF, 5, "\ufffd" * 5), (0xE2, 4, "\ufffd" * 4)])
def test_a_model_that_writes_no_text(stack: Stack, byte: int, num_tokens: int, text: str) -> None:
    stack.runner.bias[byte] = 1e6
    assert stack.choice(max_tokens=num_tokens) == (text, "length")


def test_a_pass_that_fails_ends_what_was_in_it(stack: Stack) -> None:
    stack.runner.fails = 1
    assert_error(stack.complete(), 500, "internal_error")


def test_a_pass_that_fails_in_a_stream_is_its_last_event(stack: Stack) -> None:
    with stack.http.stream("POST", "/v1/completions", json=PROMPT | {"max_tokens": 1900, "stream": True}) as answer:
        parts = answer.iter_text()
        next(parts)
        stack.runner.fails = 1
        *_, last = "".join(parts).strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "internal_error"


# What is around it


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_clock_that_jumps(stack: Stack, jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a stream that has a deadline: nothing happens."""
    real = time.time
    body = PROMPT | {"max_tokens": 1000, "ignore_eos": True, "stream": True}
    headers = {"x-request-timeout-ms": "60000"}
    with (
        monkeypatch.context() as patch,
        stack.http.stream("POST", "/v1/completions", json=body, headers=headers) as got,
    ):
        parts = got.iter_text()
        first = next(parts)
        patch.setattr(time, "time", lambda: real() + jump_s)
        text = first + "".join(parts)
        assert stack.complete().status_code == 200
        assert stack.http.get("/readyz").status_code == 200
    assert text.endswith("data: [DONE]\n\n")


def test_a_constraint_that_comes_to_a_dead_end(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    settled: Future[Any] = Future()
    good = stack.engine._grammars.compile(Regex("[a-z]{9}"))
    settled.set_result(BrokenGrammar(good, "fill_mask", MatcherError("nothing can follow")))
    with monkeypatch.context() as patch:
        patch.setattr(stack.engine._grammars, "submit", lambda *_: settled)
        assert_error(stack.complete(regex="[a-z]{9}"), 500, "grammar_dead_end")
        *begun, last = stack.complete(regex="[a-z]{9}", stream=True).text.strip().split("\n\n")
        assert begun and json.loads(last.removeprefix("data: "))["error"]["code"] == "grammar_dead_end"


# More than it may hold


@pytest.fixture
def small() -> Iterator[Stack]:
    """One that holds six requests, two of which run at a time."""
    engine, runner = fake_engine(max_waiting=4, max_num_seqs=2)
    client = LocalClient(EngineLoop(engine, EngineConfig()))
    with running(client, ServerConfig(port=0, served_model_name="m", request_log=False)) as server:  # type: ignore[arg-type]
        yield Stack(server.http(), client, engine, runner)
    client.close()


@pytest.mark.parametrize("stream", [False, True])
def test_what_can_never_be_held_is_refused_for_good(small: Stack, stream: bool) -> None:
    for fields, param in (({"n": 7}, "n"), ({"prompt": ["x"] * 7}, "prompt"), ({"prompt": ["x"] * 4, "n": 2}, "n")):
        assert_error(small.complete(stream=stream, **fields), 400, "too_many_sequences", param)
    assert_error(small.http.post("/v1/chat/completions", json=CHAT | {"n": 7}), 400, "too_many_sequences", "n")
    assert_error(
        small.complete(prompt=["xy"] * 7, echo=True, logprobs=1, max_tokens=0), 400, "too_many_sequences", "prompt"
    )
    answer = small.complete(stream=stream, n=6)
    assert answer.status_code == 200 and answer.text.count('"finish_reason":"') == 6


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_held_now_is_refused_as_a_whole(small: Stack, stream: bool) -> None:
    """Nothing of it has begun, and it is answered when there is room."""
    body = PROMPT | {"max_tokens": 1500, "ignore_eos": True, "n": 3, "stream": True}
    with small.http.stream("POST", "/v1/completions", json=body) as long:
        parts = long.iter_text()
        next(parts)
        with httpx.Client(base_url=small.http.base_url, timeout=20, trust_env=False) as other:
            refused = other.post("/v1/completions", json=PROMPT | {"n": 4, "stream": stream})
            assert_error(refused, 503, "engine_overloaded")
            assert int(refused.headers["retry-after"]) >= 1
            assert other.post("/v1/completions", json=PROMPT | {"n": 3, "stream": stream}).status_code == 200
        assert "".join(parts).endswith("data: [DONE]\n\n")
    assert small.complete(n=6, stream=stream).status_code == 200


class PanicError(BaseException):
    """Panic of native code, which is no Exception."""


def test_a_tokenizer_that_fails_on_a_text(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def encode(self, text: str, **_: Any) -> Any:
            raise PanicError(text)

    with monkeypatch.context() as patch:
        for variant in ("own", "plain", "exact"):
            patch.setattr(stack.client.tokenizer._parts.pipeline, variant, Broken())
        assert_error(stack.complete(), 500, "tokenizer_error")
        assert_error(stack.http.post("/v1/chat/completions", json=CHAT), 500, "tokenizer_error")
        assert_error(stack.http.post("/tokenize", json={"model": "m", "prompt": "x"}), 500, "tokenizer_error")
        ops = [{"type": "text", "branch": 0, "parts": ["x"]}]
        answer = stack.http.post("/v1/programs", json={"id": "p", "ops": ops})
        assert "tokenizer_error" in answer.text


def test_a_template_that_fails_on_a_chat(stack: Stack, tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}x"
    path.write_text(json.dumps(config))
    usual = stack.client.tokenizer
    stack.client.tokenizer = load_tokenizer(tmp_path)
    try:
        assert_error(stack.http.post("/v1/chat/completions", json=CHAT), 400, "invalid_value", "messages")
    finally:
        stack.client.tokenizer = usual
