"""Times launches on a device: CUDA graphs between events, inputs rotated so that no cache serves them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from ..rows import spread

Call = Callable[[], object]

COLD_BYTES = 200e6
"""Inputs rotate over more than this: three times the largest L2 cache in use."""

_MAX_SETS = 64
_GRAPH_S = 3e-3  # a replay holds at least so much work, beside which its own start is small
_MAX_LAUNCHES = 512


@dataclass(frozen=True)
class Timing:
    """Microseconds a call: median, and the tenth and ninetieth percentile over repetitions."""

    us: float
    us_p10: float
    us_p90: float
    graphed: bool


def num_input_sets(num_bytes: float, *, quick: bool) -> int:
    """Number of input sets, of so many bytes each, to rotate over. Tiny ones stay in the cache, as in a model."""
    return 2 if quick else max(1, min(_MAX_SETS, math.ceil(COLD_BYTES / num_bytes)))


def time_calls(calls: Sequence[Call], *, device: str, target_s: float = 0.12) -> Timing:
    """Times one call, taking turns among `calls`, which do the same on different inputs."""
    if torch.device(device).type != "cuda":
        return _time_on_host(calls)
    for call in calls:  # compiles, and makes what is made once
        call()
    torch.cuda.synchronize()
    single_s = max(_between_events(lambda: _run(calls, 1)) / len(calls), 1e-6)
    rounds = max(1, min(math.ceil(_GRAPH_S / (single_s * len(calls))), _MAX_LAUNCHES // len(calls)))
    try:
        replay, graphed = _capture(calls, rounds), True
    except (RuntimeError, NotImplementedError):  # it waits for the device, or allocates in a way graphs refuse
        torch.cuda.synchronize()
        replay, graphed = (lambda: _run(calls, rounds)), False
    for _ in range(2):
        replay()
    once_s = max(_between_events(replay), 1e-6)
    samples = _sample(replay, max(7, min(60, int(target_s / once_s))))
    return _timing([sample / (rounds * len(calls)) for sample in samples], graphed)


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


def _between_events(call: Call) -> float:
    return _sample(call, 1)[0]


def _sample(call: Call, count: int) -> list[float]:
    """Seconds between events around each of `count` calls."""
    pairs = []
    for _ in range(count):
        start, stop = _event(), _event()
        start.record()
        call()
        stop.record()
        pairs.append((start, stop))
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) / 1e3 for start, stop in pairs]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, no-any-return, unused-ignore]


def _time_on_host(calls: Sequence[Call]) -> Timing:
    """A few calls by the host's clock: enough to see that the path works."""
    samples = []
    for call in [*calls, *calls][:4]:
        started = time.perf_counter()
        call()
        samples.append(time.perf_counter() - started)
    return _timing(samples, graphed=False)


def _timing(samples_s: Sequence[float], graphed: bool) -> Timing:
    low, high = spread(samples_s)
    return Timing(median(samples_s) * 1e6, low * 1e6, high * 1e6, graphed)
