"""Errors of the Messages API: their types, statuses, and the names of the fields that they blame."""

from __future__ import annotations

import json

import pytest

from bough.server.anthropic.dialect import DIALECTS, AnthropicDialect
from bough.server.anthropic.objects import MessageStop
from bough.server.errors import ApiError
from bough.server.http.dialect import OPENAI, find_dialect

DIALECT = AnthropicDialect()


@pytest.mark.parametrize(
    ("path", "spoken"),
    [
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages/", True),
        ("/v1/messagesx", False),
        ("/v1/message", False),
        ("/v1/chat/completions", False),
        ("//v1/messages", False),
    ],
)
def test_the_dialect_of_a_path(path: str, spoken: bool) -> None:
    dialect = find_dialect(path, DIALECTS)
    assert isinstance(dialect, AnthropicDialect) if spoken else dialect is OPENAI


@pytest.mark.parametrize(
    ("status", "code", "told_status", "kind"),
    [
        (400, "invalid_value", 400, "invalid_request_error"),
        (401, "invalid_api_key", 401, "authentication_error"),
        (403, "host_not_allowed", 403, "permission_error"),
        (404, "model_not_found", 404, "not_found_error"),
        (405, "method_not_allowed", 405, "invalid_request_error"),
        (413, "request_too_large", 413, "request_too_large"),
        (415, "unsupported_media_type", 415, "invalid_request_error"),
        (429, "rate_limit_exceeded", 429, "rate_limit_error"),
        (500, "internal_error", 500, "api_error"),
        (503, "engine_overloaded", 529, "overloaded_error"),
        (503, "queue_timeout", 529, "overloaded_error"),
        (503, "too_many_waiting", 529, "overloaded_error"),
        (503, "shutting_down", 503, "overloaded_error"),
        (503, "engine_starting", 503, "overloaded_error"),
        (504, "generation_timeout", 504, "timeout_error"),
    ],
)
def test_statuses_and_types(status: int, code: str, told_status: int, kind: str) -> None:
    error = ApiError(status, code, "No.")
    assert DIALECT.status(error) == told_status
    body = json.loads(DIALECT.body(error, "req_1"))
    assert body == {
        "type": "error",
        "error": {"type": kind, "message": "No.", "details": {"error_code": code}},
        "request_id": "req_1",
    }
    assert DIALECT.failure(error, "req_1") == b"event: error\ndata: " + DIALECT.body(error, "req_1") + b"\n\n"


@pytest.mark.parametrize(
    ("param", "message", "told"),
    [
        (None, "No.", "No."),
        ("thinking.type", "not supported", "thinking.type: not supported"),
        ("messages[1].content[0].type", "no images", "messages.1.content.0.type: no images"),
        ("temperature", "temperature: expected `float` <= 1.0", "temperature: expected `float` <= 1.0"),
        ("max_tokens", "Missing required parameter: max_tokens", "Missing required parameter: max_tokens"),
        ("tools[2].function.parameters", "no schema", "tools.2.input_schema: no schema"),
        ("tools[2].function.name", "twice", "tools.2.name: twice"),
        ("response_format.json_schema.schema", "no schema", "output_config.format.schema: no schema"),
        ("stop", "too many", "stop_sequences: too many"),
        ("stop_sequences", "too many", "stop_sequences: too many"),
    ],
)
def test_the_field_to_blame_is_named_as_the_client_knows_it(param: str | None, message: str, told: str) -> None:
    error = ApiError(400, "invalid_value", message, param=param)
    assert json.loads(DIALECT.body(error, ""))["error"]["message"] == told


def test_events_have_names() -> None:
    assert DIALECT.event(MessageStop()) == b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
