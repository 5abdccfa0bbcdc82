"""Responses while the model loads: the process is alive, but does not accept requests yet."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Self

from .anthropic.dialect import DIALECTS
from .errors import ApiError
from .http.dialect import find_dialect

MAX_HEAD_BYTES = 8 << 10
MAX_AT_ONCE = 256
"""Connections that are answered at a time; others wait, or are served by the server that follows."""
HEAD_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 0.2
"""Time at the end for clients that have connected and said nothing yet."""
RETRY_AFTER_S = 2.0
MAX_READS = 256
"""Parts of a body that are read, and dropped, so that no reset overtakes the answer."""

_ALIVE = b'{"status":"ok"}'
_NOT_YET = ApiError(503, "engine_starting", "The model is being loaded.", retry_after_s=RETRY_AFTER_S)


class LoadingServer:
    """Answers 200 to `/livez` and 503 to all else, on a thread, until it is closed. Each connection serves one request;
    those not accepted yet are left to the server that follows on the same port."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener.dup()
        self._listener.setblocking(False)
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="loading", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accepts no more, and returns when what was asked is answered."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self) -> None:
        with contextlib.closing(self._loop), self._listener:
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._loop.add_reader(self._listener, self._accept)
        await self._over.wait()
        self._loop.remove_reader(self._listener)
        if self._answering:
            await asyncio.wait(self._answering, timeout=CLOSE_TIMEOUT_S)
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the client has left, or there is no descriptor for it
            self._rest()
            return
        task = self._loop.create_task(_answer(connection))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        if len(self._answering) >= MAX_AT_ONCE:
            self._rest()

    def _rest(self) -> None:
        """Accepts nothing for a moment."""
        self._loop.remove_reader(self._listener)
        self._loop.call_later(0.1, self._go_on)

    def _go_on(self) -> None:
        if len(self._answering) >= MAX_AT_ONCE:
            self._rest()
        elif not self._over.is_set():
            self._loop.add_reader(self._listener, self._accept)


async def _answer(connection: socket.socket) -> None:
    """Reads the head of a request, and answers it."""
    loop = asyncio.get_running_loop()
    with connection, contextlib.suppress(OSError, TimeoutError):
        connection.setblocking(False)
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = b""
            while b"\r\n\r\n" not in head and len(head) < MAX_HEAD_BYTES:
                part = await loop.sock_recv(connection, 4096)
                if not part:
                    return
                head += part
            await loop.sock_sendall(connection, _response(head))
            connection.shutdown(socket.SHUT_WR)
            for _ in range(MAX_READS):
                if not await loop.sock_recv(connection, 65536):
                    break


def _response(head: bytes) -> bytes:
    path = head.partition(b"\r\n")[0].split(b" ")[1:2]
    if path and path[0].partition(b"?")[0] == b"/livez":
        status, body, more = b"200 OK", _ALIVE, {}
    else:
        dialect = find_dialect(path[0].partition(b"?")[0].decode("latin-1") if path else "", DIALECTS)
        status, body, more = b"503 Service Unavailable", dialect.body(_NOT_YET, ""), _NOT_YET.headers
    headers = {**more, "content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = (f"{name}: {value}\r\n".encode() for name, value in headers.items())
    return b"HTTP/1.1 %b\r\n%b\r\n%b" % (status, b"".join(lines), b"" if head.startswith(b"HEAD ") else body)
