"""What a program can fail with.

BoughError
├── ProgramError            a program is wrong, or failed while it ran
│   └── UnsupportedError    the backend cannot do what the program asks for; refused before it is sent
└── BackendError            the backend could not be reached, refused the program, or broke off
"""

from __future__ import annotations

import linecache
from typing import Any

from ...runtime.protocol.errors import BoughError, ErrorInfo, to_info
from ...runtime.protocol.program import Gen, Op, Select, Use
from .source_lines import UNKNOWN, Place


class ProgramError(BoughError):
    """A program is wrong, or failed while it ran.

    place        file, line and function of the instruction to blame, if one is
    branch       the branch it belongs to
    instruction  what failed, as it was sent
    request_id   the program's id, by which the engine and a server's log know it
    state        the program's `State`: the values that did arrive can still be read
    """

    code = "program_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        place: Place | None = None,
        branch: int | None = None,
        instruction: Op | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.place = place
        self.branch = branch
        self.instruction = instruction
        self.request_id = request_id
        self.state: Any = None

    @property
    def stack(self) -> tuple[Place, ...]:
        """The lines of the program that led to the instruction, from its body inwards; the last is `place`."""
        return () if self.place is None or self.place == UNKNOWN else self.place.stack

    def __str__(self) -> str:
        lines = [self.message]
        stack = self.stack
        for index, place in enumerate(stack):
            lines.append(f"  at {place.file}:{place.line}, in {place.function}")
            if index == len(stack) - 1 and self.instruction is not None:
                lines[-1] += f": {_describe(self.instruction)}, branch {self.branch}"
            source = linecache.getline(place.file, place.line).strip()
            if source:
                lines.append(f"    {source}")
        if self.request_id is not None:
            lines.append(f"  request {self.request_id}")
        return "\n".join(lines)


class UnsupportedError(ProgramError):
    """The backend cannot do what the program asks for."""

    code = "unsupported"


class BackendError(BoughError):
    """The backend could not be reached, refused the program, or broke off.

    `status` is the HTTP status, if there was one; `retryable` says that the same program may succeed later.
    """

    code = "backend_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        status: int | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.status = status
        self.retryable = retryable


class CausedInfo(ErrorInfo, frozen=True, kw_only=True):
    """What a program is told of an error of its backend in this process: with the error itself."""

    cause: Any = None

    def plain(self) -> ErrorInfo:
        """As it can be written down."""
        return ErrorInfo(code=self.code, message=self.message, param=self.param)


def to_caused_info(error: BoughError) -> ErrorInfo:
    """Errors of a backend with themselves, others as they are told everywhere."""
    if isinstance(error, BackendError):
        return CausedInfo(code=error.code, message=error.message, param=error.param, cause=error)
    return to_info(error)


def _describe(op: Op) -> str:
    kind = type(op).__name__.lower()
    if isinstance(op, Use):
        return f"use {op.name!r} of tool {op.tool!r}"
    return f"{kind} {op.name!r}" if isinstance(op, Gen | Select) else kind
