"""The timeline of a program's run: where each token came from, when, and what the prefix cache saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..runtime.program import Done, Fork, Op, Piece, ProgramEvent, Select, Value
from ..runtime.request import CACHED, FORCED, PREFILLED, SAMPLED, UNUSED, Usage
from . import timeline_page
from .timeline_tree import Branch, ForkPoint, arrange

_CHART_WIDTH = 48  # characters


class Timeline:
    """What a run of a program did, to be printed, saved as a page, or read as numbers.

    pieces         of all branches, in any order
    title          the program's name
    forks          (parent, children) or ForkPoint for each fork
    probabilities  (branch, value name) -> choice -> probability, of the selects
    usage          the engine's count over all requests; without it the counts are derived from the pieces, taking
                   all that is before a generation as its prompt
    """

    def __init__(
        self,
        pieces: Iterable[Piece],
        *,
        title: str = "program",
        forks: Iterable[ForkPoint | tuple[int, Iterable[int]]] = (),
        probabilities: Mapping[tuple[int, str], Mapping[str, float]] | None = None,
        usage: Usage | None = None,
    ) -> None:
        self.title = title
        self.pieces = tuple(pieces)
        points = [fork if isinstance(fork, ForkPoint) else ForkPoint(fork[0], tuple(fork[1])) for fork in forks]
        self.roots: tuple[Branch, ...] = arrange(self.pieces, points)
        self.probabilities = dict(probabilities or {})
        self.usage = usage

    @classmethod
    def of(cls, ops: Iterable[Op], events: Iterable[ProgramEvent], *, title: str = "program") -> Timeline:
        """From the instructions of a program (all its stretches) and the events that its execution sent back."""
        forks: list[ForkPoint] = []
        choices: dict[tuple[int, str], tuple[str, ...]] = {}
        num_ops: Counter[int] = Counter()
        for op in ops:
            if isinstance(op, Fork):
                forks.append(ForkPoint(op.branch, op.children, num_ops[op.branch]))
            elif isinstance(op, Select):
                choices[op.branch, op.name] = op.choices
            num_ops[op.branch] += 1
        pieces: list[Piece] = []
        probabilities: dict[tuple[int, str], dict[str, float]] = {}
        usage: Usage | None = None
        for event in events:
            if isinstance(event, Piece):
                pieces.append(event)
            elif isinstance(event, Value) and event.probabilities and (event.branch, event.name) in choices:
                key = event.branch, event.name
                probabilities[key] = dict(zip(choices[key], event.probabilities, strict=True))
            elif isinstance(event, Done):
                usage = event.usage if usage is None else usage + event.usage
        return cls(pieces, title=title, forks=forks, probabilities=probabilities, usage=usage)

    def summary(self) -> dict[str, str | int | float]:
        """The run in numbers.

        `cached_tokens`, `prefilled_tokens`, `sampled_tokens`, `forced_tokens`, `unused_tokens` count each token once,
        where it was appended. `prompt_tokens` counts the prompts of all generations in full, as an API that is called
        once for each would have computed them; `saved_tokens` of them came from the cache, the share `cached_share`.
        """
        origins = Counter(origin for piece in self.pieces for origin in piece.origins)
        if self.usage is not None:
            prompt_tokens, saved_tokens = self.usage.prompt_tokens, self.usage.cached_tokens
        else:
            prompt_tokens = sum(position for root in self.roots for _, position in root.contexts())
            saved_tokens = max(0, prompt_tokens - origins[PREFILLED])
        return {
            "title": self.title,
            "branches": sum(1 for root in self.roots for _ in root.walk()),
            "generations": sum(piece.kind in ("gen", "select") for piece in self.pieces),
            "elapsed_s": max((piece.stop_s for piece in self.pieces), default=0.0),
            "cached_tokens": origins[CACHED],
            "prefilled_tokens": origins[PREFILLED],
            "sampled_tokens": origins[SAMPLED],
            "forced_tokens": origins[FORCED],
            "unused_tokens": origins[UNUSED],
            "prompt_tokens": prompt_tokens,
            "saved_tokens": saved_tokens,
            "cached_share": saved_tokens / prompt_tokens if prompt_tokens else 0.0,
        }

    def text(self) -> str:
        """For a terminal: the numbers, and a line for each branch with what it waited for, and when."""
        summary = self.summary()
        elapsed_s = float(summary["elapsed_s"])
        output_tokens = int(summary["sampled_tokens"]) + int(summary["forced_tokens"])
        lines = [
            f"{self.title}: {summary['branches']} branches, {summary['generations']} generations, {elapsed_s:.2f} s",
            f"prompts  {summary['prompt_tokens']:>8,} tokens, {summary['saved_tokens']:,} from the cache "
            f"({summary['cached_share']:.0%})",
            f"outputs  {output_tokens:>8,} tokens, {summary['forced_tokens']:,} forced by a grammar",
        ]
        branches = [branch for root in self.roots for branch in root.walk()]
        width = max((len(_indented(branch)) for branch in branches), default=0)
        if branches:
            lines.append("")
        for branch in branches:
            names = ", ".join(piece.name for piece in branch.pieces if piece.name)
            lines.append(f"{_indented(branch):{width}}  {_chart(branch, elapsed_s)}  {names}".rstrip())
        if branches:
            lines.append(f"{'':{width}}  · queue  ▒ prefill  █ decode")
        return "\n".join(lines)

    def html(self) -> str:
        """A page that needs nothing from outside itself."""
        return timeline_page.render(self.roots, summary=self.summary(), probabilities=self.probabilities)

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.html(), encoding="utf-8")


def _indented(branch: Branch) -> str:
    return "  " * branch.depth + branch.label


def _chart(branch: Branch, elapsed_s: float) -> str:
    cells = [" "] * _CHART_WIDTH
    for piece in branch.pieces:
        if piece.stop_s > piece.start_s:
            edges = (piece.start_s, piece.queue_s, piece.prefill_s)
            decode_s = piece.stop_s - sum(edges)
            start = 0.0
            for mark, length_s in zip(" ·▒█", (*edges, decode_s), strict=True):
                stop = start + max(0.0, length_s)
                if mark != " " and length_s > 0:
                    first = min(_CHART_WIDTH - 1, int(start / elapsed_s * _CHART_WIDTH))
                    last = min(_CHART_WIDTH, max(first + 1, round(stop / elapsed_s * _CHART_WIDTH)))
                    cells[first:last] = mark * (last - first)
                start = stop
    return "".join(cells)
