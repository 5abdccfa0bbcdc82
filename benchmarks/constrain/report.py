"""Figures of `bough bench constrain`: by engine, beside the goals, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from ..harness.pictures import BLUE, GREY, ORANGE, RED, SOFT, Axis, Panel
from ..harness.report import MARKS, machine_line, percentiles, share, short, table
from .contest import OURS, Outcome, Score
from .generate import Samples, Speed

ENGINES = (OURS, "xgrammar", "llguidance", "outlines_core")
_COLOURS = dict(zip(ENGINES, (BLUE, ORANGE, "#56b4a9", GREY), strict=True))
_VERDICTS = {
    "right": ("right", BLUE),
    "refused": ("refused", "#c9ced6"),
    "over": ("refuses valid", ORANGE),
    "under": ("lets invalid through", RED),
}


class Times(msgspec.Struct):
    """Percentiles of times."""

    p50: float
    p90: float
    p99: float
    p999: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Times | None:
        return cls(*percentiles(values, 50, 90, 99, 99.9, 100)) if values else None

    def within(self, p50: float, p99: float = math.inf) -> bool:
        return self.p50 <= p50 and self.p99 <= p99

    def __str__(self) -> str:
        return f"{short(self.p50)} / {short(self.p99)}"


class Standing(msgspec.Struct):
    """An engine over a set of cases.

    impossible      refused since no value satisfies the schema, says the engine; right if that is so
    annotated       right ones without the file in which `format` is an annotation, and how many there are
    compile_ms      of what was compiled; refused in no time does not count as fast
    mask_us, accept_us   of all masks and all tokens; times are None where there are none
    """

    score: Score
    impossible: int
    gone: int
    annotated: Score
    compile_ms: Times | None
    mask_us: Times | None
    accept_us: Times | None
    num_masks: int

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Standing:
        mask_us = [us for outcome in outcomes for us in outcome.mask_us]
        return cls(
            score=Score.of(outcomes),
            impossible=sum(outcome.impossible for outcome in outcomes),
            gone=sum((outcome.refused or "").startswith("gone:") for outcome in outcomes),
            annotated=Score.of(outcome for outcome in outcomes if outcome.group != "format"),
            compile_ms=Times.of([outcome.compile_ms for outcome in outcomes if outcome.refused is None]),
            mask_us=Times.of(mask_us),
            accept_us=Times.of([us for outcome in outcomes for us in outcome.accept_us]),
            num_masks=len(mask_us),
        )

    @property
    def compiled(self) -> int:
        return self.score.total - self.score.refused - self.impossible


Standings = dict[str, Standing]
"""Standings of engines, by name."""


class ConstrainReport(msgspec.Struct):
    """Everything measured; None or empty where it was left out."""

    date: str
    machine: dict[str, Any]
    versions: dict[str, str | None]
    absent: dict[str, str] = {}
    suite: Standings = {}
    maskbench: Standings = {}
    regular: Standings = {}
    service_ms: Times | None = None
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
        _goal("   without the file where format is an annotation", "", suite, lambda each: each.annotated.part),
        _goal("official suite: groups silently wrong (under)", "0", suite, lambda each: each.score.under, _sound),
        _goal("MaskBench: schemas wholly right", ">= 98.5 %", maskbench, _right, _right_in(0.985)),
        _goal("MaskBench: under-constrained, of compiled", "0", maskbench, _under, _sound),
        _timed("compile ms p50 / p99", "1.5 / 40", maskbench, attrgetter("compile_ms"), 1.5, 40),
        Goal("   through the compile service", "", {OURS: str(report.service_ms)} if report.service_ms else {}),
        _timed("mask us p50 / p99, one thread", "5 / 100", maskbench, attrgetter("mask_us"), 5, 100),
        _timed("regular constraints: mask us p50 / p99", "<= 1", regular, attrgetter("mask_us"), 1),
        _goal("   patterns wholly right", "", regular, lambda each: f"{each.score.right}/{each.score.total}"),
        *_generated(report),
    ]
    return [goal for goal in found if goal.figures]


def _generated(report: ConstrainReport) -> Iterator[Goal]:
    if report.speed is not None:
        ratio = sorted(report.speed.ratios)[len(report.speed.ratios) // 2]
        yield Goal("JSON generation / free text, batch 16", ">= 1.15", {OURS: f"{ratio:.2f}"}, ratio >= 1.15)
    for name, samples in (("the masks alone", report.from_masks), ("the model at 1.5", report.from_model)):
        if samples is not None:
            figure = f"{samples.total - len(samples.wrong)} of {samples.total}"
            yield Goal(f"outputs drawn from {name} validate", "100 %", {OURS: figure}, not samples.wrong)


def _goal(
    name: str,
    goal: str,
    standings: Standings,
    figure: Callable[[Standing], object],
    met: Callable[[Standing], bool] | None = None,
) -> Goal:
    """A goal over a set of cases. An engine whose time was up before the end has beside its figure how far it got."""
    most = max((standing.score.total for standing in standings.values()), default=0)
    figures = {
        engine: str(figure(standing)) + ("" if standing.score.total == most else f" (n {standing.score.total})")
        for engine, standing in standings.items()
        if standing.score.total
    }
    return Goal(name, goal, figures, met(standings[OURS]) if met and OURS in standings else None)


def _timed(
    name: str, goal: str, standings: Standings, times: Callable[[Standing], Times | None], *limits: float
) -> Goal:
    """A goal for times: at most `limits`, of the p50 and of the p99."""

    def met(ours: Standing) -> bool:
        found = times(ours)
        return found is not None and found.within(*limits)

    return _goal(name, goal, standings, lambda each: times(each) or "-", met)


def _right(standing: Standing) -> str:
    return standing.score.part


def _right_in(least: float) -> Callable[[Standing], bool]:
    return lambda standing: standing.score.right >= least * standing.score.total


def _under(standing: Standing) -> str:
    return share(standing.score.under, standing.compiled)


def _sound(standing: Standing) -> bool:
    return standing.score.under == 0


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


def panels(report: ConstrainReport) -> list[list[Panel]]:
    """Bars of the verdicts on each engine, and its times from p50 to p99."""
    suite, maskbench = report.suite, report.maskbench
    return [
        [_verdicts("Official suite: groups", suite), _verdicts("MaskBench: schemas", maskbench)],
        [
            _times("Compilation, ms", {name: each.compile_ms for name, each in maskbench.items()}),
            _times("One mask, us", {name: each.mask_us for name, each in maskbench.items()}),
        ],
    ]


def _verdicts(title: str, standings: Standings) -> Panel:
    names = [name for name in ENGINES if name in standings]
    panel = Panel(title, Axis("% of all", 0, 100), rows=names)
    for place, name in enumerate(names):
        score = standings[name].score
        percents = {verdict: 100 * getattr(score, verdict) / max(score.total, 1) for verdict in _VERDICTS}
        panel.stack(place, [(meaning, percents[verdict], colour) for verdict, (meaning, colour) in _VERDICTS.items()])
        panel.text(2, place, f"{percents['right']:.0f} %", "white")
    return panel


def _times(title: str, times: Mapping[str, Times | None]) -> Panel:
    found = [(name, entry) for name in ENGINES if (entry := times.get(name)) is not None]
    axis = Axis("p50, p90, p99", log=True, room=0.3, tick="{:,g}".format)
    panel = Panel(title, axis, rows=[name for name, _ in found])
    for place, (name, entry) in enumerate(found):
        panel.line([(entry.p50, place), (entry.p99, place)], _COLOURS[name], wide=7, faint=True)
        for value, size in ((entry.p50, 6.0), (entry.p90, 4.0), (entry.p99, 4.0)):
            panel.dot(value, place, _COLOURS[name], size=size)
        panel.text(entry.p99, place, str(entry), SOFT, shift=(9, 4))
    return panel
