"""Messages between the engine process and its client: MessagePack frames over a socket pair.

A frame is a head (`_head`) and a message. Each stream has a key that the client chooses.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import socket
import threading
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import msgspec

from ...constrain.errors import GrammarTooComplexError
from ...constrain.spec import GrammarSpec, excess_in, spec_chars
from ...constrain.workers.decoders import msgpack_decoder
from ..protocol.config import EngineConfig
from ..protocol.counters import EngineStats, ModelInfo
from ..protocol.errors import ErrorInfo, RequestError
from ..protocol.program import Program, ProgramEvent
from ..protocol.request import Request, RequestOutput

logger = logging.getLogger("bough.client")

HEAD_BYTES = 8
MAX_FRAME_BYTES = 1 << 30
MAX_HEAD_BYTES = 64
"""Most bytes of the first two fields of a message: its tag, and the key of its stream."""

ROOM_BYTES = 256 << 10
SHARED_CHARS = 4096
"""Size from which a constraint is sent only once for consecutive requests with the same object, as from one body."""

ROOM_TIMEOUT_S = 0.25
"""Seconds that the engine's steps wait for a peer that has stopped reading: once, however many messages are queued."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first message: the configuration of the engine to load."""

    config: EngineConfig


class Constrain(msgspec.Struct, frozen=True, tag="constrain"):
    """A large constraint, sent once for the requests that follow."""

    number: int
    grammar: GrammarSpec


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """A request. With `constraint`, its grammar is that of the last Constrain, which has this number."""

    key: int
    request: Request
    constraint: int | None = None


class ToolInfo(msgspec.Struct, frozen=True):
    """Description of a tool that the client runs, as the engine needs it."""

    name: str
    timeout_s: float | None
    max_chars: int
    parameters: dict[str, Any] | None
    description: str = ""


class RunProgram(msgspec.Struct, frozen=True, tag="run"):
    key: int
    program: Program
    tools: tuple[ToolInfo, ...] = ()


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result"):
    """Result of the tool call `call`, or the error with which it failed."""

    call: int
    text: str = ""
    error: ErrorInfo | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Drops a program; with the `key` of a submission (0: none), only while that is in flight."""

    program_id: str
    key: int = 0


class AskStats(msgspec.Struct, frozen=True, tag="ask_stats"):
    key: int


class AskFlush(msgspec.Struct, frozen=True, tag="ask_flush"):
    key: int


ToEngine = Start | Constrain | Submit | RunProgram | ToolResult | Abort | Drop | AskStats | AskFlush


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    what: str
    done: int
    total: int


class Located(msgspec.Struct, frozen=True, tag="located"):
    """Path of the model's file or folder, sent once all its files are present."""

    path: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: ModelInfo


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    error: ErrorInfo


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """A heartbeat.

    stalled_s     seconds for which the current step has lasted; 0 if there is none
    expected_s    expected seconds of its passes
    """

    stalled_s: float = 0.0
    expected_s: float = 0.0


class Output(msgspec.Struct, frozen=True, tag="output"):
    key: int
    output: RequestOutput


class Event(msgspec.Struct, frozen=True, tag="event"):
    key: int
    event: ProgramEvent


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    key: int
    stats: EngineStats


class Flushed(msgspec.Struct, frozen=True, tag="flushed"):
    key: int
    done: bool


class UseTool(msgspec.Struct, frozen=True, tag="use_tool"):
    """Calls a tool of the client for the program `key`; the engine waits for a ToolResult with this `call`."""

    key: int
    call: int
    tool: str
    arguments: dict[str, Any]


class LeaveTool(msgspec.Struct, frozen=True, tag="leave_tool"):
    """Tells the client that the engine no longer waits for this call."""

    call: int


FromEngine = Loading | Located | Ready | LoadFailed | Beat | Output | Event | Stats | Flushed | UseTool | LeaveTool


class _Head(msgspec.Struct):
    type: str
    key: int = 0


class Unreadable(NamedTuple):
    """A message that cannot be decoded as its type: its tag and the key of its stream ("" and 0 if these cannot be read
    either), and the reason."""

    kind: str
    key: int
    reason: str


class FrameWriter:
    """Sends messages from a separate thread, several per system call when they come faster than they are sent.

    `put` never blocks. The queue is bounded by the live streams, and the peer reads all the time; but a program can
    produce events faster than they are read. As backpressure, the sender of program events calls `wait_for_room`, so
    that one program's events do not delay those of others.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._num_bytes = 0
        self._ended = False
        self._stalled = False  # nothing has been sent since a wait for room timed out
        self._sent = threading.Condition()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._constraining = threading.Lock()
        self._constraint: tuple[int, GrammarSpec | None] = 0, None  # the one that was sent last, and its number
        self._measured: tuple[GrammarSpec | None, int] = None, 0  # the last one, and its characters
        self._thread = threading.Thread(target=self._run, name="bough-writer", daemon=True)
        self._thread.start()

    def put(self, message: msgspec.Struct) -> None:
        """Queues `message` to be sent; after `close`, or once the peer is gone, it is lost.

        Raises:
            RequestError: the message cannot be encoded, such as text that is not Unicode, or exceeds MAX_FRAME_BYTES.
        """
        try:
            body = msgspec.msgpack.encode(message)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            place = _unsendable(message)
            reason = f"{place or 'it'} cannot be sent between processes: {error}"
            raise RequestError(reason, param=place or None) from error
        if len(body) > MAX_FRAME_BYTES:
            raise RequestError(f"it has {len(body)} bytes, more than can be sent between processes")
        with self._sent:
            if self._ended:
                return
            self._num_bytes += HEAD_BYTES + len(body)
        self._queue.put(body)

    def submit(self, key: int, request: Request) -> None:
        """Queues a request, after its constraint if that is large and not the same object as the last one sent.

        Raises:
            RequestError: its constraint is too long to be compiled; or see `put`.
        """
        grammar = request.grammar
        num_chars = self._num_chars(grammar)
        if (excess := excess_in(num_chars)) is not None:
            raise RequestError(excess, code=GrammarTooComplexError.code, param="grammar")
        if grammar is None or num_chars <= SHARED_CHARS:
            self.put(Submit(key, request))
            return
        with self._constraining:
            number, last = self._constraint
            if last is not grammar:
                number += 1
                self.put(Constrain(number, grammar))
                self._constraint = number, grammar
            self.put(Submit(key, msgspec.structs.replace(request, grammar=None), number))

    def _num_chars(self, grammar: GrammarSpec | None) -> int:
        """Counts the characters of a constraint, once for the requests of one body, which share it."""
        last, num_chars = self._measured
        if grammar is not last:
            num_chars = spec_chars(grammar)
            self._measured = grammar, num_chars
        return num_chars

    def wait_for_room(self) -> None:
        """Waits until at most ROOM_BYTES are queued, for up to ROOM_TIMEOUT_S; after a timeout, not again until
        something is sent."""
        with self._sent:
            if not self._stalled:
                has_room = self._sent.wait_for(lambda: self._ended or self._num_bytes <= ROOM_BYTES, ROOM_TIMEOUT_S)
                self._stalled = not has_room

    def close(self, timeout_s: float = 5.0) -> None:
        """Sends what is queued, as far as the peer reads it within `timeout_s`, and ends the thread."""
        self._queue.put(None)
        self._thread.join(timeout=timeout_s)

    def _run(self) -> None:
        try:
            self._send_all()
        except OSError:
            pass  # the peer is gone; the reader notices
        except BaseException:  # such as a lack of memory: both ends must see a broken link, not a silent one
            logger.exception("messages to the other process cannot be sent any more")
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        finally:
            with self._sent:
                self._ended = True
                self._sent.notify_all()

    def _send_all(self) -> None:
        numbers = itertools.count()
        while True:
            frames = [self._queue.get()]
            while len(frames) < 256 and not self._queue.empty():
                frames.append(self._queue.get())
            data = b"".join(_head(len(body), next(numbers)) + body for body in frames if body is not None)
            self._connection.sendall(data)
            with self._sent:
                self._num_bytes -= len(data)
                self._stalled = False
                self._sent.notify_all()
            if None in frames:
                return


def _head(length: int, number: int) -> bytes:
    """Returns the head of a message: its length, and its number modulo 2^32, which reveals lost messages."""
    return length.to_bytes(4, "little") + (number & 0xFFFFFFFF).to_bytes(4, "little")


def _unsendable(message: msgspec.Struct) -> str:
    """Returns the path to a value of a message that cannot be encoded, as "sampling.seed"; "" if none is found."""
    stack: list[tuple[str, Any]] = [("", message)]
    while stack:
        place, value = stack.pop()
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            break
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                break
        elif isinstance(value, msgspec.Struct):
            stack += [(f"{place}.{name}", getattr(value, name)) for name in value.__struct_fields__]
        elif isinstance(value, dict):
            stack += [(f"{place}.{str(name)[:100]}", item) for name, item in value.items()]
        elif isinstance(value, tuple | list):
            stack += [(f"{place}[{index}]", item) for index, item in enumerate(value)]
    else:
        return ""
    return place.removeprefix(".").removeprefix("request.").removeprefix("program.")


def _about(body: bytes, heads: msgspec.msgpack.Decoder[_Head]) -> tuple[str, int]:
    """Returns the tag and the key of a message that cannot be decoded; "" and 0 if these cannot be either.

    The decoder visits all fields, even those that it skips, and fails if one is nested too deeply. Such a field comes
    after the first two, which are then decoded separately.
    """
    with contextlib.suppress(msgspec.ValidationError, RecursionError):
        head = heads.decode(body)
        return head.type, head.key
    for length in range(2, min(len(body), MAX_HEAD_BYTES) + 1):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            head = heads.decode(b"\x82" + body[1:length])  # a map of two fields
            return head.type, head.key
    return "", 0


def read_frames(
    connection: socket.socket, types: Any, refuse: Callable[[Unreadable], None] | None = None
) -> Generator[Any, None, None]:
    """Yields messages of the union `types` until the peer closes or dies.

    A message with a value of the wrong type, or nested too deeply, goes to `refuse` if that is given.

    Raises:
        msgspec.DecodeError: a frame is not one of these messages, is too large, or follows one that is missing.
    """
    decoder, heads = msgpack_decoder(types), msgpack_decoder(_Head)
    with connection.makefile("rb") as stream, contextlib.suppress(ConnectionError):
        for number in itertools.count():
            head = stream.read(HEAD_BYTES)
            if len(head) < HEAD_BYTES:
                return
            length = int.from_bytes(head[:4], "little")
            if head != _head(length, number):
                raise msgspec.DecodeError(f"message {number} of the link is missing")
            if length > MAX_FRAME_BYTES:
                raise msgspec.DecodeError(f"a frame of {length} bytes is over the limit")
            body = stream.read(length)
            if len(body) < length:
                return
            try:
                message = decoder.decode(body)
            except (msgspec.ValidationError, RecursionError) as error:
                if refuse is None:
                    raise
                refuse(Unreadable(*_about(body, heads), str(error)))
            else:
                yield message
