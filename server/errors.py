"""Errors as clients see them: one table from exceptions and codes to statuses, and one form of body."""

from __future__ import annotations

import math
import random
import re

import msgspec

from ..constrain.errors import REFUSALS, GrammarError, cut
from ..runtime.protocol.errors import MAX_MESSAGE_CHARS, BoughError, ErrorInfo, RequestError

INTERNAL_MESSAGE = "The server failed to process the request. Please include the x-request-id in a report."

MAX_PARAM_CHARS = 200
"""Longest path of a field that an answer names."""

LONGEST_WAIT_S = 60.0
"""Longest wait that is asked for where it is a guess: official clients heed no longer one."""
JITTER = 0.2
"""Share by which such a wait is longer at random, so that those that are refused together do not come back together."""

_TYPES = {403: "permission_error", 429: "rate_limit_error"} | dict.fromkeys((500, 503, 504), "server_error")
_HEADERS = {
    401: {"www-authenticate": "Bearer"},
    408: {"connection": "close"},
    409: {"x-should-retry": "false"},
    413: {"connection": "close"},
    429: {"retry-after": "1"},
    500: {"x-should-retry": "false"},
    503: {"retry-after": "1"},
    504: {"x-should-retry": "false"},
}

_STATUS_OF_CODE = {
    "engine_overloaded": 503,
    "queue_timeout": 503,
    "engine_dead": 503,
    "engine_stuck": 503,
    "engine_starting": 503,
    "shutting_down": 503,
    "generation_timeout": 504,
    "invalid_value": 400,
    "invalid_pattern": 400,
    "invalid_program": 400,
    "invalid_tool_call": 400,
    "unknown_tool": 400,
    "program_too_long": 400,
    "condition_too_complex": 400,
    "stop_regex_timeout": 400,
    "aborted": 409,
    "cancelled": 409,
    "branch_failed": 422,
    "invalid_output": 422,
    "tool_failed": 502,
    "tool_timeout": 504,
    "reader_too_slow": 408,
    "result_too_long": 422,
    "empty_prompt": 400,
    "invalid_token_id": 400,
    "context_length_exceeded": 400,
    "invalid_grammar": 400,
    "invalid_json_schema": 400,
    "unsupported_json_schema": 400,
    "grammar_too_complex": 400,
    "nonfinite_logits": 500,
    "grammar_dead_end": 500,
    "constraint_violated": 500,
    "tokenizer_error": 500,
    "out_of_memory": 500,
}
"""Statuses of the codes in an `ErrorInfo`. Any other is an internal error, whose message stays on the server."""


class ApiError(Exception):
    """An error response. `message` is for the client: no paths, addresses or class names. It is cut where it is long.

    close           the connection ends with it
    retry_after_s   when to try again; None: as usual for the status
    may_retry       False: clients are told not to try again
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        close: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.message = cut(message, MAX_MESSAGE_CHARS)
        self.param = None if param is None else cut(param, MAX_PARAM_CHARS)
        super().__init__(self.message)
        self.close = close
        self.retry_after_s = retry_after_s
        self.may_retry = True

    @property
    def headers(self) -> dict[str, str]:
        headers = dict(_HEADERS.get(self.status, {}))
        if self.close:
            headers["connection"] = "close"
        if self.retry_after_s is not None:
            headers["retry-after"] = str(math.ceil(max(self.retry_after_s, 1.0)))
        if not self.may_retry:
            headers.pop("retry-after", None)
            headers["x-should-retry"] = "false"
        return headers

    def body(self) -> bytes:
        kind = _TYPES.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


class ShuttingDownError(ApiError):
    """The server is about to end, in `left_s` seconds at most."""

    def __init__(self, left_s: float = 0.0) -> None:
        super().__init__(503, "shutting_down", "The server is shutting down.", retry_after_s=_about(left_s))


def _about(seconds: float) -> float:
    """The wait to ask for until what should come true in so many seconds."""
    return min(max(seconds, 1.0) * (1 + JITTER * random.random()), LONGEST_WAIT_S)


def invalid(param: str, message: str, *, code: str = "invalid_value") -> ApiError:
    """A 400 that blames the field `param`."""
    return ApiError(400, code, message, param=param)


def to_api_error(error: Exception, *, grammar_param: str = "response_format") -> ApiError:
    """Returns the answer to `error`; `grammar_param` is the field that its constraint came from."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, GrammarError):
        return from_error_info(ErrorInfo(code=error.code, message=str(error)), grammar_param=grammar_param)
    if isinstance(error, BoughError):
        info = ErrorInfo(code=error.code, message=error.message, param=error.param)
        status = 400 if isinstance(error, RequestError) else None  # a refusal, whatever its code
        answer = from_error_info(info, status=status, grammar_param=grammar_param)
        answer.may_retry = error.may_retry
        if error.retry_after_s is not None:
            answer.retry_after_s = _about(error.retry_after_s)
        return answer
    return ApiError(500, "internal_error", INTERNAL_MESSAGE)


def from_error_info(
    info: ErrorInfo | None, *, status: int | None = None, grammar_param: str = "response_format"
) -> ApiError:
    """Returns the answer to a request that failed in the engine. Without a `status`, the code decides."""
    if status is None and info is not None:
        status = _STATUS_OF_CODE.get(info.code)
    if info is None or status is None:
        return ApiError(500, "internal_error", INTERNAL_MESSAGE)
    about_grammar = info.code == "constraint_violated" or info.code in REFUSALS
    answer = ApiError(status, info.code, info.message, param=grammar_param if about_grammar else info.param)
    answer.may_retry = info.may_retry is not False
    return answer


_MAX_LOCATION = 1_000
"""Characters at the end of a message that are searched for the path, which comes last."""
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_BOUND = re.compile(r"Expected `(?P<kind>\w+)`(?P<length> of length)? (?P<relation>[<>]=?) ")
_NOUNS = {"int": "integer", "float": "decimal", "str": "string", "array": "array", "object": "object"}


def from_decode_error(error: msgspec.DecodeError | UnicodeDecodeError | RecursionError) -> ApiError:
    """Explains why a body is not what a route expects, with the path of the field to blame."""
    if isinstance(error, RecursionError):
        return ApiError(400, "invalid_json", "The body is nested too deeply.")
    if not isinstance(error, msgspec.ValidationError):
        return ApiError(400, "invalid_json", "The body is not valid JSON in UTF-8.")
    if isinstance(error.__cause__, BoughError):
        return to_api_error(error.__cause__)
    what, path = _located(str(error))
    param = path.replace("[...]", "")
    if missing := _MISSING.fullmatch(what):
        param = f"{param}.{missing[1]}" if param else missing[1]
        return ApiError(400, "missing_required_parameter", f"Missing required parameter: {param}", param=param)
    if unknown := _UNKNOWN.fullmatch(what):
        param = f"{param}.{unknown[1]}" if param else unknown[1]
        return ApiError(400, "unknown_parameter", f"There is no parameter {cut(param)}", param=param)
    if what.startswith("Number out of range"):
        return ApiError(400, "invalid_json", f"{param}: the number is out of range.", param=param or None)
    code = _code_of(what)
    return ApiError(400, code, f"{param or 'body'}: {what[0].lower()}{what[1:]}", param=param or None)


def _located(message: str) -> tuple[str, str]:
    """Splits a message of msgspec into what is wrong, cut, and the path. It may quote a value of megabytes."""
    tail = message[-_MAX_LOCATION:]
    before, mark, place = tail.rpartition(" - at `")
    place = place.removeprefix("key` in `")
    if not mark or not place.startswith("$") or not place.endswith("`"):
        return cut(message), ""
    return cut(message[: len(message) - len(tail) + len(before)]), place[1:-1].removeprefix(".")


def _code_of(what: str) -> str:
    if bound := _BOUND.match(what):
        noun, below = _NOUNS.get(bound["kind"], bound["kind"]), bound["relation"][0] == ">"
        if not bound["length"]:
            return f"{noun}_below_min_value" if below else f"{noun}_above_max_value"
        if bound["kind"] == "object":
            return "object_above_max_properties"
        if bound["kind"] == "array" and below:
            return "empty_array"
        return f"{noun}_below_min_length" if below else f"{noun}_above_max_length"
    return "invalid_type" if what.startswith("Expected") and ", got " in what else "invalid_value"
