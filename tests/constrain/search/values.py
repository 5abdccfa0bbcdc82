"""Values near a JSON schema, valid and just not, and the texts that they can be written as."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from .random_schemas import FRACTIONS, INTEGERS, KEYS, STRINGS, random_value


class Values:
    """Makes values that a schema is likely to accept, by following one way through it, and values beside them."""

    def __init__(self, rng: random.Random, root: Any) -> None:
        self._rng = rng
        self._root = root

    def near(self) -> Any:
        """A value that may be valid or just not."""
        value = self._follow(self._root, 5)
        for _ in range(self._rng.choice((0, 0, 1, 1, 2))):
            value = self._mutate(value)
        return value

    def _follow(self, schema: Any, depth: int) -> Any:
        rng = self._rng
        if not isinstance(schema, dict) or not schema or depth <= 0:
            return random_value(rng, 1)
        ways = self._ways(schema)
        if ways and rng.random() < 0.7:
            chosen = self._follow(rng.choice(ways), depth - 1)
            own = self._plain(schema, depth)
            if isinstance(chosen, dict) and isinstance(own, dict):
                return own | chosen if rng.random() < 0.5 else chosen | own
            return chosen if rng.random() < 0.6 else own
        return self._plain(schema, depth)

    def _ways(self, schema: dict[str, Any]) -> list[Any]:
        """Schemas that a valid value meets, too, or may."""
        ways = [branch for keyword in ("allOf", "anyOf", "oneOf") for branch in schema.get(keyword, ())]
        ways += [schema[keyword] for keyword in ("if", "then", "else") if keyword in schema]
        ways += [way for way in schema.get("dependentSchemas", schema.get("dependencies", {})).values() if way]
        if "$ref" in schema:
            target = self._root
            for name in schema["$ref"].removeprefix("#").split("/")[1:]:
                target = target[name]
            ways += [target, target]
        return [way for way in ways if isinstance(way, dict)]

    def _plain(self, schema: dict[str, Any], depth: int) -> Any:
        rng = self._rng
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return rng.choice(schema["enum"])
        match self._type(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                fitting = [text for text in STRINGS if _fits(text, schema)]
                return rng.choice(fitting or STRINGS)
            case "integer":
                return rng.choice([n for n in INTEGERS if _in_bounds(n, schema)] or INTEGERS)
            case "number":
                numbers = (*INTEGERS, *FRACTIONS)
                return rng.choice([n for n in numbers if _in_bounds(n, schema)] or numbers)
            case "boolean":
                return rng.random() < 0.5
            case "null":
                return None
        return random_value(rng, 2)

    def _type(self, schema: dict[str, Any]) -> str | None:
        if types := schema.get("type"):
            return types if isinstance(types, str) else str(self._rng.choice(types))
        by_keyword = {
            "object": ("properties", "required", "patternProperties", "additionalProperties", "unevaluatedProperties"),
            "array": ("items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"),
            "string": ("pattern", "minLength", "maxLength"),
            "number": ("minimum", "maximum", "multipleOf"),
        }
        meant = [kind for kind, keywords in by_keyword.items() if any(keyword in schema for keyword in keywords)]
        return self._rng.choice(meant) if meant and self._rng.random() < 0.85 else None

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        rng = self._rng
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        keys = [key for key in (*properties, *KEYS) if key in schema.get("required", ()) or rng.random() < 0.2]
        keys += [key for key in properties if rng.random() < 0.5]
        keys += [rng.choice(KEYS)] * (rng.random() < 0.3)
        result = {}
        for key in rng.sample(keys, len(keys)):
            matching = [value for pattern, value in patterns.items() if re.search(pattern, key)]
            rest = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
            result[key] = self._follow(rng.choice(matching) if matching else properties.get(key, rest), depth - 1)
        return result

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        rng = self._rng
        items = schema.get("items", schema.get("unevaluatedItems", True))
        prefix = schema.get("prefixItems", items if isinstance(items, list) else [])
        rest = schema.get("additionalItems", True) if isinstance(items, list) else items
        length = max(schema.get("minItems", 0), rng.choice((0, 1, 1, 2, 3, 4)))
        values = []
        for index in range(min(length, schema.get("maxItems", 9) + (rng.random() < 0.1))):
            item = prefix[index] if index < len(prefix) else rest
            if "contains" in schema and rng.random() < 0.4:
                item = schema["contains"]
            values.append(self._follow(item, depth - 1))
        return values

    def _mutate(self, value: Any) -> Any:
        """The value with one thing changed, somewhere in it."""
        rng = self._rng
        if rng.random() < 0.15 or not isinstance(value, dict | list):
            return random_value(rng, 1)
        if isinstance(value, dict):
            items = list(value.items())
            if items and rng.random() < 0.6:
                index = rng.randrange(len(items))
                key, old = items[index]
                change = rng.randrange(4)
                items[index] = (rng.choice(KEYS), old) if change == 0 else (key, self._mutate(old))
                if change == 1:
                    del items[index]
            else:
                items.append((rng.choice(KEYS), random_value(rng, 1)))
            rng.shuffle(items)
            return dict(items)
        values = list(value)
        if values and rng.random() < 0.7:
            index = rng.randrange(len(values))
            change = rng.randrange(4)
            if change == 0:
                del values[index]
            elif change == 1:
                values.insert(rng.randrange(len(values) + 1), values[index])
            else:
                values[index] = self._mutate(values[index])
        else:
            values.insert(rng.randrange(len(values) + 1), random_value(rng, 1))
        return values


def _fits(text: str, schema: dict[str, Any]) -> bool:
    long_enough = schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", 99)
    return long_enough and re.search(schema.get("pattern", ""), text) is not None


def _in_bounds(number: float, schema: dict[str, Any]) -> bool:
    within = schema.get("minimum", -1e9) <= number <= schema.get("maximum", 1e9)
    return bool(within and float(number) % schema.get("multipleOf", number or 1) == 0)


def layouts(value: Any, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Texts of a value, and whether each is one that must be accepted if the value is."""
    yield json.dumps(value, ensure_ascii=rng.random() < 0.3, separators=rng.choice(((", ", ": "), (",", ":")))), True
    if rng.random() < 0.3:
        yield _odd(value, rng), False


def _odd(value: Any, rng: random.Random) -> str:
    """The value, written as one may but need not: numbers with exponents, escapes, a key twice."""
    if isinstance(value, dict):
        pairs = [f"{_odd(key, rng)}: {_odd(child, rng)}" for key, child in value.items()]
        if pairs and rng.random() < 0.3:
            pairs.append(f"{json.dumps(rng.choice(list(value)))}: {json.dumps(random_value(rng, 1))}")
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_odd(child, rng) for child in value) + "]"
    if isinstance(value, str) and value and rng.random() < 0.4:
        index = rng.randrange(len(value))
        escaped = json.dumps(value[index])[1:-1] if ord(value[index]) > 0xFFFF else f"\\u{ord(value[index]):04x}"
        return json.dumps(value[:index])[:-1] + escaped + json.dumps(value[index + 1 :])[1:]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return rng.choice(
            (f"{value}", f"{float(value)}", f"{float(value)}0", f"{value}e0", f"{value * 10}e-1", f"{value}E+0")
        )
    return json.dumps(value)
