"""Samples for the branches of a fork, and cancellation of a branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...runtime.protocol.sampling_params import derive
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import caller
from ..record.expression import Expression, Generate, Series, items_of
from ..record.options import refuse_unknown
from ..record.reasoning import Reasoned
from .branch import Branch


def samples_of(
    expression: str | Expression, n: int | None, defaults: Mapping[str, Any]
) -> tuple[int, list[Expression]]:
    """Returns how many branches to fork, and what each of them appends: `expression`, with a seed of its own.

    Raises:
        ProgramError: nothing is generated in it, or it is not said how often.
    """
    generations = [item for item in items_of(expression) if isinstance(item, Generate | Reasoned)]
    if not generations:
        raise ProgramError("there is nothing to sample: give an expression with a gen", place=caller())
    size = n if n is not None else _options(generations[0]).get("n", 1)
    refuse_unknown("n", size)
    if type(size) is not int or size < 1:
        raise ProgramError(f"n must be the number of samples, at least 1; got {size!r}", param="n", place=caller())
    return size, [Series(tuple(_sampled(expression, index, defaults))) for index in range(size)]


def _options(item: Generate | Reasoned) -> Mapping[str, Any]:
    return item.options if isinstance(item, Generate) else item.generate.options


def _sampled(expression: str | Expression, index: int, defaults: Mapping[str, Any]) -> Iterator[str | Expression]:
    for item in items_of(expression):
        match item:
            case Generate():
                yield _seeded(item, index, defaults)
            case Reasoned():
                yield replace(item, generate=_seeded(item.generate, index, defaults))
            case _:
                yield item


def _seeded(item: Generate, index: int, defaults: Mapping[str, Any]) -> Generate:
    options = {**item.options, "n": 1}
    seed = options.get("seed", defaults.get("seed"))
    if seed is not None:
        options["seed"] = derive(seed, index)
    return replace(item, options=options)


def cancel(branch: Branch) -> None:
    """Stops a branch and those forked from it."""
    session = branch.session
    if branch.id == 0:
        session.abort(ProgramError("the program was cancelled", code="cancelled", place=caller()))
        return
    if branch.cancelled:
        return
    if session.recorder.in_block and session.records_here:
        raise ProgramError(
            "a branch cannot be cancelled while a when or repeat_until is recorded: that would not be part of it",
            code="invalid_program",
            place=caller(),
        )
    branch.cancelled, branch.closed = True, branch.closed or "it was cancelled"
    session.cancel(branch.id)
