"""Conversations: a finished program is continued by others, counted, saved and loaded."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import bough
from bough import Conversation, MockBackend, assistant, assistant_begin, function, gen, system, user
from bough.lang.backends.http import HttpBackend
from bough.runtime.protocol.request import Usage
from bough.server.config import ServerConfig

from ...server.conftest import Running, running
from ...support.tiny_model import write_tiny_model
from ..fakes import FakeBackend, value

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}


@function
def begin(s: Any, question: str) -> None:
    s += system("Be brief.") + user(question) + assistant(gen("answer"))


@function
def ask(s: Any, question: str) -> None:
    s += user(question) + assistant(gen("answer"))


@function
async def ask_async(s: Any, question: str) -> str:
    s += user(question) + assistant(gen("answer"))
    return str(await s.aget("answer"))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bough.LocalBackend]:
    with bough.LocalBackend(str(write_tiny_model(tmp_path_factory.mktemp("tiny"))), num_pages=4096) as backend:
        yield backend


@pytest.fixture(scope="module")
def server(local: bough.LocalBackend) -> Iterator[Running]:
    client: Any = local.client
    with running(client, ServerConfig(port=0, served_model_name="m")) as found:
        yield found


@pytest.fixture(params=["local", "http", "openai"])
def backend(request: pytest.FixtureRequest, local: bough.LocalBackend, server: Running) -> Iterator[Any]:
    if request.param == "local":
        yield local
        return
    if request.param == "http":
        made: Any = HttpBackend(server.url)
    else:
        made = bough.OpenAI("m", base_url=f"{server.url}/v1", api_key="k")
    yield made
    made.close()


def test_a_finished_state_is_continued_on_every_backend(backend: Any) -> None:
    first = begin.run("hello", backend=backend, **GREEDY)
    second = ask.after(first).run("and now?", **GREEDY)
    texts = [message["content"] for message in second.messages()]
    assert texts == ["Be brief.", "hello", first["answer"], "and now?", second["answer"]]
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    if not isinstance(backend, bough.OpenAI):
        assert second.usage.cached_tokens >= first.usage.prompt_tokens
    assert len(first.messages()) == 3, "the first state has changed"


def test_tokens_are_counted_as_the_engine_counts_them(backend: Any) -> None:
    state = begin.run("hello", backend=backend, **GREEDY)
    used = state.usage.prompt_tokens + state.usage.completion_tokens
    if isinstance(backend, bough.OpenAI):
        assert state.num_tokens == used  # what the API has told
        with pytest.raises(bough.ProgramError, match="OpenAI has no tokenizer") as caught:
            state.conversation().count_tokens()
        assert caught.value.code == "unsupported"
        return
    closing = state.num_tokens - used
    assert 0 < closing < 20
    said = function(lambda s: s.__iadd__(system("Be brief.") + user("hello") + assistant("Hi."))).run(backend=backend)
    assert said.conversation().count_tokens() == said.num_tokens
    continued = ask.after(state).run("and now?", **GREEDY)
    assert continued.num_tokens == continued.usage.prompt_tokens + continued.usage.completion_tokens + closing


def test_a_count_without_a_number_is_an_error() -> None:
    backend = FakeBackend(lambda program: iter([value(0, "x", "a"), bough.Done(texts={0: "a"})]))
    state = function(lambda s: s.__iadd__(gen("x"))).run(backend=backend)
    with pytest.raises(bough.ProgramError, match="FakeBackend has no tokenizer, and no answer has told"):
        _ = state.num_tokens
    told = value(0, "x", "a", usage=Usage(prompt_tokens=7, completion_tokens=2))
    backend = FakeBackend(lambda program: iter([told, bough.Done(texts={0: "a"})]))
    assert function(lambda s: s.__iadd__(gen("x"))).run(backend=backend).num_tokens == 9


def test_the_number_of_tokens_is_there_in_the_body() -> None:
    @function
    def growing(s: Any) -> list[int]:
        s += "one two"
        before = s.num_tokens
        s += " three" + gen("x")
        return [before, s.num_tokens]

    assert growing.run(backend=MockBackend({"x": " four"})).ret_value == [2, 4]


def test_a_conversation_over_the_context_cannot_be_counted(local: bough.LocalBackend) -> None:
    long = Conversation([{"role": "user", "content": "x" * 3000}])
    with pytest.raises(bough.ProgramError, match="more tokens than the model's context holds: trim it") as caught:
        long.count_tokens(local)
    assert caught.value.code == "context_length_exceeded"


def test_variables_are_those_of_the_program_before() -> None:
    @function
    def plan(s: Any) -> None:
        s += "Plan: " + gen("steps", list[int]) + gen("name")

    @function
    def follow(s: Any) -> object:
        s += f"First {s['steps'][0]} of " + s.ref("name") + gen("name")
        return s["name"]

    with bough.use_backend(MockBackend({"steps": ["[3, 4]"], "name": ["walk", "run"]})):
        state = plan.run()
        after = follow.after(state).run()
    assert after.text() == "Plan: [3, 4]walkFirst 3 of walkrun"
    assert after["steps"] == [3, 4] and after.ret_value == "run"


def test_backend_and_namespace_are_those_of_the_state() -> None:
    backend, other = MockBackend(), MockBackend()
    state = begin.run("hello", backend=backend, namespace="mine")
    bough.set_default_backend(other)
    ask.after(state).run("more")
    assert backend.requests[-1].namespace == "mine" and not other.requests
    ask.after(state).run("more", backend=other, namespace="theirs")
    ask.bind(backend=other).after(state).run("more")
    assert [request.namespace for request in other.requests] == ["theirs", "mine"]


def test_a_continuation_runs_in_every_way() -> None:
    with bough.use_backend(MockBackend({"answer": lambda text, name: f"{text.count('<|user|>')} asked"})):
        further = ask.after(begin.run("one"))
        assert further("two")["answer"] == "2 asked"
        assert [state["answer"] for state in further.run_batch(["two", "three"])] == ["2 asked"] * 2
        assert "".join(further.stream("two").text()) == "2 asked"
        assert further.run("two", stream=True)["answer"] == "2 asked"
        assert further.bind(temperature=0).run("two")["answer"] == "2 asked"
        assert asyncio.run(further.arun("two"))["answer"] == "2 asked"
        assert asyncio.run(ask_async.after(further.run("two")).arun("three")).ret_value == "3 asked"


def test_a_continuation_inside_another_program() -> None:
    @function
    def outer(s: Any) -> str:
        s += user("zero") + assistant(gen("answer"))
        return str(ask.after(s)("one")["answer"])

    with bough.use_backend(MockBackend({"answer": lambda text, name: f"{text.count('<|user|>')} asked"})):
        state = outer.run()
    assert state.ret_value == "2 asked"
    assert len(state.messages()) == 2, "what is read from a call is not appended"


@pytest.mark.parametrize("use", ["append", "record", "compile", "explain", "cache"])
def test_a_continuation_can_only_be_run(use: str) -> None:
    backend = MockBackend()
    further = ask.after(begin.run("one", backend=backend))

    @function
    def outer(s: Any) -> None:
        if use == "append":
            s += further("two")
        else:
            further(s, "two")

    ways: dict[str, Callable[[], object]] = {
        "compile": further.compile,
        "explain": further.explain,
        "cache": further.cache,
    }
    with pytest.raises(bough.ProgramError, match=r"a continuation, ask\.after\(\.\.\.\), cannot be") as caught:
        ways.get(use, lambda: outer.run(backend=backend))()
    assert caught.value.place is not None and caught.value.place.file == __file__


def test_text_outside_of_messages_and_an_open_message_go_on() -> None:
    @function
    def half(s: Any) -> None:
        s += "Once: " + user("who?") + " And: " + assistant_begin() + "It is " + gen("who")

    @function
    def rest(s: Any) -> None:
        s += " and " + gen("other") + bough.assistant_end()

    state = half.run(backend=MockBackend({"who": "Ada"}))
    whole = rest.after(state).run(backend=MockBackend({"other": "Bob"}))
    assert whole.text() == "Once: <|user|>\nwho?<|end|>\n And: <|assistant|>\nIt is Ada and Bob<|end|>\n"
    assert whole.messages()[-1] == {"role": "assistant", "content": "It is Ada and Bob"}


def test_a_failed_program_cannot_be_continued() -> None:
    state = begin.run("one", backend=MockBackend({"answer": lambda text, name: 1 / 0}), stream=True)
    with pytest.raises(bough.ProgramError, match="there is no answer to 'answer'"):
        ask.after(state)


def test_what_is_no_conversation_is_refused() -> None:
    with pytest.raises(bough.RequestError, match=r"past must be a state or a Conversation"):
        ask.after("hello")  # type: ignore[arg-type]
    with pytest.raises(bough.RequestError, match="a message has a role"):
        Conversation([{"role": "robot", "content": "hello"}])


# Files


def test_a_conversation_is_saved_and_loaded(tmp_path: Path) -> None:
    @dataclass
    class Place:
        name: str

    @function
    def visit(s: Any) -> None:
        s += user("where?") + assistant(gen("place", Place))
        s["note"] = "far"

    file = tmp_path / "talk.json"
    before = os.umask(0)
    try:
        talk = visit.run(backend=MockBackend({"place": Place("Rome")})).conversation()
        talk.save(file)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    loaded = Conversation.load(file)
    assert loaded.messages == talk.messages and loaded.values == {"place": {"name": "Rome"}, "note": "far"}
    state = ask.after(loaded).run("and then?", backend=MockBackend())
    assert Conversation(state.messages()[:2]) == Conversation(talk.messages) and state["note"] == "far"
    talk.save(str(file))  # over its own file


GOOD = {"format": "bough-chat-1", "model": "", "messages": []}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({**GOOD, "messages": [{"role": "robot", "content": ""}]}).encode(),
        json.dumps({**GOOD, "format": "bough-chat-2"}).encode(),
        json.dumps({**GOOD, "extra": 1}).encode(),
        b'{"format":"bough-chat-1","model":"","messages":[],"values":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"format":"bough-chat-1","model":"","messages":[{"role":"user","content":"\\ud800"}]}',
    ],
)
def test_a_file_that_is_no_conversation_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_bytes(content)
    with pytest.raises(bough.RequestError, match=r"talk\.json is not a saved conversation .*: choose another file"):
        Conversation.load(file)
    with pytest.raises(bough.RequestError, match=r"talk\.json is not a saved conversation"):
        Conversation().save(file)
    assert file.read_bytes() == content


def test_files_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.lang.state.conversation.MAX_FILE_BYTES", 1000)
    file = tmp_path / "talk.json"
    with pytest.raises(bough.RequestError, match="too large for a file"):
        Conversation([{"role": "user", "content": "x" * 2000}]).save(file)
    assert not list(tmp_path.iterdir())
    file.write_text(json.dumps({**GOOD, "messages": [{"role": "user", "content": "x" * 2000}]}))
    with pytest.raises(bough.RequestError, match="is too large for a conversation"):
        Conversation.load(file)
    with pytest.raises(bough.RequestError, match="is not a file"):
        Conversation.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        Conversation.load(tmp_path / "none.json")


def test_a_variable_without_a_form_in_json_is_named(tmp_path: Path) -> None:
    talk = Conversation(values={"lock": object()})
    with pytest.raises(bough.RequestError, match="the variable 'lock' cannot be saved") as caught:
        talk.save(tmp_path / "talk.json")
    assert f"{__file__}:" in str(caught.value) and not list(tmp_path.iterdir())
