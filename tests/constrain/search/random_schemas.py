"""Random JSON schemas over every keyword but `format`, of any draft: what masks are compared with a validator on."""

from __future__ import annotations

import json
import random
from typing import Any

DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}

KEYS = ("a", "b", "c", "aa", "ab", "x1", "kind", "é")
STRINGS = ("", "a", "b", "ab", "aa", "abc", "x1", "12", "kind", "é", "日本", "𝄞", 'q"q', "\\", "tab\there", "aaaaa")
INTEGERS = (-3, -1, 0, 1, 2, 3, 4, 5, 6, 7, 10, 12, 100)
FRACTIONS = (-1.5, -0.5, 0.25, 0.5, 0.75, 1.5, 2.5, 3.75, 12.5)
STEPS = (1, 2, 3, 5, 0.5, 0.25, 1.5)  # binary fractions: a validator that divides floats is right about them
PATTERNS = (
    *("^a", "b$", "a", "^[a-c]*$", "^[a-c]+$", "^.{2,3}$", "[0-9]", "^[^a]", "^(foo|ab|x1)$", "a|b", "^$", "aa+", "^x"),
    *("^a.*b$", "(a|b)c?", "^é", ".", "^(?:a|b)", "[^0-9]", "^[a-z]+[0-9]?$", "^.$"),
)
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_DEFINITIONS = 3


class Schemas:
    """Makes random schemas of one draft, of bounded depth, every reference of which ends."""

    def __init__(self, rng: random.Random, draft: int = 2020) -> None:
        self._rng = rng
        self.draft = draft
        self._definitions = "$defs" if draft >= 2019 else "definitions"
        self._num_definitions = 0

    def root(self) -> dict[str, Any]:
        """A schema with its definitions, which may refer to each other and to themselves."""
        self._num_definitions = self._rng.choice((0, 0, 1, 2, _DEFINITIONS))
        schema = self._object(3, first=0)
        if self._num_definitions:
            schema[self._definitions] = {
                f"d{number}": self.schema(2, first=number + 1) for number in range(self._num_definitions)
            }
        if self.draft != 2020 or self._rng.random() < 0.3:
            schema["$schema"] = DRAFTS[self.draft]
        return schema

    def schema(self, depth: int, *, first: int) -> Any:
        """Any schema. It may refer to definitions from number `first` on where it stands, to all further down."""
        if depth <= 0 or self._rng.random() < 0.12:
            if self.draft > 4 and self._rng.random() < 0.25:
                return self._rng.random() < 0.7
            return self._leaf()
        return self._object(depth, first=first)

    def _object(self, depth: int, *, first: int) -> dict[str, Any]:
        rng = self._rng
        result: dict[str, Any] = {}
        if rng.random() < 0.6:
            result["type"] = self._types()
        for maker in rng.choices(
            (self._number, self._string, self._array, self._properties, self._logic, self._value, self._reference),
            weights=(2, 2, 4, 6, 4, 1, 1),
            k=rng.choice((1, 1, 2, 2, 3)),
        ):
            maker(result, depth, first)
        if not result:
            result["type"] = self._types()
        return result

    def _leaf(self) -> dict[str, Any]:
        rng = self._rng
        result: dict[str, Any] = {}
        kind = rng.randrange(5)
        if kind == 0:
            result["type"] = self._types()
        elif kind == 1:
            self._value(result, 0, 0)
        elif kind == 2:
            self._number(result, 0, 0)
        else:
            self._string(result, 0, 0)
        return result

    def _types(self) -> Any:
        rng = self._rng
        if rng.random() < 0.65:
            return rng.choices(TYPES, weights=(1, 1, 2, 2, 3, 4, 6))[0]
        return rng.sample(TYPES, rng.choice((1, 2, 3)))

    def _number(self, result: dict[str, Any], depth: int, first: int) -> None:
        rng = self._rng
        bound = rng.choice((*INTEGERS, *FRACTIONS))
        keyword = rng.choice(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
        if keyword == "multipleOf":
            result[keyword] = rng.choice(STEPS)
        elif self.draft == 4 and keyword.startswith("exclusive"):
            inclusive = "minimum" if keyword == "exclusiveMinimum" else "maximum"
            result[inclusive], result[keyword] = bound, True
        else:
            result[keyword] = bound

    def _string(self, result: dict[str, Any], depth: int, first: int) -> None:
        rng = self._rng
        if rng.random() < 0.6:
            result["pattern"] = rng.choice(PATTERNS)
        if rng.random() < 0.3:
            result["minLength"] = rng.randrange(4)
        if rng.random() < 0.3:
            result["maxLength"] = rng.randrange(6)

    def _array(self, result: dict[str, Any], depth: int, first: int) -> None:
        rng, draft = self._rng, self.draft
        for keyword in rng.sample(
            ("items", "prefix", "contains", "counts", "unique", "unevaluated"), rng.choice((1, 1, 2, 3))
        ):
            if keyword == "items":
                rest = "items" if draft == 2020 or not isinstance(result.get("items"), list) else "additionalItems"
                result[rest] = self._below(depth)
            elif keyword == "prefix":
                prefix = [self._below(depth) for _ in range(rng.choice((1, 2, 3)))]
                if draft < 2020 and "items" in result and not isinstance(result["items"], list):
                    result["additionalItems"] = result["items"]
                result["prefixItems" if draft == 2020 else "items"] = prefix
            elif keyword == "contains" and draft >= 6:
                result["contains"] = self._below(depth)
                if draft >= 2019 and rng.random() < 0.5:
                    result["minContains"] = rng.randrange(3)
                if draft >= 2019 and rng.random() < 0.4:
                    result["maxContains"] = rng.randrange(1, 4)
            elif keyword == "counts":
                result[rng.choice(("minItems", "maxItems"))] = rng.randrange(4)
            elif keyword == "unique":
                result["uniqueItems"] = True
                if rng.random() < 0.6:  # a few values, which can be told apart by a mask
                    rest = "items" if not isinstance(result.get("items"), list) else "additionalItems"
                    result[rest] = {"enum": self._values(rng.randrange(1, 5))}
            elif keyword == "unevaluated" and draft == 2020:  # with 2019's the validator is at times wrong
                result["unevaluatedItems"] = self._below(depth)

    def _properties(self, result: dict[str, Any], depth: int, first: int) -> None:
        rng, draft = self._rng, self.draft
        keywords = ("properties", "patterns", "additional", "required", "counts", "names", "dependent", "unevaluated")
        for keyword in rng.choices(keywords, weights=(6, 2, 3, 3, 1, 1, 2, 2), k=rng.choice((1, 2, 3, 4))):
            if keyword == "properties":
                result["properties"] = {key: self._below(depth) for key in self._keys(4)}
            elif keyword == "patterns":
                result["patternProperties"] = {
                    pattern: self._below(depth) for pattern in rng.sample(PATTERNS, rng.choice((1, 1, 2)))
                }
            elif keyword == "additional":
                result["additionalProperties"] = rng.random() < 0.3 if rng.random() < 0.5 else self._below(depth)
            elif keyword == "required":
                result["required"] = self._keys(3)
            elif keyword == "counts":
                result[rng.choice(("minProperties", "maxProperties"))] = rng.randrange(4)
            elif keyword == "names" and draft >= 6:
                result["propertyNames"] = {"pattern": rng.choice(PATTERNS)} if rng.random() < 0.6 else self._leaf()
            elif keyword == "dependent":
                self._dependent(result, depth, first)
            elif keyword == "unevaluated" and draft == 2020:
                result["unevaluatedProperties"] = rng.random() < 0.2 if rng.random() < 0.7 else self._below(depth)

    def _dependent(self, result: dict[str, Any], depth: int, first: int) -> None:
        rng = self._rng
        key = rng.choice(KEYS)
        if rng.random() < 0.5:
            value: Any = self._keys(2)
            name = "dependentRequired" if self.draft >= 2019 else "dependencies"
        else:
            value = self.schema(depth - 1, first=first)
            name = "dependentSchemas" if self.draft >= 2019 else "dependencies"
        result.setdefault(name, {})[key] = value

    def _logic(self, result: dict[str, Any], depth: int, first: int) -> None:
        rng = self._rng
        keyword = rng.choice(("allOf", "anyOf", "anyOf", "oneOf", "oneOf", "not", "if"))
        if keyword == "not":
            result["not"] = self.schema(depth - 1, first=first)
        elif keyword == "if" and self.draft >= 7:
            result["if"] = self.schema(depth - 1, first=first)
            if rng.random() < 0.8:
                result["then"] = self.schema(depth - 1, first=first)
            if rng.random() < 0.6:
                result["else"] = self.schema(depth - 1, first=first)
        elif keyword != "if":
            result[keyword] = [self.schema(depth - 1, first=first) for _ in range(rng.choice((1, 2, 2, 3)))]

    def _value(self, result: dict[str, Any], depth: int, first: int) -> None:
        if self.draft >= 6 and self._rng.random() < 0.5:
            result["const"] = random_value(self._rng, 1)
        else:
            result["enum"] = self._values(self._rng.randrange(1, 5))

    def _reference(self, result: dict[str, Any], depth: int, first: int) -> None:
        if first < self._num_definitions:
            result["$ref"] = f"#/{self._definitions}/d{self._rng.randrange(first, self._num_definitions)}"

    def _below(self, depth: int) -> Any:
        """A schema of a part of the value: it may refer to anything, itself included."""
        if self._num_definitions and self._rng.random() < 0.12:
            return {"$ref": f"#/{self._definitions}/d{self._rng.randrange(self._num_definitions)}"}
        if self._rng.random() < 0.03:
            return {"$ref": "#"}
        return self.schema(depth - 1, first=0)

    def _keys(self, most: int) -> list[str]:
        return self._rng.sample(KEYS, self._rng.randrange(1, most + 1))

    def _values(self, count: int) -> list[Any]:
        texts = {json.dumps(value): value for value in (random_value(self._rng, 1) for _ in range(count))}
        return list(texts.values())


def random_value(rng: random.Random, depth: int) -> Any:
    """Any JSON value, from the same few names, strings and numbers that the schemas are made of."""
    kind = rng.randrange(5 if depth <= 0 else 9)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind == 1:
        return rng.choice(INTEGERS)
    if kind == 2:
        return rng.choice(FRACTIONS)
    if kind <= 4:
        return rng.choice(STRINGS)
    if kind <= 6:
        return [random_value(rng, depth - 1) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return {key: random_value(rng, depth - 1) for key in rng.sample(KEYS, rng.choice((0, 1, 1, 2, 3)))}
