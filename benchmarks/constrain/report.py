"""Figures of `bough bench constrain`: by engine, beside the goals, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from ..harness.pictures import BLUE, GREY, ORANGE, PALE_BLUE, RED, Chart
from ..harness.report import MARKS, machine_line, percentiles, share, short, table
from ..peers.process import OURS
from .contest import Outcome, Score
from .generate import Samples, Speed

ENGINES = (OURS, "xgrammar", "llguidance", "outlines_core")
_VERDICTS = ("right", "refused", "over", "under")
_COLOURS = {"right": BLUE, "refused": GREY, "refuses valid": ORANGE, "lets invalid through": RED}


class Times(msgspec.Struct):
    """Percentiles of times."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Times | None:
        return cls(*percentiles(values, 50, 90, 99)) if values else None

    def __str__(self) -> str:
        return f"{short(self.p50)} / {short(self.p99)}"


class Standing(msgspec.Struct):
    """An engine over a set of cases."""

    score: Score
    impossible: int  # refused since no value satisfies the schema, says the engine; right if that is so
    annotated: Score  # right ones without the file in which `format` is an annotation, and how many there are
    compile_ms: Times | None  # of what was compiled; refused in no time does not count as fast
    mask_us: Times | None  # of all masks; times are None where there are none

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Standing:
        return cls(
            score=Score.of(outcomes),
            impossible=sum(outcome.impossible for outcome in outcomes),
            annotated=Score.of(outcome for outcome in outcomes if outcome.group != "format"),
            compile_ms=Times.of([outcome.compile_ms for outcome in outcomes if outcome.refused is None]),
            mask_us=Times.of([us for outcome in outcomes for us in outcome.mask_us]),
        )

    @property
    def under(self) -> str:
        """Those that let something invalid through, of those that compiled."""
        return share(self.score.under, self.score.total - self.score.refused - self.impossible)


Standings = dict[str, Standing]  # standings of engines, by name


class ConstrainReport(msgspec.Struct):
    """Everything measured; None or empty where it was left out."""

    date: str
    machine: dict[str, Any]
    versions: dict[str, str | None]
    absent: dict[str, str] = {}
    suite: Standings = {}
    maskbench: Standings = {}
    regular: Standings = {}
    speed: Speed | None = None
    from_masks: Samples | None = None
    from_model: Samples | None = None


class Goal(msgspec.Struct):
    """A line of the table: a figure of each engine. `met`: None if it only explains another."""

    name: str
    goal: str
    figures: dict[str, str]
    met: bool | None = None


def goals(report: ConstrainReport) -> list[Goal]:
    """The goals that were measured, with the figures."""
    suite, maskbench, regular = report.suite, report.maskbench, report.regular
    found = [
        _goal("official suite: groups wholly right", ">= 90 %", suite, _right, _right_in(0.9)),
        _goal("   without the file where format is an annotation", "", suite, attrgetter("annotated.part")),
        _goal("official suite: groups silently wrong (under)", "0", suite, attrgetter("score.under"), _sound),
        _goal("MaskBench: schemas wholly right", ">= 98.5 %", maskbench, _right, _right_in(0.985)),
        _goal("MaskBench: under-constrained, of compiled", "0", maskbench, attrgetter("under"), _sound),
        _goal("compile ms p50 / p99", "1.5 / 40", maskbench, _compile_ms, _fast(_compile_ms, 1.5, 40)),
        _goal("mask us p50 / p99, one thread", "5 / 100", maskbench, _mask_us, _fast(_mask_us, 5, 100)),
        _goal("regular constraints: mask us p50 / p99", "<= 1", regular, _mask_us, _fast(_mask_us, 1)),
        _goal("   patterns wholly right", "", regular, lambda each: f"{each.score.right}/{each.score.total}"),
    ]
    if report.speed is not None:
        ratio = sorted(report.speed.ratios)[len(report.speed.ratios) // 2]
        found.append(Goal("JSON generation / free text, batch 16", ">= 1.15", {OURS: f"{ratio:.2f}"}, ratio >= 1.15))
    for name, samples in (("the masks alone", report.from_masks), ("the model at 1.5", report.from_model)):
        if samples is not None:
            figures = {OURS: f"{samples.total - len(samples.wrong)} of {samples.total}"}
            found.append(Goal(f"outputs drawn from {name} validate", "100 %", figures, not samples.wrong))
    return [goal for goal in found if goal.figures]


Met = Callable[[Standing], bool]


def _goal(
    name: str, goal: str, standings: Standings, figure: Callable[[Standing], object], met: Met | None = None
) -> Goal:
    """A goal over a set of cases. An engine whose time was up before the end has beside its figure how far it got."""
    totals = {engine: standing.score.total for engine, standing in standings.items() if standing.score.total}
    most = max(totals.values(), default=0)
    figures = {}
    for engine, total in totals.items():
        found = figure(standings[engine])
        figures[engine] = f"{'-' if found is None else found}" + ("" if total == most else f" (n {total})")
    return Goal(name, goal, figures, met(standings[OURS]) if met and OURS in standings else None)


_right, _compile_ms, _mask_us = attrgetter("score.part"), attrgetter("compile_ms"), attrgetter("mask_us")


def _right_in(least: float) -> Met:
    return lambda standing: standing.score.right >= least * standing.score.total


def _sound(standing: Standing) -> bool:
    return standing.score.under == 0


def _fast(of: Callable[[Standing], Times | None], p50: float, p99: float = math.inf) -> Met:
    """Times of at most so much, where there are any."""
    return lambda standing: (times := of(standing)) is not None and times.p50 <= p50 and times.p99 <= p99


def lines(report: ConstrainReport) -> str:
    """The goals as text for a terminal, below where they were measured."""
    versions = (f"{name} {version}" for name, version in report.versions.items() if version)
    absent = (f"absent: {name}: {why}" for name, why in report.absent.items())
    return "\n".join([machine_line(report.machine, report.date, *versions), *absent, goal_table(report)])


def goal_table(report: ConstrainReport, *, markdown: bool = False) -> str:
    """The goals as a table, in Markdown without the verdicts."""
    heads = ("figure", "goal", *ENGINES)
    rows = [
        (goal.name, goal.goal, *(goal.figures.get(name, "-") for name in ENGINES), MARKS[goal.met])
        for goal in goals(report)
    ]
    if markdown:
        return table(heads, [row[:-1] for row in rows], markdown=True)
    return table((*heads, ""), rows, right=range(1, len(heads)))


# -- The picture -------------------------------------------------------------------------------------------------------


def charts(report: ConstrainReport) -> list[list[Chart]]:
    """Bars of the verdicts on each engine, and its times from p50 to p99."""
    cases = report.maskbench
    verdicts = [_verdicts("Official suite: groups", report.suite), _verdicts("MaskBench: schemas", cases)]
    return [verdicts, [_times("Compilation", "ms", cases, _compile_ms), _times("One mask", "us", cases, _mask_us)]]


def _verdicts(title: str, standings: Standings) -> Chart:
    rows = {}
    for name, score in [(name, standings[name].score) for name in ENGINES if name in standings]:
        percents = [100 * getattr(score, verdict) / max(score.total, 1) for verdict in _VERDICTS]
        rows[name] = dict(zip(_COLOURS, percents, strict=True))
    return Chart(title, "% of all", rows, _COLOURS, stacked=True)


def _times(title: str, unit: str, standings: Standings, of: Callable[[Standing], Times | None]) -> Chart:
    found = {name: times for name in ENGINES if name in standings and (times := of(standings[name])) is not None}
    rows = {name: {"p50": times.p50, "p90": times.p90, "p99": times.p99} for name, times in found.items()}
    return Chart(title, unit, rows, {"p50": BLUE, "p90": PALE_BLUE, "p99": GREY}, log=True)
