"""Times launches on a device: CUDA graphs between events, inputs rotated so that no cache serves them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

Call = Callable[[], object]

COLD_BYTES = 200e6
"""Inputs rotate over more than this: three times the largest L2 cache in use."""

_MAX_SETS = 64
_GRAPH_S = 3e-3  # a replay holds at least so much work, beside which its own start is small
_MAX_LAUNCHES = 512


def num_input_sets(num_bytes: float, *, quick: bool) -> int:
    """Number of input sets, of so many bytes each, to rotate over. Tiny ones stay in the cache, as in a model."""
    return 2 if quick else max(1, min(_MAX_SETS, math.ceil(COLD_BYTES / num_bytes)))


def time_calls(calls: Sequence[Call], *, device: str, target_s: float = 0.12) -> list[float]:
    """Seconds of one call, repeatedly, taking turns among `calls`, which do the same on different inputs."""
    if torch.device(device).type != "cuda":  # a few by the host's clock: enough to see that the path works
        return [_on_host(call) for call in [*calls, *calls][:4]]
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


def _on_host(call: Call) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


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
