"""Large answers while they are sent: their bytes are shared between keys, so that no key's readers take all memory."""

from __future__ import annotations

from collections import Counter

from starlette.datastructures import Headers
from starlette.types import Message, Scope, Send

from ..errors import ApiError
from .protocol import PROBE_OF_ANSWER

PIECE_BYTES = 64 << 10
"""Bytes that are handed to a connection at a time. An answer of no more is not counted."""

MAX_BYTES = 256 << 20
"""Bound of all large answers together."""


class Unsent:
    """Bytes of large answers that their readers have not taken, by key.

    A key may have as many as are left to all: one alone takes half, of two that want all each has a third, and there is
    always room for another one (dynamic thresholds; Choudhury and Hahne, IEEE/ACM ToN 6(2), 1998).
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._of: Counter[str] = Counter()

    @property
    def num_bytes(self) -> int:
        return self._of.total()

    def hold(self, key: str, num_bytes: int) -> None:
        """Counts bytes of an answer. Raises ApiError if they are too many."""
        if self._of[key] + num_bytes > self.max_bytes - self.num_bytes:
            message = "Too much answer data is waiting to be read: read your pending answers, then try again."
            raise ApiError(503, "engine_overloaded", message, retry_after_s=1.0)
        self._of[key] += num_bytes

    def release(self, key: str, num_bytes: int) -> None:
        self._of[key] -= num_bytes
        if not self._of[key]:
            del self._of[key]


class Pieces:
    """Sends the messages of an answer, large ones in pieces, and counts what is left of them for `key`.

    Nothing else is sent between the pieces of one: the `scope` has no probe then, nor later if the rest is given up.
    """

    def __init__(self, unsent: Unsent, send: Send, scope: Scope) -> None:
        self.key = ""
        self._unsent = unsent
        self._send = send
        self._scope = scope
        self._num_held = 0

    async def send(self, message: Message) -> None:
        """Sends a message. Raises ApiError before anything of it is sent if it is too much for the key."""
        if message["type"] == "http.response.start":
            length = Headers(raw=message["headers"]).get("content-length", "0")
            self._hold(int(length))  # of an answer in one part: it is refused before its status is sent
        elif len(body := message.get("body", b"")) > PIECE_BYTES:
            await self._send_in_pieces(body, more_body=message.get("more_body", False))
            return
        await self._send(message)

    async def _send_in_pieces(self, body: bytes, *, more_body: bool) -> None:
        if not self._num_held:
            self._hold(len(body))
        probe = self._scope.pop(PROBE_OF_ANSWER, None)
        for start in range(0, len(body), PIECE_BYTES):
            end = min(start + PIECE_BYTES, len(body))
            more = more_body or end < len(body)
            await self._send({"type": "http.response.body", "body": body[start:end], "more_body": more})
            self._release(end - start)
        if probe is not None:
            self._scope[PROBE_OF_ANSWER] = probe

    def close(self) -> None:
        """Forgets what was not sent."""
        self._release(self._num_held)

    def _hold(self, num_bytes: int) -> None:
        if num_bytes > PIECE_BYTES:
            self._unsent.hold(self.key, num_bytes)
            self._num_held += num_bytes

    def _release(self, num_bytes: int) -> None:
        num_bytes = min(num_bytes, self._num_held)
        if num_bytes:
            self._num_held -= num_bytes
            self._unsent.release(self.key, num_bytes)
