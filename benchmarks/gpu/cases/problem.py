"""One kernel at one size: ours and others' on the same inputs, checked once against a reference, then timed in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from ..roofline import Work
from ..rows import Row
from .case import Case, Settings
from .timing import Timing, num_input_sets, relative_error, time_calls

Inputs = TypeVar("Inputs")
Launch = Callable[[], torch.Tensor]
"""Runs a kernel once; returns what it wrote."""

MAX_ERROR = {"float32": 1e-4, "bfloat16": 1e-2}


class AbsentError(Exception):
    """This machine has not got it, or it does not serve this size."""


@dataclass(frozen=True)
class Problem(Generic[Inputs]):
    """A kernel's row before it is measured.

    make        a set of inputs from a seed; a launch moves the bytes of `work`
    reference   what ours and the peers are to give, in float32 or float64; None: peers may differ from ours
    of_peers    what peers are to give, where that is something else: they multiply weights that are not rounded
    check       raises if our output is wrong
    max_error   relative, of ours; None: what the dtype allows. Peers are held to the same
    ours, peers bind a kernel to inputs; outputs that they are given are filled with NaN beforehand
    """

    name: str
    cfg: Mapping[str, Any]
    work: Work
    make: Callable[[int], Inputs]
    ours: Callable[[Inputs], Launch]
    peers: Mapping[str, Callable[[Inputs], Launch]] = field(default_factory=dict)
    reference: Callable[[Inputs], torch.Tensor] | None = None
    of_peers: Callable[[Inputs], torch.Tensor] | None = None
    check: Callable[[Inputs, torch.Tensor], None] | None = None
    max_error: float | None = None

    def case(self, settings: Settings, estimate_s: float = 1.5) -> Case:
        """The case that measures it."""
        label = f"{self.name} {' '.join(map(str, self.cfg.values()))}"
        return Case(label, partial(measure, self, settings), estimate_s)


def measure(problem: Problem[Inputs], settings: Settings) -> Iterator[Row]:
    """The row of a problem, twice: ours alone, then ours again with peers between. Their difference is the noise.

    Raises:
        ValueError: ours is wrong. A wrong peer has no time, and a note.
    """
    torch.manual_seed(0)
    try:
        sets = [problem.make(seed) for seed in range(num_input_sets(problem.work.bytes, quick=settings.tiny))]
    except AbsentError as error:
        yield Row(sec="K", name=problem.name, cfg=dict(problem.cfg), note=str(error))
        return
    expected = None if problem.reference is None else problem.reference(sets[0])
    of_peers = expected if problem.of_peers is None else problem.of_peers(sets[0])
    row = Row(sec="K", name=problem.name, cfg=dict(problem.cfg))
    launches = [problem.ours(inputs) for inputs in sets]
    max_error = problem.max_error or MAX_ERROR[settings.dtype_name]
    row.err = _error(launches[0](), expected, max_error)
    if problem.check is not None:
        problem.check(sets[0], launches[0]())
    first = time_calls(launches, device=settings.device)
    notes = []
    _set(row, first)
    row.rated(problem.work)
    yield row  # a peer may take the process with it
    for name, bind in problem.peers.items():
        row.peers[name] = None
        if name in settings.without:
            continue
        settings.announce(name)
        timing, note = _time_peer(bind, sets, of_peers, max_error, settings)
        row.peers[name] = None if timing is None else timing.us
        notes += [f"{name}: {note}"] if note else []
    again = time_calls(launches, device=settings.device)
    best = min(first, again, key=lambda timing: timing.us)
    _set(row, best)
    row.noise = abs(first.us - again.us) / best.us
    row.note = "; ".join(notes + ([] if best.graphed or settings.device == "cpu" else ["timed without a graph"]))
    yield row.rated(problem.work)


def _set(row: Row, timing: Timing) -> None:
    row.us, row.us_p10, row.us_p90 = timing.us, timing.us_p10, timing.us_p90


def _time_peer(
    bind: Callable[[Inputs], Launch],
    sets: list[Inputs],
    expected: torch.Tensor | None,
    max_error: float,
    settings: Settings,
) -> tuple[Timing | None, str]:
    try:
        launches = [bind(inputs) for inputs in sets]
        for inputs in sets[:1]:
            if isinstance(out := getattr(inputs, "out", None), torch.Tensor):
                poison(out)
        _error(launches[0](), expected, max_error)
        return time_calls(launches, device=settings.device), ""
    except (AbsentError, ImportError):
        return None, ""
    except Exception as error:  # noqa: BLE001  a missing figure, not a failure of ours
        if settings.device != "cpu":
            torch.cuda.synchronize()  # raises if the peer took the context with it
        return None, f"{type(error).__name__} {str(error).splitlines()[0][:120] if str(error) else ''}".strip()


def _error(out: torch.Tensor, expected: torch.Tensor | None, max_error: float) -> float | None:
    if expected is None:
        return None
    error = relative_error(out, expected)
    if not error < max_error:
        raise ValueError(f"the result is wrong: relative error {error:.1e}")
    return error


def poison(out: torch.Tensor) -> torch.Tensor:
    """Fills an output with NaN (or the least integer), so that what is not written shows."""
    return out.fill_(math.nan if out.is_floating_point() else torch.iinfo(out.dtype).min)
