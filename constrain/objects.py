"""Keywords about an object's keys, written with `properties`, `required` and `additionalProperties`."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from .errors import UnsupportedKeywordError
from .references import Document
from .schema import Schema

MAX_COMBINATIONS = 64
APPLICATORS = ("anyOf", "oneOf", "not", "if", "dependentSchemas")


def count(node: dict[str, Any], keyword: str, result: dict[str, Any], pointer: str) -> list[Schema]:
    """`minProperties` or `maxProperties` of `node` as further schemas, or copied to `result` where that is enough."""
    bound = int(node[keyword])
    required = dict.fromkeys(node.get("required", ()))
    declared = [name for name, schema in node.get("properties", {}).items() if schema is not False]
    optional = [name for name in declared if name not in required]
    spare = bound - len(required)
    closed = node.get("additionalProperties") is False and "patternProperties" not in node
    if keyword == "minProperties":
        if spare <= 0:
            return []
        if not optional and spare == 1:  # more than one would be met by the same new key twice
            result[keyword] = bound
            return []
        if optional and (closed or spare == 1) and math.comb(len(optional), spare) <= MAX_COMBINATIONS:
            return [{"anyOf": [{"required": list(names)} for names in combinations(optional, spare)]}]
        raise UnsupportedKeywordError(keyword, path=pointer, reason="too many optional properties, or unknown ones")
    if closed and len(declared) <= bound:
        return []
    if not optional:
        result[keyword] = bound
        return []
    if closed and spare >= 0 and math.comb(len(optional), spare) <= MAX_COMBINATIONS:
        absent = combinations(optional, len(optional) - spare)
        return [{"anyOf": [{"properties": dict.fromkeys(names, False)} for names in absent]}]
    raise UnsupportedKeywordError(keyword, path=pointer, reason="too many optional properties, or unknown ones")


def names(schema: Schema, document: Document, pointer: str) -> list[Schema]:
    """`propertyNames` as further schemas."""
    if schema is True:
        return []
    if schema is False:
        return [{"additionalProperties": False}]
    result: list[Schema] = []
    for keyword, value in schema.items():
        if keyword == "$ref":
            result.extend(names(document.schema(value), document, pointer))
        elif keyword == "allOf":
            result.extend(schema for branch in value for schema in names(branch, document, pointer))
        elif keyword in ("enum", "const"):
            keys = [key for key in (value if keyword == "enum" else [value]) if isinstance(key, str)]
            result.append({"properties": dict.fromkeys(keys, True), "additionalProperties": False})
        elif keyword == "pattern":
            result.append({"patternProperties": {value: True}, "additionalProperties": False})
        elif keyword == "type":
            if value != "string" and "string" not in value:
                result.append({"additionalProperties": False})
        elif keyword not in ("title", "description", "$comment", "minLength", "maxLength", "examples", "default"):
            raise UnsupportedKeywordError("propertyNames", path=pointer, reason=f"with {keyword!r} in it")
    if "minLength" in schema or "maxLength" in schema:
        low, high = int(schema.get("minLength", 0)), int(schema["maxLength"]) if "maxLength" in schema else ""
        length = rf"^[\s\S]{{{low},{high}}}$"
        result.append({"patternProperties": {length: True}, "additionalProperties": False})
    return result


def unevaluated(node: dict[str, Any], document: Document, pointer: str) -> list[Schema]:
    """`unevaluatedProperties` of `node` as `additionalProperties` beside all that is evaluated in place."""
    rest = node["unevaluatedProperties"]
    properties: dict[str, Schema] = {}
    patterns: dict[str, Schema] = {}
    stack: list[Schema] = [{name: value for name, value in node.items() if name != "unevaluatedProperties"}]
    seen: set[str] = set()
    while stack:
        schema = stack.pop()
        if isinstance(schema, bool):
            continue
        if "additionalProperties" in schema or "unevaluatedProperties" in schema:
            return []
        for keyword in APPLICATORS:
            if keyword in schema and rest is not True:
                raise UnsupportedKeywordError("unevaluatedProperties", path=pointer, reason=f"beside {keyword}")
        properties.update(dict.fromkeys(schema.get("properties", ()), True))
        patterns.update(dict.fromkeys(schema.get("patternProperties", ()), True))
        stack.extend(schema.get("allOf", ()))
        if "$ref" in schema and schema["$ref"] not in seen:
            seen.add(schema["$ref"])
            stack.append(document.schema(schema["$ref"]))
    if rest is True:
        return []
    return [{"properties": properties, "patternProperties": patterns, "additionalProperties": rest}]
