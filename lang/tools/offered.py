"""Tools that a model may call by itself: a program's offer, and the calls that the model has made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.program import MadeCall, Offer
from ...runtime.tools.registry import is_tool_name
from ..record.options import checked_flag, checked_whole, refuse_unknown, shown
from .tool import Tool, tool

MAX_TURNS = 64
DEFAULT_TURNS = 8

ToolChoice = Literal["auto", "required", "none"]

_MADE = msgspec.json.Decoder(list[MadeCall])


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model has made: `s.calls(name)` lists them.

    name        of the tool
    arguments   by name, of the types that the tool's parameters have; what the model wrote, if they are not of these
    result      what the tool returned, as text; None: it failed
    error       why it failed; the model was told so
    """

    name: str
    arguments: Mapping[str, Any] | str
    result: str | None = None
    error: str | None = None


class Offered(NamedTuple):
    """Tools as a generation offers them.

    tools       by name; None: one that the server has
    choice      of the first turn; in later ones the model may call, and in the last it must answer. "none": in no turn
    only        the one tool that the first turn may call; "": any
    max_turns   of the model, the last answer included
    """

    tools: Mapping[str, Tool[..., Any] | None]
    choice: ToolChoice
    only: str
    parallel: bool
    max_turns: int

    def of(self, choice: ToolChoice) -> Offer:
        """Returns what a turn is offered."""
        return Offer(tuple(self.tools), choice, self.only if choice == "required" else "", self.parallel)


def calls_name(name: str | None) -> str:
    """Returns the name of the variable that holds the calls made before the answer `name`."""
    return f"{name}.calls"


def offered(tools: object, choice: object = None, parallel: object = None, max_turns: object = None) -> Offered:
    """Checks what a generation offers.

    Raises:
        RequestError: something is no tool, two have one name, or an option is none.
    """
    refuse_unknown("tools", tools)
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        hint = f": write tools=[{_name_of(tools)}]" if isinstance(tools, str) or callable(tools) else ""
        raise RequestError(f"tools must be a list of functions or tools, got {shown(tools)}{hint}", param="tools")
    found: dict[str, Tool[..., Any] | None] = {}
    for item in (one for given in tools for one in _several(given)):
        name, known = _named(item)
        if name in found:
            raise RequestError(
                f"two tools are named {name!r}: rename one of them with @bough.tool(name=...)", param="tools"
            )
        found[name] = known
    if not found:
        raise RequestError("tools is an empty list: leave it out, or offer a tool", param="tools")
    turns = DEFAULT_TURNS if max_turns is None else checked_whole("max_turns", max_turns, 1, MAX_TURNS)
    is_parallel = parallel is None or checked_flag("parallel_tool_calls", parallel)
    kind, only = _choice(choice, found)
    if kind == "required" and turns < 2:
        raise RequestError("a tool that must be called takes 2 turns at least: max_turns=2", param="max_turns")
    return Offered(found, kind, only, is_parallel, turns)


def _choice(choice: object, tools: Mapping[str, Tool[..., Any] | None]) -> tuple[ToolChoice, str]:
    match choice:
        case None | "auto":
            return "auto", ""
        case "required" | "none":
            return choice, ""
    name = choice if isinstance(choice, str) else _named(choice)[0]
    if name not in tools:
        names = ", ".join(map(repr, tools))
        message = f"tool_choice must be 'auto', 'required', 'none' or one of the tools, {names}; got {choice!r}"
        raise RequestError(message, param="tool_choice")
    return "required", name


def _several(given: object) -> Iterable[object]:
    """Returns the tools of something that has several, such as an MCP server; else the thing itself."""
    tools = None if isinstance(given, Tool | str) or inspect.isroutine(given) else getattr(given, "tools", None)
    return tools if isinstance(tools, list | tuple) else (given,)


def _named(item: object) -> tuple[str, Tool[..., Any] | None]:
    if isinstance(item, str):
        if not is_tool_name(item):
            message = f"{item[:60]!r} is no tool's name: offer the function itself, not what it returns"
            raise RequestError(message, param="tools")
        return item, None
    if not isinstance(item, Tool):
        if not callable(item):
            hint = ": write a function for it, or bough.http_tool(...)" if isinstance(item, Mapping) else ""
            raise RequestError(
                f"a tool is a function, a @bough.tool, or the name of one on the server; got {shown(item)}{hint}",
                param="tools",
            )
        item = _tool_of(item)
    _check_annotations(item)
    return item.name, item


@functools.lru_cache(maxsize=256)
def _tool_of(function: Callable[..., Any]) -> Tool[..., Any]:
    """Makes a tool of a plain function; the same one each time."""
    return tool(function)


def _check_annotations(item: Tool[..., Any]) -> None:
    """Refuses a parameter of which the model would not know what it is."""
    for parameter in inspect.signature(item.function).parameters.values() if item.typed else ():
        if parameter.annotation is parameter.empty:
            raise RequestError(
                f"the parameter {parameter.name!r} of tool {item.name!r} has no annotation, which tells the model its "
                f"type: write `{parameter.name}: str`, or whatever it is",
                param="tools",
            )


def _name_of(value: object) -> str:
    return repr(value) if isinstance(value, str) else str(getattr(value, "__name__", "tool"))


def read_made(text: str) -> list[MadeCall]:
    """Reads the calls of one turn."""
    return _MADE.decode(text)


def call_of(made: MadeCall, tools: Mapping[str, Any]) -> ToolCall:
    """Returns a call with its arguments of the types that the tool, if it is here, has declared."""
    known = tools.get(made.name)
    arguments = made.arguments
    if isinstance(known, Tool) and isinstance(arguments, Mapping):
        arguments = known.as_declared(arguments)
    return ToolCall(made.name, arguments, made.result, made.error)
