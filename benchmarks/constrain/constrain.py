"""`bough bench constrain`: constrained decoding held to its goals, beside xgrammar, llguidance and outlines_core."""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from ...constrain import Vocabulary
from ...runtime.client.llm import LLM
from ...runtime.models.load import locate
from ...runtime.protocol.config import EngineConfig
from ...runtime.protocol.errors import RequestError
from ...runtime.tokenizer.load import load_tokenizer
from ..harness import report as common
from ..harness.pictures import BLUE, GREY, ORANGE, PALE_BLUE, RED, Chart, write_picture
from ..harness.report import machine_line, percentiles, share, short, table
from ..peers.process import OURS, PeerError
from .cases import SchemaCase, choices, maskbench_cases, maskbench_folder, regular_cases, suite_cases, suite_folder
from .contest import Contestant, Outcome, Score, contest, engine_command, write_vocabulary
from .generate import Samples, Speed, measure_speed, sample_masks, sample_model

ENGINES = (OURS, "xgrammar", "llguidance", "outlines_core")
SECTIONS = ("suite", "maskbench", "regular", "speed", "samples")
_VERDICTS = ("right", "refused", "over", "under")
_COLOURS = {"right": BLUE, "refused": GREY, "refuses valid": ORANGE, "lets invalid through": RED}


def run(arguments: argparse.Namespace) -> int:
    chosen = arguments.sections.split(",")
    if unknown := sorted(set(chosen) - set(SECTIONS)):
        raise RequestError(f"--sections: {unknown[0]!r} is none of {', '.join(SECTIONS)}")
    report = _Bench(arguments).run(chosen)
    print(lines(report))
    common.write_text(arguments.markdown, goal_table(report, markdown=True))
    write_picture(arguments.plot, charts(report), caption=machine_line(report.machine, report.date[:10]))
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=EngineConfig().model, help="whose tokens, and what generates")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="default: %(default)s")
    parser.add_argument("--suite", type=Path, default=suite_folder(), help="draft2020-12 of the official suite")
    parser.add_argument("--maskbench", type=Path, default=maskbench_folder(), help="a folder of MaskBench's files")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has xgrammar and outlines_core")
    parser.add_argument("--peer-s", type=float, default=240.0, help="time that a peer may take for a set of cases")
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="of each set at most so many")
    parser.add_argument("--rounds", type=int, default=3, help="of generation, JSON and free text in turn")
    parser.add_argument("--samples", type=int, default=2_000, help="outputs drawn from masks")
    parser.add_argument("--model-samples", type=int, default=200, help="outputs drawn by the model")
    parser.add_argument("--json", metavar="FILE", help="write all figures as they come")
    parser.add_argument("--markdown", metavar="FILE", help="write the table for docs/performance.md")
    parser.add_argument("--plot", metavar="FILE", help="draw the result as SVG")


# -- Figures: by engine, beside the goals -----------------------------------------------------------------------------


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
        (goal.name, goal.goal, *(goal.figures.get(name, "-") for name in ENGINES), common.MARKS[goal.met])
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


# -- Sections ----------------------------------------------------------------------------------------------------------


class _Bench:
    """Runs the sections, and writes the report after each."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        tokenizer = load_tokenizer(locate(arguments.model))
        self.vocabulary: Vocabulary = tokenizer.vocabulary(tokenizer.vocab_size)
        self.report = ConstrainReport(common.now(), common.describe_machine(), common.versions("llguidance"))
        self.llm: LLM | None = None

    def run(self, chosen: Sequence[str]) -> ConstrainReport:
        try:
            for name in chosen:
                started = time.perf_counter()
                self._measure(name)
                common.say(f"{name}: {time.perf_counter() - started:.0f} s")
                common.write_json(self.arguments.json, self.report)
        finally:
            if self.llm is not None:
                self.llm.close()
        return self.report

    def _measure(self, section: str) -> None:
        report, arguments, suite = self.report, self.arguments, list(suite_cases(self.arguments.suite))
        match section:
            case "suite":
                report.suite = self._contest(suite)
            case "maskbench":
                report.maskbench = self._contest(list(maskbench_cases(arguments.maskbench)))
            case "regular":
                report.regular = self._contest([*regular_cases(), choices(200)], "regex")
            case "speed":
                report.speed = measure_speed(self._model(), rounds=arguments.rounds)
            case "samples" if suite:
                report.from_masks = sample_masks(suite, self.vocabulary, arguments.samples)
                if arguments.model_samples:
                    report.from_model = sample_model(suite, self._model(), arguments.model_samples)

    def _model(self) -> LLM:
        self.llm = self.llm or LLM(self.arguments.model, max_num_seqs=16)
        return self.llm

    def _contest(self, cases: list[SchemaCase], kind: str = "schema") -> Standings:
        """Ours on all cases, the peers beside it for as long as they may take."""
        if not cases:
            return {}
        random.Random(0).shuffle(cases)  # so that a prefix is a fair sample
        with tempfile.TemporaryDirectory() as path, contextlib.ExitStack() as stack:
            vocabulary, contestants = Path(path) / "vocabulary.json", []
            write_vocabulary(self.vocabulary, vocabulary)
            for name in ENGINES:
                budget_s = float("inf") if name == OURS else self.arguments.peer_s
                try:
                    command = engine_command(name, self.arguments.model, vocabulary, self.arguments.peers)
                    engine = Contestant(name, command, vocabulary.with_name(f"{name}.log"), budget_s=budget_s)
                    contestants.append(stack.enter_context(contextlib.closing(engine)))
                except PeerError as error:
                    self.report.absent[name] = str(error)
            outcomes = contest(contestants, cases[: self.arguments.cases], self.vocabulary, kind)
            self.report.versions |= {engine.name: engine.version for engine in contestants if engine.version}
        return {name: Standing.of(found) for name, found in outcomes.items() if found}
