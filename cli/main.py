"""Entry point of the command line: dispatches to a command, each in its own file that loads only what it needs."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import importlib.metadata
import os
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NoReturn

from ..runtime.client.lines import log_to_stderr
from ..runtime.protocol.config import EngineConfig
from ..runtime.protocol.errors import BoughError, ModelError, RequestError, printable, reason
from .parsing.parser import CommandParser
from .parsing.settings import CONFIG, Known, keys
from .parsing.spellings import advice_for, our_text
from .streams import drop_output, repair_streams

COMMANDS = {
    "serve": "serve a model over an OpenAI-compatible HTTP API",
    "run": "run a program (a @function in a Python file) on a model",
    "deploy": "register a program on a server as an endpoint of its own",
    "chat": "talk to a model in the terminal",
    "models": "list the models on this machine and those to fetch, describe one, remove one",
    "pull": "put a model into the cache folder",
    "schema": "check a JSON Schema, and values against it, without a model",
    "bench": "measure: programs, throughput",
    "completion": "print a script that completes commands and options in a shell",
}
_OPTION_OF = {"base_url": "url", "restarts": "restart"}
"""Options by the fields that they set, where the names differ by more than the unit."""

_MANY_OPTIONS = 20  # more than anybody reads in a line of usage
_WITHOUT_SETTINGS = frozenset({"bench", "completion"})

EXIT_MODEL = 3
"""Exit status where the model cannot be loaded."""

EXIT_TIMEOUT_S = 5.0
HURRIED_EXIT_TIMEOUT_S = 1.0
"""Seconds that the exit handlers of a server's process may take together; after a second signal fewer."""

_EXAMPLES = """\
examples:
  bough run examples/demo.py                      run the program in a file on the default model
  bough run examples/judge.py:judge --arg essay="..." --timeline out.html
  bough serve --port 8000                         then: openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="-")
  bough chat --model smollm2-135m
"""

_SETTINGS = """\
Each option can also be set by a variable BOUGH_<OPTION> (BOUGH_MAX_NUM_SEQS=8) and in the file that --config names: in
a table [{command}], or above all tables for every command. The command line wins, then the environment, then the file.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0, 1 for a failure, 2 for a wrong command line, 3 for a bad model."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded: see docs/decisions/0008
    try:
        log_to_stderr()
    except RequestError as error:
        print(f"bough: {printable(error.message)}", file=sys.stderr)
        return 2
    # Only the command that is asked for is imported, so that --help and pull start at once.
    parser = make_parser(arguments[:1])
    if arguments and arguments[0].startswith("-") and arguments[0] not in parser.options:
        parser.error(
            f"{arguments[0]} comes after the command: bough COMMAND {arguments[0]} ... (bough --help lists them)"
        )
    parsed = parser.parse_args(arguments)
    module = importlib.import_module(f".{parsed.command}", __package__)
    try:
        status: int = module.run(parsed)
    except RequestError as error:
        print(f"bough {parsed.command}: {printable(told(error, parsed))}", file=sys.stderr)
        return 2
    except BoughError as error:
        line = told(error, parsed) if isinstance(error, ModelError) else error.message
        print(f"bough {parsed.command}: {printable(line)}", file=sys.stderr)
        if not isinstance(error, ModelError):
            return 1
        return EXIT_MODEL if error.code == ModelError.code else 2  # an engine's process refused its settings
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        print(f"bough {parsed.command}: {printable(f'{error.filename}: {reason(error)}')}", file=sys.stderr)
        return 1
    return status


def make_parser(commands: Collection[str] = tuple(COMMANDS)) -> CommandParser:
    """Returns the parser of the command line, with the options of these commands."""
    parser = CommandParser(
        prog="bough",
        description="A structured-generation programming runtime.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"bough {importlib.metadata.version('bough')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        command = subparsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name in commands:
            importlib.import_module(f".{name}", __package__).add_arguments(command)
            if name not in _WITHOUT_SETTINGS:
                for leaf in leaves(command):
                    _add_settings(leaf, name, command)
    return parser


def leaves(parser: CommandParser) -> Iterator[CommandParser]:
    """Yields the parser itself, or the parsers of its actions."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not actions:
        yield parser
    for action in actions:
        for child in action.choices.values():
            yield from leaves(child)


def _add_settings(parser: CommandParser, name: str, command: CommandParser) -> None:
    """Has a parser of the command `name` take settings from a file and the environment."""
    parser.add_argument(f"--{CONFIG}", metavar="FILE.toml", help="read options from a file")
    parser.known = Known(name, tuple(COMMANDS), partial(_keys_of, command), _all_keys, advice_for, our_text)
    if len(parser.options) > _MANY_OPTIONS:
        parser.usage = f"{parser.prog} [OPTIONS] {parser.places}".rstrip()
    if not parser.epilog:
        parser.epilog = _SETTINGS.format(command=name)


def _keys_of(command: CommandParser) -> frozenset[str]:
    return frozenset().union(*(keys(leaf) for leaf in leaves(command)))


def _all_keys() -> frozenset[str]:
    """The keys of all commands' options: those that a file may have above its tables."""
    return _keys_of(make_parser())


def told(error: BoughError, parsed: argparse.Namespace) -> str:
    """The error's line, with the option in place of the field that is to blame, or with the source of its value if that
    was not the command line. An engine's process tells the field in its first word only."""
    first = error.message.partition(" ")[0]
    field = error.param or (first if first in EngineConfig.__struct_fields__ else "")
    names = (_OPTION_OF.get(field, field), field.removesuffix("_s"))
    name = next((name for name in names if getattr(parsed, name, None) is not None), "")
    if not name:
        return error.message
    source = getattr(parsed, "sources", {}).get(name)
    rest = error.message.removeprefix(f"{field} ")
    if source is not None:
        return f"{source}: {rest}"
    option = f"--{name.replace('_', '-')}"
    rest = rest.replace(f"leave {field} out", f"leave {option} out")
    return error.message if rest == error.message else f"{option} {rest}"


def entry() -> int:
    """Runs the process and returns its exit status: that of `main`, 130 when interrupted, 141 when nobody reads what it
    prints. A server's process ends here."""
    repair_streams()
    status = _status()
    if sys.argv[1:2] == ["serve"]:
        _end_process(status)
    return status


def _status() -> int:
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        drop_output()
        return 141
    except OSError as error:
        print(f"bough: {reason(error)}", file=sys.stderr)
        drop_output()
        return 1
    except Exception:  # noqa: BLE001  the interpreter would print it, too, and then wait for threads
        traceback.print_exc()
        return 1
    return status


def _end_process(status: int) -> NoReturn:
    """Ends the process in order, but for its threads: the interpreter would wait for those that tools have begun, and
    that may hang. Exit handlers may, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a further Ctrl-C ends it at once
    limit_s = HURRIED_EXIT_TIMEOUT_S if status > 128 else EXIT_TIMEOUT_S
    limit = threading.Timer(limit_s, os._exit, [status])
    limit.daemon = True
    with contextlib.suppress(RuntimeError):  # the system has no more threads
        limit.start()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(entry())
