"""Tools of a request: those that its body offers, their presentation to the model, and the schema of a call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from ...constrain.errors import GrammarError, GrammarTooComplexError, quoted
from ...constrain.json_schema.parse import MAX_SCHEMA_BYTES, parse_schema
from ...runtime.tools.forms import CallForm
from ..errors import invalid
from .objects import AllowedTools, ChatBody, FunctionDefinition, Tool, ToolChoice

_NO_PARAMETERS = '{"type":"object","properties":{}}'


# What a body offers


class Toolbox(NamedTuple):
    """The tools of a request.

    mode         "none": the model does not see them. "auto": it may call. "required": its whole output is a call
    functions    those that may be called, by name
    forced       the client named the function itself
    parallel     an answer may hold several calls
    form         how the model writes a call; None: as a JSON object, with nothing around it
    legacy       the client knows `functions` only
    """

    mode: Literal["none", "auto", "required"] = "none"
    functions: Mapping[str, FunctionDefinition] = {}
    forced: bool = False
    parallel: bool = True
    form: CallForm | None = None
    legacy: bool = False


def to_toolbox(body: ChatBody) -> Toolbox:
    """Reads what a body says about tools.

    Raises:
        ApiError: a tool is not a function, has no valid schema, or the choice fits none.
    """
    _check_size(body.tools or ())
    functions: dict[str, FunctionDefinition] = {}
    for index, tool in enumerate(body.tools or ()):
        if tool.type != "function":
            message = f"tools of type {tool.type[:64]!r} are not supported"
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
        raise invalid("tool_choice", "this tool_choice needs tools")
    parallel = body.parallel_tool_calls is not False
    if isinstance(choice, ToolChoice):
        if choice.allowed_tools is not None and choice.type == "allowed_tools":
            return Toolbox(choice.allowed_tools.mode, _allowed(choice.allowed_tools, functions), parallel=parallel)
        if choice.function is None:
            raise invalid(f"tool_choice.{choice.type}", "the object is missing", code="missing_required_parameter")
        if choice.function.name not in functions:
            raise invalid("tool_choice.function.name", f"no tool is named {quoted(choice.function.name)}")
        return Toolbox("required", {choice.function.name: functions[choice.function.name]}, forced=True)
    return Toolbox(choice if functions else "none", functions, parallel=parallel)


def _allowed(allowed: AllowedTools, functions: Mapping[str, FunctionDefinition]) -> dict[str, FunctionDefinition]:
    names = [tool.function.name for tool in allowed.tools]
    for name in names:
        if name not in functions:
            raise invalid("tool_choice.allowed_tools.tools", f"no tool is named {quoted(name)}")
    return {name: functions[name] for name in names}


def _check_size(tools: Iterable[Tool]) -> None:
    """Raises ApiError if the schemas of all tools together are larger than one may be."""
    num_bytes = sum(len(bytes(tool.function.parameters)) for tool in tools if tool.function is not None)
    if num_bytes > MAX_SCHEMA_BYTES:
        message = f"the tools' parameters have {num_bytes} bytes in all, at most {MAX_SCHEMA_BYTES} are allowed"
        raise invalid("tools", message, code="grammar_too_complex")


def _check_parameters(function: FunctionDefinition, param: str) -> None:
    """Looks at a function's schema in time linear in its text. What its patterns say is seen when it is compiled, in a
    process that can be stopped.
    """
    text = bytes(function.parameters)
    if text == b"null":
        return
    if not text.startswith(b"{"):
        raise invalid(param, "parameters must be a JSON Schema object", code="invalid_type")
    try:
        parse_schema(text.decode())
    except GrammarError as error:
        raise invalid(param, str(error), code=error.code) from error
    except RecursionError as error:
        raise invalid(param, "the schema is nested too deeply", code="grammar_too_complex") from error


# Into the prompt and the constraint


def to_template(toolbox: Toolbox) -> list[dict[str, Any]]:
    """Returns the tools as chat templates expect them."""
    tools = []
    for function in toolbox.functions.values():
        definition: dict[str, Any] = {"name": function.name}
        if function.description:
            definition["description"] = function.description
        definition["parameters"] = json.loads(_parameters(function))
        tools.append({"type": "function", "function": definition})
    return tools


def call_schema(toolbox: Toolbox, *, other: str | None = None) -> str:
    """The JSON Schema of a call to one of the functions, or (with `other`, a schema's text) of that.

    Raises:
        GrammarTooComplexError: one of the schemas is nested too deeply.
    """
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


def arguments_schema(function: FunctionDefinition) -> str:
    """The JSON Schema of a function's arguments, which are an object even where its parameters do not say so."""
    schema = json.loads(_parameters(function))
    return _parameters(function) if "type" in schema else json.dumps({"type": "object", **schema}, ensure_ascii=False)


def _parameters(function: FunctionDefinition) -> str:
    text = bytes(function.parameters).decode()
    return _NO_PARAMETERS if text == "null" else text


def _rebased(schema: Any, base: str, depth: int = 0) -> Any:
    """A schema that was a document of its own, with its references and the names of places changed for its new place.

    Those below an `$id` count from there, wherever that is.

    Raises:
        GrammarTooComplexError: it is nested more than MAX_NESTING deep, if only in what no keyword reads.
    """
    if depth > MAX_NESTING:
        raise GrammarTooComplexError("the schema is nested too deeply")
    depth += 1
    if isinstance(schema, list):
        return [_rebased(item, base, depth) for item in schema]
    if not isinstance(schema, dict):
        return schema
    identifier = schema.get("$id")
    if isinstance(identifier, str) and not identifier.startswith("#"):
        return {key: value for key, value in schema.items() if key != "$schema"}
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            moved[key] = {name: _rebased(item, base, depth) for name, item in value.items()}
        elif key in ("$ref", "$dynamicRef") and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            moved[key] = base + value[1:]
        elif _names_a_place(key, value):  # others may have the same name
            moved[key] = f"{value}.{base.rpartition('/')[2]}"
        elif key in ("const", "enum", "default", "examples", "dependentRequired"):
            moved[key] = value
        elif key != "$schema":
            moved[key] = _rebased(value, base, depth)
    return moved


def _names_a_place(key: str, value: Any) -> bool:
    """True if the keyword names a place within its document, or refers to one by its name."""
    if key in ("$anchor", "$dynamicAnchor"):
        return isinstance(value, str)
    return key in ("$ref", "$dynamicRef") and isinstance(value, str) and value.startswith("#")


MAX_NESTING = 256
"""Levels of a schema's JSON. Keywords are read to fewer (`parse_schema`)."""

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords with schemas by names that are the client's own."""
