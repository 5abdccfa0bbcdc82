"""Tools of MCP servers, by the official package: of one that is started as a process, or one that is asked by HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from importlib import import_module
from typing import Any, Self

from ...runtime.protocol.errors import EngineError, RequestError
from ...runtime.tools.registry import ToolCallError, check_tool, tool_failed
from ..diagnostics.source_lines import located
from ..record.options import checked_timeout, wrong_kind
from .tool import MAX_CHARS, Tool

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
    """Connects to an MCP server, whose tools a model can call: `bough.call_tools("answer", [server])`.

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
    package = _package()
    if isinstance(target, str):
        if not target.startswith(("http://", "https://")):
            message = f"a command is a list, such as {target.split()!r}; a URL begins with http:// or https://"
            raise RequestError(message, param="target")
        if env is not None:
            raise RequestError("env is for a command: a URL has headers", param="env")
        server = target if headers is None else _http(target, headers)
        return McpServer(target, server, prefix, limit_s, max_chars)
    if not isinstance(target, Sequence) or not target or not all(isinstance(part, str) for part in target):
        raise wrong_kind("target", "a URL, or a command as a list of texts", target)
    if headers is not None:
        raise RequestError("headers are for a URL: a command has env", param="headers")
    command, *args = target
    server = package.StdioServerParameters(command=command, args=args, env=None if env is None else dict(env))
    return McpServer(command, _stdio(server), prefix, limit_s, max_chars)


class McpServer:
    """A connection to an MCP server. `tools` are those that it lists. Close it, or use it in `with`."""

    def __init__(self, name: str, server: Any, prefix: str, timeout_s: float | None, max_chars: int) -> None:
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
    """A client on an event loop of its own: the package wants a connection opened and closed by one task."""

    def __init__(self, server: Any, timeout_s: float | None) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._listed: Future[list[Any]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._task: asyncio.Task[Any] | None = None
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="bough-mcp", daemon=True)

    def connect(self) -> list[Any]:
        """Returns the tools that the server lists."""
        self._thread.start()
        try:
            return self._listed.result(self._timeout_s)
        except TimeoutError:
            raise _unreachable(f"it did not answer within {self._timeout_s:g} s") from None

    def submit(self, work: Callable[[Any], Coroutine[Any, Any, str]]) -> Future[str]:
        """Runs `work` with the client. Cancelling the future cancels it."""
        if self._loop is None or not self._thread.is_alive():
            raise EngineError("the connection to the MCP server is closed", code="tool_failed")
        return asyncio.run_coroutine_threadsafe(work(self._client), self._loop)

    def close(self) -> None:
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._end)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)

    def _end(self) -> None:
        if self._client is None and self._task is not None:  # it is still being opened
            self._task.cancel()
        self._closing.set()

    async def _live(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            async with _package().Client(self._server) as client:
                self._client = client
                self._listed.set_result(await _list(client))
                await self._closing.wait()
        except BaseException as error:  # noqa: BLE001  whoever connects hears of it
            if not self._listed.done():
                self._listed.set_exception(_unreachable(_reason(error)))


async def _list(client: Any) -> list[Any]:
    found: list[Any] = []
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found
        if len(found) > _MAX_TOOLS:
            raise ValueError(f"it lists more than {_MAX_TOOLS} tools")


def _text_of(found: Any) -> str:
    """Returns a result as text: its texts, or what it says as JSON. Of other content only its kind is told."""
    texts = [block.text if block.type == "text" else f"({block.type} left out)" for block in found.content]
    if not texts and found.structured_content is not None:
        return json.dumps(found.structured_content, ensure_ascii=False)
    return "\n".join(texts)


@contextlib.asynccontextmanager
async def _stdio(server: Any) -> AsyncIterator[Any]:
    """Starts a command. What it says on stderr goes where this process's does; nowhere, if that is no file."""
    with contextlib.ExitStack() as stack:
        try:
            sys.stderr.fileno()
            told: Any = sys.stderr
        except (AttributeError, OSError, ValueError):  # in a notebook, for one
            told = stack.enter_context(open(os.devnull, "w"))
        async with import_module("mcp.client.stdio").stdio_client(server, errlog=told) as streams:
            yield streams


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


def _unreachable(reason: str) -> EngineError:
    return EngineError(f"the MCP server cannot be reached: {reason[:500]}", code="mcp_unreachable")
