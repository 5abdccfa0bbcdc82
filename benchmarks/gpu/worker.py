"""A family of kernels in a process of its own, which `gpu.py` starts and asks for one row after the other.

A kernel that reads out of bounds ends the process's CUDA context, and a peer may crash: that costs the family's rows
from there on, and no others.
"""

from __future__ import annotations

import gc
import importlib
import time
import traceback
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from .cases.problem import Problem, Settings, measure
from .rows import Row


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
    found: list[Problem[Any]] = importlib.import_module(f".cases.{module}", __package__).FAMILIES[argument](settings)
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
