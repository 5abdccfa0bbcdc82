"""The outermost layer: admits callers, numbers requests, counts answers, and turns every failure into a body."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..config import ServerConfig
from ..errors import ApiError, ShuttingDownError, to_api_error
from ..metrics import ServerMetrics
from .connection import ClientClosedError, Lifecycle
from .security import PUBLIC_PATHS, Caller, Guard

logger = logging.getLogger("bough.server")

ALWAYS_SERVED = PUBLIC_PATHS | {"/health", "/metrics"}
"""Paths that answer while the server drains."""


def error_response(error: ApiError) -> Response:
    return Response(error.body(), error.status, headers=dict(error.headers), media_type="application/json")


def caller_of(scope: Scope) -> Caller:
    caller: Caller = scope["bough.caller"]
    return caller


def request_id_of(scope: Scope) -> str:
    name: str = scope["bough.request_id"]
    return name


class Gate:
    """A plain ASGI application around another. (Framework middleware would hide the client's disconnect.)"""

    def __init__(
        self,
        app: ASGIApp,
        *,
        config: ServerConfig,
        metrics: ServerMetrics,
        lifecycle: Lifecycle,
        paths: Collection[str],
    ) -> None:
        self._app = app
        self._guard = Guard(config)
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = f"req_{secrets.token_hex(12)}"
        path = scope["path"]
        started = complete = gone = False

        async def receive_watched() -> Message:
            nonlocal gone
            message = await receive()
            gone = gone or (message["type"] == "http.disconnect" and not complete)
            return message

        async def send_named(message: Message) -> None:
            nonlocal started, complete
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                if self._lifecycle.draining:
                    headers["connection"] = "close"
                self._metrics.responses[path if path in self._paths else "other", message["status"]] += 1
            try:
                await send(message)
            except RuntimeError as error:
                if "closed" not in str(error):
                    raise
                raise ClientClosedError from error

        try:
            scope["bough.caller"] = self._guard.admit(path, scope["headers"])
            scope["bough.request_id"] = request_id
            with self._counted(path):
                await self._app(scope, receive_watched, send_named)
        except ClientClosedError:
            gone = True
        except Exception as error:
            answer = to_api_error(error)
            if answer.status == 500:
                logger.exception("request %s failed", request_id)
            if not started:
                await error_response(answer)(scope, receive, send_named)
        self._metrics.disconnects += gone

    @contextmanager
    def _counted(self, path: str) -> Iterator[None]:
        """Raises ShuttingDownError if no new work is taken."""
        if path in ALWAYS_SERVED:
            yield
            return
        if self._lifecycle.draining:
            raise ShuttingDownError
        self._lifecycle.num_running += 1
        try:
            yield
        finally:
            self._lifecycle.num_running -= 1
