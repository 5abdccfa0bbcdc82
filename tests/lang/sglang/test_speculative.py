"""API speculation: one call of an API serves several generations. The API is our own server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import bough as sgl

COMPLETION = " Marie Curie\nBirthday: November 7, 1867\nJob: Physicist\n\nName: someone else\n"


class Api(ThreadingHTTPServer):
    """Writes one text, and counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert isinstance(self.server, Api)
        self.server.bodies.append(body)
        chat = "messages" in body
        text, reason = ("Name:" + COMPLETION, "stop") if chat else _written(body["prompt"], body)
        choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text, "logprobs": None}
        answer = {
            "id": "1",
            "object": "chat.completion" if chat else "text_completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": reason, **choice}],
            "usage": {"prompt_tokens": 50, "completion_tokens": len(text) // 4, "total_tokens": 50 + len(text) // 4},
        }
        data = _events(answer) if body.get("stream") else json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if body.get("stream") else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


def _events(answer: dict[str, Any]) -> bytes:
    """An answer as a stream of two pieces, its usage, and an end."""
    choice = answer["choices"][0]
    message = choice.get("message")
    whole: dict[str, Any] = {"delta": message} if message else {"text": choice["text"]}
    rest: dict[str, Any] = {"delta": {}} if message else {"text": ""}
    begun = {"index": 0, "finish_reason": None, **whole}
    ended = {"index": 0, "finish_reason": choice["finish_reason"], **rest}
    chunks = [{**answer, "choices": [piece], "usage": None} for piece in (begun, ended)]
    chunks.append({**answer, "choices": []})
    lines = [f"data: {json.dumps(chunk)}" for chunk in chunks] + ["data: [DONE]"]
    return "".join(line + "\n\n" for line in lines).encode()


def _written(prompt: str, body: dict[str, Any]) -> tuple[str, str]:
    """Text of a model that knows COMPLETION by heart."""
    told = prompt.rpartition("Name:")[2] if "Name:" in prompt else ""
    text = COMPLETION[len(told) :] if COMPLETION.startswith(told) else COMPLETION
    stops = body.get("stop") or []
    found = min(
        (text.index(stop) for stop in ([stops] if isinstance(stops, str) else stops) if stop in text), default=None
    )
    if found is not None:
        return text[:found], "stop"
    return text, "length"


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
    sgl.set_default_backend(None)


def character(s):
    s += "Invent a character in this form.\n"
    s += "Name: Ada Lovelace.\nBirthday: December 10, 1815.\nJob: Mathematician.\n"
    s += "\nPlease write a new Name, Birthday and Job.\n"
    s += "Name:" + sgl.gen("name", stop="\n") + "\nBirthday:" + sgl.gen("birthday", stop="\n")
    s += "\nJob:" + sgl.gen("job", stop="\n") + "\n"


EXPECTED = {"name": " Marie Curie", "birthday": " November 7, 1867", "job": " Physicist"}


def test_completion_speculative(api):
    sgl.set_default_backend(sgl.OpenAI("gpt-3.5-turbo-instruct", base_url=api.url, api_key="none"))
    with_spec = sgl.function(num_api_spec_tokens=64)(character)
    without_spec = sgl.function(character)
    usage = sgl.global_config.default_backend.token_usage

    usage.reset()
    state = with_spec()
    state.sync()
    tokens_with = usage.prompt_tokens
    assert state.values() == EXPECTED
    assert len(api.bodies) == 1

    usage.reset()
    state = without_spec()
    state.sync()
    assert state.values() == EXPECTED
    assert len(api.bodies) == 4
    assert tokens_with < usage.prompt_tokens


def test_chat_completion_speculative(api):
    sgl.set_default_backend(sgl.OpenAI("gpt-4o", base_url=api.url, api_key="none"))

    @sgl.function(num_api_spec_tokens=256)
    def character_spec(s):
        s += sgl.system("You are a helpful assistant.")
        s += sgl.user("Invent a character in this form:")
        s += sgl.assistant("Name: Ada Lovelace.\nBirthday: December 10, 1815.\nJob: Mathematician.\n")
        s += sgl.user("Please write a new Name, Birthday and Job.\n")
        s += sgl.assistant(
            "Name:" + sgl.gen("name", stop="\n") + "\nBirthday:" + sgl.gen("birthday", stop="\n")
            + "\nJob:" + sgl.gen("job", stop="\n")
        )  # fmt: skip

    state = character_spec()
    state.sync()
    assert state.values() == EXPECTED
    assert len(api.bodies) == 1
