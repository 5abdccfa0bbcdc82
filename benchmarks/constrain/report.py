"""What `bough bench constrain` found: its figures as JSON, as the table of goals, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from .contest import OURS, Measured
from .generate import Speed
from .judge import Score, percentile, score

ENGINES = (OURS, "xgrammar", "llguidance", "outlines_core")
_COLOURS = {OURS: "#0072b2", "xgrammar": "#e69f00", "llguidance": "#56b4a9", "outlines_core": "#9aa3ad"}
_WIDTH = 24
_INK, _SOFT, _GRID = "#22272e", "#6b7480", "#e4e7eb"


class Times(msgspec.Struct):
    """Percentiles of times."""

    p50: float
    p90: float
    p99: float
    p999: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Times:
        return cls(*(percentile(values, percent) for percent in (50, 90, 99, 99.9, 100)))

    def __str__(self) -> str:
        return f"{_short(self.p50)} / {_short(self.p99)}"


class Standing(msgspec.Struct):
    """An engine over a set of cases.

    impossible      refused since no value satisfies the schema, says the engine; right if that is so
    annotated       right ones without the file in which `format` is an annotation, and how many there are
    compile_ms      of what was compiled; refused in no time does not count as fast
    """

    score: Score
    impossible: int
    gone: int
    annotated: Score
    compile_ms: Times
    mask_us: Times
    accept_us: Times
    num_masks: int

    @classmethod
    def of(cls, measured: Sequence[Measured]) -> Standing:
        outcomes = [entry.outcome for entry in measured]
        mask_us = [us for outcome in outcomes for us in outcome.mask_us]
        return cls(
            score=score(outcomes),
            impossible=sum(outcome.impossible for outcome in outcomes),
            gone=sum((outcome.refused or "").startswith("gone:") for outcome in outcomes),
            annotated=score(outcome for outcome in outcomes if outcome.group != "format"),
            compile_ms=Times.of([outcome.compile_ms for outcome in outcomes if outcome.refused is None]),
            mask_us=Times.of(mask_us),
            accept_us=Times.of([us for entry in measured for us in entry.accept_us]),
            num_masks=len(mask_us),
        )

    @property
    def compiled(self) -> int:
        return self.score.total - self.score.refused - self.impossible


class Sampled(msgspec.Struct):
    """Outputs drawn under random schemas: from the masks alone, or by the model."""

    total: int
    schemas: int
    unfinished: int
    wrong: list[tuple[str, str]]


class Report(msgspec.Struct):
    """Everything measured; None where it was left out. Standings are by engine."""

    date: str
    machine: dict[str, Any]
    versions: dict[str, str | None]
    absent: dict[str, str] = {}
    suite: dict[str, Standing] = {}
    maskbench: dict[str, Standing] = {}
    regular: dict[str, Standing] = {}
    service_ms: Times | None = None
    speed: Speed | None = None
    from_masks: Sampled | None = None
    from_model: Sampled | None = None


class Goal(msgspec.Struct):
    """A line of the table. `met`: None if it only explains another."""

    name: str
    goal: str
    figures: dict[str, str]
    met: bool | None


def goals(report: Report) -> list[Goal]:
    """The figures to reach that were measured, with what was found."""
    every = (*_schemas(report), *_speeds(report), *_outputs(report))
    return [goal for goal in every if goal.figures]


def _schemas(report: Report) -> Iterator[Goal]:
    ours = report.suite.get(OURS)
    yield Goal(
        "official suite: groups wholly right",
        ">= 90 %",
        _figures(report.suite, lambda standing: _share(standing.score.right, standing.score.total)),
        None if ours is None else ours.score.right >= 0.9 * ours.score.total,
    )
    yield Goal(
        "   without the file where format is an annotation",
        "",
        _figures(report.suite, lambda standing: _share(standing.annotated.right, standing.annotated.total)),
        None,
    )
    yield Goal(
        "official suite: groups silently wrong (under)",
        "0",
        _figures(report.suite, lambda standing: str(standing.score.under)),
        None if ours is None else ours.score.under == 0,
    )
    ours = report.maskbench.get(OURS)
    yield Goal(
        "MaskBench: schemas wholly right",
        ">= 98.5 %",
        _figures(report.maskbench, lambda standing: _share(standing.score.right, standing.score.total)),
        None if ours is None else ours.score.right >= 0.985 * ours.score.total,
    )
    yield Goal(
        "MaskBench: under-constrained, of compiled",
        "0",
        _figures(report.maskbench, lambda standing: _share(standing.score.under, standing.compiled)),
        None if ours is None else ours.score.under == 0,
    )


def _speeds(report: Report) -> Iterator[Goal]:
    ours = report.maskbench.get(OURS)
    yield Goal(
        "compile ms p50 / p99",
        "1.5 / 40",
        _figures(report.maskbench, lambda standing: str(standing.compile_ms)),
        None if ours is None else ours.compile_ms.p50 <= 1.5 and ours.compile_ms.p99 <= 40,
    )
    if report.service_ms is not None:
        yield Goal("   through the compile service", "", {OURS: str(report.service_ms)}, None)
    yield Goal(
        "mask us p50 / p99, one thread",
        "5 / 100",
        _figures(report.maskbench, lambda standing: str(standing.mask_us)),
        None if ours is None else ours.mask_us.p50 <= 5 and ours.mask_us.p99 <= 100,
    )
    ours = report.regular.get(OURS)
    yield Goal(
        "regular constraints: mask us p50 / p99",
        "<= 1",
        _figures(report.regular, lambda standing: str(standing.mask_us)),
        None if ours is None else ours.mask_us.p50 <= 1,
    )
    yield Goal(
        "   patterns wholly right",
        "",
        _figures(report.regular, lambda standing: f"{standing.score.right}/{standing.score.total}"),
        None,
    )
    if report.speed is not None:
        ratio = sorted(report.speed.ratios)[len(report.speed.ratios) // 2]
        yield Goal("JSON generation / free text, batch 16", ">= 1.15", {OURS: f"{ratio:.2f}"}, ratio >= 1.15)


def _outputs(report: Report) -> Iterator[Goal]:
    for name, sampled in (("the masks alone", report.from_masks), ("the model at 1.5", report.from_model)):
        if sampled is not None:
            right = sampled.total - len(sampled.wrong)
            what = f"{right} of {sampled.total}"
            yield Goal(f"outputs drawn from {name} validate", "100 %", {OURS: what}, not sampled.wrong)


def table(report: Report) -> str:
    """The goals as lines of text."""
    machine = report.machine
    lines = [
        f"{machine.get('system')}, {machine.get('cpus')} CPUs, commit {machine.get('commit')}, {report.date}; "
        + ", ".join(f"{name} {version}" for name, version in report.versions.items() if version),
        *(f"absent: {name}: {why}" for name, why in report.absent.items()),
        f"{'figure':52}{'goal':>10}" + "".join(f"{name:>{_WIDTH}}" for name in ENGINES),
    ]
    for goal in goals(report):
        mark = {True: "  met", False: "  MISSED", None: ""}[goal.met]
        cells = "".join(f"{goal.figures.get(name, '-'):>{_WIDTH}}" for name in ENGINES)
        lines.append(f"{goal.name:52}{goal.goal:>10}{cells}{mark}")
    return "\n".join(lines)


def markdown(report: Report) -> str:
    """The same for docs/performance.md."""
    lines = ["| figure | goal | " + " | ".join(ENGINES) + " |", "|---|---|" + "---|" * len(ENGINES)]
    for goal in goals(report):
        cells = " | ".join(goal.figures.get(name, "-") for name in ENGINES)
        lines.append(f"| {goal.name.strip()} | {goal.goal} | {cells} |")
    return "\n".join(lines)


def draw(report: Report, new_figure: Callable[..., Any]) -> Any:
    """How right each engine is, and how its times are spread."""
    figure = new_figure(figsize=(11, 7.2), layout="constrained", facecolor="white")
    figure.suptitle(
        f"{report.machine.get('cpus')} CPUs, {report.date[:10]}, {report.machine.get('commit')}",
        x=0.99, ha="right", fontsize=8.5, color=_SOFT,
    )  # fmt: skip
    axes = figure.subplots(2, 2)
    _draw_verdicts(axes[0, 0], report.suite, "Official suite: groups")
    _draw_verdicts(axes[0, 1], report.maskbench, "MaskBench: schemas")
    _draw_times(axes[1, 0], {name: entry.compile_ms for name, entry in report.maskbench.items()}, "compilation, ms")
    _draw_times(axes[1, 1], {name: entry.mask_us for name, entry in report.maskbench.items()}, "one mask, us")
    return figure


_VERDICTS = {"right": "#0072b2", "refused": "#c9ced6", "over": "#e69f00", "under": "#d55e00"}
_MEANING = {"right": "right", "refused": "refused", "over": "refuses valid", "under": "lets invalid through"}


def _draw_verdicts(axes: Any, standings: dict[str, Standing], title: str) -> None:
    names = [name for name in ENGINES if name in standings]
    left = [0.0] * len(names)
    for verdict, colour in _VERDICTS.items():
        scores = [standings[name].score for name in names]
        widths = [100 * getattr(entry, verdict) / max(entry.total, 1) for entry in scores]
        axes.barh(names, widths, 0.62, left=left, color=colour, label=_MEANING[verdict], zorder=3)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, name in enumerate(names):
        entry = standings[name].score
        axes.annotate(
            f"{100 * entry.right / max(entry.total, 1):.0f} %", (2, place), va="center", color="white", fontsize=10,
            zorder=4,
        )  # fmt: skip
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of all", color=_SOFT)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=4, frameon=False, fontsize=8.5)
    _plain(axes, title)


def _draw_times(axes: Any, times: dict[str, Times], title: str) -> None:
    names = [name for name in ENGINES if name in times]
    for place, name in enumerate(names):
        entry = times[name]
        axes.plot([entry.p50, entry.p99], [place, place], color=_COLOURS[name], linewidth=7, alpha=0.35, zorder=3)
        for value, size in ((entry.p50, 70), (entry.p90, 34), (entry.p99, 34)):
            axes.scatter(value, place, s=size, color=_COLOURS[name], edgecolor="white", linewidth=0.8, zorder=4)
        axes.annotate(
            f"{_short(entry.p50)} / {_short(entry.p99)}", (entry.p99, place), xytext=(9, 0),
            textcoords="offset points", va="center", fontsize=9, color=_INK,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.margins(x=0.25, y=0.15)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("p50, p90, p99", color=_SOFT)
    _plain(axes, title[0].upper() + title[1:])


def _plain(axes: Any, title: str) -> None:
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GRID)
    axes.grid(True, axis="x", color=_GRID, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_SOFT, which="both", length=0, labelsize=9)
    axes.set_title(title, loc="left", fontsize=12, color=_INK)


def _figures(standings: dict[str, Standing], figure: Callable[[Standing], str]) -> dict[str, str]:
    """By engine; with how many cases it got to, if its time was up before the end."""
    most = max((standing.score.total for standing in standings.values()), default=0)
    return {
        name: figure(standing) + ("" if standing.score.total == most else f" (n {standing.score.total})")
        for name, standing in standings.items()
        if standing.score.total
    }


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def standings(measured: dict[str, list[Measured]], only: Iterable[str] = ENGINES) -> dict[str, Standing]:
    return {name: Standing.of(measured[name]) for name in only if measured.get(name)}
