"""Programs as one request, against the same calls from the client: requests, tokens, times, and the same texts.

Everything is done with two models: the one named, and a random one with the same tokenizer whose forward pass costs
next to nothing, which leaves what is not the model.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...runtime.models.load import locate
from ...runtime.protocol.config import EngineConfig
from ...runtime.protocol.errors import BoughError
from ...runtime.tokenizer.load import load_tokenizer
from ..harness.models import write_light_model
from ..harness.pictures import BLUE, GREEN, ORANGE, PALE_BLUE, Chart, write_picture
from ..harness.report import cells_table, describe_machine, now, say, versions, write_json, write_text
from ..harness.server_process import ServerProcess
from ..workloads.programs import WORKLOADS, Size
from . import contests
from .contests import OURS, THEIRS, ContestResult
from .ways import GenByGen, OneRequest, OpenAICalls, WorkloadResult, measure_workload

_WAYS = (OneRequest.name, GenByGen.name, OpenAICalls.name)
_COLOURS = {GenByGen.name: ORANGE, OpenAICalls.name: GREEN}
_PARTS = {"in the model": BLUE, "else in steps": PALE_BLUE, "engine idle": ORANGE}
Row = dict[str, str]  # cells by their heads


@dataclass
class ModelResults:
    """Results with one model. `about` tells readers what it is."""

    name: str
    about: str
    workloads: list[WorkloadResult] = field(default_factory=list)
    contests: list[ContestResult] = field(default_factory=list)

    @property
    def share_different(self) -> float:
        """Share of the texts generated after the same tokens on both sides that are not the same."""
        found = [found for result in self.workloads for found in result.agreement.values()]
        num_different, num_same = sum(each.different for each in found), sum(each.same for each in found)
        return num_different / max(1, num_different + num_same)


def tables(results: Iterable[ModelResults], *, markdown: bool) -> str:
    """All tables, for people at a terminal or as Markdown."""
    parts = []
    for result in results:
        parts.append(f"{result.name}: {result.about}.")
        if result.workloads:
            parts.append(cells_table(map(_workload_row, result.workloads), markdown=markdown))
        if result.contests:
            parts.append(cells_table(map(_contest_row, result.contests), markdown=markdown))
    return "\n\n".join(parts)


def _workload_row(result: WorkloadResult) -> Row:
    ways = [way for way in _WAYS if way in result.traffic]
    levels = sorted(result.rounds)
    most = [result.rounds[levels[-1]][way] for way in ways]
    traffic = [result.traffic[way] for way in ways]
    walls = {level: [result.rounds[level][way].wall_s for way in ways] for level in levels}
    return {
        "workload": result.name,
        "requests": _slashed(f"{each.requests:g}" for each in most),
        "KB sent": _slashed(f"{each.num_bytes / 1000:.1f}" for each in traffic),
        "tokens sent": _slashed(f"{each.sent_tokens:,.0f}" for each in traffic),
        "tokenised": _slashed(f"{each.tokenised:,.0f}" for each in traffic),
        "prompt computed": _slashed(f"{each.median.counted.computed_prompt_tokens:,}" for each in most),
        "hit rate": _slashed(f"{each.median.counted.hit_rate:.0%}" for each in most),
        **{f"s, {n} at once": _slashed(f"{wall_s:.2f}" for wall_s in walls[n]) for n in levels},
        **{f"slower, {n}": _slashed(f"{wall_s / walls[n][0]:.2f}" for wall_s in walls[n][1:]) for n in levels},
        "texts": _agreement(result, ways[1:]),
    }


def _agreement(result: WorkloadResult, ways: Sequence[str]) -> str:
    """Counts for each way the texts that are the same, that follow other tokens of the same text, that are wrong."""
    parts = []
    for found in [result.agreement[way] for way in ways]:
        retokenised = f", {found.retokenised} retokenised" if found.retokenised else ""
        parts.append(f"{found.same} same{retokenised}" + (f", {found.different} DIFFERENT" if found.different else ""))
    return parts[0] if len(set(parts)) == 1 else _slashed(parts)


def _contest_row(result: ContestResult) -> Row:
    sides = [result.rounds[side] for side in (OURS, THEIRS)]
    medians = [side.median for side in sides]
    return {
        "program": result.name,
        "prompts and answers": f"{result.setting}, {result.at_once} at once",
        "requests": _slashed(f"{side.requests:g}" for side in sides),
        "seconds": _slashed(f"{side.wall_s:.2f}" for side in sides),
        "ratio": f"{result.ratio:.2f}",
        "at most": f"{result.bound:.2f}",
        "in the model": _slashed(f"{each.counted.forward_s / each.wall_s:.0%}" for each in medians),
        "engine idle": _slashed(f"{each.idle_s / each.wall_s:.0%}" for each in medians),
        "server CPU s": _slashed(f"{each.counted.front_cpu_s:.2f}" for each in medians),
        "client CPU s": _slashed(f"{each.client_cpu_s:.2f}" for each in medians),
        "steps": _slashed(f"{each.counted.num_steps}" for each in medians),
        "tokens a step": _slashed(f"{each.counted.mean_batch:.0f}" for each in medians),
        "prompt tokens": _slashed(f"{each.counted.prompt_tokens:,}" for each in medians),
        "computed": _slashed(f"{each.counted.computed_prompt_tokens:,}" for each in medians),
    }


def _slashed(parts: Iterable[str]) -> str:
    return " / ".join(parts)


# -- The picture -------------------------------------------------------------------------------------------------------


def draw(results: Sequence[ModelResults], path: str | None) -> None:
    """Draws what was found as SVG: a row of charts for each model."""
    write_picture(path, [[_workloads(each), _contests(each)] for each in results])


def _workloads(result: ModelResults) -> Chart:
    level = max((n for each in result.workloads for n in each.rounds), default=0)
    rows = {}
    for each in result.workloads:
        rounds = each.rounds[level]
        one_s = rounds[OneRequest.name].wall_s
        rows[each.name] = {way: rounds[way].wall_s / one_s for way in _COLOURS if way in rounds}
    unit = "time, as a multiple of that of one request"
    return Chart(f"{result.name}: {level} programs at once", unit, rows, _COLOURS)


def _contests(result: ModelResults) -> Chart:
    rows = {}
    for each in result.contests:
        whole_s = each.rounds[THEIRS].wall_s
        for side in (OURS, THEIRS):
            median = each.rounds[side].median
            counted = median.counted
            parts_s = (counted.forward_s, counted.step_s - counted.forward_s, median.idle_s)
            shares = [part_s / whole_s for part_s in parts_s]
            rows[f"{each.name}, {each.setting}: {side}"] = dict(zip(_PARTS, shares, strict=True))
    unit = "time, as a part of the openai client's"
    return Chart(f"{result.name}: where time goes", unit, rows, _PARTS, stacked=True)


_MAX_TIES = 0.01
"""Share of texts that may differ after the same tokens: those at which two tokens were about equally likely."""

_TOOLS = "from bough.benchmarks.language.programs import search\n"


@dataclass(frozen=True)
class Plan:
    """Measurements with one model: the one named, or with `light` one that costs next to nothing."""

    light: bool
    levels: tuple[int, ...]  # programs at once, for the workloads
    at_once: int  # the same, for the programs by hand
    num_rounds: int
    scale: float
    few: bool = False  # only some of those


_PLANS = (
    Plan(light=False, levels=(1, 4), at_once=1, num_rounds=3, scale=0.02),
    Plan(light=True, levels=(1, 32), at_once=8, num_rounds=3, scale=0.05),
)
_QUICK_PLANS = (
    Plan(light=False, levels=(1,), at_once=1, num_rounds=1, scale=0.02, few=True),
    Plan(light=True, levels=(8,), at_once=2, num_rounds=1, scale=0.05),
)


def run(arguments: argparse.Namespace) -> int:
    if versions("openai")["openai"] is None:
        raise BoughError("the comparison needs the official client: pip install openai")
    plans = [plan for plan in plans_of(arguments) if arguments.light in (None, plan.light)]
    results = [_measure(arguments, plan) for plan in plans]
    print(tables(results, markdown=False))
    write_text(arguments.markdown, tables(results, markdown=True))
    facts = {"time": now(), "machine": {**describe_machine(), **versions("openai")}, "version": version("bough")}
    write_json(arguments.json, facts | {"models": results})
    draw(results, arguments.plot)
    share = max((result.share_different for result in results), default=0.0)
    if share > _MAX_TIES:
        raise BoughError(f"{share:.1%} of the texts differ that should be the same")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=EngineConfig().model, help="model to serve (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round of small programs: one to two minutes, not ten")
    parser.add_argument("--only", action="append", choices=[*WORKLOADS, "contests"], help="this one (may be repeated)")
    parser.add_argument("--at-once", type=int, metavar="N", help="programs of a workload at once, instead of 4 and 32")
    parser.add_argument("--rounds", type=int, metavar="N", help="instead of 3")
    light = parser.add_mutually_exclusive_group()
    light.add_argument("--light", action="store_true", default=None, help="the model that costs next to nothing only")
    light.add_argument("--no-light", dest="light", action="store_false", help="the named model only")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables")
    parser.add_argument("--plot", metavar="FILE", help="draw the result as SVG")


def plans_of(arguments: argparse.Namespace) -> list[Plan]:
    changes: dict[str, Any] = {"num_rounds": arguments.rounds} if arguments.rounds else {}
    if arguments.at_once is not None:
        changes["levels"] = tuple(sorted({1, arguments.at_once}))
    return [replace(plan, **changes) for plan in (_QUICK_PLANS if arguments.quick else _PLANS)]


def _measure(arguments: argparse.Namespace, plan: Plan) -> ModelResults:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tools = folder / "tools.py"
        tools.write_text(_TOOLS)
        source = write_light_model(arguments.model, folder / "light") if plan.light else locate(arguments.model)
        name = "light model" if plan.light else str(arguments.model)
        with ServerProcess(["--model", str(source), "--tools", str(tools)]) as server:
            model = server.info()["model"]
            about = f"{model['num_parameters'] / 1e6:.0f} M parameters, {model['dtype']} on {model['device']}"
            about += ", random weights, the other's tokenizer" if plan.light else ""
            results = ModelResults(name, about)
            asyncio.run(_measure_all(results, arguments.only or [*WORKLOADS, "contests"], plan, server, source))
    return results


async def _measure_all(
    results: ModelResults, chosen: Sequence[str], plan: Plan, server: ServerProcess, source: Path
) -> None:
    tokenizer, size = load_tokenizer(source), Size(plan.scale, max(plan.levels))
    for workload in [make(size) for name, make in WORKLOADS.items() if name in chosen]:
        say(f"{results.name}, {workload.name}")
        found = await measure_workload(server, tokenizer, workload, levels=plan.levels, num_rounds=plan.num_rounds)
        results.workloads.append(found)
    settings = (contests.LONG_PROMPTS,) if plan.few else (contests.LONG_PROMPTS, contests.LONG_ANSWERS)
    fights = [(contest, setting) for contest in contests.CONTESTS[: 2 if plan.few else None] for setting in settings]
    fights.append((contests.REACT, contests.SHORT_QUESTION))
    for contest, setting in fights if "contests" in chosen else []:
        say(f"{results.name}, {contest.name}, {setting.name}")
        watch = contest is contests.CONTESTS[0] and setting is contests.LONG_ANSWERS
        how: Any = {"at_once": plan.at_once, "num_rounds": plan.num_rounds, "watch": watch}
        results.contests.append(await contests.measure_contest(server, contest, setting, **how))
