"""Promise: the `openai` package works against `bough serve`, and a client that dies gives its pages back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from .server_process import ServerProcess

pytestmark = [pytest.mark.model, pytest.mark.slow]

MODEL = "smollm2-135m"
END_OF_TURN = "<|im_end|>"  # it is drawn, and counted, like every token, but is not part of the text
MESSAGES: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]

ENDLESS = """
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
messages = [{"role": "user", "content": "Tell me a story without an end."}]
stream = client.chat.completions.create(
    model="smollm2-135m", messages=messages, max_tokens=3000, n=4, stream=True, extra_body={"ignore_eos": True}
)
for number, chunk in enumerate(stream):
    if number == 20:
        print("streaming", flush=True)
"""


class City(BaseModel):
    name: str = Field(max_length=20)
    country: str = Field(max_length=20)
    population: int = Field(ge=0, le=50_000_000)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat_says_what_a_stream_says(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**options)
    assert whole.usage is not None
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert text == whole.choices[0].message.content
    assert [reason for reason in reasons if reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    details = chunks[-1].usage.prompt_tokens_details
    assert details is not None and details.cached_tokens  # the same conversation has been computed before


def test_completions_continue_a_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=1, temperature=0)
    assert answer.choices[0].text == " Paris"
    assert answer.choices[0].finish_reason == "length"


def test_parse_gives_an_object(client: openai.OpenAI) -> None:
    for seed in range(5):
        answer = client.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=City, temperature=1.5, seed=seed, max_tokens=80
        )
        assert isinstance(answer.choices[0].message.parsed, City)


def test_n_answers_are_reproducible(client: openai.OpenAI) -> None:
    def ask() -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, n=3, temperature=1, seed=11, max_tokens=16
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert len(set(first)) == 3
    assert ask() == first


def test_logprobs_are_those_of_the_text(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    ).choices[0]
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    text = b"".join(bytes(entry.bytes or ()) for entry in entries).decode()
    assert text.removesuffix(END_OF_TURN) == choice.message.content
    for entry in entries:
        tops = [top.logprob for top in entry.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True) and tops[0] <= 0
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, tops[0])  # it was greedy


def test_a_tool_is_called_with_arguments_that_fit(client: openai.OpenAI) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    }
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    choice = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=[tool], tool_choice="required", max_tokens=80, temperature=1.0, seed=3
    ).choices[0]
    assert choice.finish_reason == "tool_calls"
    call = (choice.message.tool_calls or [])[0]
    assert call.type == "function" and call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert isinstance(arguments["city"], str) and arguments["unit"] in ("C", "F") and len(arguments) == 2


@pytest.mark.parametrize(
    ("change", "status", "code", "param"),
    [
        ({"model": "another"}, 404, "model_not_found", "model"),
        ({"temperature": -1}, 400, None, "temperature"),
        ({"max_tokens": 0}, 400, None, "max_tokens"),
        ({"messages": []}, 400, None, "messages"),
        ({"max_tokens": 1_000_000}, 400, "context_length_exceeded", None),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, 400, "context_length_exceeded", None),
        ({"logit_bias": {"1": 300}}, 400, None, "logit_bias"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_errors_name_what_is_wrong(
    client: openai.OpenAI, change: dict[str, Any], status: int, code: str | None, param: str | None
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, "max_tokens": 4, **change})
    error = caught.value
    assert error.status_code == status
    assert code is None or error.code == code
    assert param is None or (error.param or "").startswith(param)
    assert error.message


def test_a_schema_that_cannot_be_kept_is_refused(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "https://example.org/elsewhere.json"}}}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=wanted, max_tokens=8)
    assert "elsewhere.json" in caught.value.message


def test_a_killed_client_gives_its_pages_back(server: ServerProcess, figures: Callable[[str], None]) -> None:
    def idle(metrics: dict[str, float]) -> bool:
        return metrics["bough_running"] == metrics["bough_waiting"] == metrics["bough_locked_pages"] == 0

    server.wait_until(idle, timeout_s=10)
    with subprocess.Popen([sys.executable, "-c", ENDLESS, f"{server.url}/v1"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"streaming\n"
            busy = server.metrics()
            assert busy["bough_running"] == 4 and busy["bough_locked_pages"] > 0
        finally:
            process.kill()
    seconds = server.wait_until(idle, timeout_s=1.0)
    figures(f"4 streams of a killed client ended, and their pages were back, after {seconds:.2f} s")
    after = server.metrics()
    assert after['bough_finished_total{reason="abort"}'] >= 4
    assert after["bough_free_pages"] + after["bough_cached_pages"] == after["bough_num_pages"]
