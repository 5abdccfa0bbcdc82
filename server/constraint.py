"""Which grammar a body asks for, in any of the spellings that clients use, and which field asked for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ..constrain.spec import Choice, GrammarSpec, JsonSchema, Lark, Regex
from .errors import ApiError, invalid
from .openai import GenerationBody, ResponseFormat
from .tools import Toolbox, call_schema

ANY_OBJECT = JsonSchema('{"type":"object"}')


class Constraint(NamedTuple):
    """A grammar, and the field that its errors are about."""

    grammar: GrammarSpec | None = None
    param: str = "response_format"


def to_constraint(body: GenerationBody, toolbox: Toolbox | None = None) -> Constraint:
    """The one constraint of a request.

    Raises:
        ApiError: more than one, or one that is malformed.
    """
    asked = [Constraint(grammar, param) for param, grammar in _asked(body) if grammar is not None]
    if len(asked) > 1:
        others = ", ".join(constraint.param for constraint in asked[1:])
        raise invalid(asked[0].param.partition(".")[0], f"only one constraint is possible; there is also {others}")
    own = asked[0] if asked else Constraint()
    if toolbox is None or toolbox.mode == "none":
        return own
    if own.grammar is not None and not isinstance(own.grammar, JsonSchema):
        raise invalid(own.param, "with tools, only a JSON Schema can constrain the answer; or set tool_choice to none")
    if toolbox.mode == "required":  # the whole output is a call; a response format is for messages
        return Constraint(JsonSchema(call_schema(toolbox)), "tools")
    if own.grammar is None or own.grammar == ANY_OBJECT:  # which a call is, too
        return own
    return Constraint(JsonSchema(call_schema(toolbox, other=own.grammar.schema)), own.param)


def _asked(body: GenerationBody) -> list[tuple[str, GrammarSpec | None]]:
    outputs = body.structured_outputs
    asked: list[tuple[str, GrammarSpec | None]] = [
        _of_format(body.response_format),
        ("guided_json", _schema(body.guided_json, "guided_json")),
        ("guided_regex", _one(Regex, body.guided_regex)),
        ("guided_choice", None if body.guided_choice is None else Choice(tuple(body.guided_choice))),
        ("guided_grammar", _one(Lark, body.guided_grammar)),
        ("json_schema", _schema(body.json_schema, "json_schema")),
        ("regex", _one(Regex, body.regex)),
        ("ebnf", _one(Lark, body.ebnf)),
    ]
    if outputs is not None:
        if bytes(outputs.structural_tag) != b"null":
            param = "structured_outputs.structural_tag"
            raise invalid(param, "structural_tag is not offered", code="unsupported_parameter")
        inner = [
            ("structured_outputs.json", _schema(outputs.json, "structured_outputs.json")),
            ("structured_outputs.regex", _one(Regex, outputs.regex)),
            ("structured_outputs.choice", None if outputs.choice is None else Choice(tuple(outputs.choice))),
            ("structured_outputs.grammar", _one(Lark, outputs.grammar)),
            ("structured_outputs.json_object", ANY_OBJECT if outputs.json_object else None),
        ]
        if all(grammar is None for _, grammar in inner):
            raise invalid("structured_outputs", "one of json, regex, choice, grammar and json_object must be given")
        asked += inner
    return asked


def _one(kind: Callable[[str], GrammarSpec], text: str | None) -> GrammarSpec | None:
    return None if text is None else kind(text)


def _of_format(form: ResponseFormat | None) -> tuple[str, GrammarSpec | None]:
    if form is None or form.type == "text":
        return "response_format", None
    if form.type == "json_object":
        return "response_format", ANY_OBJECT
    if form.json_schema is None:
        param = "response_format.json_schema"
        raise invalid(param, f"Missing required parameter: {param}", code="missing_required_parameter")
    param = "response_format.json_schema.schema"
    return param, _schema(form.json_schema.schema, param)


def _schema(raw: msgspec.Raw, param: str) -> JsonSchema | None:
    """A schema from its JSON text, which some clients put into a string once more (but not in OpenAI's own field)."""
    text = bytes(raw).decode()
    if text.startswith('"') and not param.startswith("response_format"):
        text = msgspec.json.decode(text, type=str).strip()
    elif text == "null":
        return None
    if not (text.startswith("{") or text in ("true", "false")):
        raise invalid(param, "a JSON Schema is an object or a boolean", code="invalid_type")
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise invalid(param, "the JSON Schema is not valid JSON", code="invalid_json_schema") from error
    except RecursionError as error:
        raise ApiError(400, "grammar_too_complex", "the JSON Schema is nested too deeply", param=param) from error
    return JsonSchema(text)
