"""Which grammar a body asks for, in any of the spellings that clients use, and which field asked for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ...constrain.spec import Choice, GrammarSpec, JsonSchema, Regex, Structural
from ..errors import invalid
from .grammar_text import context_free, optional_schema
from .objects import FunctionDefinition, GenerationBody, ResponseFormat
from .structural_tag import to_structural
from .tool_call_form import CallForm, call_or_answer, calls_in_text, only_calls
from .tools import Toolbox, arguments_schema, call_schema

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
    asked = [Constraint(_under(body, grammar), param) for param, grammar in _asked(body) if grammar is not None]
    if len(asked) > 1:
        others = ", ".join(constraint.param for constraint in asked[1:])
        raise invalid(asked[0].param.partition(".")[0], f"only one constraint is possible; there is also {others}")
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
    """Calls as the model writes them, wherever they may be."""
    functions = [(name, _arguments(body, function)) for name, function in toolbox.functions.items()]
    if toolbox.mode == "required":
        return Constraint(only_calls(form, functions, parallel=toolbox.parallel and not toolbox.forced), "tools")
    if isinstance(own.grammar, JsonSchema):
        return Constraint(call_or_answer(form, functions, own.grammar), own.param)
    return Constraint(calls_in_text(form, functions, parallel=toolbox.parallel), "tools")


def _arguments(body: GenerationBody, function: FunctionDefinition) -> JsonSchema:
    """What the arguments must be. `strict` is a promise to enforce all of it, or to say why that is not possible."""
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
