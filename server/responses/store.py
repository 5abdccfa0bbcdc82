"""The store of responses: by API key, so that no key sees another's, and within bounds for each.

Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from ..errors import ApiError

ENTRY_BYTES = 1024
ITEM_BYTES = 256
EVENT_BYTES = 64
"""Bytes of memory of a stored response, of the id of an item, and of an event, beside their content."""


class Stored:
    """A response with its input, both as JSON, and for one in the background the events that happened.

    previous    the id of the response that it follows on
    item_ids    of its input and output
    events      of a response in the background that was asked for as a stream; None: none are kept
    task        makes the response, in the background; None: it is over, or was never in the background
    news        set, and replaced, when something has changed
    """

    def __init__(
        self,
        response_id: str,
        *,
        previous: str | None,
        input: bytes,
        response: bytes,
        item_ids: tuple[str, ...],
        background: bool = False,
        events: list[bytes] | None = None,
    ) -> None:
        self.id = response_id
        self.previous = previous
        self.input = input
        self.response = response
        self.item_ids = item_ids
        self.background = background
        self.events = events
        self.task: asyncio.Task[None] | None = None
        self.news = asyncio.Event()
        self.used_at = 0.0

    @property
    def num_bytes(self) -> int:
        """Its memory, without that of the events."""
        return ENTRY_BYTES + len(self.input) + len(self.response) + ITEM_BYTES * len(self.item_ids)

    def tell(self) -> None:
        """Wakes those who wait for news."""
        self.news.set()
        self.news = asyncio.Event()


class _Shelf:
    """The responses of one key, the least recently used first."""

    def __init__(self) -> None:
        self.stored: dict[str, Stored] = {}
        self.sizes: dict[str, int] = {}
        self.places: dict[str, str] = {}  # items to responses
        self.num_bytes = 0

    def add(self, stored: Stored) -> None:
        self.stored[stored.id] = stored
        self.resize(stored, stored.num_bytes)
        self.places.update(dict.fromkeys(stored.item_ids, stored.id))

    def resize(self, stored: Stored, num_bytes: int) -> None:
        self.num_bytes += num_bytes - self.sizes.get(stored.id, 0)
        self.sizes[stored.id] = num_bytes

    def remove(self, response_id: str) -> Stored:
        stored = self.stored.pop(response_id)
        self.num_bytes -= self.sizes.pop(response_id)
        for item_id in stored.item_ids:
            if self.places.get(item_id) == response_id:
                del self.places[item_id]
        return stored

    def touch(self, stored: Stored, now: float) -> None:
        stored.used_at = now
        self.stored[stored.id] = self.stored.pop(stored.id)

    def idle(self) -> Iterator[Stored]:
        """Yields those that are over, the least recently used first."""
        return (stored for stored in self.stored.values() if stored.task is None)


class Store:
    """Keeps responses for `ttl_s` after their last use: for each key `max_count`, which take `max_bytes`.

    What is too much goes from the least recently used on; of a conversation that is its end. Nothing goes while it is
    being made.
    """

    def __init__(
        self, *, max_bytes: int, max_count: int, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_bytes = max_bytes
        self.max_count = max_count
        self._ttl_s = ttl_s
        self._clock = clock
        self._shelves: dict[str, _Shelf] = {}

    def put(self, key: str, stored: Stored) -> bool:
        """Keeps a response, or what has become of one; returns false if there is no room for it."""
        self._expire()
        shelf = self._shelves.setdefault(key, _Shelf())
        if stored.id in shelf.stored:
            shelf.remove(stored.id)
        if not self._make_room(shelf, stored.num_bytes, 1):
            return False
        stored.used_at = self._clock()
        shelf.add(stored)
        return True

    def grow(self, key: str, stored: Stored, event: bytes) -> None:
        """Adds an event to a response that keeps its events; if there is no room for it, the response keeps none."""
        if stored.events is None:
            return
        shelf, num_bytes = self._shelves.get(key), len(event) + EVENT_BYTES
        if shelf is None or stored.id not in shelf.stored:  # it was deleted, and those who follow it hear of the end
            stored.events.append(event)
        elif self._make_room(shelf, num_bytes, 0):
            stored.events.append(event)
            shelf.resize(stored, shelf.sizes[stored.id] + num_bytes)
        else:
            stored.events = None
            shelf.resize(stored, stored.num_bytes)
        stored.tell()

    def settle(self, key: str, stored: Stored, response: bytes, item_ids: tuple[str, ...]) -> None:
        """Takes what a response in the background has become; one that is larger than its room is dropped."""
        stored.task = None
        shelf = self._shelves.get(key)
        is_kept = shelf is not None and stored.id in shelf.stored
        num_bytes = shelf.sizes[stored.id] - stored.num_bytes if shelf is not None and is_kept else 0  # of the events
        if shelf is not None and is_kept:
            shelf.remove(stored.id)
        stored.response, stored.item_ids = response, item_ids
        if shelf is not None and is_kept and self._make_room(shelf, stored.num_bytes + num_bytes, 1):
            shelf.add(stored)
            shelf.resize(stored, stored.num_bytes + num_bytes)
            stored.used_at = self._clock()
        stored.tell()

    def get(self, key: str, response_id: str) -> Stored:
        """Returns a response of the key's. Raises ApiError: there is none."""
        stored = self._find(key, response_id)
        if stored is None:
            message = f"Response with id {response_id[:100]!r} not found."
            raise ApiError(404, "response_not_found", message, param="response_id")
        self._shelves[key].touch(stored, self._clock())
        return stored

    def drop(self, key: str, response_id: str) -> Stored:
        """Removes a response of the key's and returns it. Raises ApiError: there is none."""
        self.get(key, response_id)
        return self._shelves[key].remove(response_id)

    def conversation(self, key: str, response_id: str | None) -> list[Stored]:
        """Returns a response and all that it follows on, the oldest first; none if the id is None.

        Raises:
            ApiError: one of them is not there, or not over.
        """
        found: list[Stored] = []
        while response_id is not None:
            stored = self._find(key, response_id)
            if stored is None:
                told = f", which {found[-1].id} follows on," if found else ""
                message = f"Previous response with id {response_id[:100]!r}{told} not found."
                raise ApiError(400, "previous_response_not_found", message, param="previous_response_id")
            if stored.task is not None:
                message = f"The response {stored.id} is not over: wait until it is, or cancel it."
                raise ApiError(400, "response_in_progress", message, param="previous_response_id")
            found.append(stored)
            response_id = stored.previous
        for stored in found:  # the oldest last, so that it is the last to go
            self._shelves[key].touch(stored, self._clock())
        return found[::-1]

    def holders(self, key: str, item_ids: list[str]) -> dict[str, Stored]:
        """Returns the responses that hold these items, as far as there are any."""
        shelf = self._shelves.get(key)
        places = {} if shelf is None else shelf.places
        found = {item_id: self._find(key, places[item_id]) for item_id in item_ids if item_id in places}
        return {item_id: stored for item_id, stored in found.items() if stored is not None and stored.task is None}

    def num_bytes(self, key: str) -> int:
        return self._shelves[key].num_bytes if key in self._shelves else 0

    def _find(self, key: str, response_id: str) -> Stored | None:
        self._expire()
        shelf = self._shelves.get(key)
        return None if shelf is None else shelf.stored.get(response_id)

    def _make_room(self, shelf: _Shelf, num_bytes: int, count: int) -> bool:
        """Removes what is idle until so much more has room; returns false if it has none even then."""
        if num_bytes > self.max_bytes:
            return False
        while shelf.num_bytes + num_bytes > self.max_bytes or len(shelf.stored) + count > self.max_count:
            oldest = next(shelf.idle(), None)
            if oldest is None:
                return False
            shelf.remove(oldest.id)
        return True

    def _expire(self) -> None:
        limit = self._clock() - self._ttl_s
        for key, shelf in list(self._shelves.items()):
            while (oldest := next(shelf.idle(), None)) is not None and oldest.used_at < limit:
                shelf.remove(oldest.id)
            if not shelf.stored:
                del self._shelves[key]
