"""Ours and others on this processor: llama.cpp, OpenVINO GenAI, vLLM, transformers, in turn, on the same work.

Each peer gets an environment of its own, made once by pip and kept beside the models that `bough pull` fetches; so are
the forms of the model that it loads. A peer that cannot be had is told and left out. Both sides are processes that idle
while the other works; a round is the same prompts for both, which neither has seen, greedy, with as many tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ...runtime.models.load import locate
from ...runtime.models.native import NATIVE_KINDS
from ...runtime.protocol.config import EngineConfig
from ...runtime.runner.host import num_threads
from ...runtime.tokenizer.load import load_tokenizer
from ..harness.report import describe_machine, now, versions, write_json, write_text
from ..workloads.prompts import QUICK, Prompts, Sizes, workloads
from .contest import PeerReport, PeerRun, measure_peer, measure_quality_of_ours, tables
from .environments import KINDS, peers_folder
from .process import PeerError
from .programs import measure as measure_programs

EXTRAS = ("start", "quality", "programs")
"""Measurements besides the workloads: fresh processes (and their memory), numbers, programs."""


def run(arguments: argparse.Namespace) -> int:
    report = PeerReport(facts(arguments))
    try:
        _measure(make_run(arguments), report)
    except KeyboardInterrupt:
        report.left_out.append("the rest: it was interrupted")
    print(tables(report, markdown=False))
    if arguments.out:
        write(report, Path(arguments.out))
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=EngineConfig().model, help="a GGUF model (default: %(default)s)")
    parser.add_argument("--peers", type=_peers, default=list(KINDS), help=f"of {','.join(KINDS)} (default: all)")
    chosen = "those whose names contain one of these words, such as batch,JSON; also "
    parser.add_argument("--workloads", metavar="WORD,...", help=f"{chosen}{', '.join(EXTRAS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=None, help="of each workload (default: 5, with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="small workloads, to see that everything works")
    parser.add_argument("--threads", type=int, default=num_threads(), help="of each side (default: one for each core)")
    minutes = "for each peer once it is loaded (default: 30, with --quick 8)"
    parser.add_argument("--minutes", type=float, default=None, help=minutes)
    parser.add_argument("--no-speculation", action="store_true", help="turn ours off: no peer speculates by default")
    parser.add_argument("--quantization", choices=NATIVE_KINDS, help="of ours (default: as the model's file has it)")
    parser.add_argument("--kv-cache-dtype", choices=("int8",), help="of ours (default: 12 of 16 bits)")
    parser.add_argument("--python", metavar="FILE", help="the interpreter that environments are made with")
    parser.add_argument("--out", metavar="DIR", help="write peers.json and peers.md there")


def _peers(text: str) -> list[str]:
    names = _words(text)
    if unknown := [name for name in names if name not in KINDS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there is {', '.join(KINDS)}")
    return names


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def make_run(arguments: argparse.Namespace) -> PeerRun:
    """Reads the settings of a run."""
    sizes = QUICK if arguments.quick else Sizes()
    known, words = workloads(sizes), _words((arguments.workloads or "").lower())
    names = [*(each.name for each in known), *EXTRAS]
    chosen = {name for name in names if not words or any(word in name.lower() for word in words)}
    if unknown := [word for word in words if not any(word in name.lower() for name in names)]:
        wrong = f"--workloads: the name of no workload contains {', '.join(unknown)}"
        raise PeerError(f"{wrong}; there is {'; '.join(names)}")
    log = peers_folder() / "peers.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    asked = {name: getattr(arguments, name) for name in ("model", "threads", "python", "quick", "peers")}
    return PeerRun(
        **asked,
        prompts=Prompts(load_tokenizer(locate(arguments.model))),
        sizes=sizes,
        workloads=[each for each in known if each.name in chosen],
        extras=chosen.intersection(EXTRAS),
        num_rounds=arguments.rounds or (1 if arguments.quick else 5),
        limit_s=60 * (arguments.minutes or (8 if arguments.quick else 30)),
        log=log,
        settings=_settings(arguments),
    )


def _settings(arguments: argparse.Namespace) -> dict[str, str]:
    asked = {name: getattr(arguments, name) for name in ("quantization", "kv_cache_dtype")}
    asked |= {"speculation": "off" if arguments.no_speculation else None}
    return {name: value for name, value in asked.items() if value is not None}


def _measure(run: PeerRun, report: PeerReport) -> None:
    if "quality" in run.extras:
        measure_quality_of_ours(run, report)
    for number, name in enumerate(run.peers if run.workloads or run.extras - {"programs"} else []):
        try:
            measure_peer(name, number, run, report)
        except PeerError as error:
            report.left_out.append(f"{name}: {error}")
    if "programs" in run.extras:
        report.left_out += measure_programs(run, report.rows.append)


def facts(arguments: argparse.Namespace) -> dict[str, Any]:
    """The model, the time, the machine and the versions that the numbers are of."""
    machine = describe_machine()
    return {
        "model": arguments.model,
        "time": now(),
        "machine": {key: machine[key] for key in ("system", "processor")} | {"threads": arguments.threads},
        "python": machine["python"],
        "versions": versions("bough", "torch", "numpy", "llguidance", "tokenizers"),
        "quick": arguments.quick,
        "settings": _settings(arguments),
    }


def write(report: PeerReport, folder: Path) -> None:
    """Writes all numbers and the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "peers.json", report.numbers())
    write_text(folder / "peers.md", tables(report))
