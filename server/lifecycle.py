"""Whether the server takes new work, and whether it may finish what it has."""

from __future__ import annotations

import asyncio


class Lifecycle:
    """Serving, then draining, then expired. Only moves on. Changed and awaited on the event loop."""

    def __init__(self) -> None:
        self.draining = False
        self.expired = asyncio.Event()

    def drain(self) -> None:
        """New work is refused from now on. Safe in a signal handler."""
        self.draining = True

    def expire(self) -> None:
        """What still runs is stopped now."""
        self.draining = True
        self.expired.set()
