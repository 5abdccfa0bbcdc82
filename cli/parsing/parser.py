"""Parser of the command line: options by their full names, and one-line errors that say what to do next."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ...runtime.protocol.errors import did_you_mean
from .settings import Known, SettingError, Settings, collect, must_be, take

_SYNONYMS = {
    "download": "pull", "fetch": "pull", "install": "pull", "generate": "run", "list": "models", "ls": "models",
    "rm": "models", "server": "serve", "show": "models", "start": "serve", "talk": "chat",
}  # fmt: skip
"""Commands of other programs, and ours that does the same."""

_ACTIONS = {
    "delete": "remove", "describe": "info", "get": "info", "ls": "list", "rm": "remove", "show": "info",
    "uninstall": "remove", "validate": "check",
}  # fmt: skip
"""The same of what stands after a command."""


_SHORT = {
    "-m": "--model", "-p": "--port", "-t": "--temperature", "-n": "--max-tokens", "-c": "--config", "-s": "--system",
}  # fmt: skip
"""Short options of other programs, and ours; none of ours has a short name but -h."""


class CommandParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` whose options are never abbreviated, and whose errors are one line with a next step.

    rewrite   changes the words before they are parsed, given the options that the parser knows; raises SettingError
    known     where settings come from besides the command line; None: from nowhere
    stray     guesses what was meant by words that nothing takes, given what was parsed; "" for no guess
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, "exit_on_error": False, **options})
        self.rewrite: Callable[[list[str], frozenset[str]], list[str]] | None = None
        self.known: Known | None = None
        self.stray: Callable[[list[str], argparse.Namespace], str] = lambda words, parsed: ""

    @property
    def options(self) -> frozenset[str]:
        """Returns the options, as they are written."""
        return frozenset(self._option_string_actions)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parses the words, and ends the process at those that are not known."""
        words = list(sys.argv[1:] if args is None else args)
        settings: Settings = {}
        try:
            if self.rewrite is not None:
                words = self.rewrite(words, self.options)
            if self.known is not None:
                settings = collect(self, words, os.environ, self.known)
            parsed, left = super().parse_known_args(words, take(self, settings, namespace))
        except argparse.ArgumentError as error:
            self.error(self._explained(error))
        except SettingError as error:
            self.error(str(error))
        if left:
            self.error(self._unknown(left, parsed))
        for action in self._actions:  # lists: one from the command line replaces what was set elsewhere
            if action.dest in settings and getattr(parsed, action.dest) is action.default:
                setattr(parsed, action.dest, settings[action.dest].value)
        if self.known is not None:
            used = ((name, one) for name, one in settings.items() if getattr(parsed, name) == one.value)
            parsed.sources = {name: setting.source for name, setting in used}
        return parsed, []

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2 after one line."""
        missing = re.fullmatch(r"the following arguments are required: (.+)", message)
        if missing is not None:
            message = self._missing(missing[1].split(", "))
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")

    def _missing(self, names: list[str]) -> str:
        action = next(one for one in self._actions if names[0] in (one.metavar, one.dest))
        if action.choices:
            return f"{names[0]} is missing: {self.prog} {{{'|'.join(action.choices)}}} ({self.prog} --help says more)"
        return f"{names[0]} is missing: {self.prog} {self.places} ({self.prog} --help lists the options)"

    @property
    def places(self) -> str:
        """Returns what the command takes besides options."""
        shown = ((str(one.metavar or one.dest), one.nargs) for one in self._get_positional_actions())
        return " ".join(f"[{name} ...]" if nargs in ("*", "...") else name for name, nargs in shown)

    def _explained(self, error: argparse.ArgumentError) -> str:
        """The line for an argument that does not fit."""
        action, message = self._action_of(error.argument_name), error.message
        if action is None:
            return message
        name = _shown(action)
        if message.startswith("expected"):
            choices = f", one of {', '.join(map(str, action.choices))}" if action.choices else ""
            return f"{name} needs a value{choices}: {name} {_placeholder(action)}"
        if (wrong := re.match("ignored explicit argument (.+)", message)) is not None:
            others = " or ".join(action.option_strings)
            return f"{name} takes no value, got {wrong[1]}: write {others}"
        if (other := re.match(r"not allowed with argument (\S+)", message)) is not None:
            return f"{name} cannot stand beside {other[1]}: leave one of them out"
        if (wrong := re.match(r"invalid choice: (.+?) \(choose from", message, re.DOTALL)) is not None:
            return self._wrong_choice(action, name, wrong[1].strip("'\""))
        return f"{name} {message}"

    def _wrong_choice(self, action: argparse.Action, name: str, value: str) -> str:
        choices = [str(choice) for choice in action.choices or ()]
        if isinstance(action, argparse._SubParsersAction):
            meant = [name for name in (_SYNONYMS.get(value), _ACTIONS.get(value)) if name in choices]
            hint = did_you_mean(meant[0] if meant else value, choices, shown=lambda found: f"{self.prog} {found}")
            if "check" in choices and value.endswith(".json"):
                hint = f": did you mean {self.prog} check {value}?"
            listed = hint or f": there is {', '.join(choices)}"
            return f"there is no command {value!r}{listed} ({self.prog} --help says what each does)"
        return f"{name} {must_be(choices, value)}"

    def _unknown(self, left: list[str], parsed: argparse.Namespace) -> str:
        """The line for words that nothing takes."""
        word = next((word for word in left if word.startswith("-") and len(word) > 1), left[0])
        meant = self.stray(left[left.index(word) :], parsed)
        if not word.startswith("-"):
            meant = meant or self._option_for(word)
            takes = f"did you mean {meant}?" if meant else f"{self.prog} --help shows what it takes"
            return f"there is no place for {word!r}: {takes}"
        name = word.partition("=")[0]
        meant = meant or _SHORT.get(name, "")
        known = meant.partition(" ")[0] in self.options
        found = f": did you mean {meant}?" if known else did_you_mean(name, self.options)
        lists = f"{self.prog} --help lists all"
        return f"there is no option {name}{found} ({lists})" if found else f"there is no option {name}: {lists}"

    def _option_for(self, word: str) -> str:
        """Returns the option that a word is likely the value of, with the word; "" for no guess."""
        looks_like = (
            ("--arg", "=" in word),
            ("--port", word.isdecimal()),
            ("--program", word.partition(":")[0].endswith(".py")),
            ("--model", re.search("[/-]|[.]gguf$", word) is not None or os.path.isdir(word)),
        )
        return next((f"{option} {word}" for option, fits in looks_like if fits and option in self.options), "")

    def _action_of(self, name: str | None) -> argparse.Action | None:
        names = ((one, ("/".join(one.option_strings), one.metavar, one.dest)) for one in self._actions)
        return next((one for one, shown in names if name in shown), None)


def whole_number(text: str) -> int:
    """Reads a whole number. Raises argparse.ArgumentTypeError."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a whole number, such as 8; got {text!r}") from None


def port_number(text: str) -> int:
    """Reads the number of a port. Raises argparse.ArgumentTypeError."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a whole number, such as 8000; got {text!r}") from None


def number(text: str) -> float:
    """Reads a number. Raises argparse.ArgumentTypeError."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a number, such as 0.5; got {text!r}") from None


def _shown(action: argparse.Action) -> str:
    return action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)


def _placeholder(action: argparse.Action) -> str:
    return str(action.metavar or (next(iter(action.choices)) if action.choices else action.dest.upper()))
