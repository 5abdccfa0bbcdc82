"""One step of a GPU benchmark, and what it may assume: the device, the size, the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..rows import Row


@dataclass(frozen=True)
class Settings:
    """Settings that every case is told. Times are those of time.time().

    quick      sizes are tiny, as they always are on a CPU
    deadline   when to be done
    spawned    when this process was started; `cold`: with no compiled kernels kept from before
    fa3        path of a library that registers FlashAttention 3's operators, if none is importable
    without    peers to leave alone; `announce` is called with a peer's name before it is tried, since it may hang
    """

    device: str
    quick: bool = False
    deadline: float = float("inf")
    spawned: float = 0.0
    cold: bool = False
    fa3: str | None = None
    without: frozenset[str] = frozenset()
    announce: Callable[[str], None] = lambda peer: None

    @property
    def tiny(self) -> bool:
        return self.quick or self.device == "cpu"

    @property
    def dtype_name(self) -> str:
        return "float32" if self.device == "cpu" else "bfloat16"

    def left_s(self) -> float:
        return self.deadline - time.time()


@dataclass(frozen=True)
class Case:
    """A piece of work that gives rows, in the order of its group. `estimate_s`: what it takes at most, usually."""

    label: str
    run: Callable[[], Iterable[Row]]
    estimate_s: float = 1.5

    def takes_s(self, settings: Settings) -> float:
        return min(self.estimate_s, 2.0) if settings.tiny else self.estimate_s
