"""Tools of engines on a thread and in a process, asked alike: they run in the process that asks."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bough.runtime.client.client import EngineClient
from bough.runtime.client.local import EngineLoop, LocalClient
from bough.runtime.client.messages import FrameWriter, ToolResult, UseTool, read_frames
from bough.runtime.client.remote import RemoteClient
from bough.runtime.client.remote_tools import LocalTools
from bough.runtime.protocol.condition import Compare
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Done, Failed, Gen, Op, Ref, Repeat, Text, Use, Value, When

from ...support.engine_thread import EngineThread
from ...support.fakes import fake_engine
from ...support.tiny_model import write_tiny_model
from ..asking import assert_nothing_left, config, program, request, wait_until
from ..tools.test_registry import Tool, calls, later


@pytest.fixture(scope="module")
def remote_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteClient]:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    client = RemoteClient.launch(config(folder))
    yield client
    client.close()


@pytest.fixture(params=["local", "remote"])
def client(request: pytest.FixtureRequest) -> Iterator[EngineClient]:
    if request.param == "remote":
        made: EngineClient = request.getfixturevalue("remote_client")
        yield made
    else:
        made = LocalClient(EngineLoop(fake_engine()[0], EngineConfig()))
        yield made
    assert_nothing_left(made)
    if request.param == "local":
        made.close()


def run(client: EngineClient, *ops: Op, tools: dict[str, Tool] | None = None) -> Done | Failed:
    last = list(client.run(program(*ops), tools))[-1]
    assert isinstance(last, Done | Failed)
    return last


def failed(client: EngineClient, tool: Tool) -> str:
    last = run(client, *calls(tool.name), tools={tool.name: tool})
    assert isinstance(last, Failed)
    return f"{last.error.code}: {last.error.message}"


def test_tools_run_in_this_process(client: EngineClient) -> None:
    tools = {"where": Tool("where", lambda: f"{os.getpid()}"), "later": Tool("later", later)}
    ops = (Text(0, ("x",)), Use(0, "a", "where"), Use(0, "b", "later", (("text", (Ref(0, "a"), "!")),)))
    last = run(client, *ops, tools=tools)
    assert isinstance(last, Done)
    assert last.texts[0] == f"x{os.getpid()}{os.getpid()}!"


def test_a_loop_of_tools_is_one_program(client: EngineClient) -> None:
    count = iter(range(100))
    body = (Use(0, "n", "count"), When(0, Compare(Ref(0, "n"), "lt", 3), (Text(0, (" ",)),)))
    last = run(
        client,
        Text(0, ("x",)),
        Repeat(0, body, Compare(Ref(0, "n"), "ge", 3), 50),
        tools={"count": Tool("count", lambda: str(next(count)))},
    )
    assert isinstance(last, Done)
    assert last.texts[0] == "x0 1 2 3"


def test_failures_come_back_as_they_were(client: EngineClient) -> None:
    assert (
        failed(client, Tool("bad", lambda: 1 / 0))
        == "tool_failed: the tool 'bad' failed: ZeroDivisionError: division by zero"
    )
    assert "returned 20 characters, but max_chars is 10" in failed(client, Tool("long", lambda: "a" * 20, max_chars=10))


def test_failures_arrive_whatever_their_text(client: EngineClient) -> None:
    """The name that a file system makes of bytes that are no text cannot be sent as it is."""

    def missing() -> str:
        raise FileNotFoundError("no file named \udcff")

    started = time.monotonic()
    assert failed(client, Tool("bad", missing, timeout_s=20.0)).endswith("FileNotFoundError: no file named \\udcff")
    assert time.monotonic() - started < 10.0


def test_an_idle_engine_ends_a_tool_that_takes_too_long(client: EngineClient) -> None:
    gate = threading.Event()
    started = time.monotonic()
    message = failed(client, Tool("slow", lambda: str(gate.wait(20.0)), timeout_s=0.2))
    assert message == "tool_timeout: the tool 'slow' was not done within 0.2 s"
    assert 0.15 < time.monotonic() - started < 5.0
    gate.set()


def test_a_result_that_no_message_can_hold_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.runtime.client.messages.MAX_FRAME_BYTES", 1000)
    sent: list[ToolResult] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        writer = FrameWriter(ours)
        tools = LocalTools(writer.put)
        asked = program(*calls("long"))
        tools.offer(1, asked, {"long": Tool("long", lambda: "a" * 2000, max_chars=4000)})
        tools.use(UseTool(1, 7, "long", {}))
        sent.append(next(read_frames(theirs, ToolResult)))
        tools.close()
        writer.close()
    assert sent[0].call == 7 and sent[0].error is not None
    assert sent[0].error.message.startswith("the tool 'long' failed: its result cannot be sent: it has 20")


def test_the_engine_computes_while_a_tool_runs(client: EngineClient) -> None:
    gate = threading.Event()
    slow = {"slow": Tool("slow", lambda: str(gate.wait(20.0)))}
    events = client.run(program(*calls("slow"), Gen(0, "g", request().sampling)), slow)
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.extend(events))
    reader.start()
    assert isinstance(list(client.run(program()))[-1], Done)
    assert not found
    gate.set()
    reader.join(timeout=10.0)
    assert isinstance(found[-1], Done)


def test_leaving_a_program_leaves_its_tool(client: EngineClient) -> None:
    cancelled = threading.Event()
    begun = threading.Event()

    async def endless() -> str:
        begun.set()
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    asked = program(Text(0, ("x",)), Gen(0, "g", request().sampling), Use(0, "u", "endless"), keep=True)
    events = client.run(asked, {"endless": Tool("endless", endless)})
    for event in events:
        if isinstance(event, Value):
            break
    assert begun.wait(10.0)
    events.close()  # type: ignore[attr-defined]
    assert cancelled.wait(10.0)


def test_tools_that_are_registered_are_there_for_all(client: EngineClient) -> None:
    name = f"shared_{type(client).__name__}"
    client.register_tool(Tool(name, lambda text: f"<{text}>"))
    assert name in client.tools
    last = run(client, *calls(name, text="a"))
    assert isinstance(last, Done)
    assert last.texts[0] == "x<a>"
    with pytest.raises(RequestError, match="registered already"):
        client.register_tool(Tool(name, str))
    with pytest.raises(RequestError) as caught:
        next(client.run(program(*calls("nothing"))))
    assert caught.value.code == "unknown_tool"
    assert repr(name) in caught.value.message


def test_tools_are_awaited_from_coroutines(client: EngineClient) -> None:
    async def ask() -> list[object]:
        many = (client.arun(program(*calls("later")), {"later": Tool("later", later)}) for _ in range(20))
        return await asyncio.gather(*(collect(events) for events in many))

    async def collect(events: object) -> object:
        return [event async for event in events][-1]  # type: ignore[attr-defined]

    assert all(isinstance(last, Done) and last.texts[0] == "xlater" for last in asyncio.run(ask()))


def test_programs_that_are_nested_too_deeply_do_not_end_the_engine(client: EngineClient) -> None:
    op: Op = Text(0, ("x",))
    for _ in range(3000):
        op = When(0, Compare("a", "eq", "a"), (op,))
    with pytest.raises(RequestError):
        next(client.run(program(op)))
    assert isinstance(run(client, Text(0, ("x",))), Done)
    wait_until(lambda: client.stats().states == 0)


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_a_tool_without_a_thread_ends_its_program_alone(
    kind: str, engine_threads: Callable[..., EngineThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, begin = fake_engine()[0], threading.Thread.start
    if kind == "local":
        client: LocalClient | RemoteClient = LocalClient(EngineLoop(engine, EngineConfig()))
    else:
        client = RemoteClient(engine_threads(lambda thread, writer: engine).spawned())
        client.load(EngineConfig())
    other = client.stream(request(1900))
    next(other)

    def fail(self: threading.Thread) -> None:
        if self.name == "bough-tool":
            raise RuntimeError("can't start new thread")
        begin(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert failed(client, Tool("quick", lambda: "quick")).startswith("engine_overloaded: no thread can be started")
    assert isinstance(run(client, *calls("quick"), tools={"quick": Tool("quick", lambda: "quick")}), Done)
    last = list(other)[-1].finish
    assert client.alive and last is not None and last.error is None
    client.close()
