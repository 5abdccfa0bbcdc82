"""What `bough bench peers` found, as tables: ratios beside what was asked for, rates, starts, memory, quality."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from .quality import Quality
from .rounds import Contest
from .starts import Starts

ANY = "any"
"""In place of a peer's name: asked for against each of them, so against the best."""

GOALS: Mapping[tuple[str, str], float] = {
    ("single stream decode", "llama.cpp"): 1.3,
    ("batch 64 decode", "openvino"): 1.5,
    ("batch 64 decode", "vllm"): 4.0,
    ("prefill, 1,400 tokens", "openvino"): 1.3,
    ("prefill, 1,400 tokens", "llama.cpp"): 8.0,
    ("64 requests, one prefix of 2,000", ANY): 2.0,
    ("JSON schema, batch 16", ANY): 2.0,
    ("ten workloads of programs", ANY): 3.0,
}
"""(workload, peer) -> how many times as fast ours is to be, on the default model."""

LARGER_GOALS: Mapping[tuple[str, str], float] = {
    ("single stream decode", "llama.cpp"): 1.0,
    ("batch 16 decode", "llama.cpp"): 3.0,
}
"""The same for other models."""

START_GOAL_S = 2.0


@dataclass
class Row:
    """A line of the table: one workload against one peer.

    asked      the ratio to reach, if one was set
    ratios     of each round: how many times as fast ours was
    ours, theirs   what each reached, in words
    note       what a reader has to know, or why there is no ratio
    """

    workload: str
    peer: str
    asked: float | None = None
    ratios: list[float] = field(default_factory=list)
    ours: str = ""
    theirs: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The median."""
        return median(self.ratios) if self.ratios else None

    @property
    def reached(self) -> bool | None:
        """None: nothing was asked, or nothing measured."""
        return None if self.asked is None or self.ratio is None else self.ratio >= self.asked


@dataclass
class Report:
    """All that was found. `facts` are of machine and versions; `left_out` says what was not measured, and why."""

    facts: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    starts: dict[str, Starts] = field(default_factory=dict)
    quality: dict[str, Quality] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def numbers(self) -> dict[str, Any]:
        """All there is, for a file."""
        return {
            **self.facts,
            "rows": [asdict(row) | {"ratio": row.ratio, "reached": row.reached} for row in self.rows],
            "starts": {name: asdict(found) for name, found in self.starts.items()},
            "quality": {name: _quality_numbers(found, self.reference) for name, found in self.quality.items()},
            "left_out": self.left_out,
        }

    @property
    def reference(self) -> Quality | None:
        """The model's own weights in float32."""
        return self.quality.get(FLOAT32)


FLOAT32 = "float32"


def asked(goals: Mapping[tuple[str, str], float], workload: str, peer: str) -> float | None:
    return goals.get((workload, peer), goals.get((workload, ANY)))


def row_of(contest: Contest, goals: Mapping[tuple[str, str], float]) -> Row:
    """A contest as a line."""
    row = Row(contest.workload, contest.peer, asked(goals, contest.workload, contest.peer), contest.ratios)
    row.note = contest.note
    if contest.ratios:
        row.ours, row.theirs = (
            f"{median(each.rate for each in side):,.0f} tok/s" for side in (contest.ours, contest.theirs)
        )
    valid = [[each.num_valid for each in side] for side in (contest.ours, contest.theirs)]
    if contest.ratios and valid[0][0] is not None:
        texts = (f"{sum(filter(None, each)) / len(each):.3g}" for each in valid)
        row.note = "valid answers a round: {} / {}".format(*texts) + (f"; {row.note}" if row.note else "")
    return row


def start_row(ours: Starts, theirs: Starts) -> Row:
    """Starting up as a line: how many times as soon ours has its first token."""
    pairs = zip(ours.first_token_s, theirs.first_token_s, strict=False)
    row = Row("start to first token", theirs.name, None, [b / a for a, b in pairs])
    if row.ratios:
        row.ours, row.theirs = (f"{median(side.first_token_s):.1f} s" for side in (ours, theirs))
        met = "reached" if median(ours.first_token_s) <= START_GOAL_S else "missed"
        row.note = f"asked: at most {START_GOAL_S:g} s, {met}"
    return row


def memory_row(ours: Starts, theirs: Starts) -> Row:
    """Memory as a line: how many times as much the peer needs."""
    row = Row("peak memory", theirs.name)
    if ours.peak_bytes and theirs.peak_bytes and all(ours.peak_bytes):
        row.ratios = [b / a for a, b in zip(ours.peak_bytes, theirs.peak_bytes, strict=False)]
        row.ours, row.theirs = (f"{median(side.peak_bytes) / 2**20:,.0f} MiB" for side in (ours, theirs))
    return row


def tables(report: Report, *, markdown: bool = True) -> str:
    """All tables."""
    parts = [_table(_HEADS, [_cells(row) for row in report.rows], markdown=markdown)] if report.rows else []
    if report.quality:
        rows = [_quality_cells(name, found, report.reference) for name, found in report.quality.items()]
        parts.append(_table(_QUALITY_HEADS, rows, markdown=markdown))
    if report.left_out:
        parts.append("Not measured:\n\n" + "\n".join(f"- {text}" for text in report.left_out))
    return "\n\n".join(parts)


_HEADS = (
    "workload",
    "peer",
    "bough",
    "the peer",
    "ratio asked",
    "ratio measured",
    "least",
    "most",
    "rounds",
    "remarks",
)
_QUALITY_HEADS = ("weights", "perplexity", "over float32's", "same choice as float32")


def _cells(row: Row) -> Sequence[str]:
    wanted = "-" if row.asked is None else f"{row.asked:g}x"
    if row.ratio is None:
        return (row.workload, row.peer, "-", "-", wanted, "-", "-", "-", "0", row.note)
    verdict = {True: " (reached)", False: " (missed)", None: ""}[row.reached]
    numbers = (f"{row.ratio:.2f}x{verdict}", f"{min(row.ratios):.2f}", f"{max(row.ratios):.2f}", str(len(row.ratios)))
    return (row.workload, row.peer, row.ours, row.theirs, wanted, *numbers, row.note)


def _quality_cells(name: str, found: Quality, reference: Quality | None) -> Sequence[str]:
    numbers = _quality_numbers(found, reference)
    over, same = numbers["ratio"], numbers["agreement"]
    return (
        name,
        "-" if found.perplexity is None else f"{found.perplexity:.3f}",
        "-" if over is None else f"{over - 1:+.2%}",
        "-" if same is None else f"{same:.1%} of {numbers['positions']}",
    )


def _quality_numbers(found: Quality, reference: Quality | None) -> dict[str, Any]:
    ratio = agreement = None
    if reference is not None:
        if found.perplexity is not None and reference.perplexity is not None:
            ratio = found.perplexity / reference.perplexity
        agreement = found.agreement(reference)
    numbers = {"perplexity": found.perplexity, "ratio": ratio, "agreement": agreement}
    return numbers | {"positions": len(found.likeliest)}


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, markdown: bool) -> str:
    lines = [heads, *rows]
    if markdown:
        lines.insert(1, ["---"] * len(heads))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
