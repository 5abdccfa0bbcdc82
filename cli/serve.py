"""`bough serve`: runs an engine in a separate process behind the OpenAI-compatible HTTP API."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..runtime.checkpoints.fetch import user_path
from ..runtime.client.spawn import spawn_engine
from ..runtime.protocol.config import EngineConfig, SupervisorConfig
from ..runtime.protocol.errors import RequestError, reason
from ..server.config import ApiKey, ServerConfig
from ..server.http.keys import parse_keys, read_keys
from ..server.programs.private_tools import PrivateTool
from ..server.serve import serve
from .parsing.options import add_engine_options, engine_config
from .parsing.parser import number, port_number, whole_number
from .progress import LoadingBar

if TYPE_CHECKING:
    from ..lang.tools.tool import Tool
    from ..runtime.client.supervisor import Supervisor
    from ..runtime.protocol.template import Template


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults, watch = ServerConfig(), SupervisorConfig()
    group = parser.add_argument_group("server")
    whole, seconds = {"type": whole_number, "metavar": "N"}, {"type": number, "metavar": "SECONDS"}

    def add(name: str, kind: dict[str, Any], default: float, text: str) -> None:
        group.add_argument(name, **kind, default=default, help=f"{text} (default: %(default)s)")

    group.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    add("--port", {**whole, "type": port_number}, defaults.port, "port to listen on; 0 picks a free one")
    group.add_argument("--served-model-name", metavar="NAME", help="the model's name for clients (default: its own)")
    group.add_argument("--api-key-file", metavar="FILE", help="API keys, one per line, with their rights and limits")
    group.add_argument(
        "--allow-public-without-key",
        action="store_true",
        help="listen on an address that other machines can reach even though no API key is set",
    )
    add("--max-body-bytes", whole, defaults.max_body_bytes, "size limit of a request body")
    add(
        "--request-timeout", seconds, defaults.request_timeout_s, "time limit of a generation and its wait in the queue"
    )
    add(
        *("--drain-delay", seconds, defaults.drain_delay_s),
        "time after SIGTERM in which the port stays open and /readyz says 503, so that a load balancer looks elsewhere",
    )
    add("--drain-timeout", seconds, defaults.drain_timeout_s, "time after that in which running requests may finish")
    add("--max-responses", whole, defaults.max_responses, "responses of /v1/responses kept for a key; 0 keeps none")
    add("--max-response-bytes", whole, defaults.max_response_bytes, "memory that those of a key may take")
    add("--response-ttl", seconds, defaults.response_ttl_s, "time for which they are kept after their last use")
    add("--restart", whole, watch.restarts, "restart an engine that dies, at most N times in 10 minutes")
    add("--stuck-timeout", seconds, watch.stuck_timeout_s, "time without progress after which the engine is killed")
    group.add_argument(
        "--request-log",
        action=argparse.BooleanOptionalAction,
        default=defaults.request_log,
        help="log one line of JSON per request to standard error",
    )
    group.add_argument(
        "--strict-params",
        action="store_true",
        help="reject requests with unknown fields; without it they are ignored, and counted in /metrics",
    )
    group.add_argument(
        "--program",
        action="append",
        default=[],
        metavar="FILE[:FUNCTION]",
        help="deploy a program as POST /v1/programs/FUNCTION; can be repeated",
    )
    group.add_argument(
        "--tools",
        action="append",
        default=[],
        metavar="FILE.py",
        help="make the tools in a file available to all programs; can be repeated",
    )
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    config = server_config(arguments)
    watch = supervisor_config(arguments)
    engine = weighted(engine_config(arguments), config)
    programs = programs_in(arguments.program)
    tools = [tool for path in arguments.tools for tool in tools_in(Path(path))]
    started = time.monotonic()

    def launch() -> Supervisor:
        print(f"loading {engine.model}", file=sys.stderr, flush=True)
        spawned = spawn_engine()
        from ..runtime.client.supervisor import Supervisor  # what the engine's process imports, too, meanwhile

        with LoadingBar() as bar:
            client = Supervisor(engine, bar, spawned, restarts=watch.restarts, stuck_timeout_s=watch.stuck_timeout_s)
        for tool in tools:
            client.register_tool(PrivateTool(tool))
        info = client.info
        print(
            f"{info.name}: {info.num_parameters / 1e6:.0f} M parameters, {info.described()}, "
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
    from ..lang.tools.mcp_server import McpServer
    from ..lang.tools.tool import Tool
    from .programs import load_file

    values = list(vars(load_file(path)).values())
    tools = [value for value in values if isinstance(value, Tool)]
    tools += [tool for value in values if isinstance(value, McpServer) for tool in value.tools]
    if not tools:
        message = f"--tools: {path} has no function that is marked with @bough.tool, and no bough.mcp_server"
        raise RequestError(message, param="tools")
    return tools


def weighted(engine: EngineConfig, server: ServerConfig) -> EngineConfig:
    """Returns `engine` with the weights of the server's keys, each the tenant of its name."""
    weights = {key.name: key.weight for key in server.keys if key.weight != 1}
    return msgspec.structs.replace(engine, tenant_weights=weights)


def _keys(path: str | None) -> tuple[ApiKey, ...]:
    """Returns the keys of the variable BOUGH_API_KEY and of the file. Raises RequestError."""
    keys: tuple[ApiKey, ...] = ()
    source = "BOUGH_API_KEY"
    try:
        if source in os.environ:
            keys = parse_keys([os.environ[source]])
            if not keys:
                raise ValueError("there is no key in it; unset it to start without one")
        source = "--api-key-file"
        return keys if path is None else (*keys, *read_keys(user_path(path), keys))
    except OSError as error:
        raise RequestError(f"{source}: {path} cannot be read ({reason(error)}): check its path and rights") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{source}: {path} is no text file: it must have one API key per line") from error
    except ValueError as error:
        raise RequestError(f"{source}: {error}") from error


def server_config(arguments: argparse.Namespace) -> ServerConfig:
    """Returns the server's settings.

    Raises:
        RequestError: keys cannot be read, a source of keys that was named has none, or a value is out of range.
    """
    keys = _keys(arguments.api_key_file)
    if len(keys) == 1:  # nobody else's requests are counted
        keys = (msgspec.structs.replace(keys[0], metrics=True, urgent=True),)
    return ServerConfig(
        host=arguments.host,
        port=arguments.port,
        served_model_name=arguments.served_model_name,
        keys=keys,
        open_without_key=arguments.allow_public_without_key,
        max_body_bytes=arguments.max_body_bytes,
        request_timeout_s=arguments.request_timeout,
        drain_delay_s=arguments.drain_delay,
        drain_timeout_s=arguments.drain_timeout,
        max_responses=arguments.max_responses,
        max_response_bytes=arguments.max_response_bytes,
        response_ttl_s=arguments.response_ttl,
        strict_params=arguments.strict_params,
        request_log=arguments.request_log,
    )


def supervisor_config(arguments: argparse.Namespace) -> SupervisorConfig:
    """Returns the settings of who watches the engine.

    Raises:
        RequestError: a value is out of range.
    """
    return SupervisorConfig(restarts=arguments.restart, stuck_timeout_s=arguments.stuck_timeout)
