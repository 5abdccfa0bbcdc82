"""Conversations before the default model: what an earlier response has computed is not computed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bough.lang.backends.local import LocalBackend
from bough.server.config import ServerConfig

from ..conftest import Running, running

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[Running]:
    with LocalBackend(str(default_model), num_pages=4096) as backend:
        client: Any = backend.client
        with running(client, ServerConfig(port=0, served_model_name="m", request_log=False)) as result:
            yield result


def test_a_conversation_is_found_in_the_cache_up_to_its_last_answer(server: Running) -> None:
    responses: Any = server.openai().responses
    fields = {"model": "m", "instructions": "Answer in one short sentence.", "temperature": 0, "max_output_tokens": 16}
    first = responses.create(input="What is the capital of Japan?", **fields)
    assert "Tokyo" in first.output_text
    last = first
    for question in ("And of France?", "And of Italy?"):
        response = responses.create(input=question, previous_response_id=last.id, **fields)
        usage = response.usage
        assert usage.input_tokens_details.cached_tokens >= last.usage.input_tokens + last.usage.output_tokens - 1
        last = response


def test_a_whole_answer_a_stream_and_a_chat_say_the_same(server: Running) -> None:
    client: Any = server.openai()
    asked = {"model": "m", "temperature": 0}
    whole = client.responses.create(input="Name a river.", max_output_tokens=12, **asked)
    with client.responses.stream(input="Name a river.", max_output_tokens=12, **asked) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    messages = [{"role": "user", "content": "Name a river."}]
    chat = client.chat.completions.create(messages=messages, max_tokens=12, **asked)
    assert whole.output_text == said == chat.choices[0].message.content
    assert whole.usage.output_tokens == chat.usage.completion_tokens
