"""Strangers learn of a tool's failure no more than its class; the log has the rest, found by what they were told."""

from __future__ import annotations

import asyncio
import re
import sys
from concurrent.futures import Future

import pytest

from bough.lang.tools.tool import tool
from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.tools.registry import ToolCallError, ToolRunner
from bough.server.programs.private_tools import PrivateTool


@tool
def query(text: str) -> str:
    """Fails with what nobody should see."""
    if text == "fine":
        return "rows"
    if text == "purpose":
        raise ToolCallError(ErrorInfo(code="tool_failed", message="the city is unknown", param="query"))
    if text == "exit":
        sys.exit("hunter2 is no password")
    raise ConnectionError("postgres://root:hunter2@10.0.0.7/people")


@tool
async def later(text: str) -> str:
    """The same, awaited."""
    await asyncio.sleep(0)
    return str(query.call({"text": text}))


def call(kind: PrivateTool, text: str) -> str:
    result = kind.call({"text": text})
    if isinstance(result, str):
        return result

    async def awaited() -> str:
        return await result

    return asyncio.run(awaited())


@pytest.mark.parametrize("kind", [PrivateTool(query), PrivateTool(later)], ids=lambda kind: kind.name)
def test_a_failure_is_told_by_its_class(kind: PrivateTool, caplog: pytest.LogCaptureFixture) -> None:
    assert call(kind, "fine") == "rows"
    with pytest.raises(ToolCallError) as caught:
        call(kind, "x")
    told = caught.value.info
    assert (told.code, told.param) == ("tool_failed", kind.name)
    assert "ConnectionError" in told.message
    assert "hunter2" not in told.message
    found = re.search(r"more at (\w{12})\)", told.message)
    assert found is not None
    assert found[1] in caplog.text
    assert "hunter2" in caplog.text
    with pytest.raises(ToolCallError, match="the city is unknown"):
        call(kind, "purpose")


@pytest.mark.parametrize("kind", [PrivateTool(query), PrivateTool(later)], ids=lambda kind: kind.name)
def test_so_is_an_exit(kind: PrivateTool, caplog: pytest.LogCaptureFixture) -> None:
    runner = ToolRunner()
    told: Future[str | ErrorInfo] = Future()
    runner.start(kind, {"text": "exit"}, told.set_result)
    info = told.result(timeout=5.0)
    runner.close()
    assert isinstance(info, ErrorInfo)
    assert (info.code, info.param) == ("tool_failed", kind.name)
    assert "SystemExit" in info.message
    assert "hunter2" not in info.message
    assert "hunter2" in caplog.text


def test_all_else_is_the_tools() -> None:
    kind = PrivateTool(query)
    assert (kind.name, kind.timeout_s, kind.max_chars) == (query.name, query.timeout_s, query.max_chars)
    assert (kind.parameters, kind.description) == (query.parameters, query.description)
