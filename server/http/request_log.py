"""A line of JSON for each request, written to standard error beside the event loop."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TextIO

import msgspec

from ...runtime.client.lines import LineWriter


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Line of the log that tells of one request.

    key              the name of the API key; "" without one
    status           of the answer; 499 if the client left before there was one
    error            code of the error with which it ended, which a stream may although its status is 200; "" if none
    first_s          until the answer began; 0 if it never did
    seconds          until it ended
    """

    id: str
    key: str
    method: str
    path: str
    status: int
    error: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_s: float
    seconds: float


class _Dropped(msgspec.Struct, frozen=True):
    dropped_lines: int


class RequestLog:
    """Writes a line for each request, or drops it rather than wait."""

    def __init__(self, target: TextIO | None = None) -> None:
        """`target` is standard error if it is None."""
        self._lines = LineWriter(target, dropped=lambda count: _json(_Dropped(count)))

    def write(self, line: Line) -> None:
        self._lines.write(_json(line))


def _json(told: msgspec.Struct) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return msgspec.json.encode({"time": now, **msgspec.structs.asdict(told)}).decode()
