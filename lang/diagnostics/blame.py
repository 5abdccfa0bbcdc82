"""Which line of a program an error is to be blamed on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...runtime.protocol.errors import BoughError, ErrorInfo
from ...runtime.protocol.program import Gen, Op, Program, Select, Use, walk
from .errors import BackendError, CausedInfo, ProgramError
from .source_lines import Place


def explain(program: Program, places: Sequence[Place], info: ErrorInfo, branch: int, index: int | None) -> ProgramError:
    """The error that the engine has reported, with the line to blame. `index` counts as `walk` does.

    Every submission in flight is told of a failure; one holds the instruction.
    """
    known = index is not None and 0 <= index < len(places)
    error = ProgramError(
        info.message,
        code=info.code,
        param=info.param,
        branch=branch,
        place=places[index] if known else None,  # type: ignore[index]
        instruction=_op(program, index) if known else None,  # type: ignore[arg-type]
        request_id=program.id,
    )
    error.__cause__ = info.cause if isinstance(info, CausedInfo) else None
    return error


def refused(program: Program, places: Sequence[Place], refusal: BoughError) -> ProgramError:
    """A refusal, with the line to blame: of the instruction that it names, or of the only one that makes a value. What
    concerns the whole request, as that there is no connection, is told with the line where that begins.
    """
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
    error.__cause__ = refusal
    return error


_NAMED = re.compile(r"instruction ([0-9]{1,9})\b|the tool ('[^']*')|no tool ('[^']*')")
"""How refusals name an instruction, which they count as `walk` does, or the tool that one calls."""


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
    return next((index for index, op in enumerate(ops) if isinstance(op, Use) and repr(op.tool) == tool), None)


def _concerns_all(refusal: BoughError) -> bool:
    if isinstance(refusal, BackendError):
        return refusal.status is None or refusal.retryable
    return isinstance(refusal, ProgramError) and refusal.instruction is None


def _op(program: Program, index: int) -> Op:
    return next(op for position, op in enumerate(walk(program.ops)) if position == index)
