"""Tools: how they are put to the model, how models write calls, and the grammars that constrain calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ...constrain.errors import GrammarError
from ...constrain.json_schema.parse import MAX_SCHEMA_BYTES, parse_schema
from ...constrain.spec import JsonSchema, Structural, Tag
from ..errors import invalid
from .objects import AllowedTools, ChatBody, FunctionDefinition, Tool, ToolChoice

OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"
_NO_PARAMETERS = '{"type":"object","properties":{}}'


# How models write calls


class CallForm(NamedTuple):
    """A call is `before`, the name, `between`, the arguments as JSON, `after`; `trigger` is how `before` begins.

    A call has begun wherever `trigger` appears in a text.
    """

    trigger: str
    before: str
    between: str
    after: str

    def begin(self, name: str) -> str:
        """Returns the text before the arguments of a call of `name`."""
        return self.before + name + self.between


HERMES = CallForm("<tool_call>", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
MISTRAL = CallForm("[TOOL_CALLS]", '[TOOL_CALLS][{"name": "', '", "arguments": ', "}]")
MISTRAL_ARGS = CallForm("[TOOL_CALLS]", "[TOOL_CALLS]", "[ARGS]", "")


def find_form(template: str) -> CallForm | None:
    """Finds the form in which a chat template shows earlier calls; None if it is none of those known here."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    # Other models put something else than a JSON object with name and arguments between the same tags.
    if "<tool_call>" in template and "arguments" in template and not any(mark in template for mark in _NO_JSON):
        return HERMES
    return None


_NO_JSON = ("<function=", "<arg_key>", "<parameter=")

Arguments = Iterable[tuple[str, JsonSchema]]
"""Names of functions, and what their arguments must be."""


def calls_in_text(form: CallForm, functions: Arguments, *, parallel: bool) -> Structural:
    """Any text, in which each call is one of the functions'. Without `parallel` the first call ends it."""
    return Structural(_tags(form, functions), (form.trigger,), stop_after_first=not parallel)


def only_calls(form: CallForm, functions: Arguments, *, parallel: bool) -> Structural:
    """Calls, one after another, perhaps on lines of their own; or exactly one."""
    tags = _tags(form, functions)
    if parallel:
        tags += tuple(Tag("\n" + tag.begin, tag.content, tag.end) for tag in tags)
    return Structural(tags, at_least_one=True, stop_after_first=not parallel, free_text=False)


def call_or_answer(form: CallForm, functions: Arguments, answer: JsonSchema) -> Structural:
    """Exactly one call, or a value instead."""
    tags = (*_tags(form, functions), Tag("", answer, ""))
    return Structural(tags, at_least_one=True, stop_after_first=True, free_text=False)


def _tags(form: CallForm, functions: Arguments) -> tuple[Tag, ...]:
    return tuple(Tag(form.begin(name), arguments, form.after) for name, arguments in functions)


# What a body offers


class Toolbox(NamedTuple):
    """The tools of a request.

    mode         "none": the model does not see them. "auto": it may call. "required": its whole output is a call
    functions    those that may be called, by name
    forced       the client named the function itself
    parallel     an answer may hold several calls
    form         how the model writes a call; None: as a JSON object, with nothing around it
    """

    mode: Literal["none", "auto", "required"] = "none"
    functions: Mapping[str, FunctionDefinition] = {}
    forced: bool = False
    parallel: bool = True
    form: CallForm | None = None


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
            raise invalid("tool_choice.function.name", f"no tool is named {choice.function.name!r}")
        return Toolbox("required", {choice.function.name: functions[choice.function.name]}, forced=True)
    return Toolbox(choice if functions else "none", functions, parallel=parallel)


def _allowed(allowed: AllowedTools, functions: Mapping[str, FunctionDefinition]) -> dict[str, FunctionDefinition]:
    names = [tool.function.name for tool in allowed.tools]
    for name in names:
        if name not in functions:
            raise invalid("tool_choice.allowed_tools.tools", f"no tool is named {name!r}")
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
        raise invalid(param, str(error)[:500], code=error.code) from error
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


def as_system_message(tools: Sequence[Mapping[str, Any]]) -> str:
    """Describes the tools to a model whose chat template does not support them."""
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


def arguments_schema(function: FunctionDefinition) -> str:
    """The JSON Schema of a function's arguments, which are an object even where its parameters do not say so."""
    schema = json.loads(_parameters(function))
    return _parameters(function) if "type" in schema else json.dumps({"type": "object", **schema}, ensure_ascii=False)


def _parameters(function: FunctionDefinition) -> str:
    text = bytes(function.parameters).decode()
    return _NO_PARAMETERS if text == "null" else text


def _rebased(schema: Any, base: str) -> Any:
    """A schema that was a document of its own, with its references changed for its new place.

    Those below an `$id` count from there, wherever that is.
    """
    if isinstance(schema, list):
        return [_rebased(item, base) for item in schema]
    if not isinstance(schema, dict):
        return schema
    identifier = schema.get("$id")
    if isinstance(identifier, str) and not identifier.startswith("#"):
        return {key: value for key, value in schema.items() if key != "$schema"}
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            moved[key] = {name: _rebased(item, base) for name, item in value.items()}
        elif key in ("$ref", "$dynamicRef") and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            moved[key] = base + value[1:]
        elif key in ("const", "enum", "default", "examples", "dependentRequired"):
            moved[key] = value
        elif key != "$schema":
            moved[key] = _rebased(value, base)
    return moved


_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords with schemas by names that are the client's own."""
