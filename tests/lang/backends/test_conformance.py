"""One program, any backend: the same shapes of results, the same codes of errors, and nothing left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.lang.backend import Backend
from bough.lang.backends.http import HttpBackend
from bough.server.config import ServerConfig

from ...server.conftest import Running, running
from ...support.tiny_model import write_tiny_model
from .conformance import CASES, LEFT, LIVE, STOPPING, TOOLS, left, tool_time_out, tools


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bough.LocalBackend]:
    model = write_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096)
    with bough.LocalBackend(str(model), num_pages=8192) as backend:
        yield backend


@pytest.fixture(scope="module")
def server(local: bough.LocalBackend) -> Iterator[Running]:
    client: Any = local.client
    for tool in TOOLS:
        client.register_tool(tool)
    with running(client, ServerConfig(port=0, served_model_name="m")) as found:
        yield found


def make(kind: str, server: Running) -> Any:
    if kind == "mock":
        return bough.MockBackend()
    if kind == "http":
        return HttpBackend(server.url)
    return bough.OpenAI("m", base_url=f"{server.url}/v1", api_key="k", extensions=True)


@pytest.fixture(params=["local", "http", "mock", "openai"])
def backend(request: pytest.FixtureRequest, local: bough.LocalBackend, server: Running) -> Iterator[Any]:
    if request.param == "local":
        yield local
        return
    made = make(request.param, server)
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_program_comes_out_alike(case: Callable[[Backend], object], backend: Any) -> None:
    assert case(backend) == CASES[case]
    if case in STOPPING:
        assert LEFT.wait(5), "the tool goes on although nobody waits for it"


@pytest.mark.parametrize("case", [case for case in CASES if case not in LIVE], ids=lambda case: case.__name__)
def test_a_recording_comes_out_alike(
    case: Callable[[Backend], object], local: bough.LocalBackend, tmp_path: Path
) -> None:
    tape = tmp_path / "tape.jsonl"
    with bough.Cassette(tape, local, mode="record") as backend:
        assert case(backend) == CASES[case]
    with bough.Cassette(tape, mode="replay") as backend:
        assert case(backend) == CASES[case]


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("kind", ["mock", "http", "openai"])
def test_no_thread_is_left(kind: str, closed: bool, server: Running) -> None:
    before = set(threading.enumerate())
    made = make(kind, server)
    for case in (tools, tool_time_out, left):
        case(made)
    if closed:
        made.close()
    del made
    deadline = time.monotonic() + 5

    def more() -> list[str]:
        """An engine keeps threads of its own."""
        gc.collect()
        ours = ("bough-tool", "bough-async", "bough-mock") if kind == "mock" else ("bough-api", "bough-programs")
        return [one.name for one in set(threading.enumerate()) - before if one.name.startswith(ours)]

    while more() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert more() == []
