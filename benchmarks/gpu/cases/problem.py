"""One kernel at one size: ours and others' on the same inputs, checked once against a reference, then timed in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Generic, TypeVar

import torch

from ..roofline import Work
from ..rows import Row
from .timing import num_input_sets, relative_error, time_calls

Inputs = TypeVar("Inputs")
Launch = Callable[[], torch.Tensor]
"""Runs a kernel once; returns what it wrote."""

MAX_ERROR = {"float32": 1e-4, "bfloat16": 1e-2}


@dataclass(frozen=True)
class Settings:
    """Settings that every case is told. `quick`: sizes are tiny, as they always are on a CPU."""

    device: str
    quick: bool = False

    @property
    def tiny(self) -> bool:
        return self.quick or self.device == "cpu"

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.device == "cpu" else torch.bfloat16


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
    unit        of a ceiling, which is a rate: "B/s" or "FLOP/s"; "": it is a kernel
    target_s    seconds that all repetitions are to take
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
    unit: str = ""
    target_s: float = 0.12

    @property
    def label(self) -> str:
        return " ".join([self.name, *map(str, self.cfg.values())])

    def row(self) -> Row:
        return Row(sec="C" if self.unit else "K", name=self.name, cfg=dict(self.cfg), unit=self.unit)

    def timed(self, row: Row, seconds: Sequence[float]) -> Row:
        """The row with the time of repetitions, and the rates that follow."""
        if self.unit:
            row.value = (self.work.flops if self.unit == "FLOP/s" else self.work.bytes) / median(seconds)
        return row.timed(seconds).rated(self.work)


def measure(problem: Problem[Inputs], settings: Settings) -> Iterator[Row]:
    """The row of a problem, twice: ours alone, then ours again with peers between. Their difference is the noise.

    Raises:
        ValueError: ours is wrong. A wrong peer has no time, and a note.
    """
    torch.manual_seed(0)
    row = problem.row()
    sets = [problem.make(seed) for seed in range(num_input_sets(problem.work.bytes, quick=settings.tiny))]
    expected = None if problem.reference is None else problem.reference(sets[0])
    of_peers = expected if problem.of_peers is None else problem.of_peers(sets[0])
    launches = [problem.ours(inputs) for inputs in sets]
    max_error = problem.max_error or MAX_ERROR[str(settings.dtype).removeprefix("torch.")]
    row.err = _error(launches[0](), expected, max_error)
    if problem.check is not None:
        problem.check(sets[0], launches[0]())
    first = time_calls(launches, device=settings.device, target_s=problem.target_s)
    yield problem.timed(row, first)  # a peer may take the process with it
    first_us, notes = row.us or 0.0, []
    for name, bind in problem.peers.items():
        row.peers[name] = None
        try:
            row.peers[name] = _time_peer(bind, sets, of_peers, max_error, settings)
        except (AbsentError, ImportError):
            continue
        except Exception as error:  # noqa: BLE001  a missing figure, not a failure of ours
            if settings.device != "cpu":
                torch.cuda.synchronize()  # raises if the peer took the context with it
            reason = str(error).splitlines()[0][:120] if str(error) else ""
            notes.append(f"{name}: {type(error).__name__} {reason}".strip())
    again = time_calls(launches, device=settings.device, target_s=problem.target_s)
    again_us = 1e6 * median(again)
    row.noise = abs(first_us - again_us) / min(first_us, again_us)
    row.note = "; ".join(notes)
    yield problem.timed(row, again if again_us <= first_us else first)


def _time_peer(
    bind: Callable[[Inputs], Launch],
    sets: list[Inputs],
    expected: torch.Tensor | None,
    max_error: float,
    settings: Settings,
) -> float:
    """Microseconds of a peer's launch. Raises whatever it raises."""
    launches = [bind(inputs) for inputs in sets]
    if isinstance(out := getattr(sets[0], "out", None), torch.Tensor):
        poison(out)
    _error(launches[0](), expected, max_error)
    return 1e6 * median(time_calls(launches, device=settings.device))


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
