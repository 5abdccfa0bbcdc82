"""Lines of the user's code: those at which instructions were recorded, and those shown in errors and tracebacks."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Iterable, Mapping
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import NamedTuple

from ...runtime.protocol.errors import BoughError, ModelError, RequestError, did_you_mean

_ROOT = __name__.partition(".")[0]
_OURS = tuple(f"{_ROOT}.{layer}" for layer in ("lang", "runtime", "constrain", "cli"))
_STANDARD = os.path.dirname(contextlib.__file__) + os.sep
_INSTALLED = os.path.join(_STANDARD, "site-packages") + os.sep
_PACKAGES = f"{os.sep}site-packages{os.sep}"
_BOUNDARIES = frozenset({f"{_ROOT}.lang.run.run", f"{_ROOT}.lang.compile.tracing"})
"""The modules that call a program's body."""
_MARK = "\n  at "
"""Stands before the line in a message."""


class Place(NamedTuple):
    """A line of a program, and the lines that called it, the innermost last."""

    file: str
    line: int
    function: str
    callers: tuple[Place, ...] = ()

    @property
    def stack(self) -> tuple[Place, ...]:
        """The callers, and then the line itself."""
        return (*self.callers, self._replace(callers=()))


UNKNOWN = Place("<unknown>", 0, "<unknown>")


def caller() -> Place:
    """The innermost line that is being executed outside of this package and of Python's own modules."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_users(frame, _module(frame)):
        frame = frame.f_back
    return UNKNOWN if frame is None else _place(frame)


def place() -> Place:
    """`caller()`, with those that called it, from the program's body inwards. Where no body runs there are none."""
    found: list[Place] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = _module(frame)
        if module in _BOUNDARIES:
            break
        if _is_users(frame, module):
            found.append(_place(frame))
        frame = frame.f_back
    if not found:
        return UNKNOWN
    return found[0]._replace(callers=tuple(reversed(found[1:]))) if frame is not None else found[0]


def leading_to(written: Place) -> Place:
    """Returns the place of an expression that was written at `written`, with the lines that led to here."""
    here = place()
    same_function = (here.file, here.function) == (written.file, written.function)
    return written._replace(callers=here.callers if same_function else here.stack)


def raised(error: BaseException) -> Place:
    """The innermost line of a program on the way to an error that its body has raised, with those that called it."""
    found: list[Place] = []
    for frame, line in walk_tb(error.__traceback__):
        if _module(frame) in _BOUNDARIES:
            found = []
        elif _is_users(frame, _module(frame)):
            found.append(_place(frame)._replace(line=line))
    return found[-1]._replace(callers=tuple(found[:-1])) if found else UNKNOWN


def _module(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name


def _is_users(frame: FrameType, module: str) -> bool:
    if module == _ROOT or module.startswith(_OURS):
        return False
    file = frame.f_code.co_filename
    return not file.startswith((_STANDARD, "<frozen ")) or file.startswith(_INSTALLED)


def _place(frame: FrameType) -> Place:
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


# Errors


def add_line(error: BaseException, here: Place | None = None) -> None:
    """Puts the user's line behind an error's message, unless it has one. `message` stays as it is."""
    here = here or caller()
    text = str(error)
    if here == UNKNOWN or has_line(error):
        return
    source = linecache.getline(here.file, here.line).strip()
    error.args = (f"{text}{_MARK}{here.file}:{here.line}, in {here.function}" + (f"\n    {source}" if source else ""),)


def no_attribute(what: str, name: str, meant: Mapping[str, str], names: Iterable[str]) -> AttributeError:
    """Returns the error for an attribute that there is not, with the user's line, and what is likely meant: as `meant`
    says, or the nearest of `names`."""
    advice = f": {meant[name]}" if name in meant else ""
    if not name.startswith("_"):  # those are looked for by Python's own modules
        advice = advice or did_you_mean(name, (one for one in names if not one.startswith("_")), shown=repr)
    error = AttributeError(f"{what} has no attribute {name!r}{advice}", name=None)  # a name: Python would add to it
    if not name.startswith("_"):
        add_line(error)
    return error


def has_line(error: BaseException) -> bool:
    """Tells whether the message has the user's line."""
    return any(isinstance(argument, str) and _MARK in argument for argument in error.args)


class _Located(contextlib.ContextDecorator):
    """Puts the line that calls the function, or that the block is called from, behind the messages of errors that say
    that arguments are wrong, and leaves the user's lines alone in their tracebacks. To decorate functions, and for
    `with`."""

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, RequestError | ModelError | TypeError):
            add_line(error)
            if has_line(error):
                _trim(error)


located = _Located()


class _UsersLines(contextlib.ContextDecorator):
    """Leaves the user's lines alone in tracebacks of errors that the user can mend: those of bough, and what the user's
    own code raises. Where bough itself is wrong, all lines stay. To decorate functions, and for `with`."""

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and (isinstance(error, BoughError) or has_line(error) or _is_raised_by_user(error)):
            _trim(error)


users_lines = _UsersLines()


def _trim(error: BaseException) -> None:
    """Cuts an error's traceback, and those of the errors that led to it."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = users_only(one.__traceback__)
        left += [one.__cause__, None if one.__suppress_context__ else one.__context__]


def users_only(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the lines of this package and of Python's own modules; None if no others are in it."""
    kept = [(frame, line) for frame, line in walk_tb(traceback) if _is_users(frame, _module(frame))]
    last: TracebackType | None = None
    for frame, line in reversed(kept):
        last = TracebackType(last, frame, frame.f_lasti, line)
    return last


def _is_raised_by_user(error: BaseException) -> bool:
    """Tells whether the user's own code has raised the error, or a package that it calls."""
    for frame, _ in reversed(list(walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if _module(frame).partition(".")[0] == _ROOT:
            return False
        if _PACKAGES not in file and not file.startswith((_STANDARD, "<frozen ")):
            return True
    return False
