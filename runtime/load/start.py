"""Starts an engine by the shortest way: torch is loaded only where something is for it to compute."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..engine.engine import Engine
from ..protocol.config import EngineConfig
from .load_native import load_gguf_engine

Progress = Callable[[str, int, int], None]

SWITCH_INTERVAL_S = 0.001


def start_engine(config: EngineConfig, progress: Progress | None = None) -> Engine:
    """Loads the model that `config` names and returns an engine ready to step.

    `progress(what, done, total)` is called while it loads.

    Raises:
        ModelError: the model's files cannot be used, or its cache does not fit into memory.
    """
    # Threads that answer clients, or fill masks, need not wait longer for the one that steps.
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
    with _without_collections():
        engine = load_gguf_engine(config, progress)
        if engine is None:
            from .load_torch import load_engine  # noqa: PLC0415  pulls torch

            engine = load_engine(config, progress)
    return engine


@contextmanager
def _without_collections() -> Iterator[None]:
    """Stops the collection of garbage: what is loaded is hundreds of thousands of objects, none of which is any."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
