"""Collects what users reach bough by, so that a change of the code's layout can be shown to lose none of it.

`features.json` beside this file is the record, begun before the folders of the package were laid out anew;
`python -m tests.house.features` adds to it what is new.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pkgutil
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec

import bough

Feature = Mapping[str, Any]

KINDS = inspect.Parameter
RECORD = Path(__file__).with_name("features.json")


def collect() -> dict[str, Any]:
    """Collects all tables; the keys of each are names, and its values say how the named thing is used."""
    return {
        "facade": {name: dict(members(getattr(bough, name))) for name in bough.__all__},
        "commands": {command: options(command) for command in commands()},
        "routes": routes(),
        "wire": wire(),
    }


# The facade


def members(value: Any) -> Iterator[tuple[str, Feature | str]]:
    """Yields the parameters of `value` itself, as `()`, and of its public methods; "value" for other members."""
    if callable(value):
        yield "()", parameters(value)
    kind = value if inspect.isclass(value) else type(value)
    if not kind.__module__.startswith("bough"):
        return
    for name in sorted(name for name in dir(kind) if not name.startswith("_")):
        member = inspect.getattr_static(kind, name)
        member = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        yield name, parameters(member) if inspect.isfunction(member) else "value"


def parameters(function: Any) -> Feature:
    """The parameters that may be given by place, in order, those that may be given by name only, and `*` or `**`.

    Each has its default, "" if it must be given; what `**options` may be is spelt out.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # built in, such as an exception's
        return {}
    places: dict[str, str] = {}
    names: dict[str, str] = {}
    rest = ""
    for name, parameter in signature.parameters.items():
        default = "" if parameter.default is parameter.empty else _shown(parameter.default)
        if parameter.kind in (KINDS.POSITIONAL_ONLY, KINDS.POSITIONAL_OR_KEYWORD):
            places[name] = default
        elif parameter.kind is KINDS.KEYWORD_ONLY:
            names[name] = default
        elif parameter.kind is KINDS.VAR_KEYWORD and (keys := _named(function, name)):
            names |= dict.fromkeys(keys, "None")
        else:
            rest += "*" if parameter.kind is KINDS.VAR_POSITIONAL else "**"
    return {"places": places, "names": names, "rest": rest}


def _named(function: Any, name: str) -> list[str]:
    """The keys of the TypedDict that `**name` unpacks; none if it is something else."""
    target = function.__init__ if inspect.isclass(function) else function
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except (NameError, AttributeError, TypeError):  # a name that is there for type checkers only
        return []
    unpacked = typing.get_args(hints.get(name))
    return sorted(typing.get_type_hints(unpacked[0])) if unpacked and typing.is_typeddict(unpacked[0]) else []


def _shown(default: Any) -> str:
    text = repr(default)
    return type(default).__name__ if " at 0x" in text else text


# The command line


class _MadeError(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _parser(*arguments: str) -> argparse.ArgumentParser:
    """The parser of the command line as it is when `arguments` are given."""
    from bough.cli.main import main

    def stop(self: argparse.ArgumentParser, *_: Any, **__: Any) -> typing.NoReturn:
        raise _MadeError(self)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop):
        try:
            main(arguments)
        except _MadeError as made:
            return made.parser
    raise AssertionError("the command line made no parser")


def _subparsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return found[0].choices if found else {}


def commands() -> list[str]:
    return sorted(_subparsers(_parser()))


def options(command: str) -> dict[str, Feature]:
    """The options and arguments of a command, by name."""
    found: dict[str, Feature] = {}
    for action in _subparsers(_parser(command))[command]._actions:
        entry: dict[str, Any] = {"default": repr(action.default), "nargs": action.nargs, "required": action.required}
        if action.choices is not None:
            entry["choices"] = sorted(map(str, action.choices))
        found.update(dict.fromkeys(action.option_strings or [action.dest], entry))
    return found


# HTTP and the wire


def routes() -> dict[str, list[str]]:
    """The methods of each path that the server answers."""
    from bough.server.app import create_app
    from bough.server.config import ServerConfig

    client: Any = SimpleNamespace(info=SimpleNamespace(name="m", max_requests=None), tokenizer=None)
    gate = create_app(client, ServerConfig())
    app = next(value for value in vars(gate).values() if hasattr(value, "routes"))
    found: dict[str, set[str]] = {}
    for route in app.routes:
        found.setdefault(route.path, set()).update(route.methods)
    return {path: sorted(methods) for path, methods in sorted(found.items())}


WIRE = ("bough.runtime", "bough.server", "bough.constrain.spec")
"""Modules that define the structs of the wire, and those that users write."""


def wire() -> dict[str, dict[str, str]]:
    """The fields of each public struct, under the names that they have as JSON, and their defaults."""
    for package in WIRE:
        for module in _modules(package):
            importlib.import_module(module)
    found: dict[str, dict[str, str]] = {}
    kinds = [msgspec.Struct]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__.startswith(WIRE) and not kind.__name__.startswith("_") and kind.__struct_fields__:
            name = f"{kind.__name__} {kind.__struct_config__.tag}" if kind.__struct_config__.tag else kind.__name__
            fields = msgspec.structs.fields(kind)
            found.setdefault(name, {}).update({f.encode_name: "" if f.required else _shown(f.default) for f in fields})
    return dict(sorted(found.items()))


def _modules(package: str) -> list[str]:
    """The modules of the packages that hold wire types; those that need a GPU's libraries do not."""
    found = [package]
    path = getattr(importlib.import_module(package), "__path__", [])
    for module in pkgutil.walk_packages(path, f"{package}."):
        if not any(part in module.name for part in ("gpu", "triton", "transformers", "tensor", "models")):
            found.append(module.name)
    return found


# The record


def merged(recorded: dict[str, Any], collected: dict[str, Any]) -> dict[str, Any]:
    """Adds to the record all that is new, save structs that it lacks: most never leave the process."""
    found = dict(recorded)
    for key, value in collected.items():
        if isinstance(value, dict) and isinstance(found.get(key), dict):
            inner = {name: value[name] for name in found[key].keys() & value.keys()} if key == "wire" else value
            found[key] = merged(found[key], inner)
        else:
            found[key] = value
    return found


def written(value: Any, depth: int = 3) -> str:
    """JSON with a line for each entry down to `depth`, so that a change is a change of few lines."""
    if not isinstance(value, dict) or not depth or not value:
        return json.dumps(value)
    pad = " " * (4 - depth)
    lines = ",\n".join(f"{pad}{json.dumps(name)}: {written(entry, depth - 1)}" for name, entry in value.items())
    return f"{{\n{lines}\n{pad[:-1]}}}"


if __name__ == "__main__":
    RECORD.write_text(written(merged(json.loads(RECORD.read_text()), collect())) + "\n")
