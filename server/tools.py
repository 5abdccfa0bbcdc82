"""Tools: how they are put to the model, what constrains a call, and how calls are read out of its text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import jsonschema
import msgspec

from .errors import invalid
from .openai import AllowedTools, ChatBody, FunctionDefinition, ToolChoice

OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"
_NO_PARAMETERS = '{"type":"object","properties":{}}'
_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"arguments"\s*:\s*')
_BLOCK = re.compile(rf"{OPEN_TAG}(.*?)(?:{CLOSE_TAG}|$)", re.DOTALL)


class Toolbox(NamedTuple):
    """The tools of a request.

    mode         "none": the model does not see them. "auto": it may call. "required": its whole output is a call
    functions    those that may be called, by name
    forced       the client named the function itself
    parallel     an answer may hold several calls
    """

    mode: Literal["none", "auto", "required"] = "none"
    functions: Mapping[str, FunctionDefinition] = {}
    forced: bool = False
    parallel: bool = True


def to_toolbox(body: ChatBody) -> Toolbox:
    """What a body says about tools.

    Raises:
        ApiError: a tool is not a function, has no valid schema, or the choice fits none.
    """
    functions: dict[str, FunctionDefinition] = {}
    for index, tool in enumerate(body.tools or ()):
        if tool.type != "function":
            message = f"tools of type {tool.type[:64]!r} are not offered"
            raise invalid(f"tools[{index}].type", message, code="unsupported_value")
        if tool.function is None:
            code = "missing_required_parameter"
            raise invalid(f"tools[{index}].function", "a tool of type function needs `function`", code=code)
        if tool.function.name in functions and functions[tool.function.name] != tool.function:
            raise invalid(f"tools[{index}].function.name", "two different tools have the same name")
        functions[tool.function.name] = tool.function
        _check_parameters(tool.function, f"tools[{index}].function.parameters")
    choice = body.tool_choice or ("auto" if functions else "none")
    if choice not in ("none", "auto") and not functions:
        raise invalid("tool_choice", "a tool_choice that calls needs tools")
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, ToolChoice):
        if choice.allowed_tools is not None and choice.type == "allowed_tools":
            return Toolbox(choice.allowed_tools.mode, _allowed(choice.allowed_tools, functions), parallel=parallel)
        if choice.function is None:
            raise invalid(f"tool_choice.{choice.type}", "the object is missing", code="missing_required_parameter")
        if choice.function.name not in functions:
            raise invalid("tool_choice.function.name", f"no tool is named {choice.function.name!r}")
        return Toolbox("required", {choice.function.name: functions[choice.function.name]}, forced=True)
    return Toolbox(choice if functions else "none", functions, parallel=parallel)


def _allowed(allowed: AllowedTools, functions: Mapping[str, FunctionDefinition]) -> dict[str, FunctionDefinition]:
    names = [tool.function.name for tool in allowed.tools]
    for name in names:
        if name not in functions:
            raise invalid("tool_choice.allowed_tools.tools", f"no tool is named {name!r}")
    return {name: functions[name] for name in names}


def _check_parameters(function: FunctionDefinition, param: str) -> None:
    text = bytes(function.parameters)
    if text == b"null":
        return
    if not text.startswith(b"{"):
        raise invalid(param, "parameters must be a JSON Schema object", code="invalid_type")
    try:
        jsonschema.Draft202012Validator.check_schema(msgspec.json.decode(text))
    except jsonschema.SchemaError as error:
        path = "/".join(str(step) for step in error.absolute_path)
        message = f"not a JSON Schema, at /{path}: {error.message[:200]}"
        raise invalid(param, message, code="invalid_json_schema") from error
    except RecursionError as error:
        raise invalid(param, "the schema is nested too deeply", code="grammar_too_complex") from error


# Into the prompt and the constraint


def to_template(toolbox: Toolbox) -> list[dict[str, Any]] | None:
    """The tools as chat templates expect them."""
    if toolbox.mode == "none":
        return None
    tools = []
    for function in toolbox.functions.values():
        definition: dict[str, Any] = {"name": function.name}
        if function.description:
            definition["description"] = function.description
        definition["parameters"] = json.loads(_parameters(function))
        tools.append({"type": "function", "function": definition})
    return tools


def as_system_message(tools: Sequence[Mapping[str, Any]]) -> str:
    """What to tell a model whose chat template knows nothing of tools."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        "You can call these functions:\n"
        f"{listed}\n"
        "To call one, answer with nothing but a JSON object of this form:\n"
        '{"name": "the function\'s name", "arguments": {"a parameter": "its value"}}'
    )


def call_schema(toolbox: Toolbox, *, other: str | None = None) -> str:
    """The JSON Schema of a call to one of the functions, or (with `other`, a schema's text) of that."""
    definitions: dict[str, Any] = {}
    branches: list[dict[str, Any]] = []
    if other is not None:
        definitions["answer"] = _rebased(json.loads(other), "#/$defs/answer")
        branches.append({"$ref": "#/$defs/answer"})
    for number, function in enumerate(toolbox.functions.values()):
        key = f"arguments_{number}"
        definitions[key] = _rebased(json.loads(_parameters(function)), f"#/$defs/{key}")
        branches.append(
            {
                "type": "object",
                "properties": {"name": {"const": function.name}, "arguments": {"$ref": f"#/$defs/{key}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema = branches[0] if len(branches) == 1 else {"anyOf": branches}
    return json.dumps({**schema, "$defs": definitions}, ensure_ascii=False)


def _parameters(function: FunctionDefinition) -> str:
    text = bytes(function.parameters).decode()
    return _NO_PARAMETERS if text == "null" else text


def _rebased(schema: Any, base: str) -> Any:
    """A schema that was a document of its own, with its references changed for its new place."""
    if isinstance(schema, list):
        return [_rebased(item, base) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {}
    for key, value in schema.items():
        if key in ("$ref", "$dynamicRef") and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            moved[key] = base + value[1:]
        elif key in ("const", "enum", "default", "examples"):
            moved[key] = value
        elif key != "$schema":
            moved[key] = _rebased(value, base)
    return moved


# Out of the text


class Said(NamedTuple):
    """A piece of ordinary text."""

    text: str


class Called(NamedTuple):
    """A piece of call number `position`: the first has its `name`, further ones add to its `arguments`."""

    position: int
    name: str | None = None
    arguments: str = ""


class Reader(Protocol):
    """Splits generated text into what is said and what is called, piece by piece."""

    def push(self, text: str) -> list[Said | Called]: ...

    def finish(self) -> list[Said | Called]:
        """What was held back until now."""


def reader(toolbox: Toolbox) -> Reader:
    if toolbox.mode == "required":
        return CallReader()
    return AutoReader(toolbox) if toolbox.mode == "auto" else TextReader()


class TextReader:
    """Everything is ordinary text."""

    def push(self, text: str) -> list[Said | Called]:
        return [Said(text)] if text else []

    def finish(self) -> list[Said | Called]:
        return []


class CallReader:
    """The text is one call, by its grammar; its arguments are passed on as they come."""

    def __init__(self) -> None:
        self._head = ""
        self._started = self._ended = self._in_string = self._escaped = False
        self._depth = 0

    def push(self, text: str) -> list[Said | Called]:
        if self._started:
            return self._arguments(text)
        self._head += text
        header = _HEADER.match(self._head)
        if header is None or header.end() == len(self._head):  # more blanks may follow the colon
            return []
        self._started = True
        name = json.loads(f'"{header[1]}"')
        return [Called(0, name=name), *self._arguments(self._head[header.end() :])]

    def finish(self) -> list[Said | Called]:
        """A text that ended before a call's arguments is what it is: text."""
        return [Said(self._head)] if self._head and not self._started else []

    def _arguments(self, text: str) -> list[Said | Called]:
        """As much of `text` as belongs to the value that began after the header: to where its brackets close."""
        for stop, char in enumerate(text):
            if self._ended:
                text = text[:stop]
                break
            if self._in_string:
                self._in_string = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                self._ended = self._depth <= 0
        return [Called(0, arguments=text)] if text else []


class AutoReader:
    """The text may be calls, as plain JSON or between tags, or anything else; only what may be a call is held back."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._held = ""
        self._any_said = False

    def push(self, text: str) -> list[Said | Called]:
        self._held += text
        bare = self._held.lstrip()
        if not self._any_said and (not bare or bare[0] in "{["):
            return []
        start = self._held.find(OPEN_TAG)
        if start < 0:
            stop = len(self._held)
            tails = range(max(0, stop - len(OPEN_TAG)), stop)
            start = next((index for index in tails if OPEN_TAG.startswith(self._held[index:])), stop)
        said, self._held = self._held[:start], self._held[start:]
        if not said.strip() and not self._any_said:
            self._held = said + self._held
            return []
        self._any_said = self._any_said or bool(said)
        return [Said(said)] if said else []

    def finish(self) -> list[Said | Called]:
        calls = parse_calls(self._held, self._toolbox.functions)
        if not calls:
            return [Said(self._held)] if self._held else []
        if not self._toolbox.parallel:
            calls = calls[:1]
        return [
            piece
            for position, (name, arguments) in enumerate(calls)
            for piece in (Called(position, name=name), Called(position, arguments=arguments))
        ]


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


def parse_calls(text: str, names: Mapping[str, object]) -> list[tuple[str, str]]:
    """The calls that make up the text, as (name, arguments as JSON text); none if it is not calls of `names`."""
    text = text.strip()
    blocks = [match[1] for match in _BLOCK.finditer(text)] if OPEN_TAG in text else [text]
    calls: list[tuple[str, str]] = []
    try:
        for block in blocks:
            kind = list[_Call] if block.lstrip().startswith("[") else _Call
            decoded: Any = msgspec.json.decode(block.encode(), type=kind)
            for call in decoded if isinstance(decoded, list) else [decoded]:
                calls.append((call.name, _arguments_text(call)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    return calls if all(name in names for name, _ in calls) else []


def _arguments_text(call: _Call) -> str:
    """Some models write the arguments as JSON inside a string.

    Raises:
        msgspec.DecodeError: the arguments are no JSON object.
    """
    text = bytes(call.arguments or call.parameters)
    if text.startswith(b'"'):
        text = msgspec.json.decode(text, type=str).encode()
    msgspec.json.decode(text, type=dict[str, Any])
    return text.decode()
