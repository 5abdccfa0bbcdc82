"""Calls of a run, one by one: prompt, cost, and the reasons why parts of the prompt were not cached."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ....runtime.protocol.program import Piece, Value
from ....runtime.protocol.request import FORCED, SAMPLED, Usage
from .tree import BranchTree, MessagePieces

Place = tuple[int, str]
"""A branch and the name of a value in it."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A generation, a select or a call of a tool.

    branch      its label in the timeline
    turn        how often the same instruction ran before
    prompt_tokens, cached_tokens    of its requests; with several samples or choices, of all of them
    known_tokens    prompt tokens that this program had already computed; None: unknown
    output_tokens, forced_tokens    generated tokens, and those of them that its grammar forced
    tool        the tool's name
    """

    kind: str
    name: str
    branch: str
    turn: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    known_tokens: int | None = None
    output_tokens: int = 0
    forced_tokens: int = 0
    start_s: float = 0.0
    stop_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    finish_reason: str = ""
    tool: str = ""

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def elapsed_s(self) -> float:
        return self.stop_s - self.start_s

    @property
    def why_computed(self) -> str:
        """Explains why prompt tokens were not found in the cache.

        "again" are those that the program had computed before, or was computing elsewhere: they were evicted, were no
        whole page, or two branches began at once.
        """
        known = self.cached_tokens if self.known_tokens is None else self.known_tokens
        lost = max(0, known - self.cached_tokens)
        new = self.computed_tokens - lost
        before = max(0, self.cached_tokens - known)
        parts = ((new, "new"), (lost, "again"), (before, "from before the run"))
        return ", ".join(f"{count:,} {what}" for count, what in parts if count > 0)


def calls_of(
    roots: Iterable[BranchTree],
    values: Mapping[int, Value],
    tools: Mapping[Place, str],
    refused: Collection[Place] = (),
) -> list[Call]:
    """All calls, in the order in which they began. `values` are by the identity of their pieces; those in `refused`
    were asked for again."""
    tree = _Tree()
    steps = sorted((step for root in roots for step in tree.steps(root)), key=lambda step: step.piece.start_s)
    calls = [_call(step, values.get(id(step.piece)), tools, tree) for step in steps]
    return [
        replace(call, finish_reason="refused") if (step.piece.branch, step.piece.name) in refused else call
        for step, call in zip(steps, calls, strict=True)
    ]


class _Step(NamedTuple):
    """A call, and the nodes of the last token before it and of the last one that it has made."""

    piece: Piece
    label: str
    before: int
    after: int


class _Tree:
    """The tokens of all branches, by their texts: where two branches say the same they are the same nodes.

    Node 0 is the start; `depths` counts the tokens up to each. `covered`: some call has computed all up to there.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, str], int] = {}
        self._parents = [0]
        self.depths = [0]
        self._covered = [True]

    def steps(self, branch: BranchTree, node: int = 0) -> Iterator[_Step]:
        """The calls of a branch that begins after `node`, and of those below it."""
        for item in branch.items:
            if not isinstance(item, MessagePieces):
                for child in item:
                    yield from self.steps(child, node)
                continue
            for piece in item.pieces:
                before = node
                for text in piece.texts:
                    node = self._next(node, text)
                if piece.kind in ("gen", "select", "tool"):
                    yield _Step(piece, branch.label, before, node)

    def cover(self, node: int) -> int:
        """All up to `node` is computed now; returns how many tokens of it were before."""
        while not self._covered[node]:
            self._covered[node] = True
            node = self._parents[node]
        return self.depths[node]

    def parent(self, node: int) -> int:
        return self._parents[node]

    def _next(self, node: int, text: str) -> int:
        found = self._nodes.setdefault((node, text), len(self.depths))
        if found == len(self.depths):
            self._parents.append(node)
            self.depths.append(self.depths[node] + 1)
            self._covered.append(False)
        return found


def _call(step: _Step, value: Value | None, tools: Mapping[Place, str], tree: _Tree) -> Call:
    piece = step.piece
    turn = 0 if value is None else value.turn
    if piece.kind == "tool":
        tool = tools.get((piece.branch, piece.name), "")
        return Call(
            kind="tool",
            name=piece.name,
            branch=step.label,
            turn=turn,
            start_s=piece.start_s,
            stop_s=piece.stop_s,
            tool=tool,
        )
    usage = value.usage if value is not None else Usage()
    length = tree.depths[step.before]
    prompt = usage.prompt_tokens or length
    known = tree.cover(step.before)
    if step.after != step.before:  # the last token was not read again, unless it was followed by one that was cut off
        cut = piece.kind == "gen" and usage.completion_tokens > len(piece.texts)
        tree.cover(step.after if cut else tree.parent(step.after))
    # Where the texts do not tell the whole prompt, or it is the sum of several, nothing is known.
    told = prompt == length or (piece.kind == "select" and usage.cached_tokens <= length < prompt)
    return Call(
        kind=piece.kind,
        name=piece.name,
        branch=step.label,
        turn=turn,
        prompt_tokens=prompt,
        cached_tokens=min(usage.cached_tokens, prompt),
        known_tokens=known if told else None,
        output_tokens=usage.completion_tokens or sum(origin in (SAMPLED, FORCED) for origin in piece.origins),
        forced_tokens=usage.forced_tokens or sum(origin == FORCED for origin in piece.origins),
        start_s=piece.start_s,
        stop_s=piece.stop_s,
        queue_s=piece.queue_s,
        prefill_s=piece.prefill_s,
        finish_reason="" if value is None or piece.kind == "select" else value.finish_reason,
    )
