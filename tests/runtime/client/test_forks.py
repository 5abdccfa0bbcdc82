"""Engines that were loaded before a fork: they stay the parent's, and the child is told so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bough.runtime.client.client import EngineClient
from bough.runtime.client.local import EngineLoop, LocalClient
from bough.runtime.client.remote import RemoteClient
from bough.runtime.client.supervisor import Supervisor
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import EngineStoppedError

from ...support.fakes import fake_engine
from ..asking import assert_stopped, config, program, request, tokens
from ..forking import in_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(params=["local", "remote", "supervised"])
def client(request: pytest.FixtureRequest, folder: Path) -> Iterator[EngineClient]:
    made: EngineClient
    match request.param:
        case "local":
            engine, _ = fake_engine()
            made = LocalClient(EngineLoop(engine, EngineConfig()))
        case "remote":
            made = RemoteClient.launch(config(folder))
        case _:
            made = Supervisor(config(folder))
    yield made
    made.close()


def test_a_child_is_refused_and_its_close_ends_nothing(client: EngineClient) -> None:
    expected = tokens(list(client.stream(request())))

    def use() -> str:
        if isinstance(client, Supervisor):
            assert client.stats().up == 0
        else:
            assert_stopped(client)
        assert not client.alive
        client.drop("anything")
        for call in (client.check, lambda: next(client.stream(request())), lambda: next(client.run(program()))):
            with pytest.raises(EngineStoppedError, match=r"from which this one was forked.*create it here.*spawn"):
                call()
        client.close()
        client.close(at_once=True)
        return "refused"

    assert in_child(use) == "refused"
    assert client.alive
    assert tokens(list(client.stream(request()))) == expected


@pytest.mark.parametrize("leaves", [False, True])
def test_a_stream_from_before_the_fork_is_the_parents(client: EngineClient, leaves: bool) -> None:
    events = client.stream(request(max_tokens=200))
    begin = [next(events)]

    def continue_it() -> str:
        if leaves:
            events.close()  # type: ignore[attr-defined]
            return "left"
        with pytest.raises(EngineStoppedError, match="from which this one was forked"):
            list(events)
        return "refused"

    assert in_child(continue_it) == ("left" if leaves else "refused")
    assert len(tokens(begin + list(events))) == 200


def test_a_child_does_not_keep_the_link_open(folder: Path) -> None:
    client = RemoteClient.launch(config(folder))
    link = client._spawned.connection.fileno()

    def look() -> str:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(link)
        return "closed"

    assert in_child(look) == "closed"
    client.close()
