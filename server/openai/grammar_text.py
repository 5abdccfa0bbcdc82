"""Grammars and schemas as clients write them in a field of text or JSON."""

from __future__ import annotations

import msgspec

from ...constrain.context_free.gbnf import is_gbnf
from ...constrain.spec import Gbnf, JsonSchema, Lark
from ..errors import ApiError, invalid


def context_free(text: str) -> Lark | Gbnf:
    """A grammar in the notation that it is written in."""
    return Gbnf(text) if is_gbnf(text) else Lark(text)


def to_schema(raw: msgspec.Raw, param: str) -> JsonSchema:
    """A schema from its JSON text, which some clients put into a string once more (but not in OpenAI's own field).

    Raises:
        ApiError: it is none.
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
    """The same; None for `null`."""
    return None if bytes(raw) == b"null" else to_schema(raw, param)
