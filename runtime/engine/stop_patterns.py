"""Stop patterns of an engine: compiled on a separate thread, tenants in turn; the search budget of each key."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from functools import partial

from ...constrain.workers.turns import FairThreads
from ...radix import tenant_of
from ..protocol.errors import OverloadedError, RequestError
from ..protocol.stop_pattern import SearchBudget, StopPattern

MAX_KEPT = 256
MAX_KEYS = 1024


class StopPatterns:
    """Compiles each pattern once and keeps the most recently used ones, refused ones too. Not thread-safe."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[tuple[str, str], Future[StopPattern]] = OrderedDict()  # by tenant and source
        self._budgets: OrderedDict[str, SearchBudget] = OrderedDict()
        self._thread = FairThreads("stop-patterns", 1)

    def compile(self, source: str, tenant: str = "") -> Future[StopPattern]:
        """Returns a future of the pattern; its `result` raises RequestError if the pattern cannot be used.

        Raises:
            OverloadedError: no thread is available to compile it.
        """
        place = tenant, source
        found = self._compiled.get(place)
        if found is None or _broke_down(found):
            try:
                found = self._thread.submit(tenant, partial(StopPattern, source))
            except RuntimeError as error:
                raise OverloadedError(f"the machine has no thread left to compile stop_regex: {error}") from error
            self._compiled[place] = found
            if len(self._compiled) > MAX_KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(place)
        return found

    def abandon(self, pattern: Future[StopPattern]) -> None:
        """Cancels the compilation of a pattern that is no longer needed, unless it has begun."""
        if pattern.cancel():
            self._compiled = OrderedDict((place, kept) for place, kept in self._compiled.items() if kept is not pattern)

    def budget(self, namespace: str) -> SearchBudget:
        """Returns the search budget of the key that a namespace belongs to."""
        key = tenant_of(namespace)
        found = self._budgets.get(key)
        if found is None:
            found = self._budgets[key] = SearchBudget()
            if len(self._budgets) > MAX_KEYS:
                self._budgets.popitem(last=False)
        self._budgets.move_to_end(key)
        return found

    def close(self) -> None:
        self._thread.close()


def _broke_down(pattern: Future[StopPattern]) -> bool:
    """Returns true if it could not be compiled for a reason that is not its own, such as a lack of memory."""
    return pattern.done() and not isinstance(pattern.exception(), RequestError | None)
