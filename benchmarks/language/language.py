"""Programs as one request, against the same calls from the client: requests, tokens, times, and the same texts.

Everything is done with two models: the one named, and a random one with the same tokenizer whose forward pass costs
next to nothing, which leaves what is not the model.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ...runtime.models.load import locate
from ...runtime.protocol.config import EngineConfig
from ...runtime.protocol.errors import BoughError
from ...runtime.tokenizer.load import load_tokenizer
from ..harness.models import write_light_model
from ..harness.report import describe_machine, now, versions, write_json, write_text
from ..harness.server_process import ServerProcess
from ..workloads.programs import WORKLOADS
from ..workloads.workload import Size
from . import contests as contests
from . import workloads as workloads
from .report import ModelResults, draw, reached, tables

_MAX_TIES = 0.01
"""Share of texts that may differ after the same tokens: those at which two tokens were about equally likely."""

_TOOLS = "from bough.benchmarks.language.programs import search\n"


@dataclass(frozen=True)
class Plan:
    """What is measured with one model: its own, or with `light` one that costs next to nothing.

    levels      programs at once, for the workloads
    at_once     the same, for the programs by hand
    few         only some of those
    """

    light: bool
    levels: tuple[int, ...]
    at_once: int
    num_rounds: int
    scale: float
    few: bool = False


_PLANS = (
    Plan(light=False, levels=(1, 4), at_once=1, num_rounds=3, scale=0.02),
    Plan(light=True, levels=(1, 32), at_once=8, num_rounds=3, scale=0.05),
)
_QUICK_PLANS = (
    Plan(light=False, levels=(1,), at_once=1, num_rounds=1, scale=0.02, few=True),
    Plan(light=True, levels=(8,), at_once=2, num_rounds=1, scale=0.05),
)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if versions("openai")["openai"] is None:
        print("error: the comparison needs the official client: pip install openai", file=sys.stderr)
        return 1
    plans = [plan for plan in plans_of(arguments) if arguments.light in (None, plan.light)]
    started = time.monotonic()
    try:
        results = [_measure(arguments, plan) for plan in plans]
    except (BoughError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(tables(results, markdown=False))
    print()
    print(reached(results))
    print(f"\n{time.monotonic() - started:.0f} s in all")
    if arguments.markdown:
        write_text(arguments.markdown, tables(results, markdown=True))
    if arguments.json:
        report = {
            "time": now(),
            "machine": {**describe_machine(), **versions("openai")},
            "version": version("bough"),
            "models": [result.numbers() for result in results],
        }
        write_json(arguments.json, report)
    if arguments.plot:
        draw(results, arguments.plot)
    share = max((result.share_different for result in results), default=0.0)
    if share > _MAX_TIES:
        print(f"error: {share:.1%} of the texts differ that should be the same", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    description, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="bough bench language", description=description, epilog=more)
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
    return parser


def plans_of(arguments: argparse.Namespace) -> list[Plan]:
    plans = []
    for plan in _QUICK_PLANS if arguments.quick else _PLANS:
        levels = plan.levels if arguments.at_once is None else tuple(sorted({1, arguments.at_once}))
        plans.append(replace(plan, levels=levels, num_rounds=arguments.rounds or plan.num_rounds))
    return plans


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
            return asyncio.run(_measure_all(arguments, plan, server, source, ModelResults(name, about)))


async def _measure_all(
    arguments: argparse.Namespace, plan: Plan, server: ServerProcess, source: Path, results: ModelResults
) -> ModelResults:
    tokenizer = load_tokenizer(source)
    size = Size(plan.scale, max(plan.levels))
    chosen = {name: make(size) for name, make in WORKLOADS.items() if arguments.only is None or name in arguments.only}
    fights = _fights(plan) if arguments.only is None or "contests" in arguments.only else []
    total = sum(workloads.num_rounds_of(each, plan.levels, plan.num_rounds) for each in chosen.values())
    total += len(fights) * contests.num_rounds_of(plan.num_rounds)
    with tqdm(total=total, unit="round", disable=None) as bar:
        for workload in chosen.values():
            bar.set_description(f"{results.name}, {workload.name}")
            results.workloads.append(
                await workloads.measure_workload(
                    server,
                    tokenizer,
                    workload,
                    levels=plan.levels,
                    num_rounds=plan.num_rounds,
                    on_round=bar.update,
                )
            )
        for contest, setting in fights:
            bar.set_description(f"{results.name}, {contest.name}")
            results.contests.append(await _measure_fight(server, contest, setting, plan, bar.update))
    return results


def _fights(plan: Plan) -> list[tuple[contests.Contest, contests.Setting]]:
    settings = (contests.LONG_PROMPTS,) if plan.few else (contests.LONG_PROMPTS, contests.LONG_ANSWERS)
    chosen = contests.CONTESTS[:2] if plan.few else contests.CONTESTS
    fights = [(contest, setting) for contest in chosen for setting in settings]
    return [*fights, (contests.REACT, contests.SHORT_QUESTION)]


async def _measure_fight(
    server: ServerProcess,
    contest: contests.Contest,
    setting: contests.Setting,
    plan: Plan,
    on_round: Callable[[], Any],
) -> contests.ContestResult:
    return await contests.measure_contest(
        server,
        contest,
        setting,
        at_once=plan.at_once,
        num_rounds=plan.num_rounds,
        watch=contest is contests.CONTESTS[0] and setting is contests.LONG_ANSWERS,
        on_round=on_round,
    )


if __name__ == "__main__":
    sys.exit(main())
