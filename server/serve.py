"""Runs the server: binds the port, starts the engine, serves until a signal, and finishes the accepted work."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from .config import ServerConfig
from .http.access import check_bind
from .http.connection import Lifecycle
from .loading import LoadingServer

if TYPE_CHECKING:
    from ..runtime.client.client import EngineClient
    from ..runtime.protocol.template import Template

EXIT_USAGE = 2
EXIT_PORT_IN_USE = 4
EXIT_ENGINE_DIED = 5

SWITCH_S = 0.001
"""Time after which a thread that computes makes way for the event loop."""

logger = logging.getLogger("bough.server")


def serve(
    config: ServerConfig,
    client_factory: Callable[[], EngineClient],
    announce: Callable[[str], None] | None = None,
    *,
    programs: tuple[Template, ...] = (),
) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. `client_factory` starts the engine, and may take long:
    until then `/livez` answers, and all else is a 503. `programs` are deployed from the start.

    `announce` is told the address, `http://host:port`, once the server handles signals and accepts connections.

    0: ended as asked. 2: the configuration is not safe. 4: the port is taken (found before the engine is started).
    5: the engine died. 128 and the signal's number: a second signal cut the drain short.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its pool does not outlive a shortage of threads
    try:
        check_bind(config)
        listener = bind(config.host, config.port)
    except ValueError as error:
        print(f"bough serve: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(
            f"bough serve: cannot listen on {config.host}:{config.port} ({error.strerror or error}): give another "
            "--host or --port; --port 0 picks a free one",
            file=sys.stderr,
        )
        return EXIT_PORT_IN_USE
    # The engine loads in a process of its own meanwhile.
    threading.Thread(target=importlib.import_module, args=(".app", __package__), daemon=True).start()
    with listener, LoadingServer(listener) as loading, _interrupts_end_at_once():
        client = client_factory()
        # The tokenizer and the modules stay: collections that walk them would stop the event loop.
        gc.collect()
        gc.freeze()
        sys.setswitchinterval(SWITCH_S)
        try:
            from .app import DrainingServer  # noqa: PLC0415  the web framework takes as long to load as the engine

            lifecycle = Lifecycle()
            host = f"[{config.host}]" if ":" in config.host else config.host
            address = f"http://{host}:{listener.getsockname()[1]}"
            logger.info("serving %s on %s", client.info.name, address)
            told = None if announce is None else partial(announce, address)
            server = DrainingServer(config, client, lifecycle, programs, announce=told)
            loading.close()
            server.run(sockets=[listener])
            if server.ended_by is not None:
                return 128 + server.ended_by
            return EXIT_ENGINE_DIED if server.engine_died else 0
        finally:
            client.close()


@contextmanager
def _interrupts_end_at_once() -> Iterator[None]:
    """Has Ctrl-C end the process as SIGTERM does, until the server handles both: an exception within an import that
    another thread is making leaves the lock of its module held for good."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or not _in_main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

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
