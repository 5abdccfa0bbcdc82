"""Errors with the user's line in their message, and with tracebacks that have the user's lines alone."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from typing import Any, TypeVar

from ...runtime.protocol.errors import BoughError, ModelError, RequestError
from .errors import ProgramError
from .source_lines import UNKNOWN, Place, caller, is_raised_by_user, users_only

Word = TypeVar("Word", bound=Callable[..., Any])

_MARK = "\n  at "
"""Stands before the line in a message."""


def located(word: Word) -> Word:
    """Puts the line that calls `word` behind the messages of errors that say that its arguments are wrong."""

    @functools.wraps(word)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return word(*args, **kwargs)
        except (RequestError, ModelError, TypeError) as error:
            add_line(error)
            raise

    return call  # type: ignore[return-value]


@contextmanager
def at_line() -> Iterator[None]:
    """Does the same for a block."""
    try:
        yield
    except (RequestError, ModelError, TypeError) as error:
        add_line(error)
        raise


@contextmanager
def blamed(here: Place) -> Iterator[None]:
    """Names the line `here` in errors that have none: as the place of a program's, in the message of others."""
    try:
        yield
    except ProgramError as error:
        error.place = error.place or here
        raise
    except (BoughError, TypeError) as error:
        add_line(error, here)
        raise


def add_line(error: Exception, here: Place | None = None) -> None:
    """Puts the user's line behind an error's message, unless it has one. `message` stays as it is."""
    here = here or caller()
    text = str(error)
    if here == UNKNOWN or _has_line(error):
        return
    source = linecache.getline(here.file, here.line).strip()
    error.args = (f"{text}{_MARK}{here.file}:{here.line}, in {here.function}" + (f"\n    {source}" if source else ""),)


def _has_line(error: BaseException) -> bool:
    return any(isinstance(argument, str) and _MARK in argument for argument in error.args)


class _UsersLines(ContextDecorator):
    """Leaves the user's lines alone in tracebacks of errors that the user can mend: those of bough, and what the user's
    own code raises. Where bough itself is wrong, all lines stay. For `with`, and to decorate functions."""

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and (isinstance(error, BoughError) or _has_line(error) or is_raised_by_user(error)):
            _trim(error)


users_lines = _UsersLines()


def _trim(error: BaseException) -> None:
    """Cuts an error's traceback, and those of the errors that led to it."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = users_only(one.__traceback__)
        left += [one.__cause__, None if one.__suppress_context__ else one.__context__]
