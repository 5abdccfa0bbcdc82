"""Tools of the client's process that are called by an engine in another process: both ends of the link."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..protocol.errors import BoughError, ErrorInfo, RequestError, to_info
from ..protocol.program import Program, named_tools, walk
from ..tools.quotas import Owner
from ..tools.registry import Ticket, ToolCall, ToolCallError, ToolRunner, check_tool, tool_failed, unknown_tool
from .messages import LeaveTool, ToolInfo, ToolResult, UseTool

logger = logging.getLogger("bough.tools")

Send = Callable[[Any], None]


class RemoteTools:
    """Engine's end: tools that are called in the client. Their calls are awaited on the tools' event loop."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._calls = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[ToolResult]]] = {}

    def of(self, key: int, tools: tuple[ToolInfo, ...]) -> Mapping[str, ToolCall]:
        """Returns the tools of the program `key`, for calls from the engine."""
        return {tool.name: RemoteTool(self, key, tool) for tool in tools}

    async def call(self, key: int, tool: str, arguments: dict[str, Any]) -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ToolResult] = loop.create_future()
        call = next(self._calls)
        with self._lock:
            self._waiting[call] = loop, answer
        try:
            self._send(UseTool(key, call, tool, arguments))
            result = await answer
        except asyncio.CancelledError:
            self._send(LeaveTool(call))
            raise
        finally:
            with self._lock:
                self._waiting.pop(call, None)
        if result.error is not None:
            raise ToolCallError(result.error)
        return result.text

    def take(self, result: ToolResult) -> None:
        """Settles the call of a result that has arrived. May be called from any thread."""
        with self._lock:
            loop, answer = self._waiting.get(result.call, (None, None))
        if loop is not None and answer is not None:
            loop.call_soon_threadsafe(_settle, answer, result)


class RemoteTool(NamedTuple):
    """A tool of the client, as seen by the engine."""

    tools: RemoteTools
    key: int
    info: ToolInfo

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def timeout_s(self) -> float | None:
        return self.info.timeout_s

    @property
    def max_chars(self) -> int:
        return self.info.max_chars

    @property
    def parameters(self) -> Mapping[str, Any] | None:
        return self.info.parameters

    @property
    def description(self) -> str:
        return self.info.description

    async def call(self, arguments: dict[str, Any]) -> str:
        return await self.tools.call(self.key, self.info.name, arguments)


class LocalTools:
    """Client's end: runs the tools that its programs call. Thread-safe."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._runner = ToolRunner()
        self._lock = threading.Lock()
        self._tools: dict[int, tuple[Owner, Mapping[str, ToolCall]]] = {}
        self._tickets: dict[int, Ticket] = {}

    def offer(self, key: int, program: Program, tools: Mapping[str, ToolCall]) -> tuple[ToolInfo, ...]:
        """Keeps those of `tools` that the program `key` names until it ends; returns their descriptions for the engine.

        Raises:
            RequestError: a tool is missing, or invalid.
        """
        used: dict[str, ToolCall] = {}
        for index, op in enumerate(walk(program.ops)):
            for name in named_tools(op):
                if name not in tools:
                    raise unknown_tool(index, name, tools)
                used[name] = tools[name]
        for tool in used.values():
            check_tool(tool)
        if used:
            with self._lock:
                self._tools[key] = Owner.of(program.namespace, program.id), used
        return tuple(_info(name, tool) for name, tool in used.items())

    def over(self, key: int) -> None:
        with self._lock:
            self._tools.pop(key, None)

    def use(self, message: UseTool) -> None:
        """Starts a call requested by the engine."""

        def done(outcome: str | ErrorInfo) -> None:
            with self._lock:
                self._tickets.pop(message.call, None)
            if isinstance(outcome, ErrorInfo):
                self._send(ToolResult(message.call, error=outcome))
                return
            try:
                self._send(ToolResult(message.call, outcome))
            except RequestError as error:
                failure = tool_failed(message.tool, f"its result cannot be sent: {error.message}")
                self._send(ToolResult(message.call, error=failure))

        with self._lock:
            owner, tools = self._tools.get(message.key, (None, {}))
        tool = tools.get(message.tool)
        if tool is None:
            done(tool_failed(message.tool, "the program that called it is over"))
            return
        try:
            with self._lock:  # its end must not be handled before it is recorded
                self._tickets[message.call] = self._runner.start(tool, message.arguments, done, owner)
        except BoughError as error:
            done(to_info(error))
        except Exception:  # the reader of the engine's messages must continue
            logger.exception("tool %s could not be called", message.tool)
            done(tool_failed(message.tool, "it could not be called"))

    def leave(self, message: LeaveTool) -> None:
        with self._lock:
            ticket = self._tickets.pop(message.call, None)
        if ticket is not None:
            self._runner.abandon(ticket)

    @property
    def num_abandoned(self) -> int:
        return self._runner.num_abandoned

    def close(self) -> None:
        self._runner.close()


def _info(name: str, tool: ToolCall) -> ToolInfo:
    parameters = None if tool.parameters is None else dict(tool.parameters)
    return ToolInfo(name, tool.timeout_s, tool.max_chars, parameters, getattr(tool, "description", ""))


def _settle(answer: asyncio.Future[ToolResult], result: ToolResult) -> None:
    if not answer.done():
        answer.set_result(result)
