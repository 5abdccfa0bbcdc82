"""`bough completion SHELL`: prints a script that completes commands, options and values, generated from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from .parsing.parser import CommandParser


class Option(NamedTuple):
    """An option as shells need it. `choices` are its values, `files` says that a file's name is one."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]
    files: bool


class Command(NamedTuple):
    """A command, by the words after `bough`: its options, what may stand in places, and the commands below it."""

    path: tuple[str, ...]
    options: tuple[Option, ...]
    choices: tuple[str, ...]
    files: bool
    below: Mapping[str, str]  # each with its help


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=tuple(_SHELLS), help="bash, zsh or fish")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _SETUP


def run(arguments: argparse.Namespace) -> int:
    from .main import make_parser

    print(_SHELLS[arguments.shell](list(commands(make_parser()))), end="")
    return 0


def commands(parser: CommandParser, path: tuple[str, ...] = ()) -> Iterator[Command]:
    """Yields the parser's command, then those below it."""
    options, choices, below, files = [], [], {}, False
    parsers: dict[str, CommandParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help or "" for one in action._get_subactions()}
            parsers, below = dict(action.choices), {name: helps.get(name, "") for name in action.choices}
        elif action.option_strings:
            options.append(_option(action))
        else:
            choices += [str(choice) for choice in action.choices or ()]
            files = files or _is_file(action)
    yield Command(path, tuple(options), tuple(choices), files, below)
    for name, child in parsers.items():
        yield from commands(child, (*path, name))


def _option(action: argparse.Action) -> Option:
    choices = tuple(str(choice) for choice in action.choices or ())
    text = " ".join((action.help or "").replace("%%", "%").split()).replace("%(default)s", str(action.default))
    return Option(tuple(action.option_strings), text, action.nargs != 0, choices, _is_file(action))


def _is_file(action: argparse.Action) -> bool:
    shown = str(action.metavar or "")
    return "FILE" in shown or ".json" in shown or action.dest in ("model", "tokenizer")


def _quoted(text: str) -> str:
    """`text` in single quotes, as bash and zsh read it."""
    return "'" + text.replace("'", "'\\''") + "'"


def _filled(
    script: str,
    found: list[Command],
    variable: str,
    value: Callable[[Option], str],
    place: Callable[[Command], tuple[str, str]],
) -> str:
    """The script of bash or zsh with its cases. `variable` holds the command's path; `value` completes an option's
    value, `place` gives what completes an option's name, and what completes any other word."""
    paths, values, places = [], [], []
    for command in found:
        path = "".join(f" {word}" for word in command.path)
        if path:
            paths.append(f'            "{path}") {variable}="{path}" ;;')
        for option in command.options:
            if option.takes_value:
                patterns = "|".join(f'"{path} {name}"' for name in option.names)
                values.append(f"        {patterns}) {value(option)}; return ;;")
        names, rest = place(command)
        places.append(f'        "{path}") if [[ $word == -* ]]; then {names}; else {rest}; fi ;;')
    return script.format(paths="\n".join(paths), values="\n".join(values), places="\n".join(places))


# bash

_BASH = """\
# Completion of bough in bash: eval "$(bough completion bash)"
_bough() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} path="" i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path ${{COMP_WORDS[i]}}" in
{paths}
        esac
    done
    if [[ $word == = ]]; then word=""; elif [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
    case "$path $before" in
{values}
    esac
    case "$path" in
{places}
    esac
}}
complete -F _bough bough
"""


def _bash(found: list[Command]) -> str:
    def place(command: Command) -> tuple[str, str]:
        names = [name for option in command.options for name in option.names]
        words = " ".join((*command.below, *command.choices))
        rest = 'COMPREPLY=($(compgen -f -- "$word"))' if command.files and not words else _bash_words(words)
        return _bash_words(" ".join(names)), rest

    return _filled(_BASH, found, "path", _bash_value, place)


def _bash_value(option: Option) -> str:
    if option.choices:
        return _bash_words(" ".join(option.choices))
    return 'COMPREPLY=($(compgen -f -- "$word"))' if option.files else "COMPREPLY=()"


def _bash_words(words: str) -> str:
    return f'COMPREPLY=($(compgen -W {_quoted(words)} -- "$word"))'


# zsh

_ZSH = """\
#compdef bough
# Completion of bough in zsh: eval "$(bough completion zsh)"
_bough() {{
    local word=${{words[CURRENT]}} before=${{words[CURRENT-1]}} bough_path="" i
    local -a found
    for ((i = 2; i < CURRENT; i++)); do
        case "$bough_path ${{words[i]}}" in
{paths}
        esac
    done
    case "$bough_path $before" in
{values}
    esac
    case "$bough_path" in
{places}
    esac
}}
if [[ "${{funcstack[1]}}" == _bough ]]; then _bough "$@"; else compdef _bough bough; fi
"""


def _zsh(found: list[Command]) -> str:
    def value(option: Option) -> str:
        return f"compadd -- {' '.join(option.choices)}" if option.choices else "_files" if option.files else ":"

    def place(command: Command) -> tuple[str, str]:
        options = " ".join(_zsh_entry(name, option.help) for option in command.options for name in option.names)
        entries = [_zsh_entry(name, text) for name, text in command.below.items()]
        entries += [_zsh_entry(name, "") for name in command.choices]
        rest = f"found=({' '.join(entries)}); _describe bough found" if entries else "_files" if command.files else ":"
        return f"found=({options}); _describe bough found", rest

    return _filled(_ZSH, found, "bough_path", value, place)


def _zsh_entry(name: str, text: str) -> str:
    """A word and its description, as `_describe` reads them."""
    return _quoted(f"{name}:{text}" if text else name)


# fish


def _fish(found: list[Command]) -> str:
    lines = ["# Completion of bough in fish: bough completion fish | source", "complete -c bough -f"]
    for command in found:
        for name, text in command.below.items():
            lines.append(f"complete -c bough -n {_fish_quoted(_fish_test(command))} -a {name} -d {_fish_quoted(text)}")
        test = _fish_quoted(_fish_test(command))
        if command.choices:
            lines.append(f"complete -c bough -n {test} -a {_fish_quoted(' '.join(command.choices))}")
        if command.files:
            lines.append(f"complete -c bough -n {test} -F")
        for option in command.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = " -x" if option.takes_value else ""
            if option.choices:
                value += f" -a {_fish_quoted(' '.join(option.choices))}"
            elif option.files:
                value = " -r -F"
            lines.append(f"complete -c bough -n {test} {names}{value} -d {_fish_quoted(option.help)}")
    return "\n".join(lines) + "\n"


def _fish_test(command: Command) -> str:
    """The condition under which the words so far are this command and none below it."""
    tests = [f"__fish_seen_subcommand_from {word}" for word in command.path]
    if command.below:
        tests.append(f"not __fish_seen_subcommand_from {' '.join(command.below)}")
    return "; and ".join(tests)


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SHELLS: Mapping[str, Callable[[list[Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

_SETUP = """\
bash: add to ~/.bashrc                        eval "$(bough completion bash)"
zsh:  add to ~/.zshrc, below compinit         eval "$(bough completion zsh)"
fish: write it where fish looks for it        bough completion fish > ~/.config/fish/completions/bough.fish
"""
