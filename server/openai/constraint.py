"""Grammar requested by a body, in any of the spellings that clients use, and the field that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Literal, NamedTuple, TypeGuard

import msgspec
from msgspec import UNSET, UnsetType

from ...constrain.context_free.gbnf import is_gbnf
from ...constrain.errors import GrammarError, GrammarTooComplexError, cut
from ...constrain.json_schema.parse import MAX_SCHEMA_BYTES
from ...constrain.spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural, Tag, excess_of_tags
from ...constrain.workers.decoders import json_decoder
from ...runtime.tools.forms import CallForm, call_or_answer, calls_in_text, only_calls
from ..errors import ApiError, invalid
from ..http.connection import check_parts
from .objects import (
    MAX_GRAMMAR_CHARS,
    NO_JSON,
    FunctionDefinition,
    GenerationBody,
    JsonSchemaFormat,
    ResponseFormat,
    StructuredOutputs,
)
from .tools import Toolbox, arguments_schema, call_schema

ANY_OBJECT = JsonSchema('{"type":"object"}')


class Constraint(NamedTuple):
    """A grammar, and the field that its errors are about."""

    grammar: GrammarSpec | None = None
    param: str = "response_format"


def to_constraint(body: GenerationBody, toolbox: Toolbox | None = None) -> Constraint:
    """Returns the one constraint of a request, in however many spellings it is there.

    Raises:
        ApiError: more than one, or one that is malformed.
    """
    own = _own(body, list(_asked(body)))
    if toolbox is None or toolbox.mode == "none":
        return own
    if own.grammar is not None and not isinstance(own.grammar, JsonSchema):
        raise invalid(own.param, "with tools, only a JSON Schema can constrain the answer; or set tool_choice to none")
    if toolbox.form is not None:
        return _in_form(body, toolbox, toolbox.form, own)
    if toolbox.mode == "required":  # the whole output is a call; a response format is for messages
        return _in_schema(body, toolbox, None, "tools")
    if own.grammar is None or own.grammar.schema == ANY_OBJECT.schema:  # which a call is, too
        return own
    return _in_schema(body, toolbox, own.grammar.schema, own.param)


class _Asked(NamedTuple):
    """A field that asks for a constraint: its kind, which is known before it is read, and what reads it."""

    param: str
    kind: Literal["schema", "regex", "choice", "grammar", "tag"]
    read: Callable[[], GrammarSpec | None]


def _own(body: GenerationBody, asked: Sequence[_Asked]) -> Constraint:
    """Reads the constraint that all fields spell. None is read where their kinds differ."""
    if not asked:
        return Constraint()
    if len({each.kind for each in asked}) > 1:
        raise _several(asked)
    grammars = [grammar for each in asked if (grammar := each.read()) is not None]
    if not grammars:
        return Constraint()
    if any(_value_of(grammar) != _value_of(grammars[0]) for grammar in grammars[1:]):
        raise _several(asked)
    tightest = next((each for each in grammars if getattr(each, "property_order", "") == "schema"), grammars[0])
    return Constraint(_under(body, tightest), asked[0].param)


def _value_of(grammar: GrammarSpec) -> GrammarSpec | str:
    """Returns the common value of two spellings of one constraint: of schemas, the text without blanks."""
    if isinstance(grammar, JsonSchema):
        return msgspec.json.format(grammar.schema, indent=-1)
    return grammar


def _several(asked: Sequence[_Asked]) -> ApiError:
    others = ", ".join(each.param for each in asked[1:])
    message = f"only one constraint is allowed; the request also has {others}"
    return invalid(asked[0].param.partition(".")[0], message)


def _in_schema(body: GenerationBody, toolbox: Toolbox, other: str | None, param: str) -> Constraint:
    """Constrains the whole output to a call, or to what `other` describes; `param` is who asked for it."""
    try:
        return Constraint(_under(body, _in_order(call_schema(toolbox, other=other))), param)
    except (GrammarTooComplexError, RecursionError) as error:  # the latter in values, such as a `const`
        raise invalid(param, "the schema is nested too deeply", code="grammar_too_complex") from error


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
    return _schema_under(body, _in_order(arguments_schema(function)), policy)


def _asked(body: GenerationBody) -> Iterator[_Asked]:
    """Yields the fields that ask for a constraint."""
    yield from _of_format(body.response_format, "response_format")
    yield from _of_format(body.output_format, "output_format")
    yield from _schema("response_schema", body.response_schema)
    if bytes(body.format) == b'"json"':
        yield _Asked("format", "schema", lambda: ANY_OBJECT)
    elif bytes(body.format) != b'""':
        yield from _schema("format", body.format)
    yield from _schema("guided_json", body.guided_json)
    yield from _any_object("guided_json_object", body.guided_json_object)
    yield from _regex("guided_regex", body.guided_regex)
    yield from _options("guided_choice", body.guided_choice)
    yield from _context_free("guided_grammar", body.guided_grammar)
    yield from _schema("json_schema", body.json_schema)
    yield from _regex("regex", body.regex)
    yield from _context_free("ebnf", body.ebnf)
    yield from _context_free("grammar", body.grammar)
    yield from _structural("structural_tag", body.structural_tag)
    if body.structured_outputs is not None:
        yield from _of_outputs(body.structured_outputs)


def _of_outputs(outputs: StructuredOutputs) -> Iterator[_Asked]:
    for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
        if getattr(outputs, name):
            param = f"structured_outputs.{name}"
            raise invalid(param, f"{param} is not supported by this server", code="unsupported_parameter")
    inner = [
        *_schema("structured_outputs.json", outputs.json),
        *_regex("structured_outputs.regex", outputs.regex),
        *_options("structured_outputs.choice", outputs.choice),
        *_context_free("structured_outputs.grammar", outputs.grammar),
        *_any_object("structured_outputs.json_object", outputs.json_object),
        *_structural("structured_outputs.structural_tag", outputs.structural_tag),
    ]
    if not inner:
        names = "json, regex, choice, grammar, json_object and structural_tag"
        raise invalid("structured_outputs", f"one of {names} must be given")
    yield from inner


def _schema(param: str, raw: msgspec.Raw | UnsetType) -> Iterator[_Asked]:
    if _given(raw):
        yield _Asked(param, "schema", partial(to_schema, raw, param))


def _any_object(param: str, wanted: bool | None) -> Iterator[_Asked]:
    if wanted:
        yield _Asked(param, "schema", lambda: ANY_OBJECT)


def _regex(param: str, pattern: str | None) -> Iterator[_Asked]:
    if pattern is not None:
        yield _Asked(param, "regex", partial(Regex, pattern))


def _options(param: str, options: list[str] | None) -> Iterator[_Asked]:
    if options is not None:
        yield _Asked(param, "choice", lambda: Choice(tuple(options)))


def _context_free(param: str, text: str | None) -> Iterator[_Asked]:
    if text is not None:
        yield _Asked(param, "grammar", partial(context_free, text))


def _structural(param: str, raw: msgspec.Raw) -> Iterator[_Asked]:
    if _given(raw):
        yield _Asked(param, "tag", partial(to_structural, raw, param))


def _given(raw: msgspec.Raw | UnsetType) -> TypeGuard[msgspec.Raw]:
    return raw is not UNSET and bytes(raw) != b"null"


def _in_order(schema: str) -> JsonSchema:
    """A schema whose values have one form: properties in the schema's order, which takes the fewest steps to write."""
    return JsonSchema(schema, property_order="schema")


def _under(body: GenerationBody, grammar: GrammarSpec) -> GrammarSpec:
    """`grammar` under the policies that the body asks for."""
    if isinstance(grammar, JsonSchema):
        return _schema_under(body, grammar, body.constraint_policy)
    if not isinstance(grammar, Structural):
        return grammar
    tags = tuple(
        msgspec.structs.replace(tag, content=_schema_under(body, tag.content, body.constraint_policy))
        if isinstance(tag.content, JsonSchema)
        else tag
        for tag in grammar.tags
    )
    return msgspec.structs.replace(grammar, tags=tags)


def _schema_under(
    body: GenerationBody, schema: JsonSchema, policy: Literal["exact", "best_effort"] | None
) -> JsonSchema:
    """`schema` under a policy, if there is one. Keys that it does not name are left out, unless the body wants them: a
    small model that has begun one may never come to an end."""
    omits = body.unnamed_properties != "allow" and '"properties"' in schema.schema
    return msgspec.structs.replace(schema, policy=policy or schema.policy, unnamed="omit" if omits else schema.unnamed)


_MEMBERS = {
    "text": (),
    "json_object": ("schema", "value"),
    "json_schema": ("json_schema", "schema"),
    "json": ("schema", "value"),
    "regex": ("pattern", "value"),
    "grammar": ("grammar",),
    "structural_tag": ("structures", "triggers", "format"),
}
"""Members that a response format of each type may have beside it."""


def _of_format(form: ResponseFormat | None, param: str) -> Iterator[_Asked]:
    if form is None:
        return
    members = [name for name in form.__struct_fields__[1:] if _is_there(getattr(form, name))]
    for name in members:
        if name not in _MEMBERS[form.type]:
            message = f"a {param} of type {form.type} has no {name}"
            raise invalid(f"{param}.{name}", message, code="unsupported_parameter")
    if form.type == "structural_tag":
        yield _Asked(param, "tag", lambda: to_structural(msgspec.Raw(msgspec.json.encode(form)), param))
        return
    if len(members) > 1:
        raise invalid(f"{param}.{members[1]}", f"{param}.{members[0]} is given already")
    if members:
        yield _of_member(form, param, members[0])
    elif form.type in ("json_object", "json"):
        yield _Asked(param, "schema", lambda: ANY_OBJECT)
    elif form.type != "text":
        missing = f"{param}.{_MEMBERS[form.type][0]}"
        raise invalid(missing, f"Missing required parameter: {missing}", code="missing_required_parameter")


def _of_member(form: ResponseFormat, param: str, name: str) -> _Asked:
    param = f"{param}.{name}"
    value = getattr(form, name)
    if isinstance(value, JsonSchemaFormat):
        param = f"{param}.schema"
        return _Asked(param, "schema", partial(_of_openai, value.schema, param=param, strict=bool(value.strict)))
    if form.type == "grammar":
        return _Asked(param, "grammar", partial(context_free, value))
    if form.type == "regex":
        return _Asked(param, "regex", partial(_pattern, value, param))
    if form.type == "json_schema":
        return _Asked(param, "schema", partial(to_schema, value, param))
    return _Asked(param, "schema", partial(_of_object, value, param))


def _is_there(value: object) -> bool:
    return _given(value) if isinstance(value, msgspec.Raw) else value is not None and value is not UNSET


def _pattern(value: str | msgspec.Raw, param: str) -> Regex:
    if isinstance(value, str):
        return Regex(value)
    try:
        return Regex(msgspec.json.decode(value, type=_GrammarText))
    except msgspec.DecodeError as error:
        message = f"a pattern is a string of {MAX_GRAMMAR_CHARS} characters at most"
        raise invalid(param, message, code="invalid_type") from error


def _of_object(raw: msgspec.Raw, param: str) -> JsonSchema:
    """A schema beside a type that promises an object: it holds for objects, even if it does not say so."""
    schema = to_schema(raw, param).schema
    members = msgspec.json.decode(schema)
    if members is True:
        return ANY_OBJECT
    if members is False or "type" in members:
        return JsonSchema(schema)
    inner = schema[1:-1].strip()
    return JsonSchema(f'{{"type":"object",{inner}}}' if inner else ANY_OBJECT.schema)


def _of_openai(raw: msgspec.Raw, *, param: str, strict: bool) -> JsonSchema:
    schema = to_schema(raw, param)
    return _in_order(schema.schema) if strict else schema


def after_reasoning(grammar: GrammarSpec | None, end: str | None, budget: int | None = None) -> GrammarSpec | None:
    """`grammar` for what follows the reasoning that `end` closes, which has `budget` tokens at most."""
    if not end or (grammar is None and budget is None):
        return grammar
    if isinstance(grammar, Structural):
        return msgspec.structs.replace(grammar, reasoning_end=end, reasoning_budget=budget)
    return Structural(reasoning_end=end, reasoning_budget=budget, then=grammar)


# Grammars and schemas in a field of text or JSON


def context_free(text: str) -> Lark | Gbnf:
    """A grammar in the notation that it is written in."""
    return Gbnf(text) if is_gbnf(text) else Lark(text)


def to_schema(raw: msgspec.Raw, param: str) -> JsonSchema:
    """Reads a schema from its JSON text, which some clients put into a string (but not in OpenAI's own field).

    Raises:
        ApiError: it is not a schema, or too large for one.
    """
    data = bytes(raw)
    if data.startswith(b'"') and not param.startswith(("response_format", "output_format")):
        data = _unquoted(raw, param)
    if len(data) > MAX_SCHEMA_BYTES:
        message = f"the schema has {len(data)} bytes, at most {MAX_SCHEMA_BYTES} are allowed"
        raise invalid(param, message, code="grammar_too_complex")
    text = data.decode()
    if not (text.startswith("{") or text in ("true", "false")):
        raise invalid(param, "a JSON Schema is an object or a boolean", code="invalid_type")
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise invalid(param, "the JSON Schema is not valid JSON", code="invalid_json_schema") from error
    except RecursionError as error:
        raise ApiError(400, "grammar_too_complex", "the JSON Schema is nested too deeply", param=param) from error
    return JsonSchema(text)


def _unquoted(raw: msgspec.Raw, param: str) -> bytes:
    """The JSON text in a JSON string. Raises ApiError: it has more parts than a body may have, or is no text."""
    try:
        data = msgspec.json.decode(raw, type=str).strip().encode()
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise invalid(param, "the string is not valid Unicode", code="invalid_value") from error
    check_parts(data, param=param)
    return data


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


_GrammarText = Annotated[str, msgspec.Meta(max_length=MAX_GRAMMAR_CHARS)]


class _Regex(msgspec.Struct, tag="regex"):
    pattern: _GrammarText


class _Grammar(msgspec.Struct, tag="grammar"):
    grammar: _GrammarText


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
    """Reads a structural tag, in either form and perhaps as JSON inside a string; None: it allows any text.

    Raises:
        ApiError: it is malformed, of an unsupported kind, or has too many tags.
    """
    text = bytes(raw)
    if text.startswith(b'"'):
        text = _unquoted(raw, param)
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
        raise invalid(param + path, f"not a structural tag: {cut(message)}", code="invalid_type") from error
    except RecursionError as error:
        raise ApiError(400, "grammar_too_complex", "the structural tag is nested too deeply", param=param) from error


def _known(form: msgspec.Raw, param: str) -> _Format:
    kind = bytes(msgspec.json.decode(form, type=dict[str, msgspec.Raw]).get("type", NO_JSON)).decode().strip('"')
    if kind not in _KINDS:
        message = f"structural tags of type {kind[:64]!r} are not supported; there are {', '.join(sorted(_KINDS))}"
        raise invalid(f"{param}.type", message, code="unsupported_value")
    known: _Format = _FORMAT.decode(form)
    return known


_KINDS = frozenset({"json_schema", "regex", "grammar", "any_text", "tag", "triggered_tags", "tags_with_separator"})


def _of_structures(given: _Structures, param: str) -> GrammarSpec:
    _check_num_tags(len(given.structures), len(given.triggers), param)
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
            _check_num_tags(len(form.tags), len(form.triggers), param)
            tags = tuple(_tag(tag, f"{param}.tags[{index}]") for index, tag in enumerate(form.tags))
            return Structural(tags, tuple(form.triggers), form.at_least_one, form.stop_after_first)
        case _TagsWithSeparator():
            if form.separator and not form.stop_after_first:
                message = "a separator between tags is not supported; make it part of their begin"
                raise invalid(f"{param}.separator", message, code="unsupported_value")
            _check_num_tags(len(form.tags), 0, param)
            tags = tuple(_tag(tag, f"{param}.tags[{index}]") for index, tag in enumerate(form.tags))
            return Structural(tags, (), form.at_least_one, form.stop_after_first, free_text=False)
    return _content(form, param)


def _check_num_tags(num_tags: int, num_triggers: int, param: str) -> None:
    """Raises ApiError as the engine would: what it refuses is not measured for each sequence first."""
    if (excess := excess_of_tags(num_tags, num_triggers)) is not None:
        raise invalid(param, str(GrammarError(excess, path="/tags")), code=GrammarError.code)


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
