"""Values of options from a file and from the environment: command line > environment > file > default.

Each option that has a name can be set by `BOUGH_<NAME>` and by a key of the TOML file that `--config` names, in the
command's table or, for every command that has the option, above all tables.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

PREFIX = "BOUGH_"
CONFIG = "config"

_NOT_OPTIONS = frozenset({"BOUGH_API_KEY", "BOUGH_CACHE", "BOUGH_CPU", "BOUGH_CPU_LIBRARY", "BOUGH_LOG"})
_NO_SETTINGS = frozenset({"help", "version"})
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_MOST_ALIKE = 0.85


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
    elsewhere    returns the keys of all commands' options; slow, and needed for mistakes only
    advice       what to do with a key that another engine has, or ""
    """

    command: str
    commands: tuple[str, ...]
    elsewhere: Callable[[], frozenset[str]]
    advice: Callable[[str], str]


def collect(
    parser: argparse.ArgumentParser, words: list[str], environment: Mapping[str, str], known: Known
) -> Settings:
    """Reads the settings of the file and the environment that this parser has options for.

    Raises:
        SettingError: the file cannot be read, or a name or a value is wrong.
    """
    options = dict(_options(parser))
    found = _from_environment(options, environment, known)
    path = _config_path(words) or (found[CONFIG].value if CONFIG in found else None)
    if path is not None and CONFIG in options:
        found = {**_from_file(options, Path(path).expanduser(), known), **found}
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
    for place, word in enumerate(words):
        if word == f"--{CONFIG}" and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"--{CONFIG}="):
            return word.partition("=")[2]
    return None


# The environment


def _from_environment(options: Mapping[str, argparse.Action], environment: Mapping[str, str], known: Known) -> Settings:
    found: Settings = {}
    variables = {_variable(key): action for key, action in options.items()}
    for name, text in environment.items():
        if not name.startswith(PREFIX) or not text.strip():  # empty is how many tools write "not set"
            continue
        if name in variables:
            action = variables[name]
            found[action.dest] = Setting(_read_text(action, text, name), name)
        elif name not in _NOT_OPTIONS:
            _warn_of(name, variables, known)
    return found


def _variable(key: str) -> str:
    return PREFIX + key.upper().replace("-", "_")


def _warn_of(name: str, variables: Mapping[str, object], known: Known) -> None:
    """Says that a variable means nothing, if it looks like a misspelt one."""
    alike = difflib.get_close_matches(name, variables, n=1, cutoff=_MOST_ALIKE)
    if alike and name not in {_variable(key) for key in known.elsewhere()}:
        print(f"bough {known.command}: {name} has no effect: did you mean {alike[0]}?", file=sys.stderr)


def _read_text(action: argparse.Action, text: str, source: str) -> Any:
    """The value that a variable's text stands for."""
    if _is_switch(action):
        word = text.strip().lower()
        if word not in (*_TRUE, *_FALSE):
            raise SettingError(f"{source} must be true or false, got {text!r}")
        return word in _TRUE
    if isinstance(action, argparse._AppendAction):
        return _read_list(text, source)
    return _checked(action, text, source)


def _read_list(text: str, source: str) -> list[str]:
    """One text, or a JSON list of texts."""
    if not text.lstrip().startswith("["):
        return [text]
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError as error:
        raise SettingError(f'{source} must be one text, or a list such as ["a", "b"]: {error}') from None


# The file


def _from_file(options: Mapping[str, argparse.Action], path: Path, known: Known) -> Settings:
    content = _read_file(path)
    found: Settings = {}
    table = content.get(known.command, {})
    if not isinstance(table, dict):
        raise SettingError(f"{path}, {known.command}: must be a table: [{known.command}], and its options below it")
    for key, value in content.items():
        name = key.replace("_", "-")
        if isinstance(value, dict):
            if key not in known.commands:
                hint = _meant(key, known.commands)
                raise SettingError(f"{path}, [{key}]: there is no command of that name{hint}")
        elif name in options:
            found[options[name].dest] = _from_toml(options[name], value, f"{path}, {key}")
        elif name not in known.elsewhere():
            raise _unknown(path, key, key, known.elsewhere(), known)
    for key, value in table.items():
        name, place = key.replace("_", "-"), f"{known.command}.{key}"
        if name not in options:
            raise _unknown(path, key, place, options.keys(), known)
        found[options[name].dest] = _from_toml(options[name], value, f"{path}, {place}")
    return found


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise SettingError(f"--config: there is no file {path}: write it, or leave --config out") from None
    except OSError as error:
        raise SettingError(f"--config: {path} cannot be read ({error.strerror}): check its path and rights") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: mend the TOML: {error}") from None


def _unknown(path: Path, key: str, place: str, names: Any, known: Known) -> SettingError:
    name = key.replace("_", "-")
    hint = known.advice(name) or _meant(name, names)
    return SettingError(f"{path}, {place}: there is no such option{hint} (bough {known.command} --help lists them)")


def _meant(name: str, names: Any) -> str:
    alike = difflib.get_close_matches(name, sorted(names), n=1)
    return f": did you mean {alike[0]}?" if alike else ""


def _from_toml(action: argparse.Action, value: Any, source: str) -> Setting:
    """The setting, of the type that TOML has for it."""
    if _is_switch(action):
        wanted, fits = "true or false", isinstance(value, bool)
    elif isinstance(action, argparse._AppendAction):
        value = [value] if isinstance(value, str) else value
        wanted, fits = "a list of texts", isinstance(value, list) and all(isinstance(one, str) for one in value)
    elif _kind(action) is int:
        wanted, fits = "a whole number", type(value) is int
    elif _kind(action) is float:
        wanted, fits = "a number", type(value) in (int, float)
    else:
        wanted, fits = "a text in quotes", isinstance(value, str)
    if not fits:
        raise SettingError(f"{source}: must be {wanted}, got {value!r}")
    simple = isinstance(value, bool | list)
    return Setting(value if simple else _checked(action, str(value), f"{source}:"), source)


# Both


def _checked(action: argparse.Action, text: str, source: str) -> Any:
    """The text as the option's type. Raises SettingError."""
    try:
        value = action.type(text) if callable(action.type) else text
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise SettingError(f"{source} {error}") from None
    if action.choices and value not in action.choices:
        raise SettingError(f"{source} must be one of {', '.join(map(str, action.choices))}; got {value!r}")
    return value


def _is_switch(action: argparse.Action) -> bool:
    return action.nargs == 0


def _kind(action: argparse.Action) -> type:
    """The type of an option's values, by how it reads 1."""
    return type(action.type("1")) if callable(action.type) else str
