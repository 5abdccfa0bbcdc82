"""An MCP server with a few tools: over stdin and stdout, or over HTTP on the port that is given."""

from __future__ import annotations

import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("notes", log_level="CRITICAL")


@server.tool()
def add(first: int, second: int = 1) -> int:
    """Adds two numbers."""
    return first + second


@server.tool()
def note(title: str) -> str:
    """Reads a note."""
    if title == "secret":
        raise ToolError("that note is secret")
    return f"{title}: milk, bread"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
