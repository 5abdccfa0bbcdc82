"""A problem of one size: kernels of bough and of peers on the same inputs, checked against a reference, timed in turn.

Launches run in CUDA graphs between events, on inputs that rotate so that no cache serves them. Each family of kernels
runs in a separate process, which `gpu.py` starts and asks for one row after another: a kernel that reads out of bounds
ends the process's CUDA context, and a peer may crash. That loses the family's remaining rows, but no others.
"""

from __future__ import annotations

import gc
import importlib
import math
import time
import timeit
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, Generic, TypeVar

import msgspec
import torch

from ..roofline import Work
from ..rows import Row

Inputs = TypeVar("Inputs")
Launch = Callable[[], torch.Tensor]  # runs a kernel once; returns what it wrote
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

    ours, peers bind a kernel to inputs; outputs that they are given are filled with NaN beforehand
    """

    name: str
    cfg: Mapping[str, Any]
    work: Work
    make: Callable[[int], Inputs]  # a set of inputs from a seed; a launch moves the bytes of `work`
    ours: Callable[[Inputs], Launch]
    peers: Mapping[str, Callable[[Inputs], Launch]] = field(default_factory=dict)
    # what ours and the peers are to give, in float32 or float64; None: peers may differ from ours
    reference: Callable[[Inputs], torch.Tensor] | None = None
    # what peers are to give, where that is something else: they multiply weights that are not rounded
    of_peers: Callable[[Inputs], torch.Tensor] | None = None
    check: Callable[[Inputs, torch.Tensor], None] | None = None  # raises if our output is wrong
    max_error: float | None = None  # relative, of ours; None: what the dtype allows. Peers are held to the same
    unit: str = ""  # of a ceiling, which is a rate: "B/s" or "FLOP/s"; "": it is a kernel
    target_s: float = 0.12  # seconds that all repetitions are to take

    @property
    def label(self) -> str:
        return " ".join([self.name, *map(str, self.cfg.values())])

    def timed(self, row: Row, seconds: Sequence[float]) -> Row:
        """The row with the time of repetitions, and the rates that follow."""
        if self.unit:
            row.value = (self.work.flops if self.unit == "FLOP/s" else self.work.bytes) / median(seconds)
        return row.timed(seconds).rated(self.work)


def measure(problem: Problem[Inputs], settings: Settings) -> Iterator[Row]:
    """The row of a problem, twice: ours alone, then ours again with peers between. Their difference is the noise.
    Raises ValueError: ours is wrong. A wrong peer has no time, and a note."""
    torch.manual_seed(0)
    row = Row(sec="C" if problem.unit else "K", name=problem.name, cfg=dict(problem.cfg), unit=problem.unit)
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
            bound = [bind(inputs) for inputs in sets]
            if isinstance(out := getattr(sets[0], "out", None), torch.Tensor):
                poison(out)
            _error(bound[0](), of_peers, max_error)
            row.peers[name] = 1e6 * median(time_calls(bound, device=settings.device))
            del bound  # a peer's workspaces may be large
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


# -- Times -------------------------------------------------------------------------------------------------------------

Call = Callable[[], object]

COLD_BYTES = 200e6  # inputs rotate over more than this: three times the largest L2 cache in use
_MAX_SETS = 64
_GRAPH_S = 3e-3  # a replay holds at least so much work, beside which its own start is small
_MAX_LAUNCHES = 512


def num_input_sets(num_bytes: float, *, quick: bool) -> int:
    """Number of input sets, of so many bytes each, to rotate over. Tiny ones stay in the cache, as in a model."""
    return 2 if quick else max(1, min(_MAX_SETS, math.ceil(COLD_BYTES / num_bytes)))


def time_calls(calls: Sequence[Call], *, device: str, target_s: float = 0.12) -> list[float]:
    """Seconds of one call, repeatedly, taking turns among `calls`, which do the same on different inputs."""
    if torch.device(device).type != "cuda":  # a few by the host's clock: enough to see that the path works
        return [timeit.timeit(call, number=1) for call in [*calls, *calls][:4]]
    for call in calls:  # compiles, and makes what is made once
        call()
    torch.cuda.synchronize()
    single_s = max(_sample(lambda: _run(calls, 1), 1)[0] / len(calls), 1e-6)
    rounds = max(1, min(math.ceil(_GRAPH_S / (single_s * len(calls))), _MAX_LAUNCHES // len(calls)))
    try:
        replay = _capture(calls, rounds)
    except (RuntimeError, NotImplementedError):  # it waits for the device, or allocates in a way graphs refuse
        torch.cuda.synchronize()
        replay = partial(_run, calls, rounds)
    for _ in range(2):
        replay()
    once_s = max(_sample(replay, 1)[0], 1e-6)
    samples = _sample(replay, max(7, min(60, int(target_s / once_s))))
    return [sample / (rounds * len(calls)) for sample in samples]


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """||out - reference|| / ||reference||, in float64; infinite if anything is not a number."""
    out, reference = out.double(), reference.double().to(out.device)
    if out.shape != reference.shape or not bool(torch.isfinite(out).all()):
        return math.inf
    return float((out - reference).norm() / reference.norm().clamp_min(1e-30))


def _run(calls: Sequence[Call], rounds: int) -> None:
    for _ in range(rounds):
        for call in calls:
            call()


def _capture(calls: Sequence[Call], rounds: int) -> Call:
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what a library makes for each stream is made before the capture
        _run(calls, 1)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _run(calls, rounds)
    return graph.replay


def _sample(call: Call, count: int) -> list[float]:
    """Seconds between events around each of `count` calls."""
    event: Callable[[], torch.cuda.Event] = partial(torch.cuda.Event, enable_timing=True)
    pairs = [(event(), event()) for _ in range(count)]
    for start, stop in pairs:
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) / 1e3 for start, stop in pairs]


# -- A family ----------------------------------------------------------------------------------------------------------


class Family:
    """Problems, one after the other. `options`: family, device, quick, deadline (in seconds of time.time())."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._told = _measured(options["family"], Settings(options["device"], options["quick"]), options["deadline"])

    def measure(self) -> dict[str, Any]:
        """The next row, or the reason why there is none; None at the end."""
        return {"told": msgspec.to_builtins(next(self._told, None))}


def problems_of(family: str, settings: Settings) -> list[Problem[Any]]:
    """The problems of a family, named `module` or `module:argument`."""
    module, _, argument = family.partition(":")
    found: list[Problem[Any]] = importlib.import_module(f".{module}", __package__).FAMILIES[argument](settings)
    return found


def _measured(family: str, settings: Settings, deadline: float) -> Iterator[Row | str]:
    for problem in problems_of(family, settings):
        label = f"{family}/{problem.label}"
        if time.time() > deadline:
            yield f"{label}: no time"
            continue
        try:
            yield from measure(problem, settings)
        except Exception as error:  # noqa: BLE001  whatever a kernel raises is this problem's result
            traceback.print_exc()
            reason = str(error).splitlines()[0] if str(error) else ""
            yield f"{label}: {type(error).__name__}: {reason}"
        gc.collect()
        if settings.device != "cpu":
            torch.cuda.synchronize()  # raises if this process cannot use the device any more
            torch.cuda.empty_cache()
