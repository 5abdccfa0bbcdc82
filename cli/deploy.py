"""`bough deploy FILE[:function]`: compiles a program and registers it as an endpoint on a server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from urllib.parse import quote

import httpx

from ..lang.backends.http import server_url, unreachable
from ..lang.compile.compiled import CompiledProgram
from ..lang.compile.placeholder import CompileError
from ..lang.diagnostics.errors import BackendError
from ..runtime.protocol.errors import RequestError, reason
from .parsing.parser import CommandParser
from .programs import argument_meant, bound, find_program, load_file, split_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program", metavar="FILE[:FUNCTION]", help="a Python file and its program, or the JSON file of a compiled one"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="API key of that server, with the right `admin`; better in BOUGH_API_KEY, which other users cannot see",
    )
    parser.add_argument("--name", help="name of the endpoint (default: the function's)")
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="fix an argument or a sampling option: JSON if it parses, otherwise text; @FILE reads a file",
    )
    if isinstance(parser, CommandParser):
        parser.stray = argument_meant
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--show", action="store_true", help="print the compiled program and its cost; deploy nothing")
    instead.add_argument("--output", metavar="FILE.json", help="write the compiled program to a file; deploy nothing")


def run(arguments: argparse.Namespace) -> int:
    base = str(server_url(arguments.url)).rstrip("/")
    program = compiled(arguments.program, split_arguments(arguments.arg))
    name = arguments.name or program.name
    if arguments.output is not None:
        program.save(arguments.output)
        return 0
    print(program)
    if arguments.show:
        return 0
    _register(program, name, base, arguments.api_key)
    names = ", ".join(parameter.name for parameter in program.template.parameters)
    print(f"\ndeployed: POST {base}/v1/programs/{name} with {{{names}}}", file=sys.stderr)
    return 0


def compiled(source: str, known: dict[str, str]) -> CompiledProgram:
    """Returns the compiled program of a file: `x.json` holds one, `x.py:function` is compiled with what is `known`, the
    texts of arguments by name.

    Raises:
        RequestError: there is no such program, or it cannot be compiled; the message names the line.
    """
    path, _, name = source.partition(":")
    if path.endswith(".json"):
        return _loaded(path)
    try:
        program = find_program(load_file(Path(path)), name)
        return program.compile(**bound(program, known, partial=True))
    except CompileError as error:
        raise RequestError(str(error), param="program") from error


def _loaded(path: str) -> CompiledProgram:
    try:
        return CompiledProgram.load(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be read ({reason(error)}): check the path", param="program") from error
    except RequestError as error:
        raise RequestError(f"{path}: {error.message}", param="program") from error


def _register(program: CompiledProgram, name: str, base: str, api_key: str | None) -> None:
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise RequestError("--api-key must have visible ASCII characters only")
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        with httpx.Client(base_url=base, headers=headers, timeout=30.0, trust_env=False) as client:
            response = client.put(f"/v1/programs/{quote(name, safe='')}", content=program.to_json().encode())
    except httpx.HTTPError as error:
        raise unreachable(error) from error
    if response.is_error:
        raise BackendError(
            f"the server refused the program: {response.text[:2000]}", code="refused", status=response.status_code
        )
