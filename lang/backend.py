"""Interface to backends, which run programs, and the default backend."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextvars import ContextVar
from typing import Protocol

from ..runtime.protocol.errors import RequestError
from ..runtime.protocol.program import Program, ProgramEvent
from ..runtime.tools.registry import ToolCall
from .diagnostics.errors import ProgramError
from .diagnostics.source_lines import caller, located


class Backend(Protocol):
    """Runs programs. Safe to use from many threads.

    `run` and `arun` start when their first event is requested, and end with Done or Failed; refusals are raised as
    BoughError by that first step. Leaving an iterator early (`close`, `aclose`, cancellation) aborts the program.
    """

    @property
    def modalities(self) -> frozenset[str]:
        """Kinds of content that a program may contain: "text", "image"."""
        ...

    def run(self, program: Program, tools: Mapping[str, ToolCall] = ...) -> Iterator[ProgramEvent]:
        """`tools` are those that the program uses and that are of this process, by name."""
        ...

    def arun(self, program: Program, tools: Mapping[str, ToolCall] = ...) -> AsyncIterator[ProgramEvent]: ...

    def drop(self, program_id: str) -> None:
        """Forgets a kept program state. Unknown ids are ignored."""

    def flush_cache(self) -> bool:
        """Empties the prefix cache; does nothing and returns False if it is in use."""
        ...

    def close(self) -> None: ...


TEXT_ONLY = frozenset({"text"})


class _Default:
    """The backend of programs of this process that are given none."""

    def __init__(self) -> None:
        self.backend: Backend | None = None


_default = _Default()
_used: ContextVar[Backend | None] = ContextVar("bough_used_backend", default=None)


def set_default_backend(backend: Backend | None) -> None:
    """Sets the backend of all programs of this process that name none, on any thread.

    >>> bough.set_default_backend(bough.LocalBackend())
    """
    with located:
        _default.backend = None if backend is None else checked_backend(backend)


@contextlib.contextmanager
def use_backend(backend: Backend) -> Generator[Backend, None, None]:
    """Runs programs that name no backend on this one until the block ends: those of the same thread or task, and of
    tasks started in it.

    >>> with bough.use_backend(bough.MockBackend({"city": "Paris"})):
    ...     state = capital.run("France")
    """
    token = _used.set(checked_backend(backend))
    try:
        yield backend
    finally:
        _used.reset(token)


def resolve_backend(backend: Backend | None) -> Backend:
    """`backend`, or else the one in use, or else the default one.

    Raises:
        ProgramError: there is none.
        RequestError: it is none.
    """
    given = (backend, _used.get(), _default.backend)
    chosen = next((candidate for candidate in given if candidate is not None), None)
    if chosen is None:
        raise ProgramError(
            "there is no backend to run on: pass backend=bough.LocalBackend(), or set one for all programs with "
            "bough.set_default_backend(...)",
            code="no_backend",
            param="backend",
            place=caller(),
        )
    return checked_backend(chosen)


def checked_backend(backend: Backend) -> Backend:
    """`backend`, if programs can be run on it.

    Raises:
        RequestError: it is none.
    """
    if isinstance(backend, type) or not hasattr(backend, "run"):
        raise _no_backend(backend)
    return backend


def _no_backend(given: object) -> RequestError:
    if isinstance(given, type):
        advice = f"that is a class: create an instance, backend=bough.{given.__name__}(...)"
    elif isinstance(given, str):
        kind = "HttpBackend" if given.startswith(("http://", "https://")) else "LocalBackend"
        advice = f"use backend=bough.{kind}({given!r})"
    else:
        advice = "use a backend, such as bough.LocalBackend() or bough.HttpBackend(url)"
    message = f"a program cannot be run on {given!r} ({type(given).__name__}): {advice}"
    return RequestError(message, code="no_backend", param="backend")
