"""The grammar that a body asks for, in any of the spellings that clients use, and the field that asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ...constrain.context_free.gbnf import is_gbnf
from ...constrain.spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural, Tag
from ...constrain.workers.decoders import json_decoder
from ...runtime.tools.forms import CallForm, call_or_answer, calls_in_text, only_calls
from ..errors import ApiError, invalid
from .objects import FunctionDefinition, GenerationBody, ResponseFormat
from .tools import Toolbox, arguments_schema, call_schema

ANY_OBJECT = JsonSchema('{"type":"object"}')


class Constraint(NamedTuple):
    """A grammar, and the field that its errors are about."""

    grammar: GrammarSpec | None = None
    param: str = "response_format"


def to_constraint(body: GenerationBody, toolbox: Toolbox | None = None) -> Constraint:
    """Returns the one constraint of a request.

    Raises:
        ApiError: more than one, or one that is malformed.
    """
    asked = [Constraint(_under(body, grammar), param) for param, grammar in _asked(body) if grammar is not None]
    if len(asked) > 1:
        others = ", ".join(constraint.param for constraint in asked[1:])
        raise invalid(
            asked[0].param.partition(".")[0], f"only one constraint is allowed; the request also has {others}"
        )
    own = asked[0] if asked else Constraint()
    if toolbox is None or toolbox.mode == "none":
        return own
    if own.grammar is not None and not isinstance(own.grammar, JsonSchema):
        raise invalid(own.param, "with tools, only a JSON Schema can constrain the answer; or set tool_choice to none")
    if toolbox.form is not None:
        return _in_form(body, toolbox, toolbox.form, own)
    if toolbox.mode == "required":  # the whole output is a call; a response format is for messages
        return Constraint(_under(body, _in_order(call_schema(toolbox))), "tools")
    if own.grammar is None or own.grammar.schema == ANY_OBJECT.schema:  # which a call is, too
        return own
    return Constraint(_under(body, _in_order(call_schema(toolbox, other=own.grammar.schema))), own.param)


def _in_form(body: GenerationBody, toolbox: Toolbox, form: CallForm, own: Constraint) -> Constraint:
    """Constrains calls as the model writes them, wherever they may be."""
    functions = [(name, _arguments(body, function)) for name, function in toolbox.functions.items()]
    if toolbox.mode == "required":
        return Constraint(only_calls(form, functions, parallel=toolbox.parallel and not toolbox.forced), "tools")
    if isinstance(own.grammar, JsonSchema):
        return Constraint(call_or_answer(form, functions, own.grammar), own.param)
    return Constraint(calls_in_text(form, functions, parallel=toolbox.parallel), "tools")


def _arguments(body: GenerationBody, function: FunctionDefinition) -> JsonSchema:
    """The schema of a call's arguments. `strict` promises to enforce all of it, or to say why that is not possible."""
    policy = body.constraint_policy or ("exact" if function.strict else "best_effort")
    return JsonSchema(arguments_schema(function), property_order="schema", policy=policy)


def _asked(body: GenerationBody) -> list[tuple[str, GrammarSpec | None]]:
    outputs = body.structured_outputs
    asked: list[tuple[str, GrammarSpec | None]] = [
        _of_format(body.response_format),
        ("guided_json", optional_schema(body.guided_json, "guided_json")),
        ("guided_regex", _one(Regex, body.guided_regex)),
        ("guided_choice", None if body.guided_choice is None else Choice(tuple(body.guided_choice))),
        ("guided_grammar", _one(context_free, body.guided_grammar)),
        ("json_schema", optional_schema(body.json_schema, "json_schema")),
        ("regex", _one(Regex, body.regex)),
        ("ebnf", _one(context_free, body.ebnf)),
    ]
    if outputs is not None:
        inner = [
            ("structured_outputs.json", optional_schema(outputs.json, "structured_outputs.json")),
            ("structured_outputs.regex", _one(Regex, outputs.regex)),
            ("structured_outputs.choice", None if outputs.choice is None else Choice(tuple(outputs.choice))),
            ("structured_outputs.grammar", _one(context_free, outputs.grammar)),
            ("structured_outputs.json_object", ANY_OBJECT if outputs.json_object else None),
        ]
        param = "structured_outputs.structural_tag"
        inner.append((param, to_structural(outputs.structural_tag, param)))
        if all(grammar is None for _, grammar in inner):
            names = "json, regex, choice, grammar, json_object and structural_tag"
            raise invalid("structured_outputs", f"one of {names} must be given")
        asked += inner
    return asked


def _one(kind: Callable[[str], GrammarSpec], text: str | None) -> GrammarSpec | None:
    return None if text is None else kind(text)


def _in_order(schema: str) -> JsonSchema:
    """A schema whose values have one form: properties in the schema's order, which takes the fewest steps to write."""
    return JsonSchema(schema, property_order="schema")


def _under(body: GenerationBody, grammar: GrammarSpec) -> GrammarSpec:
    """`grammar` under the policy that the body asks for."""
    policy = body.constraint_policy
    if policy is None or not isinstance(grammar, JsonSchema | Structural):
        return grammar
    if isinstance(grammar, JsonSchema):
        return msgspec.structs.replace(grammar, policy=policy)
    tags = tuple(
        msgspec.structs.replace(tag, content=msgspec.structs.replace(tag.content, policy=policy))
        if isinstance(tag.content, JsonSchema)
        else tag
        for tag in grammar.tags
    )
    return msgspec.structs.replace(grammar, tags=tags)


def _of_format(form: ResponseFormat | None) -> tuple[str, GrammarSpec | None]:
    if form is None or form.type == "text":
        return "response_format", None
    if form.type == "json_object":
        return "response_format", ANY_OBJECT
    if form.type == "structural_tag":
        return "response_format", to_structural(msgspec.Raw(msgspec.json.encode(form)), "response_format")
    if form.json_schema is None:
        param = "response_format.json_schema"
        raise invalid(param, f"Missing required parameter: {param}", code="missing_required_parameter")
    param = "response_format.json_schema.schema"
    schema = optional_schema(form.json_schema.schema, param)
    return param, _in_order(schema.schema) if schema is not None and form.json_schema.strict else schema


def after_reasoning(grammar: GrammarSpec | None, end: str | None) -> GrammarSpec | None:
    """`grammar` for what follows the reasoning that `end` closes."""
    if grammar is None or not end:
        return grammar
    if isinstance(grammar, Structural):
        return msgspec.structs.replace(grammar, reasoning_end=end)
    return Structural(reasoning_end=end, then=grammar)


# Grammars and schemas in a field of text or JSON


def context_free(text: str) -> Lark | Gbnf:
    """A grammar in the notation that it is written in."""
    return Gbnf(text) if is_gbnf(text) else Lark(text)


def to_schema(raw: msgspec.Raw, param: str) -> JsonSchema:
    """Reads a schema from its JSON text, which some clients put into a string (but not in OpenAI's own field).

    Raises:
        ApiError: it is not a schema.
    """
    text = bytes(raw).decode()
    if text.startswith('"') and not param.startswith("response_format"):
        text = msgspec.json.decode(text, type=str).strip()
    if not (text.startswith("{") or text in ("true", "false")):
        raise invalid(param, "a JSON Schema is an object or a boolean", code="invalid_type")
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise invalid(param, "the JSON Schema is not valid JSON", code="invalid_json_schema") from error
    except RecursionError as error:
        raise ApiError(400, "grammar_too_complex", "the JSON Schema is nested too deeply", param=param) from error
    return JsonSchema(text)


def optional_schema(raw: msgspec.Raw, param: str) -> JsonSchema | None:
    """Reads a schema as `to_schema` does; None for `null`."""
    return None if bytes(raw) == b"null" else to_schema(raw, param)


# Structural tags: the older list of structures with triggers, and the newer tree of formats


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

_STRUCTURES, _FORMAT = json_decoder(_Structures), json_decoder(_Format)


def to_structural(raw: msgspec.Raw, param: str) -> GrammarSpec | None:
    """Reads a structural tag, in either form and perhaps as JSON inside a string; None for `null`.

    Raises:
        ApiError: it is malformed, or of an unsupported kind.
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
            return _of_tag_format(_known(form, f"{param}.format"), f"{param}.format")
        return _of_structures(_STRUCTURES.decode(text), param)
    except msgspec.DecodeError as error:
        message, _, place = str(error).partition(" - at `$")
        path = place.rstrip("`").replace("[...]", "[]")
        raise invalid(param + path, f"not a structural tag: {message}", code="invalid_type") from error
    except RecursionError as error:
        raise ApiError(400, "grammar_too_complex", "the structural tag is nested too deeply", param=param) from error


def _known(form: msgspec.Raw, param: str) -> _Format:
    kind = msgspec.json.decode(form, type=dict[str, Any]).get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        message = f"structural tags of type {str(kind)[:64]!r} are not supported; there are {', '.join(sorted(_KINDS))}"
        raise invalid(f"{param}.type", message, code="unsupported_value")
    known: _Format = _FORMAT.decode(form)
    return known


_KINDS = frozenset({"json_schema", "regex", "grammar", "any_text", "tag", "triggered_tags", "tags_with_separator"})


def _of_structures(given: _Structures, param: str) -> GrammarSpec:
    tags = tuple(
        Tag(each.begin, to_schema(each.schema, f"{param}.structures[{index}].schema"), each.end)
        for index, each in enumerate(given.structures)
    )
    if not given.triggers:
        raise invalid(f"{param}.triggers", "triggers is required: the texts that begin a structure")
    return Structural(tags, tuple(given.triggers))


def _of_tag_format(form: _Format, param: str) -> GrammarSpec | None:
    match form:
        case _Tag():
            return Structural((_tag(form, param),), at_least_one=True, stop_after_first=True, free_text=False)
        case _TriggeredTags():
            _refuse_excludes(form.excludes, param)
            tags = tuple(_tag(tag, f"{param}.tags[{index}]") for index, tag in enumerate(form.tags))
            return Structural(tags, tuple(form.triggers), form.at_least_one, form.stop_after_first)
        case _TagsWithSeparator():
            if form.separator and not form.stop_after_first:
                message = "a separator between tags is not supported; make it part of their begin"
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
        raise invalid(f"{param}.excludes", "excludes is not supported", code="unsupported_value")
