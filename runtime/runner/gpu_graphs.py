"""CUDA graphs of passes: one for each size and kind, captured when it first runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch

logger = logging.getLogger("bough.engine")

Step = Callable[[], torch.Tensor]


class Replays(Protocol):
    """Runs a step repeatedly; the step reads and writes fixed tensors, and returns one of them.

    captures    a step is captured the first time it runs, so that it pays to run it before it is needed
    """

    captures: bool

    def run(self, key: Hashable, step: Step) -> torch.Tensor:
        """Runs `step`, or the capture of the first step with this key."""


class Eager:
    """Runs the step itself each time, where graphs are not supported."""

    captures = False

    def run(self, key: Hashable, step: Step) -> torch.Tensor:
        return step()


class CudaGraphs:
    """Captures a step when its key is first seen, and replays it from then on.

    All graphs share one memory pool, since they never run at the same time. A step that cannot be captured runs
    eagerly, with a warning.
    """

    captures = True

    def __init__(self) -> None:
        self._captured: dict[Hashable, tuple[torch.cuda.CUDAGraph, torch.Tensor] | None] = {}
        self._pool: Any = None  # a handle, once there is a graph

    def run(self, key: Hashable, step: Step) -> torch.Tensor:
        if key not in self._captured:
            # Runs the step once outside the capture, which must not include compilation and library initialisation.
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
            # Work of other threads on their own streams is not part of the step, and may continue.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step()
        except RuntimeError:
            logger.warning("the step %r cannot be captured as a graph and runs eagerly", key, exc_info=True)
            return None
        self._pool = graph.pool()
        return graph, result


def graph_sizes(most: int) -> list[int]:
    """Returns the numbers of rows of graphs, up to `most`: above 8 rows, padding costs at most an eighth."""
    sizes = [size for size in (1, 2, 4, 8) if size < most]
    step = 8
    size = 16
    while size < most:
        sizes.append(size)
        step = 8 if size < 128 else 16 if size < 256 else 32
        size += step
    return [*sizes, most]
