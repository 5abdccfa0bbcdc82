"""What `bough bench language` found, as tables and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..harness.pictures import BLUE, GREEN, ORANGE, Axis, Panel, write_picture
from ..harness.report import table
from .contests import GOAL, OURS, THEIRS, ContestResult
from .rounds import Rounds
from .ways import GenByGen, OneRequest, OpenAICalls
from .workloads import WorkloadResult

_WAYS = (OneRequest.name, GenByGen.name, OpenAICalls.name)
_COLOURS = {GenByGen.name: ORANGE, OpenAICalls.name: GREEN}
_WORKLOAD_HEADS = ("workload", "requests", "KB sent", "tokens sent", "tokenised", "prompt computed", "hit rate")
_CONTEST_HEADS = (
    *("program", "prompts and answers", "requests", "seconds", "ratio", "at most", "in the model", "engine idle"),
    *("server CPU s", "client CPU s", "steps", "tokens a step", "prompt tokens", "computed"),
)

Row = Sequence[str]


@dataclass
class ModelResults:
    """What was found with one model. `about` tells readers what it is."""

    name: str
    about: str
    workloads: list[WorkloadResult] = field(default_factory=list)
    contests: list[ContestResult] = field(default_factory=list)

    @property
    def share_different(self) -> float:
        """Of the texts that were generated after the same tokens on both sides, how many are not the same."""
        found = [found for result in self.workloads for found in result.agreement.values()]
        num_different, num_same = sum(each.different for each in found), sum(each.same for each in found)
        return num_different / max(1, num_different + num_same)

    def numbers(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "about": self.about,
            "workloads": [result.numbers() for result in self.workloads],
            "contests": [result.numbers() for result in self.contests],
        }


def tables(results: Iterable[ModelResults], *, markdown: bool) -> str:
    """All tables, for people at a terminal or as Markdown."""
    parts = []
    for result in results:
        parts.append(f"{result.name}: {result.about}.")
        if result.workloads:
            levels = sorted(result.workloads[0].rounds)
            heads = (*_WORKLOAD_HEADS, *(f"s, {n} at once" for n in levels), *(f"slower, {n}" for n in levels), "texts")
            parts.append(table(heads, [_workload_row(each) for each in result.workloads], markdown=markdown))
        if result.contests:
            parts.append(table(_CONTEST_HEADS, [_contest_row(each) for each in result.contests], markdown=markdown))
    return "\n\n".join(parts)


def reached(results: Iterable[ModelResults]) -> str:
    """Where the goal is reached, and else by how much the model's own time forbids it."""
    lines = []
    for result in results:
        for contest in result.contests:
            what = f"{result.name}, {contest.name}, {contest.setting}: {contest.ratio:.2f}x"
            if contest.ratio >= GOAL:
                lines.append(f"{what}, the goal of {GOAL:g}x is reached")
            elif contest.bound < GOAL:
                lines.append(f"{what}; the model's own time allows {contest.bound:.2f}x at most")
            else:
                lines.append(f"{what} of {GOAL:g}x; the model's own time would allow {contest.bound:.2f}x")
    return "\n".join(lines)


def _workload_row(result: WorkloadResult) -> Row:
    ways = [way for way in _WAYS if way in result.traffic]
    levels = sorted(result.rounds)
    most = result.rounds[levels[-1]]
    traffic = [result.traffic[way] for way in ways]
    ours = {level: result.rounds[level][OneRequest.name].wall_s for level in levels}
    return (
        result.name,
        _slashed(f"{most[way].requests:g}" for way in ways),
        _slashed(f"{each.num_bytes / 1000:.1f}" for each in traffic),
        _slashed(f"{each.sent_tokens:,.0f}" for each in traffic),
        _slashed(f"{each.tokenised:,.0f}" for each in traffic),
        _slashed(f"{most[way].median.counted.computed_prompt_tokens:,}" for way in ways),
        _slashed(f"{most[way].median.counted.hit_rate:.0%}" for way in ways),
        *(_slashed(f"{result.rounds[level][way].wall_s:.2f}" for way in ways) for level in levels),
        *(_slashed(f"{result.rounds[n][way].wall_s / ours[n]:.2f}" for way in ways[1:]) for n in levels),
        _agreement(result, ways[1:]),
    )


def _agreement(result: WorkloadResult, ways: Sequence[str]) -> str:
    """Of each way: how many texts are the same; what follows other tokens of the same text; what is wrong."""
    parts = []
    for way in ways:
        found = result.agreement[way]
        text = f"{found.same} same"
        text += f", {found.retokenised} retokenised" if found.retokenised else ""
        text += f", {found.different} DIFFERENT" if found.different else ""
        parts.append(text)
    return parts[0] if len(set(parts)) == 1 else _slashed(parts)


def _contest_row(result: ContestResult) -> Row:
    sides = [result.rounds[side] for side in (OURS, THEIRS)]

    def both(write: Any) -> str:
        return _slashed(write(side) for side in sides)

    return (
        result.name,
        f"{result.setting}, {result.at_once} at once",
        both(lambda side: f"{side.requests:g}"),
        both(lambda side: f"{side.wall_s:.2f}"),
        f"{result.ratio:.2f}",
        f"{result.bound:.2f}",
        both(lambda side: f"{_share(side, 'forward_s'):.0%}"),
        both(lambda side: f"{side.median.idle_s / side.median.wall_s:.0%}"),
        both(lambda side: f"{side.median.counted.front_cpu_s:.2f}"),
        both(lambda side: f"{side.median.client_cpu_s:.2f}"),
        both(lambda side: f"{side.median.counted.num_steps}"),
        both(lambda side: f"{side.median.counted.mean_batch:.0f}"),
        both(lambda side: f"{side.median.counted.prompt_tokens:,}"),
        both(lambda side: f"{side.median.counted.computed_prompt_tokens:,}"),
    )


def _share(side: Rounds, name: str) -> float:
    return float(getattr(side.median.counted, name)) / side.median.wall_s


def _slashed(parts: Iterable[str]) -> str:
    return " / ".join(parts)


# -- The picture -------------------------------------------------------------------------------------------------------


def draw(results: Sequence[ModelResults], path: str) -> None:
    """Draws what was found as SVG: a row of panels for each model."""
    write_picture(path, [[_workloads(each), _contests(each), *_batches(each)] for each in results])


def _workloads(result: ModelResults) -> Panel:
    level = max((n for each in result.workloads for n in each.rounds), default=0)
    title = f"{result.name}: {level} programs at once"
    axis = Axis("time, as a multiple of that of one request", low=0.0)
    panel = Panel(title, x=axis, rows=[each.name for each in result.workloads])
    for row, each in enumerate(result.workloads):
        rounds = each.rounds[level]
        for offset, way in ((-0.18, GenByGen.name), (0.18, OpenAICalls.name)):
            if way in rounds:
                ratio = rounds[way].wall_s / rounds[OneRequest.name].wall_s
                panel.bar(row + offset, 0.0, ratio, _COLOURS[way], thick=0.36, label=way)
    if result.workloads:
        panel.line([(1.0, -0.5), (1.0, len(result.workloads) - 0.5)])
    return panel


def _contests(result: ModelResults) -> Panel:
    sides = [(each, side) for each in result.contests for side in (OURS, THEIRS)]
    rows = [f"{each.name}, {each.setting}: {side}" if side == OURS else side for each, side in sides]
    axis = Axis("time, as a part of the openai client's", low=0.0)
    panel = Panel(f"{result.name}: where time goes", x=axis, rows=rows, width=680)
    for row, (each, side) in enumerate(sides):
        median, whole_s = each.rounds[side].median, each.rounds[THEIRS].wall_s
        counted = median.counted
        parts = (
            ("in the model", counted.forward_s / whole_s, BLUE),
            ("else in steps", (counted.step_s - counted.forward_s) / whole_s, "#7fb8d8"),
            ("engine idle", median.idle_s / whole_s, ORANGE),
        )
        panel.stack(row, parts)
    return panel


def _batches(result: ModelResults) -> list[Panel]:
    watched = next((each for each in result.contests if each.batches), None)
    if watched is None:
        return []
    panel = Panel(watched.name, Axis("seconds"), Axis("generations at once", low=0.0), note=watched.setting, height=260)
    for side, colour in ((OURS, BLUE), (THEIRS, GREEN)):
        panel.line([(at, float(running)) for at, running in watched.batches[side]], colour, steps=True, label=side)
    return [panel]
