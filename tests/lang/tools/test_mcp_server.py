"""MCP servers: their tools over stdio and over HTTP, what comes of calls, and servers that are not there."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bough
from bough import ToolCall
from bough.cli.serve import tools_in
from bough.lang.tools import mcp_server as mcp_module

pytest.importorskip("mcp")

NOTES = Path(__file__).with_name("notes_server.py")
COMMAND = [sys.executable, str(NOTES)]
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()


@pytest.fixture(params=["stdio", "http", "http with headers"])
def server(request: pytest.FixtureRequest) -> Iterator[bough.McpServer]:
    if request.param == "stdio":
        found = bough.mcp_server(COMMAND, timeout_s=LIMIT_S)
    else:
        headers = {"X-Key": "k"} if request.param.endswith("headers") else None
        found = bough.mcp_server(request.getfixturevalue("url"), headers=headers, timeout_s=LIMIT_S)
    with found:
        yield found


@bough.function
def assistant(s: Any, tools: Any) -> None:
    s += bough.user("What is on my list?")
    s += bough.call_tools("answer", [tools], max_turns=3)


def test_a_model_calls_its_tools(server: bough.McpServer) -> None:
    assert [tool.name for tool in server.tools] == ["add", "note"]
    assert server.tools[0].description == "Adds two numbers."
    calls = [ToolCall("add", {"first": 2}), ToolCall("note", {"title": "list"}), ToolCall("note", {"title": "secret"})]
    state = assistant.run(server, backend=bough.MockBackend({"answer": [calls, "Milk."]}))
    found = state.calls("answer")
    assert [call.result for call in found[:2]] == ["3", "list: milk, bread"]
    assert found[2].result is None and "that note is secret" in str(found[2].error)
    assert state["answer"] == "Milk."


def test_its_tools_are_tools_like_others(server: bough.McpServer) -> None:
    add, note = server.tools
    assert add(first=2, second=3) == "5"

    def body(s: Any) -> None:
        s += "Note: " + bough.use("note", note, title="list")

    assert bough.function(body).run(backend=bough.MockBackend())["note"] == "list: milk, bread"
    server.close()
    state = assistant.run(server, backend=bough.MockBackend({"answer": [ToolCall("add", {"first": 2}), "No."]}))
    assert "is closed" in str(state.calls("answer")[0].error)


def test_names_can_have_a_prefix_and_threads_end() -> None:
    before = set(threading.enumerate())
    with bough.mcp_server(COMMAND, prefix="notes_", timeout_s=LIMIT_S) as server:
        assert [tool.name for tool in server.tools] == ["notes_add", "notes_note"]
        assert repr(server).endswith("notes_add, notes_note>")
        calls = [ToolCall("notes_note", {"title": "list"}), "Milk."]
        state = assistant.run(server, backend=bough.MockBackend({"answer": calls}))
        assert state.calls("answer")[0].result == "list: milk, bread"
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "bough-mcp"]


def test_a_command_starts_where_stderr_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bough.mcp_server(COMMAND, timeout_s=LIMIT_S) as server:
        assert server.tools[0](first=1) == "2"


def test_a_server_s_file_may_name_one(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(f"import bough\n\nNOTES = bough.mcp_server({COMMAND!r}, timeout_s={LIMIT_S})\n")
    tools = tools_in(tmp_path / "tools.py")
    assert [tool.name for tool in tools] == ["add", "note"]


def test_servers_that_are_not_there_and_wrong_targets() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{free.getsockname()[1]}/mcp"
    for target in ([sys.executable, "-c", "pass"], ["no-such-command-anywhere"], gone):
        with pytest.raises(bough.EngineError, match="the MCP server cannot be reached") as caught:
            bough.mcp_server(target, timeout_s=LIMIT_S)
        assert caught.value.code == "mcp_unreachable"
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(bough.EngineError, match=r"did not answer within 0.5 s"):
        bough.mcp_server(sleeper, timeout_s=0.5)
    for wrong, said in (
        ("uvx notes", r"a command is a list, such as \['uvx', 'notes'\]"),
        ([], "a URL, or a command as a list of texts"),
        (7, "a URL, or a command as a list of texts"),
    ):
        with pytest.raises(bough.RequestError, match=said):
            bough.mcp_server(wrong)  # type: ignore[arg-type]
    with pytest.raises(bough.RequestError, match="headers are for a URL"):
        bough.mcp_server(COMMAND, headers={})
    with pytest.raises(bough.RequestError, match="env is for a command"):
        bough.mcp_server(gone, env={})


STUBBORN = """
import os, time
from mcp.server.mcpserver import MCPServer
server = MCPServer("stubborn", log_level="CRITICAL")

@server.tool()
def pid() -> int:
    "Returns the number of the process."
    return os.getpid()

@server.tool()
def die() -> str:
    "Ends the process."
    os._exit(1)

if os.path.exists("broken"):
    raise SystemExit("it is broken")
server.run()
time.sleep(600)  # whatever becomes of its stdin
"""


@pytest.fixture
def stubborn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command that does not end with its stdin, in a folder of its own; it does not start while there is a file
    `broken`."""
    monkeypatch.chdir(tmp_path)
    Path("stubborn.py").write_text(STUBBORN)
    return [sys.executable, "stubborn.py"]


def runs(pid: int) -> bool:
    """Tells whether a process is there that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a child of its parent's end")
def test_a_command_ends_with_the_process_that_started_it(stubborn: list[str]) -> None:
    script = (
        "import bough, os, signal\n"
        f"server = bough.mcp_server({stubborn!r}, timeout_s={LIMIT_S})\n"
        "print(server.tools[0](), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    pid, deadline = int(ended.stdout), time.monotonic() + 10.0
    try:
        while runs(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not runs(pid)
    finally:
        if runs(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_command_that_has_ended_is_started_again_by_the_next_call(stubborn: list[str]) -> None:
    with bough.mcp_server(stubborn, timeout_s=LIMIT_S) as server:
        pid, die = server.tools
        first = pid()
        with pytest.raises(Exception, match=r"[Cc]onnection closed"):
            die()
        with ThreadPoolExecutor(4) as pool:
            again = {call.result(LIMIT_S) for call in [pool.submit(pid) for _ in range(4)]}
        assert len(again) == 1 and again != {first}
        os.kill(int(again.pop()), signal.SIGKILL)  # while nobody calls
        time.sleep(0.5)
        assert pid() != first


def test_one_that_does_not_start_again_is_told_of_and_tried_with_each_call(stubborn: list[str]) -> None:
    with bough.mcp_server(stubborn, timeout_s=LIMIT_S) as server:
        pid, die = server.tools
        Path("broken").touch()
        with pytest.raises(Exception, match=r"[Cc]onnection closed"):
            die()
        for _ in range(2):
            with pytest.raises(bough.EngineError, match="the MCP server cannot be reached"):
                pid()
        Path("broken").unlink()
        assert int(pid())


class Client:
    """A client of a server that takes one turn of the event loop to open."""

    def __init__(self, server: object) -> None:
        self.closed = False

    async def __aenter__(self) -> Client:
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.closed = True


def test_a_call_that_is_given_up_as_it_begins_leaves_the_connection_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_module, "_package", lambda: SimpleNamespace(Client=Client))

    async def give_up(link: mcp_module._Connection, num_turns: int) -> None:
        call = asyncio.create_task(link._client())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])

    async def run() -> None:
        link = mcp_module._Connection(object, LIMIT_S)
        for num_turns in range(4):
            await give_up(link, num_turns)  # while it is being opened
        client = await link._client()
        for num_turns in range(4):
            await give_up(link, num_turns)
            assert not client.closed and await link._client() is client
        assert link._session is not None
        await link._session.end()
        assert client.closed

    asyncio.run(run())


def test_pages_of_tools_have_an_end() -> None:
    asked: list[str | None] = []

    class Pages:
        async def list_tools(self, cursor: str | None) -> Any:
            asked.append(cursor)
            assert len(asked) < 10_000, "there is no end"
            return SimpleNamespace(tools=[], next_cursor=str(len(asked)))

    with pytest.raises(ValueError, match="pages"):
        asyncio.run(mcp_module._list(Pages()))
    assert len(asked) <= 200


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(bough.RequestError, match=r'pip install "bough\[mcp\]"'):
        bough.mcp_server(COMMAND)
