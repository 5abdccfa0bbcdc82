"""Our own server as the OpenAI endpoint, with the default model: the same programs, in process and over the API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bough.lang.api import assistant, function, gen, select, user
from bough.lang.backends.apis.openai import OpenAI
from bough.lang.backends.http import HttpBackend
from bough.lang.backends.local import LocalBackend
from bough.lang.backends.messages.tools import NO_TOOLS
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import BackendError, ProgramError, UnsupportedError
from bough.runtime.protocol.program import Done, ProgramEvent, Value
from bough.server.config import ServerConfig

from ...server.conftest import running

pytestmark = pytest.mark.model

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def local(default_model: Path) -> Iterator[LocalBackend]:
    with LocalBackend(str(default_model), num_pages=4096) as backend:
        yield backend


@pytest.fixture(scope="module")
def url(local: LocalBackend) -> Iterator[str]:
    client: Any = local.client
    with running(client, ServerConfig(port=0, served_model_name="m")) as server:
        yield f"{server.url}/v1"


@dataclass
class Person:
    name: str
    age: int


@function
def chat(s: Any) -> None:
    s += user("What is the capital of France?") + assistant(gen("city", stop=["\n"]))
    branches = s.fork(2)
    branches += lambda i: user(f"Name river {i + 1} of that country.") + assistant(gen("river", stop=["."]))
    branches.join("append")
    s += user("How many?") + assistant("I named " + gen("count", int))


@function
def text(s: Any) -> None:
    s += "Question: How many legs has a spider?\nAnswer: Eight\n\nQuestion: How many days has a week?\nAnswer:"
    s += gen("days", stop="\n") + "\n\nQuestion: Is the sun hot or cold?\nAnswer:" + select("sun", [" Cold", " Hot"])


def values(events: list[ProgramEvent]) -> dict[tuple[int, str], str]:
    return {(event.branch, event.name): event.text for event in events if isinstance(event, Value)}


def test_a_chat_comes_out_as_in_process(local: LocalBackend, url: str) -> None:
    with OpenAI("m", base_url=url, extensions=True) as api:
        found, wanted = ([*chat.stream(backend=backend, **GREEDY)] for backend in (api, local))
        assert api.calls == 4
    mocked = [*chat.stream(backend=MockBackend())]
    assert values(found) == values(wanted)
    assert values(found).keys() == values(mocked).keys()
    for events in (found, wanted, mocked):
        assert isinstance(events[-1], Done) and events[-1].requests == 4
    usage = [event.usage for event in (found[-1], wanted[-1]) if isinstance(event, Done)]
    assert usage[0].prompt_tokens == usage[1].prompt_tokens and usage[0].cached_tokens > 0


def test_a_limit_that_no_value_keeps_is_refused_with_the_line(local: LocalBackend, url: str) -> None:
    def body(s: Any) -> None:
        s += "x" + gen("name", max_tokens=2) + "\n"
        s += gen("who", Person, max_tokens=3)

    with HttpBackend(url) as http:
        for backend in (http, local):
            with pytest.raises(ProgramError, match="max_tokens=3 is too small for any value") as caught:
                function(body).run(backend=backend)
            line = caught.value.place and caught.value.place.line
            assert (caught.value.code, caught.value.param) == ("invalid_value", "max_tokens")
            assert line == body.__code__.co_firstlineno + 2
        with pytest.raises(BackendError, match="max_tokens=3 is too small for any value"):
            function(body).compile().run(backend=http)


def test_pieces_come_with_log_probabilities_as_in_process(local: LocalBackend, url: str) -> None:
    body = function(lambda s: s.__iadd__("The capital of France is" + gen("city", max_tokens=8)))

    async def pieces(backend: Any) -> list[tuple[str, dict[str, Any]]]:
        state = body.run(backend=backend, temperature=0, return_logprob=True, stream=True)
        return [item async for item in state.text_async_iter("city", return_meta_data=True)]

    with HttpBackend(url) as http:
        found, wanted = (asyncio.run(pieces(backend)) for backend in (http, local))
    assert "".join(text for text, _ in found) == "".join(text for text, _ in wanted)
    for items in (found, wanted):
        assert len(items) > 1 and all(text for text, _ in items)
        assert all(meta["output_token_logprobs_length"] == meta["completion_tokens"] > 0 for _, meta in items)
    assert found[-1][1]["output_token_logprobs"] == wanted[-1][1]["output_token_logprobs"]


def test_completions_and_scores_come_out_as_in_process(local: LocalBackend, url: str) -> None:
    with OpenAI("m", base_url=url) as api:
        states = [text.run(backend=backend, **GREEDY) for backend in (api, local)]
    assert states[0].values() == states[1].values()
    assert states[0].probabilities("sun") == pytest.approx(states[1].probabilities("sun"), abs=1e-3)


def test_without_extensions_a_schema_is_enforced_and_a_begun_message_refused(url: str) -> None:
    with OpenAI("m", base_url=url) as api:
        asked = function(lambda s: s.__iadd__(user("Age?") + assistant(gen("x", json_schema={"type": "integer"}))))
        assert isinstance(asked.run(backend=api, **GREEDY).json("x"), int)
        with pytest.raises(UnsupportedError, match="continue"):
            chat.run(backend=api, **GREEDY)
        assert list(NO_TOOLS) == []
