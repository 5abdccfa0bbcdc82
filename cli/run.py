"""`bough run FILE[:function]`: runs a program on a model, and shows its result and the origin of its tokens."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..lang.backend import Backend
from ..lang.function import Function
from ..lang.observe.timelines.report import report
from ..lang.observe.timelines.timeline import Timeline
from ..lang.record.options import clean_options
from ..lang.state.state import State
from ..runtime.checkpoints.fetch import MODELS, default_cache, user_path
from ..runtime.protocol.config import EngineConfig
from ..runtime.protocol.errors import RequestError
from ..runtime.tokenizer.load import load_tokenizer
from .parsing.options import add_engine_options, engine_config
from .parsing.parser import CommandParser, number, whole_number
from .programs import argument_meant, bound, find_program, load_file, split_arguments, users_errors
from .progress import LoadingBar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program", metavar="FILE[:FUNCTION]", help="a Python file, and the program in it if it has several"
    )
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the program: JSON if it parses, otherwise text; @FILE reads a file; can be repeated",
    )
    parser.add_argument("--url", help="run on this bough server instead of loading a model")
    parser.add_argument(
        "--api-key", metavar="KEY", help="API key for --url; better in BOUGH_API_KEY, which other users cannot see"
    )
    parser.add_argument("--timeline", metavar="FILE.html", help="write a page that shows where each token came from")
    parser.add_argument(
        "--explain", action="store_true", help="run nothing: show the instructions, their cost, and what is shared"
    )
    parser.add_argument(
        "--report", action="store_true", help="after the run, show what was sent, computed and cached, call by call"
    )
    parser.add_argument(
        "--temperature", type=number, metavar="X", help="default for the program's generations; 0 is greedy"
    )
    parser.add_argument(
        "--max-tokens",
        type=whole_number,
        metavar="N",
        help="default for the program's generations",
    )
    add_engine_options(parser)
    if isinstance(parser, CommandParser):
        parser.stray = argument_meant


def run(arguments: argparse.Namespace) -> int:
    _check_together(arguments)
    _check_place(arguments.timeline)
    path, _, name = arguments.program.partition(":")
    program = find_program(load_file(Path(path)), name)
    defaults = {"temperature": arguments.temperature, "max_tokens": arguments.max_tokens}
    keywords = clean_options({option: value for option, value in defaults.items() if value is not None})
    keywords = bound(program, split_arguments(arguments.arg), partial=arguments.explain) | keywords
    if arguments.explain:
        with users_errors():
            print(explain(program, keywords, arguments.model))
        return 0
    traced = arguments.report or arguments.timeline is not None
    with _backend(arguments) as backend, users_errors():
        state = program.run(backend=backend, trace=traced, **keywords)
        show(state)
        if traced:
            _tell(state.timeline(), arguments)
    return 0


def _check_together(arguments: argparse.Namespace) -> None:
    """Raises RequestError for an option of the command line that would do nothing beside another one."""
    sources = getattr(arguments, "sources", {})
    if arguments.explain:
        for name in ("report", "timeline", "url"):
            if getattr(arguments, name) and name not in sources:
                raise RequestError(f"--explain runs nothing, so --{name} does nothing: leave one of them out")
    if arguments.url is None:
        if arguments.api_key is not None and "api_key" not in sources:
            raise RequestError("--api-key is the key of a server: give its --url too")
        return
    defaults = EngineConfig()
    for name in EngineConfig.__struct_fields__:
        value = getattr(arguments, name, None)
        if value is not None and value != getattr(defaults, name) and name not in sources:
            option = f"--{'' if value is not False else 'no-'}{name.replace('_', '-')}"
            raise RequestError(f"{option} does nothing beside --url, whose server has a model: leave one of them out")


def _check_place(timeline: str | None) -> None:
    """Raises RequestError, before anything runs, if the page could not be written in the end."""
    if timeline is None:
        return
    path = user_path(timeline)
    if not path.parent.is_dir():
        problem = f"there is no folder {path.parent}: create it first, or write elsewhere"
    elif path.is_dir():
        problem = f"{timeline or '.'} is a folder: name a file in it"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = f"{path} cannot be written (Permission denied): write elsewhere"
    else:
        return
    raise RequestError(f"--timeline: {problem}")


def explain(program: Function[Any], keywords: dict[str, Any], model: str) -> str:
    """Describes what the program would do. The model's tokenizer counts its tokens if it is on this machine."""
    source = _find_tokenizer(model)
    counted = "" if source is None else f"\ncounted         by the tokenizer of {model}"
    return program.explain(tokenizer=None if source is None else load_tokenizer(source), **keywords) + counted


def _find_tokenizer(model: str) -> Path | None:
    """Finds the model's file or folder if it is here already; downloads nothing."""
    cached = default_cache() / model / "model.gguf"
    named = user_path(model)
    if model in MODELS:
        return cached if cached.is_file() else None
    return named if (named.suffix == ".gguf" and named.is_file()) or (named / "tokenizer.json").is_file() else None


def _tell(timeline: Timeline, arguments: argparse.Namespace) -> None:
    """Writes what was asked for about the run to standard error."""
    if arguments.report:
        print(f"\n{report(timeline)}", file=sys.stderr)
    if arguments.timeline is not None:
        timeline.save(user_path(arguments.timeline))
        shown = "" if arguments.report else f"\n{timeline.text()}\n"
        print(f"{shown}\nThe timeline is in {arguments.timeline}", file=sys.stderr)


def show(state: State) -> None:
    """Prints what the program returned, or else its variables."""
    if state.ret_value is not None:
        print(state.ret_value)
        return
    for name, value in state.values().items():
        print(f"{name}: {value}")


@contextlib.contextmanager
def _backend(arguments: argparse.Namespace) -> Iterator[Backend]:
    backend: Backend
    if arguments.url is not None:
        from ..lang.backends.http import HttpBackend

        backend = HttpBackend(arguments.url, api_key=arguments.api_key)
    else:
        from ..lang.backends.local import LocalBackend
        from ..runtime.client.local import LocalClient

        config = engine_config(arguments)
        with LoadingBar() as bar:
            backend = LocalBackend(client=LocalClient.load(config, bar))
    try:
        yield backend
    finally:
        backend.close()
