"""Checks of generated values, by type and by the user, and the messages that tell a model what is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

MAX_REASON_CHARS = 1000
_MAX_PROBLEMS = 8
_TRUTHS = ("bool", "bool_")  # numpy's, too, which checks of arrays return


class CheckError(ValueError):
    """The user's check has refused a value.

    check    its name
    reason   what it says; "" if it has only returned False
    """

    def __init__(self, check: str, reason: str = "") -> None:
        super().__init__(reason or f"the check {check} refuses it")
        self.check = check
        self.reason = reason


def checked(convert: Callable[[str], Any], check: Callable[[Any], object], *, any_error: bool) -> Callable[[str], Any]:
    """`convert`, whose values `check` is asked about: one for which it raises ValueError or AssertionError, or returns
    False, raises CheckError. With `any_error` whatever it raises does."""
    refusals: tuple[type[Exception], ...] = (Exception,) if any_error else (ValueError, AssertionError)

    def read(text: str) -> Any:
        value = convert(text)
        try:
            answer = check(value)
        except refusals as error:
            raise CheckError(_named(check), reason_of(error)) from error
        if type(answer).__name__ in _TRUTHS and not answer:
            raise CheckError(_named(check))
        return value

    return read


def waits(check: Callable[..., Any]) -> bool:
    """Tells whether the check is a coroutine function, which nobody would await."""
    return inspect.iscoroutinefunction(getattr(check, "function", check))


def reason_of(error: BaseException) -> str:
    """Returns why a value was refused, for a model: without addresses and types of Python."""
    listed = getattr(error, "errors", None)  # of Pydantic's ValidationError
    if callable(listed):
        try:
            problems = listed(include_url=False, include_context=False)
            lines = [_problem(one) for one in problems[:_MAX_PROBLEMS]]
        except (TypeError, KeyError, AttributeError):
            lines = []
        if lines:
            return _bounded("; ".join(lines))
    return _bounded(str(error).strip() or type(error).__name__)


def refusal_of(name: str, error: ValueError) -> str:
    """Returns that the value of the variable `name` is not right, and why."""
    if isinstance(error, CheckError):
        return f"the check `{error.check}` refuses {name!r}" + (f": {error.reason}" if error.reason else "")
    return f"{name!r} is not of the type asked for: {reason_of(error)}"


def _problem(problem: Any) -> str:
    where = ".".join(map(str, problem["loc"]))
    said = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{where}: {said}" if where else said


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARS else text[: MAX_REASON_CHARS - 3] + "..."


def _named(check: Callable[..., Any]) -> str:
    return getattr(check, "__name__", type(check).__name__)
