"""`bough run FILE[:function]`: runs a program on a model, shows what it made, and where its tokens came from."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ..lang.backend import Backend
from ..lang.function import Function
from ..lang.observe.timelines.report import report
from ..lang.observe.timelines.timeline import Timeline
from ..lang.state.state import State
from ..runtime.checkpoints.fetch import MODELS, default_cache
from ..runtime.protocol.errors import RequestError
from ..runtime.tokenizer.load import load_tokenizer
from .options import add_engine_options, engine_config
from .progress import LoadingBar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="FILE[:FUNCTION]", help="a Python file; FUNCTION if it has several programs")
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the program: JSON, or else text; @FILE is the text of a file",
    )
    parser.add_argument("--url", help="run on a bough server instead of loading a model here")
    parser.add_argument("--api-key", help="of that server")
    parser.add_argument("--timeline", metavar="FILE.html", help="write a page that shows where each token came from")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="run nothing: show the instructions, what they cost at most and what is shared",
    )
    parser.add_argument(
        "--report", action="store_true", help="after the run, show what was sent, computed and cached, call by call"
    )
    parser.add_argument("--temperature", type=float, help="default of the program's generations")
    parser.add_argument("--max-tokens", type=int, help="default of the program's generations")
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    path, _, name = arguments.program.partition(":")
    program = find_program(load_file(Path(path)), name)
    keywords = dict(parse_argument(text) for text in arguments.arg)
    defaults = {"temperature": arguments.temperature, "max_tokens": arguments.max_tokens}
    keywords |= {option: value for option, value in defaults.items() if value is not None}
    if arguments.explain:
        print(explain(program, keywords, arguments.model))
        return 0
    traced = arguments.report or arguments.timeline is not None
    with _backend(arguments) as backend:
        state = program.run(backend=backend, trace=traced, **keywords)
        show(state)
        if traced:
            _tell(state.timeline(), arguments)
    return 0


def explain(program: Function[Any], keywords: dict[str, Any], model: str) -> str:
    """Describes what the program would do. The model's tokenizer counts its tokens if it is on this machine."""
    source = _find_tokenizer(model)
    counted = "" if source is None else f"\ncounted         by the tokenizer of {model}"
    return program.explain(tokenizer=None if source is None else load_tokenizer(source), **keywords) + counted


def _find_tokenizer(model: str) -> Path | None:
    """Finds the model's file or folder if it is here already; downloads nothing."""
    cached = default_cache() / model / "model.gguf"
    named = Path(model).expanduser()
    if model in MODELS:
        return cached if cached.is_file() else None
    return named if (named.suffix == ".gguf" and named.is_file()) or (named / "tokenizer.json").is_file() else None


def _tell(timeline: Timeline, arguments: argparse.Namespace) -> None:
    """Writes what was asked for about the run to standard error."""
    if arguments.report:
        print(f"\n{report(timeline)}", file=sys.stderr)
    if arguments.timeline is not None:
        timeline.save(arguments.timeline)
        shown = "" if arguments.report else f"\n{timeline.text()}\n"
        print(f"{shown}\nThe timeline is in {arguments.timeline}", file=sys.stderr)


def load_file(path: Path) -> ModuleType:
    """Loads the module that a file defines; its folder can be imported from, as with `python FILE`.

    Raises:
        RequestError: there is no such file.
    """
    if not path.is_file():
        raise RequestError(f"there is no file {path}", param="program")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module  # dataclasses and pickers of type hints look their module up
    spec.loader.exec_module(module)
    return module


def find_program(module: ModuleType, name: str) -> Function:
    """Finds the program called `name`; without a name the one called main, or the only one.

    Raises:
        RequestError: there is none, or the choice is not clear.
    """
    programs = {key: value for key, value in vars(module).items() if isinstance(value, Function)}
    listing = ", ".join(programs) or "none"
    if name:
        if name not in programs:
            raise RequestError(f"{module.__file__} has no program {name!r} (it has: {listing})", param="program")
        return programs[name]
    if "main" in programs:
        return programs["main"]
    if len(programs) != 1:
        raise RequestError(f"{module.__file__} needs a :FUNCTION, one of its programs: {listing}", param="program")
    return next(iter(programs.values()))


def parse_argument(text: str) -> tuple[str, Any]:
    """`name=value`, the value as JSON, as the text of @FILE, or as it is.

    Raises:
        RequestError: there is no "=", or no such file.
    """
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise RequestError(f"--arg needs NAME=VALUE, got {text!r}", param="arg")
    if value.startswith("@"):
        try:
            return name, Path(value[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise RequestError(f"--arg {name}: {error}", param="arg") from error
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


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
