"""Backends that were used before a fork: parent and child get their own answers, each over connections of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from bough.lang.api import function, gen
from bough.lang.backends.http import HttpBackend
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import BackendError
from bough.runtime.protocol.program import Program

from ...runtime.forking import in_child
from .apis.api_programs import capital
from .test_http import PROGRAM, Handler, Server, mocked, serve

__all__ = ["serve"]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@function
def named(s: Any, name: str) -> None:
    s += f"<{name}>" + gen("x", max_tokens=8)


@pytest.fixture
def ports() -> list[int]:
    """Ports that requests came from."""
    return []


@pytest.fixture
def backend(serve: Any, ports: list[int]) -> Iterator[HttpBackend]:
    run = mocked(MockBackend({"x": "hello"}))

    def answer(handler: Handler, body: bytes) -> None:
        ports.append(handler.client_address[1])
        run(handler, body)

    server: Server = serve(answer)
    with HttpBackend(server.url) as made:
        yield made


def test_http_connections_are_not_shared(backend: HttpBackend, ports: list[int]) -> None:
    def run(name: str) -> str:
        return named.run(name, backend=backend).text()

    assert run("parent") == "<parent>hello"
    assert in_child(lambda: run("child")) == "<child>hello"
    assert run("parent") == "<parent>hello"
    first, childs, again = ports
    assert first == again != childs, "the parent's connection was shared, or closed"


def test_nor_are_those_of_event_loops(backend: HttpBackend, ports: list[int]) -> None:
    async def run(name: str) -> str:
        return (await named.arun(name, backend=backend)).text()

    async def main() -> list[str]:
        return [
            await run("parent"),
            in_child(lambda: asyncio.run(run("child"))),
            await run("parent"),
        ]

    assert asyncio.run(main()) == ["<parent>hello", "<child>hello", "<parent>hello"]
    first, childs, again = ports
    assert first == again != childs


def test_a_child_that_closes_leaves_the_parents_connections(backend: HttpBackend, ports: list[int]) -> None:
    named.run("parent", backend=backend)

    def close() -> str:
        backend.close()
        return "closed"

    assert in_child(close) == "closed"
    named.run("parent", backend=backend)
    assert len(set(ports)) == 1


def test_a_closed_backend_is_closed_in_the_child_too(backend: HttpBackend) -> None:
    backend.close()
    assert "closed" in in_child(lambda: str(list(backend.run(PROGRAM))))


def test_an_answer_that_has_begun_is_the_parents(serve: Any) -> None:
    mock = MockBackend({"x": "hello"})

    def answer(handler: Handler, body: bytes) -> None:
        handler.begin()
        for event in mock.run(msgspec.json.decode(body, type=Program)):
            handler.event(event)
        handler.chunk(b"")

    with HttpBackend(serve(answer).url) as backend:
        named.run("parent", backend=mock)
        program = msgspec.structs.replace(mock.requests[-1], deltas=True)
        events = backend.run(program)
        first = next(events)

        def go_on() -> str:
            with pytest.raises(BackendError, match="before this process was forked"):
                list(events)
            return "refused"

        assert in_child(go_on) == "refused"
        assert [first, *events] == list(mock.run(program))


def test_an_apis_programs_run_in_the_child(api: Any) -> None:
    _, backend = api(
        lambda exchange: exchange.say(exchange.body["messages"][-1]["content"].split()[-1]), max_concurrency=1
    )

    def run(country: str) -> str:
        return str(capital.run(country, backend=backend)["city"])

    assert run("France") == "France?"
    assert in_child(lambda: run("Japan")) == "Japan?"
    assert in_child(lambda: backend.close() or "closed") == "closed"
    assert run("Italy") == "Italy?"
