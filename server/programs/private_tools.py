"""Tools on a server: callers see only the class of a failure, and the log has the rest."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable
from typing import Any

from ...runtime.protocol.errors import ErrorInfo
from ...runtime.tools.loops import EXITS
from ...runtime.tools.registry import ToolCall, ToolCallError

logger = logging.getLogger("bough.server")


class PrivateTool:
    """A tool whose failures are told without their texts, which may hold paths, queries or addresses.

    What a tool says on purpose, as a ToolCallError, is passed on.
    """

    def __init__(self, tool: ToolCall) -> None:
        self._tool = tool
        self.name = tool.name
        self.timeout_s = tool.timeout_s
        self.max_chars = tool.max_chars
        self.parameters = tool.parameters
        self.description: str = getattr(tool, "description", "")

    def call(self, arguments: dict[str, Any]) -> str | Awaitable[str]:
        try:
            result = self._tool.call(arguments)
        except (Exception, *EXITS) as error:
            raise self._told(error) from error
        return result if isinstance(result, str) else self._awaited(result)

    async def _awaited(self, result: Awaitable[str]) -> str:
        try:
            return await result
        except (Exception, *EXITS) as error:
            raise self._told(error) from error

    def _told(self, error: BaseException) -> ToolCallError:
        if isinstance(error, ToolCallError):
            return error
        incident = secrets.token_hex(6)
        logger.error("tool %s failed (%s)", self.name, incident, exc_info=error)
        message = f"the tool {self.name!r} failed: {type(error).__name__} (the server's log says more at {incident})"
        return ToolCallError(ErrorInfo(code="tool_failed", message=message, param=self.name))
