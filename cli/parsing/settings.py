"""Values of options from a file and from the environment: command line > environment > file > default.

Each named option can be set by `BOUGH_<NAME>` and by a key of the TOML file that `--config` names: in the command's
table or, for every command that has the option, above all tables.
"""

from __future__ import annotations

import argparse
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...runtime.protocol.errors import did_you_mean, reason

PREFIX = "BOUGH_"
CONFIG = "config"

_NOT_OPTIONS = frozenset({"BOUGH_API_KEY", "BOUGH_CACHE", "BOUGH_CPU", "BOUGH_CPU_LIBRARY", "BOUGH_LOG"})
_NO_SETTINGS = frozenset({"help", "version"})
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_MOST_ALIKE = 0.85
_SECRET = "api-key"


class SettingError(ValueError):
    """A setting is wrong; the message names its source, its key, and what is expected."""


class Setting(NamedTuple):
    """A value, and where it was set."""

    value: Any
    source: str


Settings = dict[str, Setting]  # by the name of the attribute that the parser sets


class Known(NamedTuple):
    """Names beyond one parser's.

    command      the command, which is the name of its table
    commands     all commands
    table        returns the keys of the command's options, whatever its action
    elsewhere    returns the keys of all commands' options; slow, and needed for mistakes only
    advice       what to do with a key that another engine has, or ""
    ours         our value of an option (`--name`), for one that another engine may have
    """

    command: str
    commands: tuple[str, ...]
    table: Callable[[], frozenset[str]]
    elsewhere: Callable[[], frozenset[str]]
    advice: Callable[[str], str]
    ours: Callable[[str, str], str]


def collect(
    parser: argparse.ArgumentParser, words: list[str], environment: Mapping[str, str], known: Known
) -> Settings:
    """Reads the settings of the file and the environment that this parser has options for.

    Raises:
        SettingError: the file cannot be read, or a name or a value is wrong.
    """
    options = dict(_options(parser))
    found = _from_environment(options, environment, known)
    path, source = _config_path(words), f"--{CONFIG}"
    if path is None and CONFIG in found:
        path, source = found[CONFIG]
    if path is not None and CONFIG in options:
        found = {**_from_file(options, Path(path), source, known), **found}
    return found


def take(parser: argparse.ArgumentParser, settings: Settings, namespace: Any) -> Any:
    """Returns the namespace with the settings in it, which the parser then takes for its defaults. Lists are left out:
    what the command line has of them would be added."""
    lists = {action.dest for action in parser._actions if isinstance(action, argparse._AppendAction)}
    single = {name: setting.value for name, setting in settings.items() if name not in lists}
    if not single:
        return namespace
    return argparse.Namespace(**{**vars(namespace or argparse.Namespace()), **single})


def keys(parser: argparse.ArgumentParser) -> frozenset[str]:
    """Returns the keys that a parser's options have in files."""
    return frozenset(dict(_options(parser)))


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """The options that can be set, by key."""
    for action in parser._actions:
        if action.option_strings and action.dest not in _NO_SETTINGS:
            yield action.option_strings[0].removeprefix("--"), action


def _config_path(words: list[str]) -> str | None:
    """The path of the last --config."""
    found = None
    for place, word in enumerate(words):
        if word == f"--{CONFIG}" and place + 1 < len(words):
            found = words[place + 1]
        elif word.startswith(f"--{CONFIG}="):
            found = word.partition("=")[2]
    return found


# The environment


def _from_environment(options: Mapping[str, argparse.Action], environment: Mapping[str, str], known: Known) -> Settings:
    found: Settings = {}
    variables = {_variable(key): action for key, action in options.items()}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or not text.strip():  # empty is how many tools write "not set"
            continue
        if name in variables:
            action = variables[name]
            found[action.dest] = Setting(_read_text(action, text, name, known), name)
        elif name not in _NOT_OPTIONS:
            _warn_of(name, variables, known)
    return found


def _variable(key: str) -> str:
    return PREFIX + key.upper().replace("-", "_")


def _warn_of(name: str, variables: Mapping[str, object], known: Known) -> None:
    """Says that a variable means nothing, if it looks like a misspelt one."""
    hint = did_you_mean(name, variables, alike=_MOST_ALIKE)
    if hint and name not in {_variable(key) for key in known.elsewhere()}:
        print(f"bough {known.command}: {name} has no effect{hint}", file=sys.stderr)


def _read_text(action: argparse.Action, text: str, source: str, known: Known) -> Any:
    """The value that a variable's text stands for."""
    if _is_switch(action):
        word = text.strip().lower()
        if word not in (*_TRUE, *_FALSE):
            raise SettingError(f"{source} must be true or false, got {text!r}")
        return word in _TRUE
    if isinstance(action, argparse._AppendAction):
        return _read_list(text, source)
    return _checked(action, text, source, known)


def _read_list(text: str, source: str) -> list[str]:
    """A single value, or a JSON list of strings."""
    if not text.lstrip().startswith("["):
        return [text]
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError as error:
        raise SettingError(f'{source} must be a single value, or a JSON list such as ["a", "b"]: {error}') from None


# The file


def _from_file(options: Mapping[str, argparse.Action], path: Path, source: str, known: Known) -> Settings:
    content = _read_file(path, source)
    found: Settings = {}
    table = content.get(known.command, {})
    if not isinstance(table, dict):
        raise SettingError(f"{path}, {known.command}: must be a table: [{known.command}], with its options below it")
    for key, value in content.items():
        name = key.replace("_", "-")
        if isinstance(value, dict):
            if key not in known.commands:
                hint = did_you_mean(key, known.commands) or f": there is {', '.join(known.commands)}"
                raise SettingError(f"{path}, [{key}]: there is no command of that name{hint}")
        elif name in options:
            found[options[name].dest] = _from_toml(options[name], value, f"{path}, {key}", known)
        elif name not in known.elsewhere():
            raise _unknown(path, key, key, known.elsewhere(), known)
    for key, value in table.items():
        name, place = key.replace("_", "-"), f"{known.command}.{key}"
        if name in options:
            found[options[name].dest] = _from_toml(options[name], value, f"{path}, {place}", known)
        elif name not in known.table():
            raise _unknown(path, key, place, known.table(), known)
    _warn_of_readers(content, path, known)
    return found


def _read_file(path: Path, source: str) -> dict[str, Any]:
    try:
        with path.expanduser().open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise SettingError(f"{source}: there is no file {path}: check the path") from None
    except (OSError, RuntimeError) as error:
        raise SettingError(
            f"{source}: {path} cannot be read ({reason(error)}): check the path and its rights"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not valid TOML: {reason(error)}") from None


def _warn_of_readers(content: dict[str, Any], path: Path, known: Known) -> None:
    """Says that a key in the file is no secret, if other users can read it."""
    mode = path.expanduser().stat().st_mode
    tables = (content, *(table for table in content.values() if isinstance(table, dict)))
    if mode & (stat.S_IRGRP | stat.S_IROTH) and any(
        _SECRET in {key.replace("_", "-") for key in one} for one in tables
    ):
        print(
            f"bough {known.command}: {path} holds an API key and can be read by other users: chmod 600 {path}",
            file=sys.stderr,
        )


def _unknown(path: Path, key: str, place: str, names: Any, known: Known) -> SettingError:
    name = key.replace("_", "-")
    hint = known.advice(name) or did_you_mean(name, names)
    return SettingError(f"{path}, {place}: there is no such option{hint} (bough {known.command} --help lists them)")


def _from_toml(action: argparse.Action, value: Any, source: str, known: Known) -> Setting:
    """The setting, of the type that TOML has for it."""
    if _is_switch(action):
        wanted, fits = "true or false", isinstance(value, bool)
    elif isinstance(action, argparse._AppendAction):
        value = [value] if isinstance(value, str) else value
        wanted, fits = "a list of strings", isinstance(value, list) and all(isinstance(one, str) for one in value)
    elif _kind(action) is int:
        wanted, fits = "a whole number", type(value) is int
    elif _kind(action) is float:
        wanted, fits = "a number", type(value) in (int, float)
    else:
        wanted, fits = "a string in quotes", isinstance(value, str)
    if not fits:
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
        raise SettingError(f"{source}: must be {wanted}, got {shown}")
    simple = isinstance(value, bool | list)
    return Setting(value if simple else _checked(action, str(value), f"{source}:", known), source)


# Both


def must_be(choices: Sequence[str], value: str) -> str:
    """Returns the words for a value that is none of the choices."""
    listed = choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
    return f"must be {listed}, got {value!r}{did_you_mean(value, choices)}"


def _checked(action: argparse.Action, text: str, source: str, known: Known) -> Any:
    """The text as the option's type. Raises SettingError."""
    text = known.ours(action.option_strings[0], text)
    try:
        value = action.type(text) if callable(action.type) else text
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise SettingError(f"{source} {error}") from None
    if action.choices and value not in action.choices:
        raise SettingError(f"{source} {must_be([str(choice) for choice in action.choices], str(value))}")
    return value


def _is_switch(action: argparse.Action) -> bool:
    return action.nargs == 0


def _kind(action: argparse.Action) -> type:
    """The type of an option's values, by how it reads 1."""
    return type(action.type("1")) if callable(action.type) else str
