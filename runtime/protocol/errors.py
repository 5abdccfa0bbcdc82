"""Errors of the runtime, as exceptions and as data for clients.

BoughError
├── RequestError(ValueError)      the request is wrong: it was refused before any work
├── ModelError(ValueError)        the model's files cannot be used
├── EngineError                   a request failed while it ran; others go on
│   └── OverloadedError           a bound of the queue was reached; try again later
└── EngineStoppedError            the engine is gone
    └── DeviceLostError           its GPU has failed, and it with it
"""

from __future__ import annotations

from typing import Final

import msgspec


class BoughError(Exception):
    """`code` is the stable name that a client sees; `param` the field that is to blame, if one is."""

    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class RequestError(BoughError, ValueError):
    """The request is wrong; nothing was done."""

    code = "invalid_value"


class ModelError(BoughError, ValueError):
    """The model's files cannot be used."""

    code = "model_error"


class EngineError(BoughError):
    """A request failed while it ran. Others go on."""


class OverloadedError(EngineError):
    """A bound of the queue was reached. Try again later."""

    code = "engine_overloaded"


class EngineStoppedError(BoughError):
    """The engine is gone; nothing can be asked of it."""

    code = "engine_dead"


class DeviceLostError(EngineStoppedError):
    """A GPU has failed in a way that only a new process gets over."""


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why a request failed: a stable code, a sentence, and the field to blame if there is one."""

    code: str
    message: str
    param: str | None = None


CLASSES: Final[dict[str, type[BoughError]]] = {
    **dict.fromkeys(
        (
            "context_length_exceeded", "empty_prompt", "grammar_too_complex", "invalid_grammar", "invalid_json_schema",
            "invalid_output", "invalid_pattern", "invalid_program", "invalid_token_id", "invalid_tool_call",
            "invalid_type", "invalid_value", "state_not_found", "unknown_tool", "unsupported_json_schema",
            "unsupported_parameter", "unsupported_value",
        ),
        RequestError,
    ),
    **dict.fromkeys(
        (
            "aborted", "branch_failed", "cancelled", "condition_too_complex", "constraint_violated",
            "generation_timeout", "grammar_dead_end", "internal_error", "nonfinite_logits", "program_too_long",
            "result_too_long", "stop_regex_timeout", "tool_failed", "tool_timeout",
        ),
        EngineError,
    ),
    ModelError.code: ModelError,
    OverloadedError.code: OverloadedError,
    EngineStoppedError.code: EngineStoppedError,
}  # fmt: skip
"""All codes of the runtime and of constraints, each with the class that an error becomes which came back as data."""


def to_exception(error: ErrorInfo) -> BoughError:
    """The exception to raise for an error that came back as data; EngineError if its code is not known here."""
    return CLASSES.get(error.code, EngineError)(error.message, code=error.code, param=error.param)


MAX_MESSAGE_CHARS = 2000
"""Longest text in an error as data: errors may quote errors, and names."""


def to_info(error: BoughError) -> ErrorInfo:
    """The error as data."""
    message = error.message
    if len(message) > MAX_MESSAGE_CHARS:
        message = f"{message[: MAX_MESSAGE_CHARS - 3]}..."
    return ErrorInfo(code=error.code, message=message, param=error.param)
