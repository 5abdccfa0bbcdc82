"""Which line of a program an error is to be blamed on."""

from __future__ import annotations

from collections.abc import Sequence

from ..runtime.errors import BoughError
from ..runtime.program import Gen, Op, Program, Select, Use, walk
from ..runtime.request import ErrorInfo
from .errors import ProgramError
from .place import Place


def explain(program: Program, places: Sequence[Place], info: ErrorInfo, branch: int, index: int | None) -> ProgramError:
    """The error that the engine has reported, with the line to blame. `index` counts as `walk` does.

    Every stretch in flight is told of a failure; one holds the instruction.
    """
    known = index is not None and 0 <= index < len(places)
    return ProgramError(
        info.message,
        code=info.code,
        param=info.param,
        branch=branch,
        place=places[index] if known else None,  # type: ignore[index]
        instruction=_op(program, index) if known else None,  # type: ignore[arg-type]
        request_id=program.id,
    )


def refused(program: Program, places: Sequence[Place], refusal: BoughError) -> ProgramError:
    """A refusal, which names no instruction: if only one makes a value, it is that one's."""
    if isinstance(refusal, ProgramError):
        blamed = next((index for index, op in enumerate(walk(program.ops)) if op is refusal.instruction), None)
        if refusal.place is None and blamed is not None:
            refusal.place = places[blamed]
        return refusal
    making = [index for index, op in enumerate(walk(program.ops)) if isinstance(op, Gen | Select | Use)]
    index = making[0] if len(making) == 1 else None
    op = None if index is None else _op(program, index)
    error = ProgramError(
        refusal.message,
        code=refusal.code,
        param=refusal.param,
        place=None if index is None else places[index],
        branch=None if op is None else op.branch,
        instruction=op,
        request_id=program.id,
    )
    error.__cause__ = refusal
    return error


def _op(program: Program, index: int) -> Op:
    return next(op for position, op in enumerate(walk(program.ops)) if position == index)
