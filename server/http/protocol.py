"""HTTP protocol of connections: limited in number by descriptors, in time for slow senders; some are half closed."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import math
import resource
import select
import termios
import time
from array import array
from collections import Counter
from functools import partial
from typing import Any, ClassVar, cast

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from ..errors import ApiError
from .intake import Intake
from .table import CLAIM, LEFT, ConnectionTable

RESERVED_FILES = 64
"""Descriptors that are left for all else: the engine, tools, files."""
FEWEST = 8
LOG_EVERY_S = 60.0
READ_BYTES = 16 << 10
"""Bytes that are read of a connection, before others have their turn."""
ENDED = getattr(select, "POLLRDHUP", 0)
"""Event that tells, where nothing is read, that a client has ended its side. Only Linux has it."""
PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Interim answer, which clients skip (RFC 9110, 15.2.1)."""
PROBE_OF_ANSWER = "bough.probe"
"""Key of a request's scope: what may be sent in the middle of its answer, between two parts, and means nothing."""
LOOK_EVERY_S = 0.05
SLOWEST = 2 << 10
"""Bytes of what waits that a client takes in a second of the time for sending, if there are so many."""


class _Rarely(logging.Filter):
    """Lets each warning pass once in LOG_EVERY_S, with the number of those since: clients cause them as they like."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[str, float] = {}
        self._since: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        said, now = str(record.msg), time.monotonic()
        if now - self._passed.get(said, -math.inf) < LOG_EVERY_S:
            self._since[said] += 1
            return False
        self._passed[said] = now
        if num_more := self._since.pop(said, 0):
            record.msg = f"{said} ({num_more} more since it was last told)"
        return True


logger = logging.getLogger("bough.server.connections")
"""The log of connections, and of what uvicorn finds wrong with their requests."""
logger.addFilter(_Rarely())


def connection_limit() -> int:
    """The connections that this process has descriptors for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(soft - RESERVED_FILES, FEWEST)


class _Flow(FlowControl):
    """Flow control under which nothing is written to a connection that is lost: asyncio would warn of it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._paused = False
        super().__init__(transport)

    @property
    def write_paused(self) -> bool:
        return self._paused or self._transport.is_closing()

    @write_paused.setter
    def write_paused(self, paused: bool) -> None:
        self._paused = paused

    async def drain(self) -> None:
        await asyncio.sleep(0)  # after which the protocol has heard of the loss
        await super().drain()


class _LastingTransport:
    """Transport of an answer: closing it waits for a client that is still sending its request."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.end()


def bounded_protocol(most: int, head_s: float, send_s: float) -> type[BoundedProtocol]:
    """Returns the protocol with a limit of connections, and of the times in which a request's headers arrive and
    something of an answer is taken."""

    class Protocol(BoundedProtocol):
        table = ConnectionTable(most)
        header_timeout_s = head_s
        send_timeout_s = send_s
        buffer = memoryview(bytearray(READ_BYTES))

    return Protocol


class BoundedProtocol(H11Protocol, asyncio.BufferedProtocol):
    """uvicorn's protocol within limits.

    Little is read at a time, and h11 sees a message when the one before it is done, as the intake hands it on.

    The time for headers counts from the first byte, for a new connection from its beginning. What a client still sends
    of a body after its answer counts as well.

    A client that takes less than SLOWEST bytes a second of what waits for it, or not all of that, in `send_timeout_s`
    is cut off. That is looked at where an answer waits for it, or is complete: until then the system and a buffer hold
    what it has not taken.

    A client that ends its side after a request may still wait for the answer, or be gone: both look the same (RFC 9293,
    3.6). It is sent an interim answer, or something without meaning if a stream has begun, which the system of one that
    is gone resets.
    """

    table: ClassVar[ConnectionTable[BoundedProtocol]]
    header_timeout_s: ClassVar[float]
    send_timeout_s: ClassVar[float]
    buffer: ClassVar[memoryview]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.logger = logger
        self._deadline: asyncio.TimerHandle | None = None
        self._half_closed = False
        self._sending: asyncio.TimerHandle | None = None
        self._intake = Intake()
        self._refused = False
        self._looking: asyncio.TimerHandle | None = None
        self._left: asyncio.Future[None] = self.loop.create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        if len(self.table) >= self.table.most and not self._displace():
            transport.abort()
            return
        self.table.enter(self)
        self._expect()

    def _displace(self) -> bool:
        """Closes a connection that rests, for a new one; returns false if there is none."""
        other = self.table.give_way(lambda each: not each.transport.get_write_buffer_size())
        if other is not None:
            other.transport.abort()
            return True
        logger.warning("all %d open connections are busy: new ones are closed", self.table.most)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.leave(self)
        self._left.set_result(None)
        self._settle()
        if self._sending is not None:
            self._sending.cancel()
        super().connection_lost(exc)
        self.cycle = self.scope = None  # type: ignore[assignment]  # they hold this: only collections would end it

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer of all connections: what is read is taken out before anything else happens."""
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._intake.receive(bytes(self.buffer[:nbytes]))
        self._hand_on()

    def _hand_on(self) -> None:
        """Gives h11 what has arrived of the message that is its turn."""
        try:
            while part := self._next_part():
                begins = self.conn.their_state is h11.IDLE
                self.data_received(part)
                if begins and self._answering:
                    self.table.begin(self)
                    self.cycle.transport = cast("asyncio.Transport", _LastingTransport(self))
                    scope = cast("dict[str, Any]", self.scope)
                    scope[CLAIM], scope[LEFT] = partial(self.table.claim, self), self._left
                if begins and self.conn.their_state is h11.SEND_BODY:
                    self._intake.begin_body(self.headers)
        except ApiError as error:
            self._refuse(error)
        if self._answering:
            self._settle()
        elif self._intake or self.conn.their_state is not h11.IDLE:
            self._expect()

    def _next_part(self) -> bytes:
        state = self.conn.their_state
        if self._refused or self.transport.is_closing():
            return b""
        if state is h11.IDLE:
            return self._intake.head()
        if state is h11.SEND_BODY:
            return self._intake.body()
        if state in (h11.MUST_CLOSE, h11.CLOSED, h11.ERROR):
            self._intake.rest()
        elif self._intake:  # the next request waits for the end of this one
            self.flow.pause_reading()
            self._look()
        return b""

    def end(self) -> None:
        """Closes the connection. While a body arrives only our side, and the rest is read in vain until the client ends
        its own: a reset could overtake the answer (RFC 9112, 9.6)."""
        if self.conn.their_state is not h11.SEND_BODY or self.transport.is_closing():
            self.transport.close()
        elif not self._refused:
            self._refused = True
            self.transport.write_eof()

    def cut_off(self) -> None:
        """Ends the connection if an answer has begun and is not complete; another one may still be told why."""
        if self._answering and self.cycle.response_started:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "invalid_request", msg))

    def _refuse(self, error: ApiError) -> None:
        """Answers what is no request, and reads the rest of it in vain, as `end` does."""
        self._refused = True
        self.table.rest(self)
        if self._answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body = error.body()
        headers = {**error.headers, "content-type": "application/json", "content-length": str(len(body))}
        answer = h11.Response(
            status_code=error.status,
            headers=list({**headers, "connection": "close"}.items()),
            reason=STATUS_PHRASES[error.status],
        )
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.write_eof()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Returns true if there is an answer to be sent yet."""
        if self._refused or not self._answering or self.cycle.more_body or self.scope["http_version"] == "1.0":
            return False
        probe: bytes | None = cast("dict[str, Any]", self.scope).get(PROBE_OF_ANSWER)
        if not self.cycle.response_started:
            self.transport.write(PROBE)
        elif probe is not None:
            self.transport.write(self.conn.send(h11.Data(data=probe)))
        self._half_closed = True
        self._look()
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

    def on_response_complete(self) -> None:
        self.timeout_keep_alive = self.table.keep_alive_s
        self.table.rest(self)
        super().on_response_complete()
        self._settle()
        self._hand_on()
        self._watch_sending()
        if self._half_closed and not self._answering:
            self.transport.close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.disconnected

    def _expect(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.header_timeout_s, self._give_up)

    def _settle(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _look(self) -> None:
        """Looks at once, and again and again as long as an answer is owed, if the client is gone: reading tells nothing
        of one that has ended its side, or has sent another request."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self.transport.is_closing() or not self._answering:
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), 0 if self._half_closed else ENDED)
        happened = poll.poll(0)
        if happened and (happened[0][1] != ENDED or not self.eof_received()):
            self.transport.abort()
        elif self._looking is None:
            self._looking = self.loop.call_later(LOOK_EVERY_S, self._look)

    def _watch_sending(self) -> None:
        """Looks from now on whether what waits to be sent grows less, as long as nothing is added."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        if self.transport.get_write_buffer_size():
            self._sending = self.loop.call_later(self.send_timeout_s, self._check_sending, self._num_unsent())

    def _check_sending(self, num_bytes: int) -> None:
        """Cuts the client off if it has taken too little of the `num_bytes` that waited."""
        self._sending = None
        if self.flow.write_paused or not self._answering:
            if self._num_unsent() > max(num_bytes - SLOWEST * self.send_timeout_s, 0):
                self.transport.abort()
            else:
                self._watch_sending()

    def _num_unsent(self) -> int:
        """Bytes that the client has not taken, those that the system keeps for it included."""
        queued = array("i", [0])
        with contextlib.suppress(OSError):  # not every system tells
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
        return self.transport.get_write_buffer_size() + queued[0]

    def _give_up(self) -> None:
        self._deadline = None
        if not self._answering:
            self.transport.abort()
