"""Whether the server takes new work, and whether it may finish what it has."""

from __future__ import annotations

import asyncio


class Lifecycle:
    """Serving, then draining, then expired. Only moves on. Changed and awaited on the event loop.

    num_running     requests that are being answered, but for those that look at the server itself
    """

    def __init__(self) -> None:
        self.draining = False
        self.num_running = 0
        self.expired = asyncio.Event()

    def drain(self) -> None:
        """New work is refused from now on. Safe in a signal handler."""
        self.draining = True

    def expire(self) -> None:
        """What still runs is stopped now."""
        self.draining = True
        self.expired.set()
