"""Errors of programs, and the line that each is blamed on.

BoughError
├── ProgramError            a program is wrong, or failed while it ran
│   └── UnsupportedError    the backend cannot do what the program asks for; refused before it is sent
└── BackendError            the backend could not be reached, refused the program, or broke off
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...runtime.protocol.errors import BoughError, ErrorInfo, to_info
from ...runtime.protocol.program import CallTools, Gen, Op, Program, RoleBegin, Select, Use, named_tools, walk
from .source_lines import UNKNOWN, Place, add_line


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
    """Error of a backend in this process, as its program is told of it: with the error itself."""

    cause: Any = None

    def plain(self) -> ErrorInfo:
        """Returns it without the error itself, as it can be written down."""
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
    if isinstance(op, CallTools):
        return f"the calls in {op.of!r}"
    return f"{kind} {op.name!r}" if isinstance(op, Gen | Select) else kind


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


def explain(program: Program, places: Sequence[Place], info: ErrorInfo, branch: int, index: int | None) -> ProgramError:
    """The error that the engine has reported, with the line to blame. `index` counts as `walk` does.

    Every submission in flight is told of a failure; one holds the instruction.
    """
    known = index is not None and 0 <= index < len(places)
    error = ProgramError(
        info.message + (_SHORTEN if info.code == "context_length_exceeded" and _is_chat(program) else ""),
        code=info.code,
        param=info.param,
        branch=branch,
        place=places[index] if known else None,  # type: ignore[index]
        instruction=_op(program, index) if known else None,  # type: ignore[arg-type]
        request_id=program.id,
    )
    error.__cause__ = info.cause if isinstance(info, CausedInfo) else None
    return error


_SHORTEN = ": shorten the history before it is continued, bough.KeepLast(turns=8).trim(state)"
_TURNS_OF_CHAT = 3


def _is_chat(program: Program) -> bool:
    turns = sum(isinstance(op, RoleBegin) and op.role == "user" for op in walk(program.ops))
    return turns >= _TURNS_OF_CHAT


def refused(program: Program, places: Sequence[Place], refusal: BoughError) -> ProgramError:
    """A refusal, with the line to blame: of the instruction that it names, or of the only one that makes a value. What
    concerns the whole request, as that there is no connection, is told with the line where that begins.
    """
    given, refusal = refusal, _in_program_words(refusal)
    reworded = refusal is not given
    named = refusal.instruction if isinstance(refusal, ProgramError) else None
    index = _blamed(program, refusal.message, named)
    place = None if index is None else places[index]
    if index is None and places and _concerns_all(refusal):
        place = places[0]
    if isinstance(refusal, ProgramError):
        refusal.place = refusal.place or place
        return refusal
    op = None if index is None else _op(program, index)
    error = ProgramError(
        refusal.message,
        code=refusal.code,
        param=refusal.param,
        place=place,
        branch=None if op is None else op.branch,
        instruction=op,
        request_id=program.id,
    )
    error.__cause__ = None if reworded else refusal
    return error


def _in_program_words(refusal: BoughError) -> BoughError:
    """Returns a refusal of a tool that is only named without the instruction's number, which is nothing to a user."""
    found = re.match(
        r"instruction [0-9]+ uses the tool ('.*'), which is not registered; there are: (.*)", refusal.message
    )
    if found is None:
        return refusal
    there_are = "" if found[2] == "none" else f" ({found[2]})"
    message = f"there is no tool {found[1]}: pass the function itself; names are of tools on the server{there_are}"
    return type(refusal)(message, code=refusal.code, param=refusal.param)


_NAMED = re.compile(r"instruction ([0-9]{1,9})\b|the tool ('[^']*')|no tool ('[^']*')")
"""Names in refusals: of an instruction, by its number as `walk` counts, or of the tool that one calls."""


def _blamed(program: Program, message: str, named: Op | None) -> int | None:
    ops = list(walk(program.ops))
    if named is not None:
        return next((index for index, op in enumerate(ops) if op is named), None)
    making = [index for index, op in enumerate(ops) if isinstance(op, Gen | Select | Use)]
    if len(making) == 1:
        return making[0]
    found = _NAMED.search(message)
    if found is None:
        return None
    if found[1] is not None:
        return int(found[1]) if int(found[1]) < len(ops) else None
    tool = found[2] or found[3]
    return next((index for index, op in enumerate(ops) if tool in map(repr, named_tools(op))), None)


def _concerns_all(refusal: BoughError) -> bool:
    if isinstance(refusal, BackendError):
        return refusal.status is None or refusal.retryable
    return isinstance(refusal, ProgramError) and refusal.instruction is None


def _op(program: Program, index: int) -> Op:
    return next(op for position, op in enumerate(walk(program.ops)) if position == index)
