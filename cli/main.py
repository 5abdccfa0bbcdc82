"""Parses the command line and hands over to one command; each has a file of its own and loads only what it needs."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Sequence

from ..runtime.protocol.errors import BoughError, RequestError

_COMMANDS = {
    "serve": "serve a model over an OpenAI-compatible HTTP API",
    "run": "run a program (a @function in a Python file) on a model",
    "deploy": "register a program on a server as an endpoint of its own",
    "chat": "talk to a model in the terminal",
    "pull": "put a model into the cache folder",
    "schema": "check a JSON Schema, and values against it, without a model",
    "bench": "measure: programs, throughput",
}

_EXAMPLES = """\
examples:
  bough run examples/demo.py                      run the program in a file on the default model
  bough run examples/judge.py:judge --arg essay="..." --timeline out.html
  bough serve --port 8000                         then: openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="-")
  bough chat --model smollm2-135m
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 for a failure, 2 for a wrong command line, 130 when interrupted."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded: see docs/decisions/0008
    logging.basicConfig(
        level=os.environ.get("BOUGH_LOG", "WARNING").upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    parser = argparse.ArgumentParser(
        prog="bough",
        description="A structured-generation programming runtime.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"bough {importlib.metadata.version('bough')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # Only the command that is asked for is imported, so that --help and pull start at once.
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if arguments[:1] == [name]:
            importlib.import_module(f".{name}", __package__).add_arguments(command)
    parsed = parser.parse_args(arguments)
    module = importlib.import_module(f".{parsed.command}", __package__)
    try:
        status: int = module.run(parsed)
    except RequestError as error:
        print(f"bough {parsed.command}: {error.message}", file=sys.stderr)
        return 2
    except BoughError as error:
        print(f"bough {parsed.command}: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
