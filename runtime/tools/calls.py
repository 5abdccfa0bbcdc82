"""Tool calls written by a model: their constraint, how they are read, and how tools are presented to the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...constrain.errors import quoted
from ...constrain.spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural
from ..protocol.errors import BoughError, ErrorInfo, RequestError, to_info
from ..protocol.program import MadeCall, Offer
from .arguments import check_names
from .forms import Answer, CallForm, call_or_answer, calls_in_text, no_calls, only_calls
from .registry import ToolCall, tool_failed
from .tag_reader import Called, TagReader

MAX_TURN_CHARS = 1 << 18
"""Most characters of a text in which calls are searched for."""

READ_AT_ONCE = 1 << 14
"""Characters read in one go, which takes at most about 5 ms."""

MAX_TURN_CALLS = 256
"""Most calls of one turn, which are started in one go."""

CUT_OFF = "the call was cut off: its arguments are no JSON object"


class WrittenCall(NamedTuple):
    """A call as the model wrote it: its arguments, or their text if that is not a JSON object."""

    name: str
    arguments: dict[str, Any] | str


def as_function(tool: ToolCall) -> dict[str, Any]:
    """Returns a tool as chat templates and APIs expect it."""
    function: dict[str, Any] = {"name": tool.name}
    if description := getattr(tool, "description", ""):
        function["description"] = description
    return {"type": "function", "function": {**function, "parameters": schema_of(tool)}}


def schema_of(tool: ToolCall) -> dict[str, Any]:
    """Returns the JSON Schema of a tool's arguments, an object."""
    return {"type": "object", "properties": {}, **(tool.parameters or {})}


def constrain_turn(
    form: CallForm, tools: Mapping[str, ToolCall], offer: Offer, answer: GrammarSpec | None
) -> GrammarSpec:
    """Returns the constraint of a turn: calls of the tools that it may call, or an answer.

    Raises:
        RequestError: the answer's constraint cannot be combined with calls.
    """
    callable_names = [offer.only] if offer.only else list(offer.tools)
    functions = [(name, _arguments(tools[name])) for name in callable_names]
    if offer.choice == "none":
        return no_calls(form) if answer is None else answer
    if offer.choice == "required":
        return only_calls(form, functions, parallel=offer.parallel)
    if answer is None:
        return calls_in_text(form, functions, parallel=offer.parallel)
    return call_or_answer(form, functions, checked_answer(answer))


def checked_answer(answer: GrammarSpec) -> Answer:
    """Returns the constraint of an answer. Raises RequestError if it cannot be combined with calls."""
    if isinstance(answer, JsonSchema | Regex):
        return answer
    kind = {Choice: "choices", Lark: "a grammar", Gbnf: "a grammar", Structural: "tags"}[type(answer)]
    message = f"with tools, a type, a schema or a pattern can constrain the answer, but not {kind}"
    raise RequestError(message, code="unsupported_value", param="tools")


def _arguments(tool: ToolCall) -> JsonSchema:
    schema = json.dumps(schema_of(tool), ensure_ascii=False)
    return JsonSchema(schema, property_order="schema", policy="best_effort")


class CallsReading:
    """Reads the calls of `names` in a text, a part at a time.

    Raises:
        RequestError: the text is too long.
    """

    def __init__(self, form: CallForm, text: str, names: Iterable[str]) -> None:
        if len(text) > MAX_TURN_CHARS:
            message = f"calls are read in texts of up to {MAX_TURN_CHARS} characters, this one has {len(text)}"
            raise RequestError(f"{message}; a smaller max_tokens bounds it", param="of")
        self._reader = TagReader(form, names)
        self._text = text
        self._at = 0
        self._found: list[tuple[str, list[str]]] = []

    def read_on(self) -> bool:
        """Reads another part of `READ_AT_ONCE` characters; returns False once there is none.

        Raises:
            RequestError: there are too many calls.
        """
        part = self._text[self._at : self._at + READ_AT_ONCE]
        self._at += len(part)
        for piece in self._reader.push(part):
            if isinstance(piece, Called) and piece.name is not None:
                self._found.append((piece.name, []))
            elif isinstance(piece, Called):
                self._found[piece.position][1].append(piece.arguments)
        if len(self._found) > MAX_TURN_CALLS:
            message = f"a turn makes up to {MAX_TURN_CALLS} calls, this text holds more"
            raise RequestError(f"{message}; parallel_tool_calls=False has the model write one at a time", param="of")
        return self._at < len(self._text)

    @property
    def calls(self) -> list[WrittenCall]:
        return [WrittenCall(name, read_object("".join(texts))) for name, texts in self._found]


def read_object(text: str) -> dict[str, Any] | str:
    """Returns the JSON object in a text; the text itself if it is not one."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


def said_of(call: MadeCall) -> str:
    """Returns the text that reports a call's outcome to the model."""
    return f"Error: {call.error}" if call.result is None else call.result


def fault_of(call: WrittenCall, tools: Mapping[str, ToolCall]) -> ErrorInfo | None:
    """Returns the error if a call cannot be made; None if it can."""
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(map(repr, tools)) or "none"
        return ErrorInfo(code="unknown_tool", message=f"there is no tool {quoted(call.name)}; there are: {known}")
    if isinstance(call.arguments, str):
        return tool_failed(call.name, CUT_OFF)
    try:
        check_names(tool, call.arguments)
    except BoughError as error:
        return to_info(error)
    return None
