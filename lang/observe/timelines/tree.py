"""Arranges the pieces of a program's run as a tree of branches, each a list of messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ....runtime.protocol.program import Piece


@dataclass(frozen=True)
class ForkPoint:
    """`parent` split into `children` at its instruction `op`; None: to be told from the pieces' times."""

    parent: int
    children: tuple[int, ...]
    op: int | None = None


@dataclass(frozen=True)
class MessagePieces:
    """Neighbouring pieces of one branch that belong to one message of the chat, or to none (`role` is "").

    `position` is the index in the branch, inherited tokens included, of the first token.
    """

    role: str
    position: int
    pieces: tuple[Piece, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(piece.origins) for piece in self.pieces)


@dataclass(frozen=True)
class BranchTree:
    """One branch: its label (`main`, `1`, `1.2`), and messages and groups of children in the order they happened."""

    id: int
    label: str
    depth: int
    items: tuple[MessagePieces | tuple[BranchTree, ...], ...]
    pieces: tuple[Piece, ...]

    def walk(self) -> Iterator[BranchTree]:
        """This branch and all below it, parents first, in order."""
        yield self
        for item in self.items:
            if not isinstance(item, MessagePieces):
                for child in item:
                    yield from child.walk()

    def contexts(self) -> Iterator[tuple[Piece, int]]:
        """Each piece that the model was asked for, with the number of tokens before it: its prompt."""
        for item in self.items:
            if isinstance(item, MessagePieces):
                position = item.position
                for piece in item.pieces:
                    if piece.kind in ("gen", "select"):
                        yield piece, position
                    position += len(piece.origins)
            else:
                for child in item:
                    yield from child.contexts()


def arrange(pieces: Iterable[Piece], forks: Iterable[ForkPoint]) -> tuple[BranchTree, ...]:
    """The branches that no fork made, most often one, with all others below them."""
    arrangement = _Arrangement()
    for piece in pieces:
        arrangement.pieces.setdefault(piece.branch, []).append(piece)
    for fork in forks:
        arrangement.forks.setdefault(fork.parent, []).append(fork)
    children = {child for forks_of in arrangement.forks.values() for fork in forks_of for child in fork.children}
    roots = sorted((arrangement.pieces.keys() | arrangement.forks.keys()) - children)
    labels = ["main"] + [f"main {number}" for number in range(2, len(roots) + 1)]
    return tuple(arrangement.branch(root, label=label) for root, label in zip(roots, labels, strict=False))


@dataclass
class _Arrangement:
    pieces: dict[int, list[Piece]] = field(default_factory=dict)
    forks: dict[int, list[ForkPoint]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def branch(self, branch: int, *, label: str, depth: int = 0, position: int = 0, open_role: str = "") -> BranchTree:
        if branch in self.seen:
            raise ValueError(f"branch {branch} is forked twice")
        self.seen.add(branch)
        own = sorted(self.pieces.get(branch, ()), key=lambda piece: (piece.op, piece.kind != "tool"))
        places = [(self._place(fork, own), fork) for fork in self.forks.get(branch, ())]
        items: list[MessagePieces | tuple[BranchTree, ...]] = []
        grouping = _Grouping(position, open_role)
        start, num_children = 0, 0
        for place, fork in sorted(places, key=lambda pair: pair[0]):
            items.extend(grouping.messages(own[start:place]))
            group = []
            for child in fork.children:
                num_children += 1
                name = str(num_children) if depth == 0 else f"{label}.{num_children}"
                below = self.branch(
                    child, label=name, depth=depth + 1, position=grouping.position, open_role=grouping.open_role
                )
                group.append(below)
            items.append(tuple(group))
            start = place
        items.extend(grouping.messages(own[start:]))
        return BranchTree(branch, label, depth, tuple(items), tuple(own))

    def _place(self, fork: ForkPoint, own: Sequence[Piece]) -> int:
        """Counts the parent's own pieces that come before the fork."""
        if fork.op is not None:
            return sum(piece.op < fork.op for piece in own)
        starts = [piece.start_s for child in fork.children for piece in self.pieces.get(child, ()) if piece.stop_s > 0]
        later = (index for index, piece in enumerate(own) if starts and piece.start_s >= min(starts) > 0)
        return next(later, len(own))


class _Grouping:
    """Groups a branch's pieces into messages, which pieces of kind "role" open and close."""

    def __init__(self, position: int, open_role: str) -> None:
        self.position = position
        self.open_role = open_role

    def messages(self, pieces: Sequence[Piece]) -> list[MessagePieces]:
        groups: list[tuple[str, list[Piece]]] = []
        for piece in pieces:
            opens = piece.kind == "role" and piece.role != self.open_role
            if opens:
                self.open_role = piece.role
            role = piece.role or self.open_role
            if opens or not groups or groups[-1][0] != role:
                groups.append((role, []))
            groups[-1][1].append(piece)
            if piece.kind == "role" and not opens:
                self.open_role = ""
                groups.append(("", []))
        messages = []
        for role, group in groups:
            if group:
                messages.append(MessagePieces(role, self.position, tuple(group)))
                self.position += messages[-1].num_tokens
        return messages
