"""The dialect of the Messages API: its errors, the events of its streams, and the names that it has for fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import ApiError
from ..http.dialect import Dialect

OVERLOADED = 529
"""Status of an overloaded server, which the official clients know by a class of its own and retry, as they do 503."""

_OVERLOADS = frozenset({"engine_overloaded", "queue_timeout", "too_many_connections", "too_many_waiting"})
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}

_NAMES = (
    (re.compile(r"tools\[(\d+)\]\.function\.parameters"), r"tools[\1].input_schema"),
    (re.compile(r"tools\[(\d+)\]\.function"), r"tools[\1]"),
    (re.compile(r"response_format\b.*"), "output_config.format.schema"),
    (re.compile(r"stop\b"), "stop_sequences"),
)
"""Names of the fields of a chat, and of those that they were made from."""


class AnthropicDialect:
    """Errors have a type by their status; the field to blame is named in the message."""

    id_headers: tuple[str, ...] = ("x-request-id", "request-id")
    done: bytes = b""

    def status(self, error: ApiError) -> int:
        return OVERLOADED if error.code in _OVERLOADS else error.status

    def body(self, error: ApiError, request_id: str) -> bytes:
        kind = _TYPES.get(self.status(error), "invalid_request_error")
        told: dict[str, Any] = {"type": kind, "message": _message(error), "details": {"error_code": error.code}}
        return msgspec.json.encode({"type": "error", "error": told, "request_id": request_id or None})

    def event(self, value: msgspec.Struct) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (str(value.__struct_config__.tag).encode(), msgspec.json.encode(value))

    def failure(self, error: ApiError, request_id: str) -> bytes:
        return b"event: error\ndata: %b\n\n" % self.body(error, request_id)


def _message(error: ApiError) -> str:
    if error.code == "context_length_exceeded":
        return f"prompt is too long: {error.message}"  # by these words clients know that they must shorten it
    if error.param is None:
        return error.message
    for pattern, name in _NAMES:
        if pattern.match(error.param):
            param = pattern.sub(name, error.param, count=1)
            break
    else:
        param = error.param
    path = re.sub(r"\[(\d+)\]", r".\1", param)
    told = error.message.removeprefix(f"{error.param}: ")
    return told if path in told else f"{path}: {told}"


DIALECTS: Mapping[str, Dialect] = {"/v1/messages": AnthropicDialect()}
"""The dialects other than OpenAI's, by the path at and below which they are spoken."""
