"""Cache of compiled grammars within a limit of bytes, of recent refusals, and of compilations in progress."""

from __future__ import annotations

import time
from collections import OrderedDict
from concurrent.futures import Future
from functools import partial
from threading import RLock
from typing import Any
from weakref import WeakValueDictionary

from ..errors import CompileLateError, GrammarError
from ..matchers.interface import Grammar

ERROR_LIFE_S = 30.0
MAX_ERRORS = 1_000


class GrammarCache:
    """Grammars by key; the least recently used are dropped first. Thread-safe; hold `lock` for several operations.

    A dropped grammar is still found while it is in use.
    """

    def __init__(self, max_bytes: int) -> None:
        self.lock = RLock()
        self.num_bytes = 0
        self.num_compiled = 0
        self.num_hits = 0
        self._max_bytes = max_bytes
        self._grammars: OrderedDict[bytes, Grammar] = OrderedDict()
        self._in_use: WeakValueDictionary[bytes, Grammar] = WeakValueDictionary()
        self._errors: OrderedDict[bytes, tuple[float, GrammarError]] = OrderedDict()
        self._under_way: dict[bytes, Future[Grammar]] = {}

    def __len__(self) -> int:
        return len(self._grammars)

    @property
    def untouched(self) -> bool:
        """True if nothing has been compiled or is being compiled."""
        return not self.num_compiled and not self._under_way

    def share(self, key: bytes) -> tuple[Future[Grammar], bool]:
        """Returns the future of `key`, and True if it is new: then the caller must settle it."""
        with self.lock:
            found = self.get(key)
            future = self._under_way.get(key) if found is None else _settled(found)
            if future is not None:
                self.num_hits += 1
                return future, False
            future = self._under_way[key] = Future()
            future.set_running_or_notify_cancel()
        future.add_done_callback(partial(self._keep, key))
        return future, True

    def forget(self, future: Future[Any]) -> None:
        """Forgets `future`: its outcome is not cached."""
        with self.lock:
            self._under_way = {key: other for key, other in self._under_way.items() if other is not future}

    def get(self, key: bytes) -> Grammar | GrammarError | None:
        """Returns the cached grammar or error of `key`; None if there is none."""
        with self.lock:
            if key in self._grammars:
                self._grammars.move_to_end(key)
                return self._grammars[key]
            found = self._in_use.get(key)
            if found is not None:
                self.put(key, found)
                return found
            if key in self._errors:
                expires, error = self._errors[key]
                if time.monotonic() < expires:
                    return error
                del self._errors[key]
            return None

    def put(self, key: bytes, grammar: Grammar) -> None:
        """Caches `grammar` unless it alone is too large."""
        with self.lock:
            replaced = self._grammars.pop(key, None)
            self.num_bytes += grammar.num_bytes - (replaced.num_bytes if replaced is not None else 0)
            self._grammars[key] = self._in_use[key] = grammar
            while self.num_bytes > self._max_bytes:
                _, dropped = self._grammars.popitem(last=False)
                self.num_bytes -= dropped.num_bytes

    def put_error(self, key: bytes, error: GrammarError) -> None:
        """Caches a refusal for a while."""
        with self.lock:
            now = time.monotonic()
            self._errors.pop(key, None)
            self._errors[key] = (now + ERROR_LIFE_S, error.with_traceback(None))
            while len(self._errors) > MAX_ERRORS or next(iter(self._errors.values()))[0] <= now:
                self._errors.popitem(last=False)

    def _keep(self, key: bytes, done: Future[Grammar]) -> None:
        error = done.exception()
        with self.lock:
            if self._under_way.get(key) is not done:  # it was forgotten
                return
            del self._under_way[key]
            if error is None:
                self.num_compiled += 1
                self.put(key, done.result())
            elif isinstance(error, GrammarError) and not isinstance(error, CompileLateError):
                self.put_error(key, error)


def _settled(found: Grammar | GrammarError) -> Future[Grammar]:
    future: Future[Grammar] = Future()
    if isinstance(found, GrammarError):
        future.set_exception(found)
    else:
        future.set_result(found)
    return future
