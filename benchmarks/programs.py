"""Multi-call workloads: what the prefix cache finds, how near that is to the best possible, and what it is worth."""

from __future__ import annotations

import argparse
from typing import Any

from tqdm import tqdm

from ..runtime.client.client import EngineClient
from ..runtime.client.local import LocalClient
from ..runtime.protocol.config import EngineConfig
from ..runtime.runner.host import num_threads
from .harness.measure import best_hit_rate, measure
from .harness.pictures import BLUE, GREY, ORANGE, PALE_BLUE, PALE_ORANGE, Chart, write_picture
from .harness.report import describe_machine, figures_table, now, write_json
from .workloads.programs import WORKLOADS, Size, Workload

_QUICK_SCALE = 0.05
_COLUMNS = {
    "mode": "{0[mode]}",
    "hit rate": "{0[hit_rate]:.1%}",
    "computed": "{0[computed_tokens]:,}",
    "seconds": "{0[elapsed_s]:.2f}",
    "speed-up": "{0[speed_up]:.1f}x",
    "p50 s": "{0[p50_s]:.2f}",
    "p99 s": "{0[p99_s]:.2f}",
    "out tok/s": "{0[output_tokens_per_s]:.1f}",
}
_MODES = {  # name: (prefix caching, programs at once)
    "cache, batched": (True, 16),
    "cache, one by one": (True, 1),
    "no cache, batched": (False, 16),
    "no cache, one by one": (False, 1),
}


def run(arguments: argparse.Namespace) -> int:
    size = Size(_QUICK_SCALE if arguments.quick else arguments.scale)
    workloads = {name: WORKLOADS[name](size) for name in arguments.only or WORKLOADS}
    results = _measure_all(workloads, arguments.model)
    print(_table(workloads, results))
    about = {"model": arguments.model, "scale": size.scale, "time": now()}
    machine = {**describe_machine(), "threads": num_threads()}
    write_json(arguments.json, about | {"machine": machine, "results": results})
    write_picture(arguments.plot, [_charts(results)])
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=EngineConfig().model, help="model to load (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the workloads; 1 takes about ten minutes")
    parser.add_argument("--quick", action="store_true", help=f"the same as --scale {_QUICK_SCALE}: about a minute")
    parser.add_argument("--only", action="append", choices=list(WORKLOADS), help="run this one (may be repeated)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
    parser.add_argument("--plot", metavar="FILE", help="draw the result as SVG")


def _measure_all(workloads: dict[str, Workload], model: str) -> dict[str, dict[str, Any]]:
    """Each workload in each mode: name -> {"best_hit_rate", "outputs_equal", "modes": {mode: numbers}}."""
    modes: dict[str, dict[str, dict[str, float]]] = {name: {} for name in workloads}
    outputs: dict[str, set[tuple[tuple[str, ...], ...]]] = {name: set() for name in workloads}
    best: dict[str, float] = {}
    num_programs = sum(len(workload.programs) for workload in workloads.values())
    with tqdm(total=num_programs * len(_MODES), unit="program", disable=None) as bar:
        for caching in (True, False):
            bar.set_description("loading the model")
            client: EngineClient = LocalClient.load(EngineConfig(model=model, enable_prefix_caching=caching))
            try:
                for mode in [mode for mode, (cached, _) in _MODES.items() if cached == caching]:
                    for name, workload in workloads.items():
                        bar.set_description(f"{workload.name} ({mode})")
                        how: Any = {"concurrency": _MODES[mode][1], "on_program": bar.update}
                        modes[name][mode], runs = measure(client, workload, **how)
                        outputs[name].add(tuple(run.outputs for run in runs))
                        best.setdefault(name, best_hit_rate(client, runs))
            finally:
                client.close()
    return {
        name: {
            "workload": workloads[name].name,
            "shared": workloads[name].about,
            "programs": len(workloads[name].programs),
            "best_hit_rate": best[name],
            "outputs_equal": len(outputs[name]) == 1,
            "modes": modes[name],
        }
        for name in workloads
    }


def _table(workloads: dict[str, Workload], results: dict[str, dict[str, Any]]) -> str:
    parts = []
    for name, result in results.items():
        first = next(iter(result["modes"].values()))
        slowest_s = result["modes"]["no cache, one by one"]["elapsed_s"]
        rows = [
            {"mode": mode, "speed_up": slowest_s / numbers["elapsed_s"], **numbers}
            for mode, numbers in result["modes"].items()
        ]
        parts += [
            f"{workloads[name].name}: {result['programs']} programs, {first['num_requests']} requests, "
            f"{first['prompt_tokens']:,} prompt tokens, {first['output_tokens']:,} output tokens",
            f"shared: {result['shared']}. Best possible hit rate {result['best_hit_rate']:.1%}."
            + ("" if result["outputs_equal"] else " OUTPUTS DIFFER BETWEEN MODES."),
            figures_table(_COLUMNS, rows, right=range(1, 8)) + "\n",
        ]
    return "\n".join(parts)


def _charts(results: dict[str, dict[str, Any]]) -> list[Chart]:
    """The hit rates beside the best possible, and the times of all modes."""
    hits, times = {}, {}
    for result in results.values():
        found = result["modes"]["cache, batched"]["hit_rate"]
        hits[result["workload"]] = {"found": 100 * found, "best possible": 100 * result["best_hit_rate"]}
        times[result["workload"]] = {mode: result["modes"][mode]["elapsed_s"] for mode in _MODES}
    colours = dict(zip(_MODES, (BLUE, PALE_BLUE, ORANGE, PALE_ORANGE), strict=True))
    found_chart = Chart("Hits", "prompt tokens from the cache, %", hits, {"found": BLUE, "best possible": GREY})
    return [found_chart, Chart("Times", "seconds", times, colours)]
