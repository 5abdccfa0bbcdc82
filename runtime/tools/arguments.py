"""Arguments of tools: checked against their JSON Schema by name, and read from the texts that programs write."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from ..protocol.errors import EngineError, RequestError
from .registry import ToolCall

MAX_ARGUMENT_CHARS = 1 << 20
"""Most characters of all arguments of one call."""

MAX_JSON_CHARS = 1 << 18
"""Most characters of an argument that is read as JSON, in one go."""

MAX_DEPTH = 16

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


def check_names(tool: ToolCall, names: Collection[str]) -> None:
    """Checks that all arguments are known to the tool, and all required ones are given.

    Raises:
        RequestError: an argument is unknown or missing; the error names it.
    """
    if len(set(names)) != len(names):
        raise _refused(tool, "an argument is given twice")
    if tool.parameters is None:
        return
    known = _properties(tool.parameters)
    open_to_more = tool.parameters.get("additionalProperties", not known) is not False
    for name in names:
        if name not in known and not open_to_more:
            raise _refused(tool, f"it has no parameter {name!r}; it has {', '.join(map(repr, known)) or 'none'}")
    required = tool.parameters.get("required", ())
    missing = [name for name in required if name not in names] if isinstance(required, list | tuple) else []
    if missing:
        raise _refused(tool, f"the argument {missing[0]!r} is missing")


def read_arguments(tool: ToolCall, texts: Mapping[str, str]) -> dict[str, Any]:
    """Reads values from `texts`: the text itself where the parameter may be a text, else its JSON value.

    Raises:
        EngineError: an argument is not JSON, or not of its parameter's type.
    """
    schema = tool.parameters or {}
    properties = _properties(schema)
    return {name: _read(tool, name, text, _resolved(properties.get(name), schema)) for name, text in texts.items()}


def _read(tool: ToolCall, name: str, text: str, parameter: Mapping[str, Any]) -> Any:
    if _takes_text(parameter, tool.parameters or {}):
        return text
    if len(text) > MAX_JSON_CHARS:
        raise _wrong(tool, name, f"has {len(text)} characters of JSON, but {MAX_JSON_CHARS} is the limit")
    try:
        value = msgspec.json.decode(text.strip())
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        shown = repr(text if len(text) <= 100 else text[:100] + "...")
        raise _wrong(tool, name, f"is {shown}, which is not JSON: {error}") from error
    kinds = _types(parameter)
    if "integer" in kinds and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kinds and not any(_is(value, kind) for kind in kinds):
        raise _wrong(tool, name, f"must be of type {' or '.join(kinds)}, but is {text.strip()[:100]}")
    return value


def _takes_text(parameter: Mapping[str, Any], schema: Mapping[str, Any], depth: int = 0) -> bool:
    """Returns True if the types in the parameter's schema allow a text."""
    kinds = _types(parameter)
    if kinds or depth > MAX_DEPTH:
        return "string" in kinds
    if isinstance(options := parameter.get("enum"), list | tuple):
        return any(isinstance(option, str) for option in options)
    for keyword in ("anyOf", "oneOf"):
        if isinstance(options := parameter.get(keyword), list | tuple):
            return any(_takes_text(_resolved(option, schema), schema, depth + 1) for option in options)
    return isinstance(parameter["const"], str) if "const" in parameter else True


def _types(parameter: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = parameter.get("type")
    return (kinds,) if isinstance(kinds, str) else tuple(kinds) if isinstance(kinds, list | tuple) else ()


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES.get(kind, object))


def _resolved(parameter: object, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the parameter's schema, or the definition in the tool's schema to which it refers."""
    if not isinstance(parameter, Mapping):
        return {}
    reference = parameter.get("$ref")
    if isinstance(reference, str):
        place, _, name = reference.removeprefix("#/").partition("/")
        definitions = schema.get(place)
        target = definitions.get(name) if isinstance(definitions, Mapping) else None
        return target if isinstance(target, Mapping) else {}
    return parameter


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _refused(tool: ToolCall, reason: str) -> RequestError:
    return RequestError(f"the tool {tool.name!r} cannot be called so: {reason}", code="invalid_tool_call", param="ops")


def _wrong(tool: ToolCall, name: str, reason: str) -> EngineError:
    return EngineError(f"the argument {name!r} of tool {tool.name!r} {reason}", code="tool_failed", param=name)


def chars_of(value: Any) -> int:
    """Returns the approximate number of characters of a value as JSON."""
    count, stack = 0, [value]
    while stack:
        part = stack.pop()
        count += len(part) if isinstance(part, str) else 8
        if isinstance(part, Mapping):
            stack += part.keys()
            stack += part.values()
        elif isinstance(part, list | tuple):
            stack += part
    return count
