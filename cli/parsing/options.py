"""Flags derived from the engine's settings: one for each field of `EngineConfig`."""

from __future__ import annotations

import argparse
import types
import typing
from typing import Any

import msgspec

from ...runtime.protocol.config import EngineConfig
from .parser import CommandParser, number, whole_number
from .spellings import translate

_READERS: dict[type, tuple[Any, str]] = {int: (whole_number, "N"), float: (number, "X"), str: (str, "NAME")}
_GIVEN_OTHERWISE = frozenset({"tenant_weights"})  # by the file of API keys


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each field of EngineConfig, with its docstring line as help and its default shown.

    Spellings of other engines are understood too.
    """
    if isinstance(parser, CommandParser):
        parser.rewrite = translate
    group = parser.add_argument_group("engine", "Most options of vLLM and SGLang are understood too: docs/cli.md.")
    lines = _descriptions(EngineConfig.__doc__ or "")
    hints = typing.get_type_hints(EngineConfig)
    for field in msgspec.structs.fields(EngineConfig):
        if field.name in _GIVEN_OTHERWISE:
            continue
        default = field.default
        options: dict[str, Any] = {"default": default, "help": _help(lines.get(field.name, ""), default)}
        kind, choices = _kind(hints[field.name])
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["type"], placeholder = _READERS[kind]
            options["metavar"] = None if choices else placeholder
            options["choices"] = choices
        group.add_argument("--" + field.name.replace("_", "-"), **options)


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """Returns the settings that the flags gave.

    Raises:
        RequestError: a value is out of range.
    """
    given = (name for name in EngineConfig.__struct_fields__ if name not in _GIVEN_OTHERWISE)
    return EngineConfig(**{name: getattr(arguments, name) for name in given})


def _kind(annotation: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Returns the flag's type and choices for a field's annotation (X, X | None, or Literal)."""
    if typing.get_origin(annotation) is typing.Literal:
        return str, typing.get_args(annotation)
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return _kind(next(member for member in typing.get_args(annotation) if member is not type(None)))
    return annotation, None


def _help(text: str, default: object) -> str:
    shown = "" if default is None or isinstance(default, bool) else f" (default: {default})"
    return (text + shown).replace("%", "%%")


def _descriptions(docstring: str) -> dict[str, str]:
    """Maps field names to what the class's docstring says of them."""
    found: dict[str, str] = {}
    name = ""
    for line in docstring.splitlines():
        words = line.split(maxsplit=1)
        if line.startswith("    ") and not line.startswith("     ") and len(words) == 2 and words[0].isidentifier():
            name = words[0]
            found[name] = words[1]
        elif line.startswith("      ") and name and words:
            found[name] += " " + line.strip()
        else:
            name = ""
    return found
