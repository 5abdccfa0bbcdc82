"""Promise: the `anthropic` package works against `bough serve`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from .server_process import ServerProcess

pytestmark = [pytest.mark.model, pytest.mark.slow]

GREEDY: Any = {"model": "smollm2-135m", "max_tokens": 40, "extra_body": {"temperature": 0}}
CAPITAL: list[Any] = [{"role": "user", "content": "What is the capital of Japan?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{% endif %}"
)


class City(BaseModel):
    name: str
    population: int


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_stream_is_what_the_whole_is(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**GREEDY, messages=CAPITAL)
    with client.messages.stream(**GREEDY, messages=CAPITAL) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert "Tokyo" in text and text == text_of(whole) == text_of(streamed)
    assert (whole.stop_reason, streamed.stop_reason) == ("end_turn", "end_turn")
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    counted = client.messages.count_tokens(model="smollm2-135m", messages=CAPITAL).input_tokens
    for usage in (whole.usage, streamed.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    assert streamed.usage.cache_read_input_tokens == counted - 1  # all but what the first token is computed from


def test_an_answer_is_continued_and_stopped(client: anthropic.Anthropic) -> None:
    begun = [*CAPITAL, {"role": "assistant", "content": "The capital of Japan is"}]
    message = client.messages.create(**GREEDY, messages=begun, stop_sequences=["yo"])
    assert (text_of(message), message.stop_reason, message.stop_sequence) == (" Tok", "stop_sequence", "yo")


def test_a_conversation_with_a_tool(client: anthropic.Anthropic) -> None:
    asked: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    message = client.messages.create(**GREEDY, messages=asked, tools=[WEATHER], tool_choice={"type": "any"})
    (call,) = message.content
    assert call.type == "tool_use" and message.stop_reason == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "3 degrees"}
    asked += [message.to_param(), {"role": "user", "content": [result]}]
    answer = client.messages.create(**GREEDY, messages=asked, tools=[WEATHER], tool_choice={"type": "none"})
    assert text_of(answer)


def test_parse_gives_an_object(client: anthropic.Anthropic) -> None:
    for _ in range(5):  # each is drawn anew
        message = client.messages.parse(model="smollm2-135m", max_tokens=80, messages=CAPITAL, output_format=City)
        assert isinstance(message.parsed_output, City)


def test_a_format_that_cannot_be_compiled_is_refused(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}
    form = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format\.schema"):
        client.messages.create(model="smollm2-135m", max_tokens=9, messages=CAPITAL, extra_body=form)


def test_thinking_ends_within_its_budget(folder: Path) -> None:
    """By a model of random weights, which never closes it by itself."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": THINKING}))
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 2048}))
    with (
        ServerProcess("--model", str(folder)) as server,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        name = client.models.list().data[0].id
        asked: Any = {"model": name, "max_tokens": 1100, "messages": CAPITAL}
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
        form = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        message = client.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 1024}, extra_body=form)
        thought, said = message.content
        assert thought.type == "thinking" and said.type == "text"
        assert json.loads(said.text)["a"] in (1, 2)
        assert 1024 < message.usage.output_tokens < 1100
        assert text_of(client.messages.create(**asked, extra_body=form)).startswith("{")
