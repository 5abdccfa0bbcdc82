"""`bough serve`: an engine in a process of its own behind the OpenAI-compatible HTTP API."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.client.spawn import spawn_engine
from ..runtime.protocol.errors import RequestError
from ..server.config import ServerConfig
from ..server.http.security import parse_keys, read_keys
from ..server.serve import serve
from .options import add_engine_options, engine_config
from .progress import LoadingBar

if TYPE_CHECKING:
    from ..lang.tools.tool import Tool
    from ..runtime.client.remote import RemoteClient
    from ..runtime.protocol.template import Template


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = ServerConfig()
    group = parser.add_argument_group("server")
    group.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=int, default=defaults.port, help="0 takes a free one (default: %(default)s)")
    group.add_argument("--served-model-name", help="what clients call the model (default: its own name)")
    group.add_argument("--api-key-file", help="keys, one a line: KEY, or NAME KEY (or set BOUGH_API_KEY)")
    group.add_argument(
        "--allow-public-without-key",
        action="store_true",
        help="listen on an address that other machines reach although there is no key",
    )
    group.add_argument("--max-body-bytes", type=int, default=defaults.max_body_bytes, help="default: %(default)s")
    group.add_argument(
        "--request-timeout",
        type=float,
        default=defaults.request_timeout_s,
        metavar="SECONDS",
        help="of a generation, queueing included (default: %(default)s)",
    )
    group.add_argument(
        "--drain-timeout",
        type=float,
        default=defaults.drain_timeout_s,
        metavar="SECONDS",
        help="for what is running to end after SIGTERM (default: %(default)s)",
    )
    group.add_argument(
        "--strict-params",
        action="store_true",
        help="refuse unknown fields of a request; otherwise they are ignored and counted in /metrics",
    )
    group.add_argument(
        "--program",
        action="append",
        default=[],
        metavar="FILE[:FUNCTION]",
        help="deploy a program under its name, as POST /v1/programs/FUNCTION; can be given several times",
    )
    group.add_argument(
        "--tools",
        action="append",
        default=[],
        metavar="FILE.py",
        help="offer the tools in a file to all programs; can be given several times",
    )
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    engine = engine_config(arguments)
    config = server_config(arguments)
    programs = programs_in(arguments.program)
    tools = [tool for path in arguments.tools for tool in tools_in(Path(path))]
    started = time.monotonic()

    def launch() -> RemoteClient:
        print(f"loading {engine.model}", file=sys.stderr, flush=True)
        spawned = spawn_engine()
        from ..runtime.client.remote import RemoteClient  # what the engine's process imports, too, meanwhile

        with LoadingBar() as bar:
            client = RemoteClient.launch(engine, bar, spawned)
        for tool in tools:
            client.register_tool(tool)
        info = client.info
        print(
            f"{info.name}: {info.num_parameters / 1e6:.0f} M parameters, {info.dtype} on {info.device}, "
            f"{info.num_pages * info.page_size:,} tokens of KV cache, ready in {time.monotonic() - started:.1f} s",
            file=sys.stderr,
        )
        return client

    def announce(address: str) -> None:
        print(f"listening on {address} (OpenAI API under {address}/v1)", file=sys.stderr, flush=True)

    return serve(config, launch, announce, programs=programs)


def programs_in(sources: Sequence[str]) -> tuple[Template, ...]:
    """Compiles or loads the programs that were named.

    Raises:
        RequestError: there is no such program, or it cannot be compiled.
    """
    if not sources:
        return ()
    from .deploy import compiled  # the language, which a server of other people's programs does not need at once

    return tuple(compiled(source, {}).template for source in sources)


def tools_in(path: Path) -> list[Tool[..., Any]]:
    """Loads the tools that a Python file defines.

    Raises:
        RequestError: there is no such file, or there are none in it.
    """
    from ..lang.tools.tool import Tool
    from .run import load_file

    tools = [value for value in vars(load_file(path)).values() if isinstance(value, Tool)]
    if not tools:
        raise RequestError(f"--tools: {path} has no function that is marked with @bough.tool", param="tools")
    return tools


def server_config(arguments: argparse.Namespace) -> ServerConfig:
    """Returns the server's settings.

    Raises:
        RequestError: the key file cannot be read.
    """
    keys = parse_keys([os.environ["BOUGH_API_KEY"]]) if os.environ.get("BOUGH_API_KEY") else ()
    if arguments.api_key_file is not None:
        try:
            keys += read_keys(arguments.api_key_file)
        except (OSError, ValueError) as error:
            raise RequestError(f"--api-key-file: {error}", param="api_key_file") from error
    return ServerConfig(
        host=arguments.host,
        port=arguments.port,
        served_model_name=arguments.served_model_name,
        keys=keys,
        open_without_key=arguments.allow_public_without_key,
        max_body_bytes=arguments.max_body_bytes,
        request_timeout_s=arguments.request_timeout,
        drain_timeout_s=arguments.drain_timeout,
        strict_params=arguments.strict_params,
    )
