"""Collects the instructions of a program until they are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..runtime.program import Gen, Op, Ref, Select, Text
from .place import Place
from .stretch import Slot


@dataclass(eq=False, slots=True)
class _OpenText:
    """A Text that more may be added to."""

    branch: int
    parts: list[str | Ref]

    def add(self, part: str | Ref) -> None:
        if isinstance(part, str) and self.parts and isinstance(self.parts[-1], str):
            self.parts[-1] += part
        else:
            self.parts.append(part)


class Recorder:
    """Instructions of all branches, in the order in which they were recorded.

    Text that follows text in the same branch becomes one instruction: it is tokenised as a whole.
    """

    def __init__(self) -> None:
        self._ops: list[Op | _OpenText] = []
        self._places: list[Place] = []
        self._open: dict[int, _OpenText] = {}
        self._slots: list[Slot] = []
        self._names: Counter[tuple[int, str]] = Counter()
        self._num_branches = 1
        self._num_unnamed = 0

    @property
    def empty(self) -> bool:
        return not self._ops

    @property
    def generates(self) -> bool:
        """There is something to be generated, not only text to be appended."""
        return bool(self._slots)

    def add_text(self, branch: int, parts: Iterable[str | Ref], place: Place) -> None:
        parts = [part for part in parts if part != ""]
        if not parts:
            return
        text = self._open.get(branch)
        if text is None:
            text = self._open[branch] = _OpenText(branch, [])
            self._ops.append(text)
            self._places.append(place)
        for part in parts:
            text.add(part)

    def add(self, op: Op, place: Place) -> None:
        self._open.pop(op.branch, None)
        self._ops.append(op)
        self._places.append(place)

    def add_slot(self, op: Gen | Select, slot: Slot) -> None:
        self.add(op, slot.place)
        self._slots.append(slot)

    def new_branches(self, count: int) -> tuple[int, ...]:
        start = self._num_branches
        self._num_branches += count
        return tuple(range(start, self._num_branches))

    def name_for(self, branch: int, name: str | None, kind: str) -> tuple[str, str]:
        """The variable's name, and the one under which it is sent: unique within the branch."""
        if name is None:
            name = f"{kind}_{self._num_unnamed}"
            self._num_unnamed += 1
        self._names[branch, name] += 1
        count = self._names[branch, name]
        return name, name if count == 1 else f"{name}#{count}"

    def take(self) -> tuple[tuple[Op, ...], tuple[Place, ...], list[Slot]]:
        """All that was recorded since the last time."""
        ops = tuple(Text(op.branch, tuple(op.parts)) if isinstance(op, _OpenText) else op for op in self._ops)
        places, slots = tuple(self._places), self._slots
        self._ops, self._places, self._open, self._slots = [], [], {}, []
        return ops, places, slots
