"""Errors of the words that programs are made of, with the user's line in their message, not only in a traceback."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ...runtime.protocol.errors import ModelError, RequestError
from .source_lines import UNKNOWN, caller

Word = TypeVar("Word", bound=Callable[..., Any])


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


def add_line(error: Exception) -> None:
    """Puts the user's line behind an error's message, unless it has one. `message` stays as it is."""
    here = caller()
    text = str(error)
    if here == UNKNOWN or "\n  at " in text:
        return
    source = linecache.getline(here.file, here.line).strip()
    error.args = (f"{text}\n  at {here.file}:{here.line}, in {here.function}" + (f"\n    {source}" if source else ""),)
