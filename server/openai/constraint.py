"""Grammar requested by a body, in any of the spellings that clients use, and the field that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec

from ...constrain.context_free.gbnf import is_gbnf
from ...constrain.errors import GrammarError, GrammarTooComplexError, cut
from ...constrain.json_schema.parse import MAX_SCHEMA_BYTES
from ...constrain.spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural, Tag, excess_of_tags
from ...constrain.workers.decoders import json_decoder
from ...runtime.tools.forms import CallForm, call_or_answer, calls_in_text, only_calls
from ..errors import ApiError, invalid
from ..http.connection import check_parts
from .objects import MAX_GRAMMAR_CHARS, NO_JSON, FunctionDefinition, GenerationBody, ResponseFormat
from .tools import Toolbox, arguments_schema, call_schema

ANY_OBJECT = JsonSchema('{"type":"object"}')


class Constraint(NamedTuple):
    """A grammar, and the field that its errors are about."""

    grammar: GrammarSpec | None = None
    param: str = "response_format"


def to_constraint(body: GenerationBody, toolbox: Toolbox | None = None) -> Constraint:
    """Returns the one constraint of a request. None is read where there are several.

    Raises:
        ApiError: more than one, or one that is malformed.
    """
    asked = list(_asked(body))
    if len(asked) > 1:
        others = ", ".join(param for param, _ in asked[1:])
        raise invalid(asked[0][0].partition(".")[0], f"only one constraint is allowed; the request also has {others}")
    own = Constraint()
    for param, read in asked:
        grammar = read()
        own = own if grammar is None else Constraint(_under(body, grammar), param)
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
    return JsonSchema(arguments_schema(function), property_order="schema", policy=policy)


def _asked(body: GenerationBody) -> Iterator[tuple[str, Callable[[], GrammarSpec | None]]]:
    """Yields the fields that ask for a constraint, each with what reads it."""
    yield from _of_format(body.response_format)
    yield from _given(
        ("guided_json", body.guided_json, partial(to_schema, param="guided_json")),
        ("guided_regex", body.guided_regex, Regex),
        ("guided_choice", body.guided_choice, _choice),
        ("guided_grammar", body.guided_grammar, context_free),
        ("json_schema", body.json_schema, partial(to_schema, param="json_schema")),
        ("regex", body.regex, Regex),
        ("ebnf", body.ebnf, context_free),
    )
    outputs = body.structured_outputs
    if outputs is None:
        return
    schema, tag = "structured_outputs.json", "structured_outputs.structural_tag"
    inner = list(
        _given(
            (schema, outputs.json, partial(to_schema, param=schema)),
            ("structured_outputs.regex", outputs.regex, Regex),
            ("structured_outputs.choice", outputs.choice, _choice),
            ("structured_outputs.grammar", outputs.grammar, context_free),
            ("structured_outputs.json_object", outputs.json_object or None, lambda _: ANY_OBJECT),
            (tag, outputs.structural_tag, partial(to_structural, param=tag)),
        )
    )
    if not inner:
        names = "json, regex, choice, grammar, json_object and structural_tag"
        raise invalid("structured_outputs", f"one of {names} must be given")
    yield from inner


def _given(
    *fields: tuple[str, Any, Callable[[Any], GrammarSpec | None]],
) -> Iterator[tuple[str, Callable[[], GrammarSpec | None]]]:
    for param, value, read in fields:
        if value is not None and not (isinstance(value, msgspec.Raw) and bytes(value) == b"null"):
            yield param, partial(read, value)


def _choice(options: list[str]) -> Choice:
    return Choice(tuple(options))


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


def _of_format(form: ResponseFormat | None) -> Iterator[tuple[str, Callable[[], GrammarSpec | None]]]:
    if form is None or form.type == "text":
        return
    if form.type == "json_object":
        yield "response_format", lambda: ANY_OBJECT
    elif form.type == "structural_tag":
        param = "response_format"
        yield param, lambda: to_structural(msgspec.Raw(msgspec.json.encode(form)), param)
    elif form.json_schema is None:
        param = "response_format.json_schema"
        raise invalid(param, f"Missing required parameter: {param}", code="missing_required_parameter")
    else:
        strict = bool(form.json_schema.strict)
        param = "response_format.json_schema.schema"
        yield from _given((param, form.json_schema.schema, partial(_of_openai, param=param, strict=strict)))


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
    if data.startswith(b'"') and not param.startswith("response_format"):
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
