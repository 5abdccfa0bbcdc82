"""Threads of the CPU library."""

from __future__ import annotations

import weakref

from .library import Library


class Threads:
    """`num` threads, the caller's included; they sleep while nothing is computed. One call at a time."""

    def __init__(self, library: Library, num: int) -> None:
        self.num = num
        self.address = library.pool_create(num)
        if not self.address:
            raise MemoryError("the CPU library could not start its threads")
        end = weakref.finalize(self, library.pool_destroy, self.address)
        end.atexit = False  # another thread may be in a pass when the process ends
