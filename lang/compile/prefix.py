"""Common beginning of all runs of a program, computed before they start."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from ...runtime.protocol.program import Failed, Gen, Op, Program, RoleBegin, RoleEnd, Text
from ...runtime.protocol.sampling_params import SamplingParams
from ..backend import Backend
from ..diagnostics.errors import ProgramError
from .placeholder import Marks
from .signature import stand_ins
from .tracing import trace_start

_FIRST_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


def cache_prefix(
    title: str, body: Callable[..., Any], known: Mapping[str, Any], defaults: Mapping[str, Any], backend: Backend
) -> None:
    """Has the backend compute what all runs with the arguments in `known` begin with.

    Raises:
        ProgramError: the backend refused it. What the body raises passes through.
    """
    marks = Marks(title)
    arguments = stand_ins(body, known, marks)
    prefix = tuple(constant_start(trace_start(title, body, {**arguments, **known}, defaults, marks)))
    if any(isinstance(op, Text) for op in prefix):
        _compute(backend, prefix)


def constant_start(ops: Iterable[Op]) -> Iterator[Op]:
    """The first instructions, as long as they say nothing but text that is known."""
    for op in ops:
        if not isinstance(op, Text | RoleBegin | RoleEnd) or op.branch != 0:
            return
        if not isinstance(op, Text):
            yield op
            continue
        known = next((index for index, part in enumerate(op.parts) if not isinstance(part, str)), len(op.parts))
        if known:
            yield Text(0, op.parts[:known])
        if known < len(op.parts):
            return


def _compute(backend: Backend, prefix: tuple[Op, ...]) -> None:
    program = Program(id=secrets.token_hex(16), ops=(*prefix, Gen(0, "next", _FIRST_TOKEN)))
    events: Any = backend.run(program)
    with closing(events):
        for event in events:
            if isinstance(event, Failed):
                raise ProgramError(event.error.message, code=event.error.code, param=event.error.param)
