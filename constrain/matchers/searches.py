"""Ways to the end of one constraint's words: those that take long are sought once, for all who ask from there."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import SearchLateError
from .completion import Completer
from .grammar_state import GrammarState

MAX_KNOWN = 256
SLOW_S = 0.002


@dataclass(slots=True)
class _Place:
    """What is known of a place: a way to the end, or a budget for which none was found. Who seeks holds `lock`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    way: list[int] | None = None
    in_vain: int = -1

    def knows(self, max_tokens: int) -> bool:
        return (self.way is not None and len(self.way) <= max_tokens) or max_tokens <= self.in_vain


class Searches:
    """Thread-safe. Searches are begun in haste only while they are known to be quick."""

    def __init__(self, completer: Completer) -> None:
        self._completer = completer
        self._slow = False
        self._lock = threading.Lock()
        self._places: OrderedDict[tuple[int, ...], _Place] = OrderedDict()

    def find(
        self, taken: Sequence[int], state: GrammarState, max_tokens: int, patience_s: float | None
    ) -> list[int] | None:
        """At most `max_tokens` tokens that complete the word from `state`, to which the tokens `taken` led.

        Raises SearchLateError if that takes, or is likely to take, longer than `patience_s`.
        """
        if patience_s is None:
            return self._find(taken, state, max_tokens)
        if self._slow:
            raise SearchLateError("the search for a way to the end takes longer")
        try:
            return self._completer.search(state, max_tokens, patience_s)
        except SearchLateError:
            self._slow = True
            raise

    def _find(self, taken: Sequence[int], state: GrammarState, max_tokens: int) -> list[int] | None:
        place = self._place(tuple(taken))
        with place.lock:
            if not place.knows(max_tokens):
                started = time.monotonic()
                way = self._completer.search(state, max_tokens)
                self._slow = time.monotonic() - started > SLOW_S
                if way is None:
                    place.in_vain = max_tokens
                else:
                    place.way = way
            return list(place.way) if place.way is not None and len(place.way) <= max_tokens else None

    def _place(self, key: tuple[int, ...]) -> _Place:
        with self._lock:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
            if len(self._places) > MAX_KNOWN:
                self._places.popitem(last=False)
            return place
