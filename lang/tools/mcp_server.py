"""Tools of MCP servers, by the official package: servers started as a process, or reached over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from typing import Any, Self

from ...constrain.workers.child import tied
from ...runtime.protocol.errors import EngineError, RequestError
from ...runtime.tools.registry import ToolCallError, check_tool, tool_failed
from ..diagnostics.source_lines import located
from ..record.options import checked_timeout, wrong_kind
from .tool import MAX_CHARS, Tool

logger = logging.getLogger("bough.tools")

_CLOSE_S = 5.0
_MAX_TOOLS = 128


@located
def mcp_server(
    target: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    prefix: str = "",
    timeout_s: float = 30.0,
    max_chars: int = MAX_CHARS,
) -> McpServer:
    """Connects to an MCP server, whose tools a model can call: `bough.call_tools("answer", [server])`. A command that
    has ended is started again by the next call.

    target      a command and its arguments, which is started and spoken to over stdin and stdout; or the URL of a
                server that speaks streamable HTTP
    env         of the command, in addition to what every process needs
    headers     sent to the URL with each request, such as a key
    prefix      put before the names of its tools, where two servers have the same ones
    timeout_s   seconds for the connection, and for each call
    max_chars   maximum characters of a result; more is an error

    Needs the package `mcp`: `pip install "bough[mcp]"`.

    >>> with bough.mcp_server(["python", "notes_server.py"]) as notes:
    ...     state = assistant.run("What is on my list?", notes)

    Raises:
        RequestError: the target is neither, or the package is missing.
        EngineError: the server cannot be reached, code "mcp_unreachable".
    """
    limit_s = checked_timeout(timeout_s)
    _package()
    if isinstance(target, str):
        if not target.startswith(("http://", "https://")):
            message = f"a command is a list, such as {target.split()!r}; a URL begins with http:// or https://"
            raise RequestError(message, param="target")
        if env is not None:
            raise RequestError("env is for a command: a URL has headers", param="env")
        url = target
        return McpServer(url, lambda: url if headers is None else _http(url, headers), prefix, limit_s, max_chars)
    if not isinstance(target, Sequence) or not target or not all(isinstance(part, str) for part in target):
        raise wrong_kind("target", "a URL, or a command as a list of texts", target)
    if headers is not None:
        raise RequestError("headers are for a URL: a command has env", param="headers")
    return McpServer(target[0], partial(_Command, target, env or {}), prefix, limit_s, max_chars)


class McpServer:
    """A connection to an MCP server. `tools` are those that it lists. Close it, or use it in `with`."""

    def __init__(
        self, name: str, server: Callable[[], Any], prefix: str, timeout_s: float | None, max_chars: int
    ) -> None:
        self.name = name
        self._link = _Connection(server, timeout_s)
        self._end = weakref.finalize(self, self._link.close)
        try:
            listed = self._link.connect()
            self.tools: list[Tool[..., str]] = [
                McpTool(self._link, tool, prefix, timeout_s, max_chars) for tool in listed
            ]
        except BaseException:
            self._end()
            raise

    def __repr__(self) -> str:
        return f"<MCP server {self.name}: {', '.join(tool.name for tool in self.tools)}>"

    def close(self) -> None:
        """Ends the connection, and the process if there is one. Closing twice is fine."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class McpTool(Tool[..., str]):
    """A tool of an MCP server."""

    def __init__(self, link: _Connection, listed: Any, prefix: str, timeout_s: float | None, max_chars: int) -> None:
        self.name = prefix + listed.name
        self.description = listed.description or listed.title or ""
        self.parameters = {"type": "object", **listed.input_schema}
        self.timeout_s = timeout_s
        self.max_chars = max_chars
        self.function = self._call_all
        self._listed_name: str = listed.name
        self._link = link
        check_tool(self)

    def __repr__(self) -> str:
        return f"<tool {self.name} of an MCP server>"

    async def call(self, arguments: dict[str, Any]) -> str:
        return await asyncio.wrap_future(self._begin(arguments))

    def _call_all(self, **arguments: Any) -> str:
        return self._begin(arguments).result()

    def _begin(self, arguments: dict[str, Any]) -> Future[str]:
        return self._link.submit(lambda client: self._ask(client, arguments))

    async def _ask(self, client: Any, arguments: dict[str, Any]) -> str:
        found = await client.call_tool(self._listed_name, arguments, read_timeout_seconds=self.timeout_s)
        text = _text_of(found)
        if found.is_error:
            raise ToolCallError(tool_failed(self.name, text[:500]))
        return text


class _Connection:
    """Clients of a server, one after another, on an event loop of their own."""

    def __init__(self, server: Callable[[], Any], timeout_s: float | None) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._listed: Future[list[Any]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._session: _Session | None = None
        self._opening = asyncio.Lock()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="bough-mcp", daemon=True)

    def connect(self) -> list[Any]:
        """Returns the tools that the server lists."""
        self._thread.start()
        try:
            return self._listed.result(self._timeout_s)
        except TimeoutError:
            raise _unreachable(_late(self._timeout_s)) from None

    def submit(self, work: Callable[[Any], Coroutine[Any, Any, str]]) -> Future[str]:
        """Runs `work` with the client. Cancelling the future cancels it."""
        if self._loop is None or not self._thread.is_alive():
            raise EngineError("the connection to the MCP server is closed", code="tool_failed")
        return asyncio.run_coroutine_threadsafe(self._work(work), self._loop)

    def close(self) -> None:
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._end)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)

    def _end(self) -> None:
        if not self._listed.done() and self._task is not None:  # it is still being opened
            self._task.cancel()
        self._closing.set()

    async def _live(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            self._listed.set_result(await _list(await self._client()))
            await self._closing.wait()
        except BaseException as error:  # noqa: BLE001  whoever connects hears of it
            if not self._listed.done():
                told = error if isinstance(error, EngineError) else _unreachable(_reason(error))
                self._listed.set_exception(told)
        finally:
            if self._session is not None:
                await self._session.end()

    async def _work(self, work: Callable[[Any], Coroutine[Any, Any, str]]) -> str:
        return await work(await self._client())

    async def _client(self) -> Any:
        """Returns the client of a server that has not ended. Raises EngineError: it cannot be started again."""
        async with self._opening:
            if self._session is None or self._session.over:
                if self._session is not None:
                    await self._session.end()
                self._session = _Session(self._server())
            return await self._session.client(self._timeout_s)


class _Session:
    """A client, which the package wants to be opened and closed by one task."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._live())

    @property
    def over(self) -> bool:
        """It has ended, or its command has."""
        return self._task.done() or (isinstance(self._server, _Command) and self._server.ended)

    async def client(self, timeout_s: float | None) -> Any:
        """Waits until it is open, and ends it if that fails. Raises EngineError: the server cannot be reached."""
        if not self._opened.done():  # waiting for it would take a turn, in which the call may be given up
            try:
                await self._wait_open(timeout_s)
            except BaseException:
                if not self._opened.done():
                    await self.end()
                raise
        return self._opened.result()

    async def _wait_open(self, timeout_s: float | None) -> None:
        waits = (self._opened, self._task)
        done, _ = await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise _unreachable(_late(timeout_s))
        if not self._opened.done():
            raise _unreachable(_reason(self._task.exception() or EOFError("it has ended")))

    async def end(self) -> None:
        self._closing.set()
        if not self._opened.done():
            self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            logger.debug("the connection to an MCP server ended by an error: %s", _reason(error))

    async def _live(self) -> None:
        async with _package().Client(self._server) as client:
            self._opened.set_result(client)
            await self._closing.wait()


async def _list(client: Any) -> list[Any]:
    found: list[Any] = []
    cursor = None
    for _ in range(_MAX_TOOLS):  # pages may be empty
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found
        if len(found) > _MAX_TOOLS:
            raise ValueError(f"it lists more than {_MAX_TOOLS} tools")
    raise ValueError(f"it lists its tools in more than {_MAX_TOOLS} pages")


def _text_of(found: Any) -> str:
    """Returns a result as text: its texts, or what it says as JSON. Of other content only its kind is told."""
    texts = [block.text if block.type == "text" else f"({block.type} left out)" for block in found.content]
    if not texts and found.structured_content is not None:
        return json.dumps(found.structured_content, ensure_ascii=False)
    return "\n".join(texts)


class _Command:
    """A command that is started, and ends with this process. What it says on stderr goes where this process's does;
    nowhere, if that is no file."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._command = command
        self._env = dict(env)
        self._open = contextlib.AsyncExitStack()
        self._received: Any = None

    @property
    def ended(self) -> bool:
        """It says nothing more."""
        return self._received is not None and self._received.statistics().open_send_streams == 0

    async def __aenter__(self) -> Any:
        program = self._command[0]
        if shutil.which(program, path=self._env.get("PATH")) is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such command", program)
        try:
            sys.stderr.fileno()
            told: Any = sys.stderr
        except (AttributeError, OSError, ValueError):  # in a notebook, for one
            told = subprocess.DEVNULL
        command, *args = tied(self._command)
        server = _package().StdioServerParameters(command=command, args=args, env=self._env)
        stdio = import_module("mcp.client.stdio").stdio_client
        streams = await self._open.enter_async_context(stdio(server, errlog=told))
        self._received, _ = streams
        return streams

    async def __aexit__(self, *exception: Any) -> bool | None:
        return await self._open.__aexit__(*exception)


@contextlib.asynccontextmanager
async def _http(url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    """Opens a connection whose requests have headers of their own."""
    make = import_module("mcp.shared._httpx_utils").create_mcp_http_client
    transport = import_module("mcp.client.streamable_http").streamable_http_client
    async with make(headers=dict(headers)) as client, transport(url, http_client=client) as streams:
        yield streams


def _package() -> Any:
    try:
        return import_module("mcp")
    except ImportError:
        message = 'MCP servers need the package mcp: pip install "bough[mcp]"'
        raise RequestError(message, code="missing_package", param="target") from None


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _late(timeout_s: float | None) -> str:
    return f"it did not answer within {timeout_s:g} s"


def _unreachable(reason: str) -> EngineError:
    return EngineError(f"the MCP server cannot be reached: {reason[:500]}", code="mcp_unreachable")
