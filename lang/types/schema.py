"""Constraints of generations: the texts allowed for a type, the conversion back to its values, and the constraints that
are refused when they are recorded, alike on every backend."""

from __future__ import annotations

import builtins
import enum
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

from ...constrain.spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural
from ...runtime.protocol.errors import RequestError
from .annotations import described

INTEGER = r"-?(0|[1-9][0-9]{0,17})"
NUMBER = r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?"


class Typed(NamedTuple):
    """A kind of value: what its text conforms to, how to turn that text into it, and what it was made of."""

    grammar: GrammarSpec
    convert: Callable[[str], Any]
    kind: object = None


def typed(kind: object) -> Typed:
    """The kind of value that `kind` describes.

    int, float, bool                  the value, written as Python writes it
    str                               a string without line breaks of its own: written as JSON, with quotes
    Enum, Literal (texts, integers)   the member, written bare
    a JSON Schema (dict or text)      the JSON text itself; `State.json` parses it
    a Pydantic model, dataclass, TypedDict, NamedTuple, msgspec Struct, list[...], set[...], dict[...], date, datetime,
    timedelta, UUID, Decimal, bytes (base64), Path, ...   the object, written as JSON

    Properties are generated in the order in which they are declared, and no others. That order, and one layout, is
    what makes most of the text forced, and so the fewest steps of decoding.

    Raises:
        RequestError: it describes no JSON value.
    """
    if isinstance(kind, Mapping):
        return Typed(_ordered(json.dumps(kind)), str, kind)
    if isinstance(kind, str):
        _check_json(kind)
        return Typed(_ordered(kind), str, kind)
    try:
        return _typed(kind)._replace(kind=kind)
    except TypeError as error:
        raise RequestError(f"{kind!r} describes no JSON value: {_instead(kind, str(error))}", param="schema") from None


_OF_PYTHON = ("builtins", "types", "typing", "typing_extensions")


def _instead(kind: Any, why: str) -> str:
    """Returns what to write for what is no type, or else `why` it is none."""
    if isinstance(kind, list | set | tuple) and len(kind) == 1 and isinstance(one := next(iter(kind)), type):
        return f"write list[{one.__name__}]"
    if isinstance(kind, list | set | tuple):
        return "give a type: of a list, list[Item]; of given values, gen(name, choices=[...])"
    if not isinstance(kind, type) and type(kind).__module__ not in _OF_PYTHON:
        return f"that is an instance: give the class, {type(kind).__name__}"
    if "unions may not contain more than one" in why:
        return (
            "a union of several dataclasses does not say which one a value is: make them classes of msgspec.Struct "
            "with tag=True, Pydantic models, or one dataclass with a field kind: Literal[...]"
        )
    if "custom type" in why or (isinstance(kind, type) and "is not supported" in why):
        name = why.rpartition("<class '")[2].partition("'")[0].rpartition(".")[2] or getattr(kind, "__name__", "it")
        if hasattr(builtins, name):
            return f"{name} has no form in JSON: choose another type, such as float, str, list[float] or a dataclass"
        return f"make {name} a dataclass, with @dataclass and a type for each field"
    return why


@functools.cache
def _typed(kind: Any) -> Typed:
    if kind is int:
        return Typed(Regex(INTEGER), int)
    if kind is float:
        return Typed(Regex(NUMBER), float)
    if kind is bool:
        return Typed(Regex("True|False"), _to_bool)
    options = bare_options(kind)
    if options is not None:
        return Typed(Choice(tuple(options)), functools.partial(_member, options))
    one = described(kind)
    return Typed(_ordered(_closed(one.schema)), one.read)


def _member(options: Mapping[str, Any], text: str) -> Any:
    """Raises ValueError if it is none."""
    if text not in options:
        raise ValueError(f"{text[:40]!r} is none of {', '.join(map(repr, options))}")
    return options[text]


def _to_bool(text: str) -> bool:
    """Raises ValueError if it is neither."""
    words = {"true": True, "false": False}
    word = text.strip().lower()
    if word not in words:
        raise ValueError(f"{text[:40]!r} is neither True nor False")
    return words[word]


def _ordered(schema: str) -> JsonSchema:
    return JsonSchema(schema, property_order="schema")


def _check_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError as error:
        raise RequestError(f"json_schema is not JSON: {error}", param="json_schema") from error


def bare_options(kind: Any) -> dict[str, Any] | None:
    """The members of an Enum or Literal by their texts, if they can stand without quotes."""
    members: dict[Any, Any]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        members = {member.value: member for member in kind}
    elif get_origin(kind) is Literal:
        members = {value: value for value in get_args(kind)}
    else:
        return None
    if not all(type(value) in (str, int) for value in members):
        return None
    return {str(value): member for value, member in members.items()}


def _closed(schema: dict[str, Any]) -> str:
    """The schema's text, in which objects have no properties but those they name."""

    def close(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("properties"), dict) and node.get("type") == "object":
                node.setdefault("additionalProperties", False)
            for value in node.values():
                close(value)
        elif isinstance(node, list):
            for value in node:
                close(value)

    close(schema)
    return json.dumps(schema)


# Numbers in running text. A mask that leaves nothing but digits and the end of the text makes a model that wants to go
# on with a space or a comma write digits instead. So anything may follow, and the first of it ends the number.

_ANYTHING = r"(.|\n)*"


class Numeral(NamedTuple):
    """A number and what may follow; `stop_regex` matches what follows."""

    grammar: Regex
    stop_regex: str


_NUMERALS: dict[object, Numeral] = {
    int: Numeral(Regex(f"{INTEGER}([^0-9]{_ANYTHING})?"), "(?<=[0-9])[^0-9]"),
    float: Numeral(
        Regex(rf"{NUMBER}([^0-9.]{_ANYTHING}|\.([^0-9]{_ANYTHING})?)?"),
        r"(?<=[0-9])[^0-9.]|(?<=[0-9])\.[^0-9]|(?<=\.[0-9]+)\.",
    ),
}


def numeral_of(kind: object, options: Mapping[str, Any]) -> Numeral | None:
    """Returns how a number of the type is generated; None: it is none, or what follows would be part of the text."""
    if not isinstance(kind, type) or options.get("min_tokens") or options.get("include_stop"):
        return None
    return _NUMERALS.get(kind)


def with_stop(options: Mapping[str, Any], numeral: Numeral) -> dict[str, Any]:
    """Options of a generation that ends after the number, or where they say so."""
    own = options.get("stop_regex")
    return {**options, "stop_regex": f"(?:{own})|{numeral.stop_regex}" if own else numeral.stop_regex}


def alone(grammar: GrammarSpec | None, options: Mapping[str, Any]) -> tuple[GrammarSpec | None, dict[str, Any]]:
    """The same with nothing behind the number: for where other text stands before it."""
    for kind, numeral in _NUMERALS.items():
        if grammar == numeral.grammar:
            kept = {name: value for name, value in options.items() if name != "stop_regex"}
            return Regex(INTEGER if kind is int else NUMBER), kept
    return grammar, dict(options)


# What is refused: nothing is compiled for that

MAX_CHECKED_CHARS = 16_384
"""Length of a grammar in Lark's notation or of choices: longer ones take over 30 ms, and are left to the engine."""


def check_constraint(spec: GrammarSpec | None, param: str) -> None:
    """Refuses a constraint that no engine takes. What only compiling would tell is left to the engine.

    Raises:
        RequestError: with the code and the message that the engine would give.
    """
    wrong = None if spec is None else _wrong(spec)
    if wrong is not None:
        raise RequestError(wrong[1], code=wrong[0], param=param)


@functools.lru_cache(maxsize=1024)
def _wrong(spec: GrammarSpec) -> tuple[str, str] | None:
    """The code and the message of what is wrong."""
    from ...constrain.errors import GrammarError, GrammarTooComplexError  # noqa: PLC0415  once there is a constraint

    try:
        for part in _parts(spec):
            _check(part)
    except GrammarTooComplexError:
        return None
    except GrammarError as error:
        return error.code, str(error)
    return None


def _parts(spec: GrammarSpec) -> list[JsonSchema | Regex | Choice | Lark | Gbnf]:
    if not isinstance(spec, Structural):
        return [spec]
    contents = (*(tag.content for tag in spec.tags), spec.then)
    return [content for content in contents if content is not None]


def _check(spec: JsonSchema | Regex | Choice | Lark | Gbnf) -> None:
    """Raises GrammarError."""
    from llguidance import LLMatcher  # noqa: PLC0415

    from ...constrain.errors import GrammarError  # noqa: PLC0415
    from ...constrain.lower import lower, to_grammar_error  # noqa: PLC0415

    match spec:
        case JsonSchema():
            _check_schema(spec)
            return
        case Gbnf():
            return
        case Lark(grammar=grammar) if len(grammar) > MAX_CHECKED_CHARS:
            return
        case Choice(options=options) if sum(map(len, options)) > MAX_CHECKED_CHARS:
            return
    message = LLMatcher.validate_grammar(lower(spec).source)
    if message and isinstance(spec, Regex):
        raise GrammarError(f"the regular expression {spec.pattern!r} cannot be used: {_reason(message)}")
    if message:
        raise to_grammar_error(message, spec)


def _reason(message: str) -> str:
    """Extracts what the parser of regular expressions says is wrong, without the picture that it draws of it."""
    reason = message.rpartition("error: ")[2].partition("\n")[0]
    return reason.strip() or " ".join(message.split())[:300]


def _check_schema(spec: JsonSchema) -> None:
    from ...constrain.errors import UnsupportedKeywordError  # noqa: PLC0415
    from ...constrain.lower import lower_if_plain  # noqa: PLC0415

    try:
        lower_if_plain(spec)
    except UnsupportedKeywordError:
        if spec.policy == "exact":
            raise
