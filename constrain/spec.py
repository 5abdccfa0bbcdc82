"""Specs of constraints: small values that travel inside a request."""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_OPTIONS = 10_000
"""Options of a choice."""
MAX_TAGS = 1_024
"""Tags of a structural constraint, and its triggers."""


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema", forbid_unknown_fields=True, omit_defaults=True):
    """A JSON value that validates against a JSON Schema.

    schema            the schema's JSON text
    property_order    "any": an object's properties come in any order, `,` and `:` may be followed by one space, and
                      integers may be written `1.0`. "schema": in the order of the schema's own text, in the layout of
                      `json.dumps`, with one form per number: the grammar forces most of the text
    policy            "exact": conditions that no mask can enforce, but nearly all values satisfy, are checked on the
                      finished value; others are refused by name. "best_effort": no valid schema is refused; what
                      cannot be enforced is checked, and a value that fails is returned with its violations
    unnamed           "allow": an object has any keys that the schema allows. "omit": one whose schema has `properties`
                      gets no others, unless `additionalProperties`, `patternProperties` or `unevaluatedProperties`
                      say what they are, or it needs them
    """

    schema: str
    property_order: Literal["any", "schema"] = "any"
    policy: Literal["exact", "best_effort"] = "exact"
    unnamed: Literal["allow", "omit"] = "allow"


class Regex(msgspec.Struct, frozen=True, tag="regex", forbid_unknown_fields=True):
    """A text that matches the whole `pattern`."""

    pattern: str


class Choice(msgspec.Struct, frozen=True, tag="choice", forbid_unknown_fields=True):
    """Exactly one of `options`."""

    options: tuple[str, ...]


class Lark(msgspec.Struct, frozen=True, tag="lark", forbid_unknown_fields=True):
    """A text that the context-free grammar (EBNF in Lark's notation, start rule `start`) derives."""

    grammar: str


class Gbnf(msgspec.Struct, frozen=True, tag="gbnf", forbid_unknown_fields=True):
    """A text that the context-free grammar in llama.cpp's notation (GBNF, start rule `root`) derives."""

    grammar: str


class Tag(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tagged segment of a text: `begin`, then what `content` allows (None: any text), then `end`."""

    begin: str
    content: JsonSchema | Regex | Choice | Lark | Gbnf | None
    end: str


class Structural(msgspec.Struct, frozen=True, tag="structural", forbid_unknown_fields=True, omit_defaults=True):
    """Free text in which each trigger begins one of `tags`.

    triggers        texts, each a prefix of some tag's `begin`; where one appears, one of those tags must follow
    tags            the tags that may follow
    at_least_one    the text must contain a tag
    stop_after_first    the text ends after the first tag
    free_text       False: only tags, one after another
    reasoning_end   text that closes a reasoning section: nothing is constrained before it (None: none)
    reasoning_budget    tokens after which that text must have come (None: any number)
    then            constraint of the whole text after the reasoning section, instead of `tags`
    """

    tags: tuple[Tag, ...] = ()
    triggers: tuple[str, ...] = ()
    at_least_one: bool = False
    stop_after_first: bool = False
    free_text: bool = True
    reasoning_end: str | None = None
    reasoning_budget: int | None = None
    then: JsonSchema | Regex | Choice | Lark | Gbnf | None = None


GrammarSpec = JsonSchema | Regex | Choice | Lark | Gbnf | Structural

MAX_SPEC_CHARS = 1_000_000
"""Most characters of all texts in a spec."""


def spec_chars(spec: GrammarSpec | None) -> int:
    """Counts the characters of all texts in a spec."""
    match spec:
        case JsonSchema(schema=text) | Regex(pattern=text) | Lark(grammar=text) | Gbnf(grammar=text):
            return len(text)
        case Choice(options=options):
            return sum(map(len, options))
        case Structural(tags=tags, triggers=triggers, then=then):
            own = sum(map(len, triggers)) + len(spec.reasoning_end or "") + spec_chars(then)
            return own + sum(len(tag.begin) + len(tag.end) + spec_chars(tag.content) for tag in tags)
        case None:
            return 0


def excess_of(spec: GrammarSpec | None) -> str | None:
    """Returns why a spec is too long to be compiled; None: it is not."""
    return excess_in(spec_chars(spec))


def excess_in(num_chars: int) -> str | None:
    """Returns why a spec of so many characters is too long to be compiled; None: it is not."""
    if num_chars <= MAX_SPEC_CHARS:
        return None
    return f"the constraint has {num_chars} characters, at most {MAX_SPEC_CHARS} are allowed"


def excess_of_tags(num_tags: int, num_triggers: int) -> str | None:
    """Returns why a structural constraint has too many tags; None: it has not."""
    return f"there are more than {MAX_TAGS} tags" if max(num_tags, num_triggers) > MAX_TAGS else None
