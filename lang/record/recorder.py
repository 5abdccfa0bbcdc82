"""Recorder of a program: collects instructions whose blocks and variables are final only when they are sent, and lowers
them for sending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...runtime.protocol import condition as runtime
from ...runtime.protocol.program import Assign, Fork, Join, Op, Part, Repeat, Text, Use, When
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import Place
from .condition import Condition, CountOf, Operand, literal
from .variables import Entry, Fixed, Gathered, Kept, Piece, Slot, marks_of, parts_of, refer

_NOTHING: Mapping[str, Gathered] = {}


@dataclass(eq=False, slots=True)
class TextNode:
    """A Text that more may be added to. What follows text is tokenised with it."""

    branch: int
    parts: list[Piece | Part]
    place: Place

    def add(self, part: Piece | Part) -> None:
        last = self.parts[-1] if self.parts else None
        # a text of a class of its own may say more than its characters
        if type(part) is str and type(last) is str:
            self.parts[-1] = last + part
        else:
            self.parts.append(part)


@dataclass(eq=False, slots=True)
class OpNode:
    """An instruction that is what it is.

    slot       the value that it makes
    gathered   of a join: the lists that it makes, by name
    adopted    of a join: the value of a child that becomes one of this branch
    """

    op: Op
    place: Place
    slot: Slot | None = None
    gathered: Mapping[str, Gathered] = field(default_factory=lambda: _NOTHING)
    adopted: Slot | None = None

    @property
    def branch(self) -> int:
        return self.op.branch


@dataclass(eq=False, slots=True)
class UseNode:
    """A call of a tool."""

    slot: Slot
    tool: str
    arguments: tuple[tuple[str, tuple[Piece | Part, ...]], ...]
    append: bool
    timeout_s: float | None
    place: Place

    @property
    def branch(self) -> int:
        return self.slot.branch


@dataclass(eq=False, slots=True)
class AssignNode:
    """`kept` becomes what `entry` is. The engine is told of it only if instructions refer to it."""

    kept: Kept
    entry: Entry | None
    place: Place

    @property
    def branch(self) -> int:
        return self.kept.branch


@dataclass(eq=False, slots=True)
class WhenNode:
    """One of two blocks."""

    branch: int
    condition: Condition
    then: list[Node]
    otherwise: list[Node]
    place: Place


@dataclass(eq=False, slots=True)
class RepeatNode:
    """A block that is executed several times."""

    branch: int
    body: list[Node]
    until: Condition
    at_most: int
    place: Place


Node = TextNode | OpNode | UseNode | AssignNode | WhenNode | RepeatNode


@dataclass(frozen=True, slots=True, eq=False)
class EntryOf(Operand):
    """Value of a variable, as an operand of a recorded condition."""

    entry: Entry


@dataclass(frozen=True, slots=True, eq=False)
class TimesMade(Operand):
    """Number of values that a slot has got."""

    slot: Slot


@dataclass(eq=False, slots=True)
class Lowered:
    """Instructions as the engine gets them, and the places of all of them in the order of `walk`."""

    ops: list[Op] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)


class Lowering:
    """Makes instructions of nodes.

    name       gives something kept its name for the engine
    keep_all   what follows is not recorded yet and may refer to anything that is kept
    """

    def __init__(self, nodes: Sequence[Node], name: Callable[[Kept], str], *, keep_all: bool) -> None:
        self._name = name
        assignments = [node for node in walk_nodes(nodes) if isinstance(node, AssignNode)]
        for node in assignments:
            if keep_all and node.kept.has_text:
                node.kept.referred = True
        changed = True
        while changed:
            changed = False
            for node in assignments:
                if node.kept.referred and not node.kept.unchanged:
                    changed |= refer(node.entry)
        self._nodes = nodes

    def lower(self) -> Lowered:
        return self._lower(self._nodes)

    def _lower(self, nodes: Iterable[Node]) -> Lowered:
        found = Lowered()
        for node in nodes:
            match node:
                case TextNode():
                    found.ops.append(Text(node.branch, self._parts(node.parts)))
                case OpNode(op=op):
                    found.ops.append(op)
                case UseNode(slot=slot):
                    arguments = tuple((name, self._parts(parts)) for name, parts in node.arguments)
                    found.ops.append(Use(slot.branch, slot.name, node.tool, arguments, node.append, node.timeout_s))
                case AssignNode(kept=kept, entry=entry):
                    if not kept.referred or kept.unchanged:
                        continue
                    self._named(kept)
                    marks = () if entry is None else marks_of(kept.variable, entry)
                    found.ops.append(Assign(kept.branch, kept.name, self._parts(marks)))
                case WhenNode(condition=condition):
                    then, otherwise = self._lower(node.then), self._lower(node.otherwise)
                    found.ops.append(
                        When(node.branch, self._condition(condition), tuple(then.ops), tuple(otherwise.ops))
                    )
                    found.places += (node.place, *then.places, *otherwise.places)
                    continue
                case RepeatNode(until=until, at_most=at_most):
                    body = self._lower(node.body)
                    found.ops.append(Repeat(node.branch, tuple(body.ops), self._condition(until), at_most))
                    found.places += (node.place, *body.places)
                    continue
            found.places.append(node.place)
        return found

    def _parts(self, parts: Iterable[Piece | Part]) -> tuple[Part, ...]:
        found: list[Part] = []
        for part in parts:
            if isinstance(part, Kept):
                self._named(part)
            pieces = parts_of((part,)) if isinstance(part, str | Slot | Kept) else (part,)
            for piece in pieces:
                if isinstance(piece, str) and found and isinstance(found[-1], str):
                    found[-1] += piece
                else:
                    found.append(piece)
        return tuple(found)

    def _named(self, kept: Kept) -> None:
        if kept.unchanged and isinstance(kept.before, Kept):
            self._named(kept.before)
        elif not kept.unchanged and not kept.name:
            kept.name = self._name(kept)

    def _condition(self, condition: Condition) -> runtime.Condition:
        return condition.lower(self._operand)

    def _operand(self, operand: Operand) -> runtime.Operand:
        match operand:
            case EntryOf(entry=Fixed(value=value)):
                return literal(value)
            case EntryOf(entry=entry):
                parts = self._parts(marks_of("", entry))
                return parts[0] if parts else ""
            case TimesMade(slot=slot):
                return runtime.Times(slot.branch, slot.name)
            case CountOf(of=of):
                return runtime.Count(tuple(self._condition(inner) for inner in of))
            case _:
                return operand.lowered()


def walk_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """All nodes, those in blocks after the one that holds them."""
    for node in nodes:
        yield node
        if isinstance(node, WhenNode):
            yield from walk_nodes(node.then)
            yield from walk_nodes(node.otherwise)
        elif isinstance(node, RepeatNode):
            yield from walk_nodes(node.body)


def slots_in(nodes: Iterable[Node]) -> Iterator[Slot]:
    """The values that nodes make."""
    for node in walk_nodes(nodes):
        if isinstance(node, OpNode | UseNode) and node.slot is not None:
            yield node.slot


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

    def add(self, node: Node) -> None:
        """Adds an instruction of the branch that it names. Raises if it cannot stand here."""
        recording = self._recordings[-1]
        recording.check(node.branch, node.place)
        match node:
            case OpNode(op=Join(children=children)):
                for child in children:
                    recording.check(child, node.place)
                recording.unjoined.difference_update(children)
            case OpNode(op=Fork(children=children)):
                recording.branches.update(children)
                recording.unjoined.update(children)
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
