"""Specs of constraints: small values that travel inside a request."""

from __future__ import annotations

from typing import Literal

import msgspec


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema", forbid_unknown_fields=True, omit_defaults=True):
    """A JSON value that validates against a JSON Schema.

    schema            the schema's JSON text
    property_order    "any": an object's properties come in any order, after `,` and `:` may be one space, and integers
                      may be written `1.0`. "schema": in the order of the schema's own text, in the layout of
                      `json.dumps`, each number in one way: the grammar forces most of the text
    policy            "exact": what no mask can enforce, but nearly all values keep, is checked on the finished value;
                      the rest is refused by name. "best_effort": no valid schema is refused; what cannot be enforced
                      is checked, and a value that fails is returned with what it violates
    """

    schema: str
    property_order: Literal["any", "schema"] = "any"
    policy: Literal["exact", "best_effort"] = "exact"


class Regex(msgspec.Struct, frozen=True, tag="regex", forbid_unknown_fields=True):
    """A text that matches `pattern` as a whole."""

    pattern: str


class Choice(msgspec.Struct, frozen=True, tag="choice", forbid_unknown_fields=True):
    """One of `options`, to the letter."""

    options: tuple[str, ...]


class Lark(msgspec.Struct, frozen=True, tag="lark", forbid_unknown_fields=True):
    """A text that the context-free grammar (EBNF in Lark's notation, start rule `start`) derives."""

    grammar: str


class Gbnf(msgspec.Struct, frozen=True, tag="gbnf", forbid_unknown_fields=True):
    """A text that the context-free grammar in llama.cpp's notation (GBNF, start rule `root`) derives."""

    grammar: str


class Tag(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A marked part of a text: `begin`, then what `content` allows (None: any text), then `end`."""

    begin: str
    content: JsonSchema | Regex | Choice | Lark | Gbnf | None
    end: str


class Structural(msgspec.Struct, frozen=True, tag="structural", forbid_unknown_fields=True, omit_defaults=True):
    """Free text in which each trigger begins one of `tags`.

    triggers        texts, each the beginning of some tag's `begin`; where one appears, one of those tags follows
    tags            what may follow
    at_least_one    the text must hold a tag
    stop_after_first    nothing follows the first tag
    free_text       False: nothing but tags (one after another)
    reasoning_end   text that closes a reasoning section: nothing is constrained until it has appeared (None: none)
    then            what the whole text after the reasoning section must be instead of `tags`
    """

    tags: tuple[Tag, ...] = ()
    triggers: tuple[str, ...] = ()
    at_least_one: bool = False
    stop_after_first: bool = False
    free_text: bool = True
    reasoning_end: str | None = None
    then: JsonSchema | Regex | Choice | Lark | Gbnf | None = None


GrammarSpec = JsonSchema | Regex | Choice | Lark | Gbnf | Structural
