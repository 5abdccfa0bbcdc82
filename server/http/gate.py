"""Outermost middleware: admits callers within their limits, numbers and logs requests, turns failures into bodies."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TextIO

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...runtime.client.lines import LineWriter
from ...runtime.protocol.request import Usage
from ..config import ServerConfig
from ..errors import ApiError, ShuttingDownError, to_api_error
from ..metrics import ServerMetrics
from .access import ENDING_PATHS, PUBLIC_PATHS, SAFE_METHODS, Account, Accounts, Guard, Visit
from .answers import ErrorResponse, Pieces, Unsent, note_error
from .connection import ClientClosedError, Lifecycle
from .dialect import Dialect, dialect_of, find_dialect
from .door import Turnstile
from .table import CLAIM, LEFT

logger = logging.getLogger("bough.server")

CLIENT_CLOSED = 499
"""Status that is logged where the client left before there was one."""
ALWAYS_SERVED = PUBLIC_PATHS | {"/health", "/metrics"}
"""Paths that answer while the server drains."""


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


class _Exchange:
    """A request and its answer as they pass.

    status    of the answer, once it has begun
    gone      the client went away before the end
    refusal   why the answer, which is ready, cannot be sent
    """

    def __init__(self, scope: Scope, receive: Receive, pieces: Pieces, lifecycle: Lifecycle) -> None:
        self.id = f"req_{secrets.token_hex(12)}"
        self.path: str = scope["path"]
        self.status: int | None = None
        self.gone = False
        self.refusal: ApiError | None = None
        self.account: Account | None = None
        self.visit: Visit | None = None
        self._scope = scope
        self._receive, self._pieces, self._lifecycle = receive, pieces, lifecycle
        self._complete = False
        self._started = self._answered = time.monotonic()

    @property
    def error(self) -> str:
        """Code of the error with which it ended; "" if none is known."""
        code: str = self._scope.get("bough.error", "")
        return code

    async def receive(self) -> Message:
        message = await self._receive()
        self.gone = self.gone or (message["type"] == "http.disconnect" and not self._complete)
        return message

    async def send(self, message: Message) -> None:
        self._complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        if message["type"] == "http.response.start":
            self.status, self._answered = message["status"], time.monotonic()
            headers = MutableHeaders(scope=message)
            headers.update(dict.fromkeys(dialect_of(self._scope).id_headers, self.id))
            headers.update({} if self.account is None else dict(self.account.headers()))
            if self._lifecycle.draining:
                headers["connection"] = "close"
        try:
            await self._pieces.send(message)
        except ApiError as error:
            if message["type"] == "http.response.start":
                self.status, self.refusal = None, error
            raise
        except RuntimeError as error:
            if "closed" not in str(error):
                raise
            raise ClientClosedError from error

    def line(self) -> Line:
        """The line of the log that tells of it."""
        used = Usage() if self.visit is None else self.visit.used
        return Line(
            id=self.id,
            key="" if self.account is None else self.account.name,
            method=self._scope["method"][:32],
            path=self.path[:200],
            status=CLIENT_CLOSED if self.status is None else self.status,
            error=self.error,
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            completion_tokens=used.completion_tokens,
            first_s=round(self._answered - self._started, 4),
            seconds=round(time.monotonic() - self._started, 4),
        )


class Gate:
    """A plain ASGI application around another. (Framework middleware would hide the client's disconnect.)"""

    def __init__(
        self,
        app: ASGIApp,
        *,
        config: ServerConfig,
        metrics: ServerMetrics,
        lifecycle: Lifecycle,
        accounts: Accounts,
        paths: Collection[str],
        dialects: Mapping[str, Dialect],
    ) -> None:
        """`dialects` are those other than OpenAI's, by the path at and below which they are spoken."""
        self._app = app
        self._accounts = accounts
        self._log = RequestLog() if config.request_log else None
        self._guard = Guard(config)
        self.metrics = metrics
        self._lifecycle = lifecycle
        self._paths = paths
        self._dialects = dialects
        self._unsent = Unsent()
        self._turnstile = Turnstile()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces = Pieces(self._unsent, send, scope)
        exchange = _Exchange(scope, receive, pieces, self._lifecycle)
        scope["bough.request_id"] = exchange.id
        scope["bough.dialect"] = find_dialect(exchange.path, self._dialects)
        try:
            caller = scope["bough.caller"] = self._guard.admit(exchange.path, scope["headers"], scope["method"])
            pieces.key = caller.name
            if CLAIM in scope and not scope[CLAIM](caller.name):
                message = "This key has too many open connections. Try again when some have closed."
                raise ApiError(503, "too_many_connections", message, close=True)
            if exchange.path not in ALWAYS_SERVED:
                await self._turnstile.enter(caller.name, scope.get(LEFT))
            if scope["method"] not in SAFE_METHODS and not exchange.path.startswith(ENDING_PATHS):
                exchange.account = self._accounts.of(caller)
                exchange.visit = scope["bough.visit"] = Visit(exchange.account)
            with self._counted(exchange.path):
                await self._app(scope, exchange.receive, exchange.send)
        except ClientClosedError:
            exchange.gone = True
        except asyncio.CancelledError:  # the server ends, and waits no longer for an engine or a client
            logger.warning("request %s was cut off by the shutdown of the server", exchange.id)
            note_error(scope, ShuttingDownError().code)
            if exchange.status is None:
                await ErrorResponse(ShuttingDownError(), scope)(scope, receive, exchange.send)
        except Exception as error:
            answer = exchange.refusal or to_api_error(error)
            if answer.status == 500:
                logger.exception("request %s failed", exchange.id)
            note_error(scope, answer.code)
            if exchange.status is None:
                await ErrorResponse(answer, scope)(scope, receive, exchange.send)
        finally:
            pieces.close()
            self._settle(exchange)

    def _settle(self, exchange: _Exchange) -> None:
        if exchange.visit is not None:
            exchange.visit.end()
        path = exchange.path if exchange.path in self._paths else "other"
        if exchange.status is not None:
            self.metrics.responses[path, exchange.status] += 1
            if exchange.status < 400 and exchange.error:
                self.metrics.failed_streams[exchange.error] += 1
        self.metrics.disconnects += exchange.gone
        if self._log is not None and path not in ALWAYS_SERVED:
            self._log.write(exchange.line())

    @contextmanager
    def _counted(self, path: str) -> Iterator[None]:
        """Raises ShuttingDownError if no new work is taken."""
        if path in ALWAYS_SERVED:
            yield
            return
        if self._lifecycle.draining:
            raise self._lifecycle.refusal()
        self._lifecycle.num_running += 1
        try:
            yield
        finally:
            self._lifecycle.num_running -= 1
