"""Texts that conform to a constraint, made up without a model, and whether a given text does."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import regex
from jsonschema.exceptions import SchemaError, UnknownType

from ...constrain.errors import GrammarError, InvalidSchemaError, MatcherError
from ...constrain.json_schema.validate import violations
from ...constrain.regex.formats import NAMES as FORMATS
from ...constrain.regex.formats import example
from ...constrain.spec import Choice, GrammarSpec, JsonSchema, Regex, Structural
from ...runtime.protocol.errors import RequestError
from .apis.emulate import Judge

_MAX_NODES = 2_000
_FULL_DEPTH = 3
"""Down to there lists hold an item and objects all their properties; below, only what must be."""

_GUESSES = (
    "0",
    "1",
    "True",
    "true",
    "yes",
    "text",
    '"text"',
    "a",
    "A",
    "00",
    "0000",
    "0.5",
    "2024-01-01",
    "a@b.example",
)
"""What common patterns match; tried in this order."""

_OF_FORMATS = {
    "date": "2024-01-01",
    "date-time": "2024-01-01T00:00:00Z",
    "decimal": "0",
    "email": "a@b.example",
    "hostname": "b.example",
    "ipv4network": "192.0.2.0/24",
    "ipv6network": "2001:db8::/32",
    "ipvanyaddress": "192.0.2.1",
    "ipvanyinterface": "192.0.2.1",
    "ipvanynetwork": "192.0.2.0/24",
    "json-string": "0",
    "time": "00:00:00Z",
    "uri": "https://b.example/",
    **{f"uuid{version}": f"00000000-0000-{version}000-8000-000000000000" for version in range(1, 9)},
    "uuid": "00000000-0000-4000-8000-000000000000",
}
"""Texts that Python's types read back, of formats of the standard and of those that libraries write into schemas."""

_CHECKED = frozenset(("date", "ipv4", "ipv6", "uuid"))
"""Formats of which it is known without more ado whether a text is of them."""


def make_text(spec: GrammarSpec | None, name: str) -> str:
    """A text for the value `name` that conforms to `spec`; the same one each time.

    Raises:
        RequestError: none could be made up.
    """
    match spec:
        case None:
            return f"({name})"
        case Choice(options=options):
            return options[0]
        case Regex():
            guesses: tuple[str, ...] = _GUESSES
        case JsonSchema(schema=schema):
            guesses = (json.dumps(_Maker(_read(schema)).value(), ensure_ascii=False),)
        case _:
            guesses = ()
    found = next((text for text in guesses if conforms(text, spec)), None)
    if found is None:
        found = _by_grammar(spec, f"({name})" if isinstance(spec, Structural) else "")
    if found is None or not conforms(found, spec):
        raise RequestError(
            f"no answer to {name!r} could be made up that its {type(spec).__name__} allows: give one", param="answers"
        )
    return found


def fault(text: str, spec: GrammarSpec | None) -> str | None:
    """What is wrong with `text`, which is to keep to `spec`. Grammars and marked parts are taken on trust."""
    match spec:
        case Choice(options=options):
            return None if text in options else f"it is none of {', '.join(map(repr, options[:20]))}"
        case Regex(pattern=pattern):
            return None if regex.fullmatch(pattern, text) is not None else f"it does not match {pattern[:200]!r}"
        case JsonSchema(schema=schema):
            try:
                found = violations(schema, text, formats=_CHECKED)
            except (UnknownType, SchemaError) as error:
                raise InvalidSchemaError(str(error).partition("\n")[0]) from None
            return f"{found[0].pointer or 'the value'}: {found[0].message}" if found else None
    return None


def conforms(text: str, spec: GrammarSpec | None) -> bool:
    """Whether there is nothing wrong with `text`."""
    return fault(text, spec) is None


@functools.lru_cache(maxsize=256)
def _by_grammar(spec: GrammarSpec, wish: str = "") -> str | None:
    """The wish, if decoding under `spec` could write it, or else about the shortest text that it could."""
    with closing(Judge()) as judge:
        try:
            return wish if wish and judge.follows(wish, spec) else judge.shortest(spec)
        except (GrammarError, MatcherError):
            return None


class _Maker:
    """Makes a small value for a schema: right for the common keywords; the caller checks it."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._num_left = _MAX_NODES

    def value(self) -> Any:
        try:
            return self._instance(self._root, 0)
        except RecursionError:  # references that lead round
            return None

    def _instance(self, schema: Any, depth: int) -> Any:
        self._num_left -= 1
        if not isinstance(schema, dict) or self._num_left < 0:
            return None
        if "$ref" in schema:
            beside = {name: value for name, value in schema.items() if name != "$ref"}
            target = _resolve(schema["$ref"], self._root)
            return self._instance({**target, **beside} if isinstance(target, dict) else target, depth)
        for keyword in ("const", "default"):
            if keyword in schema:
                return schema[keyword]
        for keyword in ("enum", "examples"):
            if schema.get(keyword):
                return schema[keyword][0]
        if schema.get("allOf"):
            return self._instance(self._merged(schema, schema["allOf"]), depth)
        for keyword in ("anyOf", "oneOf"):
            if schema.get(keyword):
                option = self._option(schema[keyword], depth)
                return self._instance(self._merged({**schema, keyword: None}, [option]), depth)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = kind[0]
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, depth + 1)
        if kind == "array":
            return self._array(schema, depth + 1)
        if kind in ("string", "integer", "number"):
            return _scalar({**schema, "type": kind})
        return kind == "boolean" or None

    def _option(self, options: list[Any], depth: int) -> Any:
        """The first one; deep down the one that leads least deep."""
        if depth <= _FULL_DEPTH:
            return options[0]
        return min(options, key=lambda option: json.dumps(self._target(option)).count('"$ref"'))

    def _target(self, schema: Any) -> Any:
        return _resolve(schema["$ref"], self._root) if isinstance(schema, dict) and "$ref" in schema else schema

    def _merged(self, schema: Mapping[str, Any], parts: list[Any]) -> dict[str, Any]:
        """One schema for `schema` and all of `parts`, as far as keywords of one name need not be combined."""
        whole = {name: value for name, value in schema.items() if name != "allOf" and value is not None}
        for part in parts:
            found = self._target(part)
            for name, value in found.items() if isinstance(found, dict) else ():
                both = isinstance(value, dict) and isinstance(whole.get(name), dict)
                if name == "required":
                    whole[name] = [*whole.get(name, ()), *value]
                else:
                    whole[name] = {**whole[name], **value} if both else value
        return whole

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        names = [name for name in properties if depth <= _FULL_DEPTH or name in required]
        names += [name for name in required if name not in properties]
        return {name: self._instance(properties.get(name, {}), depth) for name in names}

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems", ())
        items = schema.get("items", {})
        count = max(len(first), schema.get("minItems", 0), 1 if depth <= _FULL_DEPTH and items is not False else 0)
        count = min(count, schema.get("maxItems", count), _MAX_NODES)
        return [self._instance(first[index] if index < len(first) else items, depth) for index in range(count)]


def _scalar(schema: Mapping[str, Any]) -> Any:
    """A text or a number that the schema itself allows, if one is found."""
    own = JsonSchema(json.dumps({name: value for name, value in schema.items() if name != "$defs"}))
    values = list(_texts(schema) if schema["type"] == "string" else _numbers(schema))
    found = next((value for value in values if conforms(json.dumps(value), own)), None)
    if found is not None:
        return found
    shortest = _by_grammar(own)
    return values[0] if shortest is None else json.loads(shortest)


def _texts(schema: Mapping[str, Any]) -> Iterator[str]:
    name = schema.get("format")
    if name in _OF_FORMATS:
        yield _OF_FORMATS[name]
    if name in FORMATS:
        yield example(name)
    yield "text".ljust(schema.get("minLength", 0), "t")[: schema.get("maxLength")]
    if "pattern" in schema:
        yield from _GUESSES


def _numbers(schema: Mapping[str, Any]) -> Iterator[int | float]:
    step = schema.get("multipleOf", 1)
    bounds = [schema[name] for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if name in schema]
    yield 0
    for bound in bounds:
        nearest = math.ceil(bound / step) * step
        yield from (bound, nearest, nearest + step, nearest - step, bound + step / 2)


def _read(schema: str) -> Any:
    try:
        return json.loads(schema)
    except ValueError as error:
        raise InvalidSchemaError(f"the schema is not JSON: {error}") from None


def _resolve(reference: str, root: Any) -> Any:
    node = root
    for step in reference.removeprefix("#").split("/")[1:]:
        node = node.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(node, dict) else {}
    return node
