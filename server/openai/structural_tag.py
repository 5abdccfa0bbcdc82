"""Structural tags as clients write them: the older list of structures with triggers, and the newer tree of formats."""

from __future__ import annotations

from typing import Any

import msgspec

from ...constrain.spec import Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural, Tag
from ..errors import ApiError, invalid
from .grammar_text import context_free, to_schema


class _Structure(msgspec.Struct):
    begin: str
    schema: msgspec.Raw
    end: str


class _Structures(msgspec.Struct):
    structures: list[_Structure]
    triggers: list[str]


class _JsonSchema(msgspec.Struct, tag="json_schema"):
    json_schema: msgspec.Raw


class _Regex(msgspec.Struct, tag="regex"):
    pattern: str


class _Grammar(msgspec.Struct, tag="grammar"):
    grammar: str


class _AnyText(msgspec.Struct, tag="any_text"):
    excludes: list[str] = []


class _Tag(msgspec.Struct, tag="tag"):
    begin: str
    content: _Content
    end: str


class _TriggeredTags(msgspec.Struct, tag="triggered_tags"):
    triggers: list[str]
    tags: list[_Tag]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: list[str] = []


class _TagsWithSeparator(msgspec.Struct, tag="tags_with_separator"):
    tags: list[_Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


_Content = _JsonSchema | _Regex | _Grammar | _AnyText
_Format = _Content | _Tag | _TriggeredTags | _TagsWithSeparator


def to_structural(raw: msgspec.Raw, param: str) -> GrammarSpec | None:
    """What a structural tag says, in either form and perhaps as JSON inside a string; None for `null`.

    Raises:
        ApiError: it is malformed, or of a kind that is not offered.
    """
    text = bytes(raw)
    if text.startswith(b'"'):
        text = msgspec.json.decode(text, type=str).encode()
    if text == b"null":
        return None
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        form = fields.get("format")
        if form is not None:
            return _of_format(_known(form, f"{param}.format"), f"{param}.format")
        return _of_structures(msgspec.json.decode(text, type=_Structures), param)
    except msgspec.DecodeError as error:
        message, _, place = str(error).partition(" - at `$")
        path = place.rstrip("`").replace("[...]", "[]")
        raise invalid(param + path, f"not a structural tag: {message}", code="invalid_type") from error
    except RecursionError as error:
        raise ApiError(400, "grammar_too_complex", "the structural tag is nested too deeply", param=param) from error


def _known(form: msgspec.Raw, param: str) -> _Format:
    kind = msgspec.json.decode(form, type=dict[str, Any]).get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        message = f"structural tags of type {str(kind)[:64]!r} are not offered; there are {', '.join(sorted(_KINDS))}"
        raise invalid(f"{param}.type", message, code="unsupported_value")
    known: _Format = msgspec.json.decode(form, type=_Format)
    return known


_KINDS = frozenset({"json_schema", "regex", "grammar", "any_text", "tag", "triggered_tags", "tags_with_separator"})


def _of_structures(given: _Structures, param: str) -> GrammarSpec:
    tags = tuple(
        Tag(each.begin, to_schema(each.schema, f"{param}.structures[{index}].schema"), each.end)
        for index, each in enumerate(given.structures)
    )
    if not given.triggers:
        raise invalid(f"{param}.triggers", "triggers are needed: the texts with which a structure begins")
    return Structural(tags, tuple(given.triggers))


def _of_format(form: _Format, param: str) -> GrammarSpec | None:
    match form:
        case _Tag():
            return Structural((_tag(form, param),), at_least_one=True, stop_after_first=True, free_text=False)
        case _TriggeredTags():
            _refuse_excludes(form.excludes, param)
            tags = tuple(_tag(tag, f"{param}.tags[{index}]") for index, tag in enumerate(form.tags))
            return Structural(tags, tuple(form.triggers), form.at_least_one, form.stop_after_first)
        case _TagsWithSeparator():
            if form.separator and not form.stop_after_first:
                message = "a separator between tags is not offered; make it a part of their begin"
                raise invalid(f"{param}.separator", message, code="unsupported_value")
            tags = tuple(_tag(tag, f"{param}.tags[{index}]") for index, tag in enumerate(form.tags))
            return Structural(tags, (), form.at_least_one, form.stop_after_first, free_text=False)
    return _content(form, param)


def _tag(tag: _Tag, param: str) -> Tag:
    return Tag(tag.begin, _content(tag.content, f"{param}.content"), tag.end)


def _content(form: _Content, param: str) -> JsonSchema | Regex | Lark | Gbnf | None:
    match form:
        case _JsonSchema(json_schema=raw):
            return to_schema(raw, f"{param}.json_schema")
        case _Regex(pattern=pattern):
            return Regex(pattern)
        case _Grammar(grammar=grammar):
            return context_free(grammar)
    _refuse_excludes(form.excludes, param)
    return None


def _refuse_excludes(excludes: list[str], param: str) -> None:
    if excludes:
        raise invalid(f"{param}.excludes", "excludes is not offered", code="unsupported_value")
