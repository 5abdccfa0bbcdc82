"""Passes as CUDA graphs: one for each size and kind, captured when it first runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch

logger = logging.getLogger("bough.engine")

Step = Callable[[], torch.Tensor]


class Replays(Protocol):
    """Runs a step again and again; the step reads and writes tensors that stay, and returns one of them.

    captures    a step is recorded the first time it runs, so that it pays to run it before it is needed
    """

    captures: bool

    def run(self, key: Hashable, step: Step) -> torch.Tensor:
        """Runs `step`, or what was captured of the first step with this key."""


class Eager:
    """Runs the step itself each time: where there are no graphs."""

    captures = False

    def run(self, key: Hashable, step: Step) -> torch.Tensor:
        return step()


class CudaGraphs:
    """Captures a step when its key is first seen, and replays it from then on.

    All graphs share one pool of memory, since they never run at the same time. A step that cannot be captured runs
    eagerly, and a warning says so.
    """

    captures = True

    def __init__(self) -> None:
        self._captured: dict[Hashable, tuple[torch.cuda.CUDAGraph, torch.Tensor] | None] = {}
        self._pool: Any = None  # a handle, once there is a graph

    def run(self, key: Hashable, step: Step) -> torch.Tensor:
        if key not in self._captured:
            # The step runs once outside: kernels are compiled and libraries set up then, which a capture must not see.
            result = step()
            self._captured[key] = self._capture(key, step, result)
            return result
        captured = self._captured[key]
        if captured is None:
            return step()
        graph, result = captured
        graph.replay()
        return result

    def _capture(
        self, key: Hashable, step: Step, result: torch.Tensor
    ) -> tuple[torch.cuda.CUDAGraph, torch.Tensor] | None:
        graph = torch.cuda.CUDAGraph()
        try:
            # What other threads of the process do on their own streams is no part of the step, and may go on.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step()
        except RuntimeError:
            logger.warning("the step %r cannot be captured as a graph and runs eagerly", key, exc_info=True)
            return None
        self._pool = graph.pool()
        return graph, result


def graph_sizes(most: int) -> list[int]:
    """Numbers of rows that graphs are made for, up to `most`: padding costs at most an eighth above 8 rows."""
    sizes = [size for size in (1, 2, 4, 8) if size < most]
    step = 8
    size = 16
    while size < most:
        sizes.append(size)
        step = 8 if size < 128 else 16 if size < 256 else 32
        size += step
    return [*sizes, most]
