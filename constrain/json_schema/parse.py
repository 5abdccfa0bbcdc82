"""Parses the text of a JSON Schema and checks that it is one; JSON values as schemas see them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import regex

from ..errors import GrammarTooComplexError, InvalidSchemaError, cut

Schema = dict[str, Any] | bool

MAX_SCHEMA_BYTES = 1_000_000
MAX_DEPTH = 64
MAX_SCHEMAS = 10_000
MAX_BRANCHES = 1_000
"""Entries of one `anyOf`, `oneOf` or `allOf`."""
MAX_ENUM_VALUES = 10_000
MAX_PATTERN_CHARS = 16_384
MAX_REPETITION = 10_000
"""Largest n or m of a `{n,m}` in a pattern."""
MAX_REQUIRED_COUNT = 10_000
"""Largest minLength, minItems or minProperties: no generation reaches more."""

_REPETITIONS = regex.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]?|\{([0-9]+)(?:,([0-9]*))?\}", regex.DOTALL)
"""Escapes, classes and repetitions. A class that is never closed goes to the end: each character is read once."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

SCHEMA_KEYWORDS = frozenset(
    {"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "not", "propertyNames"}
    | {"then", "unevaluatedItems", "unevaluatedProperties"}
)
SCHEMA_LIST_KEYWORDS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SCHEMA_MAP_KEYWORDS = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_HOLDING = SCHEMA_KEYWORDS | SCHEMA_LIST_KEYWORDS | SCHEMA_MAP_KEYWORDS | {"items", "dependencies"}


_SINCE_6 = frozenset({"const", "contains", "propertyNames"})
_SINCE_7 = frozenset({"if", "then", "else"})
_SINCE_2019 = frozenset(
    {"dependentRequired", "dependentSchemas", "maxContains", "minContains", "unevaluatedItems", "unevaluatedProperties"}
    | {"$anchor"}
)
_SINCE_2020 = frozenset({"prefixItems", "$dynamicRef", "$dynamicAnchor"})
_ONLY_2019 = frozenset({"$recursiveRef", "$recursiveAnchor"})
ABSENT = {
    4: _SINCE_6 | _SINCE_7 | _SINCE_2019 | _SINCE_2020 | _ONLY_2019,
    6: _SINCE_7 | _SINCE_2019 | _SINCE_2020 | _ONLY_2019,
    7: _SINCE_2019 | _SINCE_2020 | _ONLY_2019,
    2019: _SINCE_2020,
    2020: _ONLY_2019,
}
"""Keywords of other drafts, which mean nothing in one."""


def draft_year(root: Any) -> int:
    """Returns which draft `$schema` names: 4, 6, 7, 2019 or 2020, the last if it names none that is known."""
    uri = str(root.get("$schema", "")) if isinstance(root, dict) else ""
    for name, year in (("draft-03", 4), ("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019)):
        if name in uri:
            return year
    return 2020


def pointer_to(pointer: str, *steps: str | int) -> str:
    """`pointer` extended by `steps`, each escaped as JSON pointers ask for."""
    for step in steps:
        name = step if isinstance(step, str) else str(step)
        if "~" in name or "/" in name:
            name = name.replace("~", "~0").replace("/", "~1")
        pointer = f"{pointer}/{name}"
    return pointer


def parse_schema(text: str) -> Schema:
    """The schema as a value, its limits of size checked and its keywords' values of the right types.

    Raises:
        InvalidSchemaError: it is not JSON, or a keyword has a value it cannot have.
        GrammarTooComplexError: it passes a limit.
    """
    if "\0" in text:
        raise InvalidSchemaError("the schema contains a NUL character")
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidSchemaError("the schema's text is not valid Unicode") from None
    if num_bytes > MAX_SCHEMA_BYTES:
        raise GrammarTooComplexError(f"the schema has {num_bytes} bytes, at most {MAX_SCHEMA_BYTES} are allowed")
    try:
        schema = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite)
        if "\\u" in text:  # nothing else writes half a surrogate pair
            json.dumps(schema, ensure_ascii=False).encode()
    except RecursionError:
        raise GrammarTooComplexError("the schema is nested too deeply") from None
    except UnicodeEncodeError:
        raise InvalidSchemaError("a string of the schema contains a lone surrogate") from None
    except InvalidSchemaError:
        raise
    except ValueError as error:
        raise InvalidSchemaError(f"the schema is not JSON: {error}") from None
    check_schema(schema, "", ABSENT[draft_year(schema)])
    return schema  # type: ignore[no-any-return]  # check_schema has seen to it


def check_schema(schema: Any, pointer: str, absent: frozenset[str] = frozenset()) -> None:
    """Walks `schema`, which lies at `pointer`, and checks the value of each keyword but those that are `absent` from
    its draft. Raises as `parse_schema` does.
    """
    num_schemas, num_values = 1, 0
    stack: list[tuple[Any, _Way, int]] = [(schema, None, 0)]
    while stack:
        node, way, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise GrammarTooComplexError(
                f"the schema is nested deeper than {MAX_DEPTH} levels", path=_pointer_along(pointer, way)
            )
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise InvalidSchemaError(
                f"a schema must be an object or a boolean, got {_kind(node)}", path=_pointer_along(pointer, way)
            )
        for keyword, value in node.items():
            check = _CHECKS.get(keyword)
            if check is None or keyword in absent:
                continue
            problem = check(value)
            if problem:
                where = pointer_to(_pointer_along(pointer, way), keyword)
                raise InvalidSchemaError(f"{keyword} must be {problem}", path=where)
            if keyword in _LIMITED:
                num_values += len(value) if keyword == "enum" else 0
                excess = _excess(keyword, value, num_values)
                if excess:
                    raise GrammarTooComplexError(excess, path=pointer_to(_pointer_along(pointer, way), keyword))
        for pattern in node.get("patternProperties", ()):
            excess = _pattern_excess(pattern)
            if excess:
                where = pointer_to(_pointer_along(pointer, way), "patternProperties", pattern[:100])
                raise GrammarTooComplexError(excess, path=where)
        for steps, child in subschemas(node, absent):
            num_schemas += 1
            if num_schemas > MAX_SCHEMAS:
                where = _pointer_along(pointer, (way, steps))
                raise GrammarTooComplexError(f"the schema has more than {MAX_SCHEMAS} subschemas", path=where)
            stack.append((child, (way, steps), depth + 1))


_Way: TypeAlias = tuple["_Way", tuple[str | int, ...]] | None
"""The path of a walk to a subschema: the path before, and the steps from there."""


def _pointer_along(pointer: str, way: _Way) -> str:
    """Returns where a walk that began at `pointer` has come."""
    steps: list[tuple[str | int, ...]] = []
    while way is not None:
        steps.append(way[1])
        way = way[0]
    return pointer_to(pointer, *(step for taken in reversed(steps) for step in taken))


def _excess(keyword: str, value: Any, num_values: int) -> str | None:
    """Returns the limit that a keyword's value passes; `num_values` counts the values of all enums up to it."""
    if keyword in _MINIMA and value > MAX_REQUIRED_COUNT:
        return f"{keyword} is {_shown(value)}, at most {MAX_REQUIRED_COUNT} is allowed"
    if keyword in ("anyOf", "oneOf", "allOf") and len(value) > MAX_BRANCHES:
        return f"{keyword} has {len(value)} entries, at most {MAX_BRANCHES} are allowed"
    if keyword == "enum" and num_values > MAX_ENUM_VALUES:
        return f"the schema has more than {MAX_ENUM_VALUES} enum values"
    return _pattern_excess(value) if keyword == "pattern" else None


def _pattern_excess(pattern: str) -> str | None:
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"the pattern has {len(pattern)} characters, at most {MAX_PATTERN_CHARS} are allowed"
    for match in _REPETITIONS.finditer(pattern):
        if any(len(count) > 9 or int(count) > MAX_REPETITION for count in match.groups() if count):
            return f"the pattern repeats {match[0][:40]}, at most {MAX_REPETITION} times are allowed"
    return None


def subschemas(
    node: dict[str, Any], absent: frozenset[str] = frozenset()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The schemas directly inside `node`, each with its path from there; not those of keywords that are `absent`."""
    for keyword, value in node.items():
        if keyword not in _HOLDING or keyword in absent:
            continue
        if keyword in SCHEMA_MAP_KEYWORDS:
            for name, child in value.items():
                yield (keyword, name), child
        elif keyword == "dependencies":
            yield from (((keyword, name), child) for name, child in value.items() if not isinstance(child, list))
        elif keyword in SCHEMA_LIST_KEYWORDS or (keyword == "items" and isinstance(value, list)):
            for index, child in enumerate(value):
                yield (keyword, index), child
        else:
            yield (keyword,), value


def checked_formats(text: str, pointers: Iterable[str]) -> tuple[str, ...]:
    """The values of the `format` keywords among `pointers` into the schema `text`; some may lead nowhere in it."""
    wanted = [pointer for pointer in pointers if pointer.endswith("/format")]
    schema = json.loads(text) if wanted else None
    names = (_value_at(schema, pointer) for pointer in wanted)
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def _value_at(node: Any, pointer: str) -> Any:
    """Returns what `pointer` leads to; None where that is nothing."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list):
            node = node[int(name)] if name.isdecimal() and int(name) < len(node) else None
        else:
            node = node.get(name) if isinstance(node, dict) else None
    return node


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise InvalidSchemaError(f"an object of the schema has the key {_shown(twice)} twice")
    return result


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise InvalidSchemaError(f"the number {text[:40]} is out of range")
    return value


def _refuse_constant(name: str) -> Any:
    raise InvalidSchemaError(f"the schema is not JSON: {name} is not a JSON value")


def _kind(value: Any) -> str:
    names = {str: "a string", list: "an array", dict: "an object", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    """Writes a value, or its beginning."""
    return cut(repr(value), 100)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _must_be(what: str, test: Callable[[Any], bool]) -> Callable[[Any], str | None]:
    return lambda value: None if test(value) else f"{what}, got {_kind(value)}"


def _type_problem(value: Any) -> str | None:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            return f"one of {', '.join(TYPES)}, got {_shown(name)}"
    return None if names else "a type or a list of at least one"


_string = _must_be("a string", lambda value: isinstance(value, str))
_boolean = _must_be("a boolean", lambda value: isinstance(value, bool))
_number = _must_be("a number", _is_number)
_limit = _must_be("a number or a boolean", lambda value: isinstance(value, int | float))
_positive = _must_be("a number greater than 0", lambda value: _is_number(value) and value > 0)
_count = _must_be("a whole number, 0 or more", lambda value: _is_number(value) and value >= 0 and value == int(value))
_array = _must_be("an array", lambda value: isinstance(value, list))
_object = _must_be("an object", lambda value: isinstance(value, dict))
_strings = _must_be("an array of strings", _is_strings)
# A boolean `required` is draft 3's.
_required = _must_be("an array of strings", lambda value: _is_strings(value) or isinstance(value, bool))
_schemas = _must_be("an array of at least one schema", lambda value: isinstance(value, list) and len(value) > 0)
_strings_map = _must_be(
    "an object of arrays of strings", lambda value: isinstance(value, dict) and all(map(_is_strings, value.values()))
)
_dependencies = _must_be(
    "an object of schemas or arrays of strings",
    lambda value: (
        isinstance(value, dict) and all(_is_strings(item) or isinstance(item, dict | bool) for item in value.values())
    ),
)

_MINIMA = frozenset({"minLength", "minItems", "minProperties", "minContains"})
_LIMITED = _MINIMA | {"anyOf", "oneOf", "allOf", "enum", "pattern"}

_CHECKS: dict[str, Callable[[Any], str | None]] = {
    **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef", "$id", "$schema", "$anchor", "$dynamicAnchor"), _string),
    **dict.fromkeys(("format", "pattern"), _string),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties", "maxContains", *sorted(_MINIMA)), _count),
    **dict.fromkeys(("minimum", "maximum"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _limit),
    **dict.fromkeys(("uniqueItems", "$recursiveAnchor"), _boolean),
    **dict.fromkeys(sorted(SCHEMA_MAP_KEYWORDS), _object),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _schemas),
    "prefixItems": _array,
    "multipleOf": _positive,
    "required": _required,
    "enum": _array,
    "type": _type_problem,
    "dependentRequired": _strings_map,
    "dependencies": _dependencies,
}


_KIND_OF = {bool: "boolean", str: "string", list: "array", dict: "object", int: "number", float: "number"}
ALL_KINDS = frozenset({"null", "boolean", "number", "string", "array", "object"})


def kind_of(value: Any) -> str:
    """The type of a JSON value; integers are numbers."""
    return _KIND_OF.get(type(value), "null")


def _number_key(value: float) -> str:
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def value_key(value: Any, number_key: Callable[[Any], str] = _number_key) -> str:
    """Equal for values that JSON Schema calls equal: 1 and 1.0 are, 1 and true are not, key order is nothing.

    `number_key` writes the numbers. A text, since numbers can be chosen so that their hashes collide.
    """
    parts: list[str] = []
    _write_key(value, number_key, parts)
    return "".join(parts)


def _write_key(value: Any, number_key: Callable[[Any], str], parts: list[str]) -> None:
    """Into one list for all levels: texts within texts would be copied at each."""
    if isinstance(value, list):
        parts.append("[")
        for item in value:
            _write_key(item, number_key, parts)
            parts.append(",")
        parts.append("]")
    elif isinstance(value, dict):
        parts.append("{")
        for name in sorted(value):
            parts.append(f"{json.dumps(name)}:")
            _write_key(value[name], number_key, parts)
            parts.append(",")
        parts.append("}")
    elif value is None or isinstance(value, bool | str):
        parts.append(json.dumps(value))
    else:
        parts.append(number_key(value))


def values_of(schema: dict[str, Any]) -> list[Any] | None:
    """The values that `enum` and `const` leave, each once, or None if they leave any."""
    if "enum" not in schema:
        return [schema["const"]] if "const" in schema else None
    values = list({value_key(value): value for value in schema["enum"]}.values())
    if "const" in schema:
        values = [value for value in values if value_key(value) == value_key(schema["const"])]
    return values


def kinds_of(schema: dict[str, Any]) -> frozenset[str]:
    """The types that `type` allows, with "integer" as "number"."""
    names = schema.get("type")
    if names is None:
        return ALL_KINDS
    if isinstance(names, str):
        return frozenset({"number" if names == "integer" else names})
    return frozenset("number" if name == "integer" else name for name in names)


def only_integers(schema: dict[str, Any]) -> bool:
    """Tells whether `type` allows integers but no other numbers."""
    names = schema.get("type", ())
    return "integer" in names if isinstance(names, list) and "number" not in names else names == "integer"


def structure(value: Any) -> Schema:
    """A schema that only `value`, an array or object, satisfies, in terms of its elements."""
    if isinstance(value, list):
        items = [{"const": item} for item in value]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items), "maxItems": len(items)}
    properties = {name: {"const": item} for name, item in value.items()}
    return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
