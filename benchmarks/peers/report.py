"""Report of `bough bench peers`: ratios, rates, starts, memory, quality."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Generic, Protocol, TypeVar

from ..harness.report import number, table
from ..workloads.prompts import RoundTime


class Rated(Protocol):
    """Result of a side's work in a round."""

    @property
    def rate(self) -> float: ...


Made = TypeVar("Made", bound=Rated)


@dataclass
class Pairs(Generic[Made]):
    """The rounds of two sides so far: `ours[i]` and `theirs[i]` are of the same work."""

    ours: list[Made] = field(default_factory=list)
    theirs: list[Made] = field(default_factory=list)
    note: str = ""  # why there are no more

    @property
    def ratios(self) -> list[float]:
        """Ratios of ours to theirs, a round each: by rates, since answers may differ in length."""
        return [ours.rate / theirs.rate for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def rates(self) -> tuple[float, float]:
        """Medians of ours and theirs."""
        return median(each.rate for each in self.ours), median(each.rate for each in self.theirs)


@dataclass
class PeerRow:
    """A line of the table: one workload against one peer."""

    workload: str
    peer: str
    ratios: list[float] = field(default_factory=list)  # of each round: how many times as fast ours was
    # ours, theirs: what each reached, in words
    ours: str = ""
    theirs: str = ""
    note: str = ""  # what a reader has to know, or why there is no ratio

    @property
    def ratio(self) -> float | None:
        """The median."""
        return median(self.ratios) if self.ratios else None


@dataclass
class Starts:
    """One side's fresh processes, one after the other. `peak_bytes`: after a long prompt and an answer."""

    name: str
    first_token_s: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Quality:
    """Scores of a side for a text, token by token."""

    logprobs: tuple[float, ...]  # of each token after the first, if the side tells them
    likeliest: dict[int, int]  # position -> the token that it would choose after so many

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
            "rows": [asdict(row) | {"ratio": row.ratio} for row in self.rows],
            "starts": {name: asdict(found) for name, found in self.starts.items()},
            "quality": self.quality_numbers(),
            "left_out": self.left_out,
        }

    def quality_numbers(self) -> dict[str, dict[str, Any]]:
        """The quality of each side beside the model's own weights in float32."""
        reference = self.quality.get(FLOAT32)
        wanted = reference and reference.perplexity
        return {
            name: {
                "perplexity": found.perplexity,
                "ratio": found.perplexity / wanted if found.perplexity and wanted else None,
                "agreement": reference and found.agreement(reference),
                "positions": len(found.likeliest),
            }
            for name, found in self.quality.items()
        }


FLOAT32 = "float32"


def row_of(workload: str, peer: str, pairs: Pairs[RoundTime]) -> PeerRow:
    """The rounds of a workload of prompts as a line."""
    row = PeerRow(workload, peer, pairs.ratios, note=pairs.note)
    if row.ratios:
        row.ours, row.theirs = (f"{rate:,.0f} tok/s" for rate in pairs.rates)
    valid = [[each.num_valid for each in side] for side in (pairs.ours, pairs.theirs)]
    if row.ratios and valid[0][0] is not None:
        texts = (f"{sum(filter(None, each)) / len(each):.3g}" for each in valid)
        row.note = "valid answers a round: {} / {}".format(*texts) + (f"; {row.note}" if row.note else "")
    return row


def start_rows(ours: Starts, theirs: Starts) -> list[PeerRow]:
    """Fresh processes as lines: how many times as soon ours has its first token, and as much memory the peer needs.

    A line without a figure, where the system does not tell it, is left out.
    """
    first_token_s = [side.first_token_s for side in (ours, theirs)]
    mebibytes = [[count / 2**20 for count in side.peak_bytes if count] for side in (ours, theirs)]
    lines = (("start to first token", "{:.1f} s", first_token_s), ("peak memory", "{:,.0f} MiB", mebibytes))
    rows = []
    for what, form, (mine, others) in lines:
        if ratios := [b / a for a, b in zip(mine, others, strict=False)]:
            rows.append(PeerRow(what, theirs.name, ratios, form.format(median(mine)), form.format(median(others))))
    return rows


def tables(report: PeerReport, *, markdown: bool = True) -> str:
    """All tables."""
    parts = [table(_HEADS, [_cells(row) for row in report.rows], markdown=markdown)] if report.rows else []
    if report.quality:
        rows = [_quality_cells(name, numbers) for name, numbers in report.quality_numbers().items()]
        parts.append(table(_QUALITY_HEADS, rows, markdown=markdown))
    if report.left_out:
        parts.append("Not measured:\n\n" + "\n".join(f"- {text}" for text in report.left_out))
    return "\n\n".join(parts)


_HEADS = (*("workload", "peer", "bough", "the peer", "ratio"), *("least", "most", "rounds", "remarks"))
_QUALITY_HEADS = ("weights", "perplexity", "over float32's", "same choice as float32")


def _cells(row: PeerRow) -> Sequence[str]:
    numbers = ["-", "-", "-"]
    if row.ratio is not None:
        numbers = [f"{row.ratio:.2f}x", f"{min(row.ratios):.2f}", f"{max(row.ratios):.2f}"]
    return (row.workload, row.peer, row.ours or "-", row.theirs or "-", *numbers, str(len(row.ratios)), row.note)


def _quality_cells(name: str, numbers: Mapping[str, Any]) -> Sequence[str]:
    perplexity, over, same = (numbers[key] for key in ("perplexity", "ratio", "agreement"))
    more = "-" if over is None else f"{over - 1:+.2%}"
    return (name, number(perplexity, ".3f") or "-", more, number(same, ".1%", f" of {numbers['positions']}") or "-")
