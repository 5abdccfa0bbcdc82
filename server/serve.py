"""Runs the server: takes the port, starts the engine, serves until a signal, and finishes what it has."""

from __future__ import annotations

import importlib
import logging
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from .config import ServerConfig
from .http.connection import Lifecycle
from .http.security import check_bind

if TYPE_CHECKING:
    from ..runtime.client.client import EngineClient
    from ..runtime.protocol.template import Template

EXIT_USAGE = 2
EXIT_PORT_IN_USE = 4
EXIT_ENGINE_DIED = 5

logger = logging.getLogger("bough.server")


def serve(
    config: ServerConfig,
    client_factory: Callable[[], EngineClient],
    announce: Callable[[str], None] | None = None,
    *,
    programs: tuple[Template, ...] = (),
) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. `client_factory` starts the engine, and may take long.
    `programs` are deployed from the start.

    `announce` is told the address, `http://host:port`, once the server is ready.

    0: ended as asked. 2: the configuration is not safe. 4: the port is taken (found before the engine is started).
    5: the engine died.
    """
    try:
        check_bind(config)
        listener = bind(config.host, config.port)
    except ValueError as error:
        print(f"bough: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"bough: cannot listen on {config.host}:{config.port}: {error.strerror or error}", file=sys.stderr)
        return EXIT_PORT_IN_USE
    # The engine loads in a process of its own meanwhile.
    threading.Thread(target=importlib.import_module, args=(".app", __package__), daemon=True).start()
    with listener:
        client = client_factory()
        try:
            from .app import DrainingServer  # noqa: PLC0415  the web framework takes as long to load as the engine

            lifecycle = Lifecycle()
            server = DrainingServer(config, client, lifecycle, programs)
            host = f"[{config.host}]" if ":" in config.host else config.host
            address = f"http://{host}:{listener.getsockname()[1]}"
            logger.info("serving %s on %s", client.info.name, address)
            if announce is not None:
                announce(address)
            server.run(sockets=[listener])
            return EXIT_ENGINE_DIED if server.engine_died else 0
        finally:
            client.close()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket: clients that come before the engine is ready wait for it.

    Raises:
        OSError: the address cannot be had.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except BaseException:
        listener.close()
        raise
    return listener
