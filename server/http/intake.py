"""Intake of HTTP messages before h11 parses them: passes on whole, checked heads and joined chunks.

h11 takes milliseconds for a few kilobytes of tiny chunks or headers, and seconds for a header of blanks that ends in a
character that it refuses. With this input its time is in proportion to the size. h11 also accepts a lone line feed as
the end of a line, which gateways in front of it may not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import ApiError
from .access import MAX_HEADER_BYTES, MAX_HEADERS

MAX_LINE_BYTES = 256
"""Length of the line before a chunk, extensions included."""
MAX_TRAILER_BYTES = 4 << 10
SPARE_BYTES = 16 << 10
"""Bytes of lines before chunks beyond a quarter of what is in them: 3,000 chunks of a byte, or any number of 24."""

_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BEFORE_CHUNK = re.compile(rb"\r\n([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n")


class Intake:
    """Bytes that have arrived and were not handed on. A head comes first, then its body, then the next head.

    left       bytes to come of the body, or of the chunk that is under way
    spare      four times the bytes that lines before chunks may yet have
    seen       bytes at the beginning that were looked at, of lines that have not all arrived; with what was found
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._left = 0
        self._spare = 0
        self._seen = 0
        self._num_lines = 0
        self._broken = False
        self._chunked = False
        self._trails = False

    def __len__(self) -> int:
        return len(self._held)

    def receive(self, data: bytes) -> None:
        self._held += data

    def rest(self) -> bytes:
        """Takes all that is left, which is of no message."""
        return self._take(len(self._held))

    def head(self) -> bytes:
        """Takes the head of a request; empty if it has not all arrived. Raises ApiError: it is refused."""
        end = self._look(MAX_HEADER_BYTES + 4)
        if self._seen > MAX_HEADER_BYTES + 4 or self._num_lines > MAX_HEADERS + 2:  # first line, empty line
            raise ApiError(413, "request_too_large", f"At most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes.")
        if self._broken:
            raise ApiError(400, "invalid_request", "The headers have a control character or an incomplete line ending.")
        return b"" if not end else self._take(end)

    def begin_body(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Has a body follow, as the headers of its request say, which h11 has found to be in order."""
        values = dict(headers)
        self._chunked, self._trails, self._left = b"transfer-encoding" in values, False, 0
        if self._chunked:
            self._spare = 4 * SPARE_BYTES
            self._held[:0] = b"\r\n"  # each chunk follows on the end of a line
        else:
            self._left = int(values.get(b"content-length", b"0"))

    def body(self) -> bytes:
        """Takes what there is of the body. Raises ApiError: its chunks are refused."""
        if self._chunked:
            return self._chunks()
        part = self._take(min(self._left, len(self._held)))
        self._left -= len(part)
        return part

    def _chunks(self) -> bytes:
        """Takes the chunks that there are as a single one, and the end without trailers."""
        held, place, parts = self._held, 0, list[bytearray]()
        while not self._trails:
            if self._left:
                part = held[place : place + self._left]
                parts.append(part)
                place += len(part)
                self._left -= len(part)
            if self._left or place == len(held):
                break
            if (found := _BEFORE_CHUNK.match(held, place, place + MAX_LINE_BYTES)) is None:
                if len(held) - place >= MAX_LINE_BYTES or held.find(b"\n", place + 2) >= 0 or held[place] != ord("\r"):
                    raise _bad_chunk()
                break
            self._left = int(found[1], 16)
            self._trails = self._left == 0
            place = found.end() - 2 * self._trails  # the end of the last line, too, is that of the trailers
        self._take(place)
        data = b"".join(parts)
        self._spare += len(data) - 4 * (place - len(data))
        if self._spare < 0:
            raise ApiError(400, "invalid_request", "The body is sent in chunks that are too small.")
        data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        return data + b"0\r\n\r\n" if self._trails and self._take_trailers() else data

    def _take_trailers(self) -> bool:
        """Drops the trailers; returns false if they have not all arrived."""
        end = self._look(MAX_TRAILER_BYTES)
        if self._seen > MAX_TRAILER_BYTES or self._broken:
            raise _bad_chunk()
        self._take(end)
        return end > 0

    def _look(self, most: int) -> int:
        """Looks at the lines that have arrived since it last did; returns where those before an empty line end, with
        that, within `most` bytes; 0: nowhere yet."""
        end = self._held.find(b"\r\n\r\n", max(self._seen - 3, 0), most) + 4
        end = end if end > 3 else 0
        start = self._seen - self._held.endswith(b"\r", 0, self._seen)
        lines = self._held[start : end or len(self._held)]
        self._seen = start + len(lines)
        self._num_lines += lines.count(b"\n")
        self._broken = self._broken or _is_broken(lines)
        return end

    def _take(self, num_bytes: int) -> bytes:
        taken = bytes(self._held[:num_bytes])
        del self._held[:num_bytes]
        if num_bytes:
            self._seen = self._num_lines = 0
            self._broken = False
        return taken


def _is_broken(lines: bytearray) -> bool:
    """Returns true if there is a control character, or a line feed or carriage return without the other."""
    num_ends = lines.count(b"\r\n")
    returns = lines.count(b"\r") - lines.endswith(b"\r")  # its line feed may come yet
    return lines.count(b"\n") != num_ends or returns != num_ends or _CONTROL.search(lines) is not None


def _bad_chunk() -> ApiError:
    return ApiError(400, "invalid_request", "The body's chunks are malformed (RFC 9112, 7.1).")
