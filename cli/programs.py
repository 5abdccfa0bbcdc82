"""Programs in users' files: loads and finds them, binds their arguments, and shows errors without internal frames."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import inspect
import json
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ..lang.diagnostics.errors import BackendError
from ..lang.diagnostics.source_lines import has_line, users_only
from ..lang.function import Function
from ..lang.record.options import OPTION_NAMES, clean_options
from ..runtime.protocol.errors import BoughError, RequestError, did_you_mean, reason

_KINDS: Mapping[Any, str] = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false", list: "a JSON list",
    dict: "a JSON object",
}  # fmt: skip


class UsersError(BoughError):
    """The user's own code failed; the message shows it by the frames or by the line of that code alone."""


def load_file(path: Path) -> ModuleType:
    """Loads the module that a file defines; its folder can be imported from, as with `python FILE`.

    Raises:
        RequestError: there is no such file, or it is no Python; the message names the line.
        UsersError: the file's code failed.
    """
    if path.is_dir():
        raise RequestError(f"{path} is a folder: name a Python file in it", param="program")
    if not path.is_file():
        raise RequestError(f"there is no file {path}{_nearby(path)}", param="program")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise RequestError(f"{path} is no Python file: name one that ends in .py", param="program")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module  # dataclasses and pickers of type hints look their module up
    with users_errors():
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            text = f": {error.text.strip()}" if error.text else ""
            place = f":{error.lineno}" if error.lineno is not None else ""
            line = f"{error.filename or path}{place}: {error.msg}{text}"
            raise RequestError(line, param="program") from error
    return module


def find_program(module: ModuleType, name: str) -> Function:
    """Finds the program called `name`; without a name the one called main, or the only one.

    Raises:
        RequestError: there is none, or the choice is not clear.
    """
    programs = {key: value for key, value in vars(module).items() if isinstance(value, Function)}
    file, listing = module.__file__, ", ".join(programs)
    if not programs:
        raise RequestError(f"{file} has no program: mark a function in it with @bough.function", param="program")
    if name:
        if name not in programs:
            hint = did_you_mean(name, programs, shown=lambda found: f"{Path(file or '').name}:{found}")
            raise RequestError(f"{file} has no program {name!r}{hint or f': it has {listing}'}", param="program")
        return programs[name]
    if "main" in programs:
        return programs["main"]
    if len(programs) != 1:
        shown = ", ".join(f"{Path(file or '').name}:{program}" for program in programs)
        raise RequestError(f"{file} has several programs: name one, {shown}", param="program")
    return next(iter(programs.values()))


def argument_meant(words: list[str], parsed: argparse.Namespace) -> str:
    """Returns the --arg that stray words, `hello` or `--text hello`, are likely meant as; "" if there is none. The file
    is read, not run."""
    file, _, function = parsed.program.partition(":")
    parameters = _parameters_in(Path(file), function)
    word, _, value = words[0].partition("=")
    if word.startswith("-"):
        name = word.lstrip("-").replace("-", "_")
        text = value or " ".join(words[1:2])
        return f"--arg {shlex.quote(f'{name}={text}')}" if name in parameters and text else ""
    if value:
        return f"--arg {shlex.quote(words[0])}"
    given = {text.partition("=")[0] for text in parsed.arg}
    free = next((name for name in parameters if name not in given), "")
    return f"--arg {shlex.quote(f'{free}={word}')}" if free else ""


def _parameters_in(path: Path, function: str) -> list[str]:
    """The names of a program's parameters, the state's aside, as its file has them."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    programs = {node.name: node for node in functions if node.decorator_list}
    node = programs.get(function or "main") or next(iter(programs.values()), None)
    return [] if node is None else [one.arg for one in (*node.args.args[1:], *node.args.kwonlyargs)]


def split_arguments(texts: Iterable[str]) -> dict[str, str]:
    """Returns the values of `name=value` by name; that of `@FILE` is the text of a file.

    Raises:
        RequestError: there is no "=", or no such file, or a name is given twice.
    """
    found: dict[str, str] = {}
    for name, value in map(_split, texts):
        if name in found:
            raise RequestError(f"--arg {name} is given twice: leave one of them out", param="arg")
        found[name] = value
    return found


def _split(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise RequestError(f"--arg must be NAME=VALUE, got {text!r}", param="arg")
    if not value.startswith("@"):
        return name, value
    path = Path(value[1:])
    try:
        # In quotes, so that a file is text whatever is in it.
        return name, json.dumps(path.read_text(encoding="utf-8"), ensure_ascii=False)
    except FileNotFoundError:
        raise RequestError(f"--arg {name}: there is no file {path}{_nearby(path)}", param="arg") from None
    except (OSError, UnicodeDecodeError) as error:
        why = f"{value!r} cannot be read as text ({reason(error)})"
        raise RequestError(f"--arg {name}: {why}: name a text file behind the @", param="arg") from error


def bound(program: Function[Any], given: Mapping[str, str], *, partial: bool = False) -> dict[str, Any]:
    """The arguments of a run by name, as values: texts are read as JSON where that is what they are, and otherwise, or
    where the program has `str`, stay as they are. `partial` leaves some for later.

    Raises:
        RequestError: one is missing, unknown, or of another type than the program says.
    """
    parameters = dict(list(inspect.signature(program.body).parameters.items())[1:])
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    named = {name for name, kind in kinds.items() if kind.name not in ("VAR_POSITIONAL", "VAR_KEYWORD")}
    title = program.__name__
    for name in given:
        if name not in named | OPTION_NAMES and inspect.Parameter.VAR_KEYWORD not in kinds.values():
            hint = did_you_mean(name, named | OPTION_NAMES, shown=lambda found: f"--arg {found}=...")
            takes = hint or f": it takes {', '.join(sorted(named)) or 'none'}"
            raise RequestError(f"{title} has no argument {name!r}{takes}", param="arg")
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty and name in named]
    missing = [name for name in needed if name not in {*given, *program.bound}]
    if missing and not partial:
        raise RequestError(f"{title} needs {' '.join(f'--arg {name}=...' for name in missing)}", param="arg")
    values = {name: _value(name, text, parameters.get(name), title) for name, text in given.items()}
    _check_options({name: value for name, value in values.items() if name in OPTION_NAMES - named})
    return values


def _check_options(options: Mapping[str, Any]) -> None:
    """Raises RequestError for a sampling option that cannot be what --arg has for it."""
    try:
        clean_options(options)
    except RequestError as error:
        raise RequestError(f"--arg {error.message}", param="arg") from None


@contextlib.contextmanager
def users_errors() -> Iterator[None]:
    """Makes an exception of the user's code a UsersError, and one of bough that blames a line of it. Others pass."""
    try:
        yield
    except BoughError as error:
        if isinstance(error.__cause__, BackendError) or str(error) == error.message:
            raise
        raise UsersError(str(error), code=error.code) from error
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error, AttributeError | TypeError) and has_line(error):
            raise UsersError(str(error)) from error
        if users_only(error.__traceback__) is None:
            raise
        raise UsersError(_trace(error)) from error


def _trace(error: Exception) -> str:
    """The traceback in Python's form, of the user's lines alone."""
    lines = traceback.format_tb(users_only(error.__traceback__))
    return "".join(["your code failed:\n", *lines, *traceback.format_exception_only(error)]).rstrip()


def _value(name: str, text: str, parameter: inspect.Parameter | None, title: str) -> Any:
    """The text as a value of the parameter's type, if it has one of Python's own."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    kind = _kind_of(parameter)
    if kind is None:
        return value
    if kind is str:
        return value if isinstance(value, str) else text
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise RequestError(f"--arg {name} must be {_KINDS[kind]} for {title}, got {shown!r}", param="arg")
    return value


def _kind_of(parameter: inspect.Parameter | None) -> Any:
    """The built-in type of a parameter, also where annotations are texts; None for all others."""
    if parameter is None:
        return None
    names = {kind.__name__: kind for kind in _KINDS}
    annotation = parameter.annotation
    return names.get(annotation) if isinstance(annotation, str) else annotation if annotation in _KINDS else None


def _nearby(path: Path) -> str:
    """ ": did you mean ...?" if the folder has a file of nearly that name, its ending aside."""
    if not path.parent.is_dir():
        return f": there is no folder {path.parent} either"
    try:
        files = {entry.stem: str(entry) for entry in path.parent.iterdir() if entry.is_file()}
    except OSError:
        files = {}
    return did_you_mean(path.stem, files, shown=files.__getitem__) or ": check the path"
