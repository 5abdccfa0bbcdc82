"""Runs the tools of programs over an API concurrently with them, within their limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ....runtime.protocol.errors import BoughError, EngineError, ErrorInfo, RequestError
from ....runtime.protocol.program import Program, Use, Value, named_tools, walk
from ....runtime.tools.arguments import check_names
from ....runtime.tools.registry import DEFAULT_TIMEOUT_S, Ticket, ToolCall, ToolRunner
from .machine import ModelCall
from .surplus import Answer

NO_TOOLS: Mapping[str, ToolCall] = MappingProxyType({})


def check_tools(program: Program, tools: Mapping[str, ToolCall]) -> None:
    """Refuses tools that are not there, and arguments that they do not take.

    Raises:
        RequestError: by name of the tool.
    """
    for op in walk(program.ops):
        for name in named_tools(op):
            if name not in tools:
                known = ", ".join(map(repr, tools)) or "none"
                message = f"there is no tool {name!r}; this program came with {known}"
                raise RequestError(message, code="unknown_tool", param="tool")
        if isinstance(op, Use):
            check_names(tools[op.tool], [name for name, _ in op.arguments])


class ToolRuns:
    """The tools that are running, by their calls."""

    def __init__(self) -> None:
        self._runner = ToolRunner()

    def start(self, call: ModelCall, done: Callable[[Answer | BoughError], None]) -> Ticket:
        """Begins a tool; `done` is called on another thread. Raises BoughError: it could not be begun."""
        op = call.op
        assert isinstance(op, Use)
        tool = call.run.tools[op.tool]

        def ended(outcome: str | ErrorInfo) -> None:
            if isinstance(outcome, ErrorInfo):
                done(EngineError(outcome.message, code=outcome.code, param=outcome.param))
            else:
                value = Value(branch=op.branch, name=op.name, text=outcome)
                done(Answer(value, num_requests=0))

        return self._runner.start(tool, dict(call.arguments), ended)

    def abandon(self, ticket: Ticket) -> None:
        self._runner.abandon(ticket)

    def close(self) -> None:
        self._runner.close()


def limit_of(call: ModelCall) -> float:
    """Returns the seconds that a tool may take."""
    assert isinstance(call.op, Use)
    limits = call.op.timeout_s, call.run.tools[call.op.tool].timeout_s or DEFAULT_TIMEOUT_S, call.timeout_s
    return min(limit for limit in limits if limit is not None)


def late(call: ModelCall, limit: float) -> EngineError:
    """Returns the error of a tool that takes too long: longer than it may, or than the program has left."""
    assert isinstance(call.op, Use)
    if call.timeout_s is not None and limit >= call.timeout_s:
        whole = call.run.program.timeout_s
        return EngineError(f"the program was not done within {whole:g} s", code="generation_timeout")
    message = f"the tool {call.op.tool!r} was not done within {limit:g} s"
    return EngineError(message, code="tool_timeout", param=call.op.tool)
