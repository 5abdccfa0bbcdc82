"""OpenAPI document of the deployed programs: their arguments and results as JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from ...runtime.protocol.program import Fork, Op, walk
from ...runtime.protocol.template import (
    Result,
    ResultArgument,
    ResultConstant,
    ResultJoined,
    ResultList,
    ResultObject,
    ResultProbabilities,
    ResultShare,
    ResultText,
    ResultValue,
    Template,
)

Schema = dict[str, Any] | bool
_NULL: Schema = {"type": "null"}
_ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}
_KINDS = {"text": "string", "int": "integer", "float": "number", "bool": "boolean"}


class Definitions:
    """Gathers what schemas define under `$defs` in one place, `root`, under names of their own."""

    def __init__(self, root: str = "#/$defs/") -> None:
        self.found: dict[str, Any] = {}
        self._root = root

    def take(self, text: str, owner: str) -> Schema:
        """The schema of a JSON text, of which `owner` names the definitions."""
        schema: Any = json.loads(text)
        if not isinstance(schema, dict):
            return bool(schema)
        for name, definition in schema.pop("$defs", {}).items():
            self.found[f"{owner}.{name}"] = self._moved(definition, owner)
        moved: dict[str, Any] = self._moved(schema, owner)
        return moved

    def _moved(self, node: Any, owner: str) -> Any:
        if isinstance(node, list):
            return [self._moved(item, owner) for item in node]
        if not isinstance(node, dict):
            return node
        moved = {key: self._moved(value, owner) for key, value in node.items()}
        if isinstance(reference := node.get("$ref"), str):
            moved["$ref"] = reference.replace("#/$defs/", f"{self._root}{owner}.", 1)
        return moved


def document(templates: Iterable[Template]) -> dict[str, Any]:
    """An OpenAPI 3.1 document with a path for each program."""
    definitions = Definitions("#/components/schemas/")
    paths = {f"/v1/programs/{one.name}": {"post": _operation(one, definitions)} for one in templates}
    keys = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "bough programs", "version": version("bough")},
        "paths": paths,
        "components": {"schemas": definitions.found, "securitySchemes": keys},
    }


def card(template: Template) -> dict[str, Any]:
    """Describes a program: its name, and its arguments and result as two JSON Schemas."""
    parts = []
    for part in (_arguments, _result):
        definitions = Definitions()
        schema = part(template, definitions)
        parts.append(
            {**schema, "$defs": definitions.found} if definitions.found and isinstance(schema, dict) else schema
        )
    about = {"id": template.name, "object": "program", "description": template.description}
    return {**about, "arguments": parts[0], "result": parts[1]}


def _operation(template: Template, definitions: Definitions) -> dict[str, Any]:
    arguments, result = _arguments(template, definitions), _result(template, definitions)
    usage = {"type": "object", "additionalProperties": {"type": "integer"}}
    answer = {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "object": {"const": "program.result"},
            "program": {"const": template.name},
            "result": result,
            "usage": usage,
        },
        "required": ["id", "object", "program", "result", "usage"],
    }
    return {
        "operationId": template.name,
        "summary": template.description.partition("\n")[0],
        "description": template.description,
        "security": [{}, {"key": []}],
        "parameters": [
            {
                "name": "stream",
                "in": "query",
                "schema": {"type": "boolean", "default": False},
                "description": "answer with server-sent events as they happen",
            }
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": arguments}}},
        "responses": {
            "200": {"description": "The program's result.", "content": {"application/json": {"schema": answer}}},
            "400": {"description": "An argument is missing, unknown or of the wrong type."},
        },
    }


def _arguments(template: Template, definitions: Definitions) -> Schema:
    properties: dict[str, Any] = {}
    for parameter in template.parameters:
        schema = definitions.take(parameter.schema, f"{template.name}.{parameter.name}")
        if parameter.default is not None and isinstance(schema, dict):
            schema = {**schema, "default": json.loads(parameter.default)}
        properties[parameter.name] = schema
    required = [parameter.name for parameter in template.parameters if parameter.default is None]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _failing(ops: Iterable[Op]) -> set[int]:
    """Finds the branches that may fail alone: an error may stand in place of their values."""
    found: set[int] = set()
    for op in walk(ops):
        if isinstance(op, Fork) and (op.isolated or op.branch in found):
            found.update(op.children)
    return found


def _result(template: Template, definitions: Definitions) -> Schema:
    schemas = {parameter.name: parameter.schema for parameter in template.parameters}
    failing = _failing(template.ops)

    def of(result: Result) -> Schema:
        match result:
            case ResultConstant(json=text):
                return {"const": json.loads(text)}
            case ResultShare(format=None):
                return {"type": ["number", "null"], "minimum": 0, "maximum": 1}
            case ResultText() | ResultJoined() | ResultShare():
                return {"type": "string"}
            case ResultProbabilities(choices=choices):
                shares = {choice: {"type": "number", "minimum": 0, "maximum": 1} for choice in choices}
                return {"type": ["object", "null"], "properties": shares, "required": list(choices)}
            case ResultArgument(hole=hole):
                return definitions.take(schemas.get(hole.name, "{}"), f"{template.name}.{hole.name}")
            case ResultList(items=items):
                return {"type": "array", "prefixItems": [of(item) for item in items], "items": False}
            case ResultObject(fields=fields):
                properties = {name: of(field) for name, field in fields}
                return {"type": "object", "properties": properties, "required": list(properties)}
            case ResultValue(reading=reading, schema=text, ref=ref):
                owner = f"{template.name}.result.{ref.name}"
                one = {"type": _KINDS[reading]} if reading in _KINDS and text == "{}" else definitions.take(text, owner)
                if result.turns or result.samples:
                    one = {"type": "array", "items": one}
                others = [_NULL] if result.assigned else []
                others += [_ERROR] if ref.branch in failing else []
                return {"anyOf": [one, *others]} if others else one

    return of(template.result)
