"""What an output may be asked to conform to: small values that travel inside a request."""

from __future__ import annotations

import msgspec


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema", forbid_unknown_fields=True):
    """A JSON value that validates against a JSON Schema.

    `schema` is the schema's JSON text: the order of its keys is the order in which properties are generated.
    """

    schema: str


class Regex(msgspec.Struct, frozen=True, tag="regex", forbid_unknown_fields=True):
    """A text that matches `pattern` as a whole."""

    pattern: str


class Choice(msgspec.Struct, frozen=True, tag="choice", forbid_unknown_fields=True):
    """One of `options`, to the letter."""

    options: tuple[str, ...]


class Lark(msgspec.Struct, frozen=True, tag="lark", forbid_unknown_fields=True):
    """A text that the context-free grammar (EBNF in Lark's notation, start rule `start`) derives."""

    grammar: str


GrammarSpec = JsonSchema | Regex | Choice | Lark
