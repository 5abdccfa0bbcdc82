"""The HTTP server itself: serves until a signal, and finishes what it has."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from ..runtime.protocol.template import Template
from .app import create_app
from .config import ServerConfig
from .http.lifecycle import Lifecycle

if TYPE_CHECKING:
    from ..runtime.client.client import EngineClient

_GRACE_S = 2.0
"""For answers that end because their time is over to reach their clients."""

logger = logging.getLogger("bough.server")


class DrainingServer(uvicorn.Server):
    """uvicorn, but after a first signal it goes on listening, and refuses, until what runs is done or its time is over;
    and the engine's death ends it. At the end it closes the client."""

    def __init__(
        self,
        config: ServerConfig,
        client: EngineClient,
        lifecycle: Lifecycle,
        programs: tuple[Template, ...] = (),
    ) -> None:
        app = create_app(client, config, lifecycle, programs=programs)
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=int(_GRACE_S),
            )
        )
        self.engine_died = False
        self._client = client
        self._lifecycle = lifecycle
        self._drain_delay_s = config.drain_delay_s
        self._drain_timeout_s = config.drain_timeout_s
        self._drains_since: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the drain; the second ends it."""
        if self._drains_since is None:
            logger.info("%s: finishing what runs; a second signal ends it", signal.Signals(sig).name)
            self._lifecycle.drain()
            self._drains_since = time.monotonic()
        else:
            self.should_exit = True
            self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        if not self._client.alive:
            logger.error("the engine has died")
            self.engine_died = True
            self._lifecycle.drain()
            return True
        return self._drained or await super().on_tick(counter)

    @property
    def _drained(self) -> bool:
        if self._drains_since is None:
            return False
        left_s = self._drains_since + self._drain_delay_s - time.monotonic()
        return left_s <= 0 and (self._lifecycle.num_running == 0 or left_s <= -self._drain_timeout_s)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timeout_s = 1.0 if self.engine_died else 0.0  # the streams' own errors come first
        timer = asyncio.get_running_loop().call_later(timeout_s, self._lifecycle.expire)
        await super().shutdown(sockets)
        timer.cancel()
        self._client.close()  # or threads that wait for its answers would keep the event loop from ending
