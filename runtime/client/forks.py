"""Children forked from a process, by `multiprocessing` for one: they have none of its threads, and share its
connections, which only one of the two can use."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from ..protocol.errors import EngineStoppedError


class Forkable(Protocol):
    """Owner of threads, processes or connections."""

    def after_fork(self) -> None:
        """Parts with what is the parent's without touching it. Called in the child, which has one thread by then."""


class _Forks:
    """Tells the owners of this process, as far as they still exist, that they are in a child now."""

    def __init__(self) -> None:
        self._owners: weakref.WeakSet[Forkable] = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._tell)

    def watch(self, owner: Forkable) -> None:
        self._owners.add(owner)

    def _tell(self) -> None:
        for owner in list(self._owners):
            owner.after_fork()


forks = _Forks()


def not_ours() -> EngineStoppedError:
    """Returns the error for a child that uses its parent's engine."""
    error = EngineStoppedError(
        "the engine belongs to the process from which this one was forked: create it here, after the fork, or start "
        'this process by the spawn method, as multiprocessing.get_context("spawn") does'
    )
    error.may_retry = False
    return error
