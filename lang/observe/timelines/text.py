"""Draws timelines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from .batch import Shared
from .events import RunRecord
from .tree import BranchTree

_CHART_WIDTH = 48  # characters
_MAX_SHARED = 6

Summary = Mapping[str, str | int | float]


def chart(roots: Sequence[BranchTree], summary: Summary, record: RunRecord) -> str:
    """A run: its numbers, and a line for each branch with what it waited for, and when."""
    elapsed_s = float(summary["elapsed_s"])
    sizes = [_count(summary["branches"], "branch", "branches"), _count(summary["generations"], "generation")]
    if summary["tools"]:
        sizes.append(_count(summary["tools"], "call of tools", "calls of tools"))
    lines = [f"{summary['title']}: {', '.join(sizes)}, {elapsed_s:.2f} s", *_tokens(summary)]
    if record.error is not None:
        lines.append(f"failed   {record.error.code}: {record.error.message}")
    branches = [branch for root in roots for branch in root.walk()]
    width = max((len(_indented(branch)) for branch in branches), default=0)
    if branches:
        lines.append("")
    for branch in branches:
        words = ", ".join(_names(branch, record))
        lines.append(f"{_indented(branch):{width}}  {_lane(branch, elapsed_s)}  {words}".rstrip())
    if branches:
        tool = "  ░ tool" if summary["tools"] else ""
        lines.append(f"{'':{width}}  · queue  ▒ prefill  █ decode{tool}")
    return "\n".join(lines)


def batch(summary: Summary, shared: Sequence[Shared]) -> str:
    """A batch: its numbers, and what its runs have in common."""
    failed = f", {summary['failed']} failed" if summary["failed"] else ""
    half_s, most_s = float(summary["p50_s"]), float(summary["p95_s"])
    times = f"median {half_s:.2f} s, p95 {most_s:.2f} s"
    lines = [
        f"{summary['title']}: {_count(summary['programs'], 'program')}{failed}, {float(summary['elapsed_s']):.2f} s",
        *_tokens(summary),
        f"times    {times}; {float(summary['output_tokens_per_s']):,.0f} tokens/s",
    ]
    if shared:
        lines += ["", "shared beginnings"]
    for one in shared[:_MAX_SHARED]:
        lines.append(f"{one.num_tokens:>8,} tokens of {len(one.programs)} programs: {one.excerpt(60)!r}")
    if len(shared) > _MAX_SHARED:
        lines.append(f"     and {len(shared) - _MAX_SHARED} more")
    return "\n".join(lines)


def _tokens(summary: Summary) -> Iterator[str]:
    output_tokens = int(summary["sampled_tokens"]) + int(summary["forced_tokens"])
    yield (
        f"prompts  {summary['prompt_tokens']:>8,} tokens, {summary['saved_tokens']:,} from the cache "
        f"({summary['cached_share']:.0%})"
    )
    yield f"outputs  {output_tokens:>8,} tokens, {summary['forced_tokens']:,} forced by a grammar"


def _names(branch: BranchTree, record: RunRecord) -> Iterator[str]:
    """Names what the branch has made, and how it ended if it was not well."""
    times = Counter(piece.name for piece in branch.pieces if piece.name)
    for name, number in times.items():
        said = f"{name} x{number}" if number > 1 else name
        yield f"{said} refused" if (branch.id, name) in record.refused else said
    for error in record.restarts.get(branch.id, ()):
        yield f"restarted after {error[1].code}"
    failure = record.failures.get(branch.id)
    if failure is not None:
        yield failure.code if failure.code == "cancelled" else f"failed: {failure.code}"


def _indented(branch: BranchTree) -> str:
    return "  " * branch.depth + branch.label


def _lane(branch: BranchTree, elapsed_s: float) -> str:
    cells = [" "] * _CHART_WIDTH
    for piece in branch.pieces:
        if piece.stop_s > piece.start_s:
            edges = (piece.start_s, piece.queue_s, piece.prefill_s)
            work_s = piece.stop_s - sum(edges)
            start = 0.0
            marks = " ·▒░" if piece.kind == "tool" else " ·▒█"
            for mark, length_s in zip(marks, (*edges, work_s), strict=True):
                stop = start + max(0.0, length_s)
                if mark != " " and length_s > 0:
                    first = min(_CHART_WIDTH - 1, int(start / elapsed_s * _CHART_WIDTH))
                    last = min(_CHART_WIDTH, max(first + 1, round(stop / elapsed_s * _CHART_WIDTH)))
                    cells[first:last] = mark * (last - first)
                start = stop
    return "".join(cells)


def _count(number: str | int | float, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def aligned(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> list[str]:
    """The rows as lines, column under column; those whose index is in `numbers` stand to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in numbers else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
