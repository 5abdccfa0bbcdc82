"""Report of `bough bench peers`: ratios beside what was asked for, rates, starts, memory, quality; a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from ..harness.pictures import PURPLE, SIDES, Axis, Panel, write_picture
from ..harness.report import table
from .rounds import PromptPairs

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
class PeerRow:
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
class Starts:
    """One side's fresh processes, one after the other. `peak_bytes`: after a long prompt and an answer."""

    name: str
    first_token_s: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Quality:
    """Scores of a side for a text, token by token.

    logprobs   of each token after the first, if the side tells them
    likeliest  position -> the token that it would choose after so many
    """

    logprobs: tuple[float, ...]
    likeliest: dict[int, int]

    @property
    def perplexity(self) -> float | None:
        return math.exp(-sum(self.logprobs) / len(self.logprobs)) if self.logprobs else None

    def agreement(self, other: Quality) -> float:
        """Share of the positions that both have at which they choose the same."""
        both = self.likeliest.keys() & other.likeliest.keys()
        return sum(self.likeliest[at] == other.likeliest[at] for at in both) / len(both)


@dataclass
class PeerReport:
    """All that was found. `facts` are of machine and versions; `left_out` says what was not measured, and why."""

    facts: dict[str, Any]
    rows: list[PeerRow] = field(default_factory=list)
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


def row_of(contest: PromptPairs, goals: Mapping[tuple[str, str], float]) -> PeerRow:
    """A contest as a line."""
    row = PeerRow(contest.workload, contest.peer, asked(goals, contest.workload, contest.peer), contest.ratios)
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


def start_row(ours: Starts, theirs: Starts) -> PeerRow:
    """Starting up as a line: how many times as soon ours has its first token."""
    pairs = zip(ours.first_token_s, theirs.first_token_s, strict=False)
    row = PeerRow("start to first token", theirs.name, None, [b / a for a, b in pairs])
    if row.ratios:
        row.ours, row.theirs = (f"{median(side.first_token_s):.1f} s" for side in (ours, theirs))
        met = "reached" if median(ours.first_token_s) <= START_GOAL_S else "missed"
        row.note = f"asked: at most {START_GOAL_S:g} s, {met}"
    return row


def memory_row(ours: Starts, theirs: Starts) -> PeerRow:
    """Memory as a line: how many times as much the peer needs."""
    row = PeerRow("peak memory", theirs.name)
    if ours.peak_bytes and theirs.peak_bytes and all(ours.peak_bytes):
        row.ratios = [b / a for a, b in zip(ours.peak_bytes, theirs.peak_bytes, strict=False)]
        row.ours, row.theirs = (f"{median(side.peak_bytes) / 2**20:,.0f} MiB" for side in (ours, theirs))
    return row


def tables(report: PeerReport, *, markdown: bool = True) -> str:
    """All tables."""
    parts = [table(_HEADS, [_cells(row) for row in report.rows], markdown=markdown)] if report.rows else []
    if report.quality:
        rows = [_quality_cells(name, found, report.reference) for name, found in report.quality.items()]
        parts.append(table(_QUALITY_HEADS, rows, markdown=markdown))
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


def _cells(row: PeerRow) -> Sequence[str]:
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


# -- The picture -------------------------------------------------------------------------------------------------------


def draw(report: PeerReport, path: str) -> None:
    """Draws each workload against each peer: the median as a bar, least and most as a line over it, what was asked for
    as a diamond."""
    rows = [row for row in report.rows if row.ratio is not None]
    axis = Axis(
        "times as fast (or as small) as the peer; a diamond is what was asked for",
        low=0.8 * min([0.5, *(min(row.ratios) for row in rows)]),
        log=True,
        room=0.12,
        tick="{:g}x".format,
    )
    places: list[float] = []
    for before, row in zip([None, *rows], rows, strict=False):
        gap = 0.0 if before is None else 1.0 if before.workload == row.workload else 1.5
        places.append(gap + (places[-1] if places else 0.0))
    names = dict.fromkeys(row.workload for row in rows)
    of_name = {name: [at for at, row in zip(places, rows, strict=True) if row.workload == name] for name in names}
    ticks = [(sum(of_name[name]) / len(of_name[name]), name) for name in names]
    panel = Panel(f"bough beside its peers: {report.facts.get('model', '')}", x=axis, ticks=ticks, width=900)
    for at, row in zip(places, rows, strict=True):
        assert row.ratio is not None
        panel.bar(at, 1.0, row.ratio, SIDES.get(row.peer, PURPLE), thick=0.8, label=row.peer)
        panel.line([(min(row.ratios), at), (max(row.ratios), at)], wide=1.2)
        panel.text(max(1.0, *row.ratios), at, f"{row.ratio:.2f}x")
        if row.asked is not None:
            panel.dot(row.asked, at, hollow=True, diamond=True)
    if rows:
        panel.line([(1.0, -0.5), (1.0, places[-1] + 0.5)])
    write_picture(path, [[panel]])
