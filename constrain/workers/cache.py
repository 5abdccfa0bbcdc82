"""Keeps compiled grammars within a bound of bytes, and refusals for a while."""

from __future__ import annotations

import time
from collections import OrderedDict
from weakref import WeakValueDictionary

from ..errors import GrammarError
from ..matchers.interface import Grammar

ERROR_LIFE_S = 30.0
MAX_ERRORS = 1_000


class GrammarCache:
    """Grammars by key, the least recently used dropped first. Not thread-safe.

    A grammar that was dropped is still found while somebody uses it.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._grammars: OrderedDict[bytes, Grammar] = OrderedDict()
        self._in_use: WeakValueDictionary[bytes, Grammar] = WeakValueDictionary()
        self._errors: OrderedDict[bytes, tuple[float, GrammarError]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._grammars)

    def get(self, key: bytes) -> Grammar | GrammarError | None:
        """What is known of `key`."""
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
        """Keeps `grammar`, if it is not too large by itself."""
        replaced = self._grammars.pop(key, None)
        self.num_bytes += grammar.num_bytes - (replaced.num_bytes if replaced is not None else 0)
        self._grammars[key] = self._in_use[key] = grammar
        while self.num_bytes > self._max_bytes:
            _, dropped = self._grammars.popitem(last=False)
            self.num_bytes -= dropped.num_bytes

    def put_error(self, key: bytes, error: GrammarError, life_s: float = ERROR_LIFE_S) -> None:
        """Keeps a refusal for `life_s`."""
        self._errors.pop(key, None)
        self._errors[key] = (time.monotonic() + life_s, error.with_traceback(None))
        if len(self._errors) > MAX_ERRORS:
            self._errors.popitem(last=False)
