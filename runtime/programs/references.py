"""Values that programs refer to: puts them into texts and conditions, and finds which of them are still to come."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..protocol.condition import Hole, NotYetError, Ref, Times
from ..protocol.errors import BoughError, EngineError, RequestError
from ..protocol.patterns import Matching, Pattern
from ..protocol.program import Part
from .costs import COPIED_PER_WORK, PARTS_PER_WORK, PATTERN_CHARS_PER_WORK
from .queues import NEVER
from .state import Branch


def look_up(ref: Ref, reader: Branch, branches: Mapping[int, Branch]) -> str:
    """Returns the value that `ref` means in an instruction of `reader`: the last one of that name.

    A reader in the loop finds what has been made last there; one that is not waits until the loop is over.

    Raises:
        NotYetError: it is still to come.
        EngineError: its branch has ended early.
        RequestError: it will never come.
    """
    source = branches.get(ref.branch)
    if source is not None and ref.name in source.values:
        looping = source.looping.get(ref.name)
        if looping and source.failure is None and not all(loop in reader.inside for loop in looping):
            raise NotYetError(ref)
        return source.values[ref.name]
    if source is not None and source.failure is not None:
        message = f"there is no value {ref.name!r}: branch {ref.branch} has failed: {source.failure.error.message}"
        raise EngineError(message, code="branch_failed", param="ops")
    if source is None or source.scope == NEVER or source.settled or source is reader:
        raise RequestError(f"there is no value named {ref.name!r} in branch {ref.branch}", param="ops")
    raise NotYetError(ref)


def count(name: Times, reader: Branch, branches: Mapping[int, Branch]) -> int:
    """Counts the values of a name.

    Raises:
        NotYetError: there may be more.
    """
    source = branches.get(name.branch)
    if source is None or source.scope == NEVER:
        return 0
    if source is not reader and not source.settled:
        raise NotYetError(name)
    return source.made[name.name]


def lacks(of: Ref | Times, reader: Branch, branches: Mapping[int, Branch]) -> bool:
    """Returns true if an instruction of `reader` that needs `of` still has to wait for it."""
    try:
        look_up(of, reader, branches) if isinstance(of, Ref) else count(of, reader, branches)
    except NotYetError:
        return True
    except BoughError:
        pass
    return False


def write(
    parts: tuple[Part, ...], reader: Branch, branches: Mapping[int, Branch], *, max_length: float = math.inf
) -> str:
    """Returns the text of `parts`.

    Raises:
        NotYetError, EngineError, RequestError: as `look_up`; or more than `max_length` characters in all.
    """
    texts: list[str] = []
    room = max_length
    for index, part in enumerate(parts):
        assert not isinstance(part, Hole)
        try:
            text = part if isinstance(part, str) else look_up(part, reader, branches)
        except NotYetError as error:
            later = (each for each in parts[index + 1 :] if isinstance(each, Ref))
            raise NotYetError(*error.of, *(each for each in later if lacks(each, reader, branches))) from None
        room -= len(text)
        if room < 0:  # references can name a long value many times
            message = f"the text has more than {max_length:g} characters, more than there is room for"
            raise RequestError(message, code="context_length_exceeded", param="ops")
        texts.append(text)
    return "".join(texts)


class ConditionValues:
    """Values that a condition in an instruction of `reader` asks for.

    max_chars   characters that may be compared
    matches     comparisons of texts with patterns, which are kept and not made again. They go on until the time
                `until`, and as long as `pause` does not raise; they are paid by `spend`
    """

    def __init__(
        self,
        patterns: Mapping[str, Pattern],
        reader: Branch,
        branches: Mapping[int, Branch],
        matches: dict[tuple[str, str], Matching],
        *,
        max_chars: float,
        until: float,
        spend: Callable[[int], None],
        pause: Callable[[], None],
    ) -> None:
        self._patterns = patterns
        self._reader = reader
        self._branches = branches
        self._matches = matches
        self._max_chars = max_chars
        self._until = until
        self._spend = spend
        self._pause = pause
        self._num_begun = 0
        self._num_asked = 0
        self._num_compared = 0

    @property
    def work(self) -> int:
        """Units of work of what was asked for so far."""
        return self._num_asked // PARTS_PER_WORK + self._num_compared // COPIED_PER_WORK

    def text(self, ref: Ref) -> str:
        self._num_asked += 1
        text = look_up(ref, self._reader, self._branches)
        self._num_compared += len(text)
        if self._num_compared > self._max_chars:
            message = f"the condition compares more than {self._max_chars} characters, which is the limit"
            raise EngineError(message, code="condition_too_complex", param="ops")
        return text

    def times(self, name: Times) -> int:
        self._num_asked += 1
        return count(name, self._reader, self._branches)

    def matches(self, pattern: str, text: str) -> bool:
        """Compares a text with a pattern. Raises PausedError: the outcome is not known yet."""
        matching = self._matches.get((pattern, text))
        if matching is None:
            if self._num_begun:
                self._pause()
            self._num_begun += 1
            matching = Matching(self._patterns[pattern], text)
            self._spend(1 + len(text) // PATTERN_CHARS_PER_WORK)
            self._matches[pattern, text] = matching
        found = matching.done_by(self._until)
        if found is None:
            raise PausedError
        return found


class PausedError(Exception):
    """An instruction has more to do than the program's slice of time holds: it goes on in the next one."""
