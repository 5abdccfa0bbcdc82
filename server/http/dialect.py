"""Dialects: how an API writes what is not an answer's content: errors, events of streams, headers with a request's id.

The gate finds a request's dialect by its path, so that whatever answers it, itself included, uses the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec
from starlette.types import Scope

from ..errors import ApiError

DONE = b"data: [DONE]\n\n"


class Dialect(Protocol):
    """Writes errors and events.

    id_headers   headers that hold the request's id
    done         ends a stream that is complete; empty if its last event does
    """

    id_headers: tuple[str, ...]
    done: bytes

    def status(self, error: ApiError) -> int:
        """Returns the status of an answer with this error."""

    def body(self, error: ApiError, request_id: str) -> bytes:
        """Returns the body of an answer with this error."""

    def event(self, value: msgspec.Struct) -> bytes:
        """Encodes one server-sent event."""

    def failure(self, error: ApiError, request_id: str) -> bytes:
        """Encodes the event with which a stream ends that fails."""


class OpenAIDialect:
    """The dialect of all routes but those of other APIs."""

    id_headers: tuple[str, ...] = ("x-request-id",)
    done: bytes = DONE

    def status(self, error: ApiError) -> int:
        return error.status

    def body(self, error: ApiError, request_id: str) -> bytes:
        return error.body()

    def event(self, value: msgspec.Struct) -> bytes:
        return event(value)

    def failure(self, error: ApiError, request_id: str) -> bytes:
        return b"data: " + error.body() + b"\n\n"


OPENAI = OpenAIDialect()


def event(value: object) -> bytes:
    """Encodes one server-sent event: a line of JSON."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def find_dialect(path: str, dialects: Mapping[str, Dialect]) -> Dialect:
    """Returns the dialect of the routes at or below a path of `dialects`; OpenAI's for all others."""
    return next((dialect for root, dialect in dialects.items() if f"{path}/".startswith(f"{root}/")), OPENAI)


def dialect_of(scope: Scope) -> Dialect:
    dialect: Dialect = scope["bough.dialect"]
    return dialect
