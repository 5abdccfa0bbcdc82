"""Children forked from a process, by `multiprocessing` for one: they have none of its threads, and share its
connections, which only one of the two can use."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

from ..protocol.errors import EngineStoppedError


class _Forks:
    """Tells owners of threads, processes and connections, as far as they still exist, that they are in a child now."""

    def __init__(self) -> None:
        self._watching: set[weakref.WeakMethod[Callable[[], None]]] = set()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._tell)

    def watch(self, part: Callable[[], None]) -> None:
        """Has a method called in a child, which has one thread by then. It parts with what is the parent's without
        touching it."""
        self._watching.add(weakref.WeakMethod(part, self._watching.discard))

    def _tell(self) -> None:
        for watching in list(self._watching):
            if (part := watching()) is not None:
                part()


forks = _Forks()


def not_ours() -> EngineStoppedError:
    """Returns the error for a child that uses its parent's engine."""
    error = EngineStoppedError(
        "the engine belongs to the process from which this one was forked: create it here, after the fork, or start "
        'this process by the spawn method, as multiprocessing.get_context("spawn") does'
    )
    error.may_retry = False
    return error
