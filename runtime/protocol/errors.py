"""Errors of the runtime, as exceptions and as data for clients.

BoughError
├── RequestError(ValueError)      the request is wrong: it was refused before any work
├── ModelError(ValueError)        the model's files cannot be used
├── EngineError                   a request failed while it ran; others go on
│   └── OverloadedError           a bound of the queue was reached; try again later
└── EngineStoppedError            the engine is gone
    ├── DeviceLostError           its GPU has failed, and it with it
    ├── EngineStuckError          it makes no progress
    └── EngineStartingError       it is being started again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

MAX_LINE_CHARS = 600
"""Longest message about a model's files."""


class BoughError(Exception):
    """Base of all errors. `code` is the stable name that clients see; `param` is the field at fault, if there is one.

    may_retry       False: the failed request must not be sent again unchanged
    retry_after_s   seconds after which to send it again; None: the default for the code
    """

    code = "internal_error"
    may_retry = True
    retry_after_s: float | None = None

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class RequestError(BoughError, ValueError):
    """The request is invalid; nothing was done."""

    code = "invalid_value"


class ModelError(BoughError, ValueError):
    """The model's files cannot be used. They may be hostile, so the message becomes a line of bounded length, with
    terminal control characters escaped."""

    code = "model_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        line = printable(" ".join(message[: 2 * MAX_LINE_CHARS].split()))
        if len(line) > MAX_LINE_CHARS:
            line = f"{line[: MAX_LINE_CHARS - 3]}..."
        super().__init__(line, code=code, param=param)


def did_you_mean(name: str, names: Iterable[object], *, shown: Callable[[str], str] = str, alike: float = 0.6) -> str:
    """Returns ": did you mean NAME?" for a name that is similar to one of `names`, otherwise nothing. Objects that
    are not texts are ignored; `alike` is the least similarity, 0 to 1."""
    import difflib  # noqa: PLC0415  only for a mistake

    known = sorted({other for other in names if isinstance(other, str)})
    found = difflib.get_close_matches(name, known, n=1, cutoff=alike)
    return f": did you mean {shown(found[0])}?" if found else ""


def reason(error: Exception) -> str:
    """Returns the reason why a file cannot be used, without codes and paths."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def printable(text: str) -> str:
    """Returns the text with backslash escapes for control and invisible characters, except line breaks and tabs."""
    if text.isprintable():
        return text
    shown = (one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)
    return "".join(shown)


@contextmanager
def in_file(name: str) -> Iterator[None]:
    """Prefixes the message of a ModelError with a file's name unless it begins with it."""
    try:
        yield
    except ModelError as error:
        if error.message.startswith(name):
            raise
        raise type(error)(f"{name}: {error.message}", code=error.code, param=error.param) from error


class EngineError(BoughError):
    """A request failed while it ran. Others continue."""


class OverloadedError(EngineError):
    """A limit of the queue was reached. Try again later."""

    code = "engine_overloaded"


class EngineStoppedError(BoughError):
    """The engine has stopped and accepts no requests."""

    code = "engine_dead"


class DeviceLostError(EngineStoppedError):
    """A GPU has failed in a way that only a new process can recover from."""


class EngineStuckError(EngineStoppedError):
    """The engine makes no progress. It either recovers or is ended."""

    code = "engine_stuck"


class EngineStartingError(EngineStoppedError):
    """The engine has ended and is being started again. Try again later."""

    code = "engine_starting"


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why a request failed: a stable code, a sentence, and the field to blame if there is one.

    Texts that are not Unicode, such as some file names, are escaped, so that every message can hold them.

    may_retry   False: the request must not be sent again unchanged
    """

    code: str
    message: str
    param: str | None = None
    may_retry: bool | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            text = getattr(self, name)
            if isinstance(text, str):
                msgspec.structs.force_setattr(self, name, text.encode(errors="backslashreplace").decode())


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
            "generation_timeout", "grammar_dead_end", "internal_error", "nonfinite_logits", "out_of_memory",
            "program_too_long", "result_too_long", "stop_regex_timeout", "tokenizer_error", "tool_failed",
            "tool_timeout",
        ),
        EngineError,
    ),
    ModelError.code: ModelError,
    OverloadedError.code: OverloadedError,
    EngineStoppedError.code: EngineStoppedError,
    EngineStuckError.code: EngineStuckError,
    EngineStartingError.code: EngineStartingError,
}  # fmt: skip
"""Classes of the exceptions for errors received as data, by all codes of the runtime and of constraints."""


def to_exception(error: ErrorInfo) -> BoughError:
    """Returns the exception for an error received as data; EngineError if its code is unknown."""
    raised = CLASSES.get(error.code, EngineError)(error.message, code=error.code, param=error.param)
    raised.may_retry = error.may_retry is not False
    return raised


MAX_MESSAGE_CHARS = 2000
"""Longest text in an error as data: errors may quote errors, and names."""


def to_info(error: BoughError) -> ErrorInfo:
    """Returns the error as data."""
    message = error.message
    if len(message) > MAX_MESSAGE_CHARS:
        message = f"{message[: MAX_MESSAGE_CHARS - 3]}..."
    may_retry = msgspec.UNSET if error.may_retry else False
    return ErrorInfo(code=error.code, message=message, param=error.param, may_retry=may_retry)
