"""Collects the instructions of a program until they are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...runtime.protocol.program import Fork, Join, Op, Part
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import Place
from .lowering import Lowering, Node, OpNode, TextNode, UseNode, slots_in
from .variables import Gathered, Kept, Piece, Slot

NOTHING: Mapping[str, Gathered] = {}


@dataclass(eq=False, slots=True)
class Recording:
    """Instructions that belong together: those of the whole program, or of a block.

    branch     of a block: whose instructions it holds; None: it is no block
    branches   that were forked in it
    unjoined   of these, the ones that have not ended yet
    """

    branch: int | None = None
    nodes: list[Node] = field(default_factory=list)
    branches: set[int] = field(default_factory=set)
    unjoined: set[int] = field(default_factory=set)
    open_texts: dict[int, TextNode] = field(default_factory=dict)

    def check(self, branch: int, place: Place) -> None:
        """Raises if an instruction of `branch` cannot stand here."""
        if self.branch is not None and branch != self.branch and branch not in self.branches:
            raise ProgramError(
                f"branch {branch} was forked outside of this block: in a when or repeat_until, only the branch that it "
                "is appended to and those forked in it can be used",
                code="invalid_program",
                place=place,
            )


class Recorder:
    """Instructions of all branches, in the order in which they were recorded.

    Text that follows text in the same branch becomes one instruction: it is tokenised as a whole.

    history   all that was taken so far
    """

    def __init__(self) -> None:
        self._recordings = [Recording()]
        self._names: Counter[tuple[int, str]] = Counter()
        self._num_branches = 1
        self._num_unnamed = 0
        self.history: list[Node] = []

    @property
    def empty(self) -> bool:
        return not self._recordings[0].nodes

    @property
    def generates(self) -> bool:
        """There is something to be generated, not only text to be appended."""
        return any(True for _ in slots_in(self._recordings[0].nodes))

    @property
    def in_block(self) -> bool:
        """A block is being recorded: nothing can be sent before it is complete."""
        return len(self._recordings) > 1

    @property
    def block_is_empty(self) -> bool:
        """Nothing was recorded in the innermost block yet."""
        return not self._recordings[-1].nodes

    @property
    def nodes(self) -> list[Node]:
        """All of the program so far, but for a block that is not complete."""
        return [*self.history, *self._recordings[0].nodes]

    def add_text(self, branch: int, parts: Iterable[Piece | Part], place: Place) -> None:
        recording = self._recordings[-1]
        recording.check(branch, place)
        parts = [part for part in parts if not isinstance(part, str) or part]
        if not parts:
            return
        text = recording.open_texts.get(branch)
        if text is None:
            text = recording.open_texts[branch] = TextNode(branch, [], place)
            recording.nodes.append(text)
        for part in parts:
            text.add(part)

    def add(self, op: Op, place: Place, slot: Slot | None = None, gathered: Mapping[str, Gathered] = NOTHING) -> None:
        recording = self._recordings[-1]
        recording.check(op.branch, place)
        if isinstance(op, Join):
            for child in op.children:
                recording.check(child, place)
            recording.unjoined.difference_update(op.children)
        elif isinstance(op, Fork):
            recording.branches.update(op.children)
            recording.unjoined.update(op.children)
        self.add_node(OpNode(op, place, slot, gathered))

    def add_node(self, node: Node) -> None:
        recording = self._recordings[-1]
        recording.check(node.branch, node.place)
        recording.open_texts.pop(node.branch, None)
        recording.nodes.append(node)
        if isinstance(node, OpNode | UseNode) and node.slot is not None:
            node.slot.in_block = self.in_block

    @contextmanager
    def block(self, branch: int, place: Place) -> Iterator[Recording]:
        """Records a block apart. If that fails, nothing of it remains.

        Raises:
            ProgramError: it has forked branches that it does not join.
        """
        self._recordings[-1].check(branch, place)
        depth = len(self._recordings)
        recording = Recording(branch)
        self._recordings.append(recording)
        try:
            yield recording
            if recording.unjoined:
                raise ProgramError(
                    f"branches that are forked in a when or repeat_until must be joined in it: "
                    f"{', '.join(map(str, sorted(recording.unjoined)))}",
                    code="invalid_program",
                    place=place,
                )
        finally:
            del self._recordings[depth:]

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

    def take(self, *, more: bool = False) -> tuple[tuple[Op, ...], tuple[Place, ...], list[Slot]]:
        """All that was recorded since the last time; the places are in the order of `walk`. `more` may follow."""
        nodes = self._recordings[0].nodes
        lowered = Lowering(nodes, self._keep_name, keep_all=more).lower()
        self._recordings[0] = Recording()
        self.history += nodes
        return tuple(lowered.ops), tuple(lowered.places), list(slots_in(nodes))

    def _keep_name(self, kept: Kept) -> str:
        return self.name_for(kept.branch, kept.variable, "")[1]
