"""What has come back from the engine: values, branches that failed or began anew, and what happened in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...runtime.protocol.patterns import PatternCache
from ...runtime.protocol.program import Delta, ProgramEvent, Skipped, Value
from ...runtime.protocol.request import Usage
from ..diagnostics.errors import ProgramError
from ..record.recorder import Recorder
from ..record.variables import Slot, Submission
from .replay import Replay


class Arrivals:
    """The values of a program, by branch and name. Guarded by the session's lock."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._slots: dict[tuple[int, str], Slot] = {}
        self._parents: dict[int, int] = {}
        self._failures: dict[int, ProgramError] = {}
        self._num_events = 0
        self._patterns: PatternCache | None = None
        self._replay: tuple[tuple[int, int], Replay] | None = None

    def expect(self, slots: Iterable[Slot], submission: Submission) -> None:
        """These are made by `submission`, which is sent now."""
        for slot in slots:
            slot.submission = submission
            slot.failure = self.failure_of(slot.branch)
            self._slots[slot.branch, slot.name] = slot

    def add_branches(self, parent: int, children: Iterable[int]) -> None:
        self._parents.update(dict.fromkeys(children, parent))

    def take(self, event: ProgramEvent) -> None:
        """Takes in what is about a value."""
        if not isinstance(event, Delta | Value | Skipped):
            return
        slot = self._slots.get((event.branch, event.name))
        if slot is None:
            return
        match event:
            case Delta(text=text):
                slot.add_text(text)
            case Value():
                slot.add_value(event)
                self._num_events += 1
            case Skipped():
                slot.skipped = True

    def fail(self, branch: int, error: ProgramError) -> None:
        """A branch has ended early, and so have those forked from it."""
        self._num_events += 1
        self._failures.setdefault(branch, error)
        for slot in self._below(branch):
            if not slot.complete:
                slot.failure = error

    def restart(self, branch: int) -> None:
        """A branch begins anew: its values are void."""
        self._num_events += 1
        for slot in self._below(branch):
            slot.restart()

    def failure_of(self, branch: int) -> ProgramError | None:
        """Why a branch has ended early, if it has."""
        if not self._failures:
            return None
        return next((self._failures[line] for line in self._ancestry(branch) if line in self._failures), None)

    def used_in(self, submission: Submission) -> Usage:
        """The tokens of the values that have come of a submission."""
        values = (value for slot in self._slots.values() if slot.submission is submission for value in slot.values)
        return sum((value.usage for value in values), Usage())

    def replay(self) -> Replay:
        """What has happened so far."""
        nodes = self._recorder.nodes
        version = self._num_events, len(nodes)
        if self._replay is None or self._replay[0] != version:
            self._patterns = self._patterns or PatternCache()
            has_failed = {branch: True for branch in self._parents if self.failure_of(branch) is not None}
            self._replay = version, Replay(nodes, has_failed.__contains__, self._patterns)
        return self._replay[1]

    def _below(self, branch: int) -> Iterator[Slot]:
        """The slots of a branch and of those forked from it."""
        return (slot for slot in self._slots.values() if branch in self._ancestry(slot.branch))

    def _ancestry(self, branch: int) -> Iterator[int]:
        line: int | None = branch
        while line is not None:
            yield line
            line = self._parents.get(line)
