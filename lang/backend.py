"""The seam to whatever runs programs, and the default one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Protocol

from ..runtime.program import Program, ProgramEvent
from .errors import ProgramError


class Backend(Protocol):
    """Runs programs. Safe to use from many threads.

    `run` and `arun` begin when their first event is asked for, and end with Done or Failed; refusals are raised as
    BoughError by that first step. Leaving an iterator early (`close`, `aclose`, cancellation) aborts the program.
    """

    @property
    def modalities(self) -> frozenset[str]:
        """What a program may hold: "text", "image"."""
        ...

    def run(self, program: Program) -> Iterator[ProgramEvent]: ...

    def arun(self, program: Program) -> AsyncIterator[ProgramEvent]: ...

    def drop(self, program_id: str) -> None:
        """Forgets a kept program state. Unknown ids are ignored."""

    def flush_cache(self) -> bool:
        """Empties the prefix cache; False (and nothing done) if it is in use."""
        ...

    def close(self) -> None: ...


TEXT_ONLY = frozenset({"text"})

_default: ContextVar[Backend | None] = ContextVar("bough_default_backend", default=None)


def set_default_backend(backend: Backend | None) -> None:
    """Sets where programs run that are given no backend; in this thread or task, and in those it starts by asyncio.

    >>> bough.set_default_backend(bough.LocalBackend())
    """
    _default.set(backend)


def resolve_backend(backend: Backend | None) -> Backend:
    """`backend`, or else the default one.

    Raises:
        ProgramError: neither is given.
    """
    chosen = backend if backend is not None else _default.get()
    if chosen is None:
        raise ProgramError(
            "there is no backend to run on: pass backend=bough.LocalBackend(), or set one for all programs with "
            "bough.set_default_backend(...); threads that you start yourself need their own",
            code="no_backend",
            param="backend",
        )
    return chosen
