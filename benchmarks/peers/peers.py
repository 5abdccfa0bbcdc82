"""Ours and others on this processor: llama.cpp, OpenVINO GenAI, vLLM, transformers, in turn, on the same work.

Each peer gets an environment of its own, made once by pip and kept beside the models that `bough pull` fetches; so are
the forms of the model that it loads. A peer that cannot be had is told and left out. Both sides are processes that idle
while the other works; a round is the same prompts for both, which neither has seen, greedy, with as many tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...runtime.models.load import locate
from ...runtime.models.native import KINDS as NATIVE_KINDS
from ...runtime.protocol.config import EngineConfig
from ...runtime.protocol.errors import BoughError
from ...runtime.runner.host import num_threads
from ...runtime.tokenizer.load import load_tokenizer
from ..harness.report import describe_machine, now, versions, write_json, write_text
from ..workloads.prompts import QUICK, Prompts, Sizes, workloads
from .contest import PeerRun, Progress, measure_peer, measure_quality_of_ours
from .environments import PeerError, peers_folder
from .models import KINDS
from .programs import measure as measure_programs
from .report import GOALS, LARGER_GOALS, PeerReport, draw, tables

EXTRAS = ("start", "quality", "programs")
"""Measurements besides the workloads: fresh processes (and their memory), numbers, programs."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    report = PeerReport(facts(arguments))
    try:
        run = make_run(arguments)
        _measure(arguments, run, report)
    except (BoughError, PeerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        report.left_out.append("the rest: it was interrupted")
    print(tables(report, markdown=False))
    write(report, arguments)
    return 0


def _parser() -> argparse.ArgumentParser:
    description, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="bough bench peers", description=description, epilog=more)
    parser.add_argument("--model", default=EngineConfig().model, help="a GGUF model (default: %(default)s)")
    parser.add_argument(
        "--peers", type=_listed(KINDS), default=list(KINDS), help=f"of {','.join(KINDS)} (default: all)"
    )
    chosen = (
        f"those whose names contain one of these words, such as batch,JSON; also {', '.join(EXTRAS)} (default: all)"
    )
    parser.add_argument("--workloads", metavar="WORD,...", help=chosen)
    parser.add_argument("--rounds", type=int, default=None, help="of each workload (default: 5, with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="small workloads, to see that everything works")
    parser.add_argument("--threads", type=int, default=num_threads(), help="of each side (default: one for each core)")
    parser.add_argument(
        "--minutes", type=float, default=None, help="for each peer once it is loaded (default: 30, with --quick 8)"
    )
    parser.add_argument("--no-speculation", action="store_true", help="turn ours off: no peer speculates by default")
    parser.add_argument("--quantization", choices=NATIVE_KINDS, help="of ours (default: as the model's file has it)")
    parser.add_argument("--kv-cache-dtype", choices=("int8",), help="of ours (default: 12 of 16 bits)")
    parser.add_argument("--python", metavar="FILE", help="the interpreter that environments are made with")
    parser.add_argument(
        "--log", metavar="FILE", help="what all processes print (default: peers.log in the cache folder)"
    )
    parser.add_argument("--out", metavar="DIR", help="write peers.json, peers.md and peers.svg there")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables")
    return parser


def _listed(known: Any) -> Any:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there is {', '.join(known)}")
        return names

    return parse


def make_run(arguments: argparse.Namespace) -> PeerRun:
    """Reads the settings of a run."""
    sizes = QUICK if arguments.quick else Sizes()
    words = [word.strip().lower() for word in (arguments.workloads or "").split(",") if word.strip()]

    def is_chosen(name: str) -> bool:
        return not words or any(word in name.lower() for word in words)

    known = workloads(sizes)
    names = [*(each.name for each in known), *EXTRAS]
    if unknown := [word for word in words if not any(word in name.lower() for name in names)]:
        raise PeerError(
            f"--workloads: the name of no workload contains {', '.join(unknown)}; there is {'; '.join(names)}"
        )
    log = Path(arguments.log) if arguments.log else peers_folder() / "peers.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    return PeerRun(
        model=arguments.model,
        prompts=Prompts(load_tokenizer(locate(arguments.model))),
        sizes=sizes,
        workloads=[each for each in known if is_chosen(each.name)],
        extras={name for name in EXTRAS if is_chosen(name)},
        num_rounds=arguments.rounds or (1 if arguments.quick else 5),
        threads=arguments.threads,
        limit_s=60 * (arguments.minutes or (8 if arguments.quick else 30)),
        python=arguments.python,
        log=log,
        goals=GOALS if arguments.model == EngineConfig().model else LARGER_GOALS,
        quick=arguments.quick,
        peers=arguments.peers,
        settings=_settings(arguments),
    )


def _settings(arguments: argparse.Namespace) -> dict[str, str]:
    asked = {name: getattr(arguments, name) for name in ("quantization", "kv_cache_dtype")}
    settings = {name: value for name, value in asked.items() if value is not None}
    return settings | ({"speculation": "off"} if arguments.no_speculation else {})


def _measure(arguments: argparse.Namespace, run: PeerRun, report: PeerReport) -> None:
    with Progress(len(arguments.peers) * run.num_steps) as progress:
        if "quality" in run.extras:
            measure_quality_of_ours(run, report, progress)
        engines = arguments.peers if run.workloads or run.extras - {"programs"} else []
        for number, name in enumerate(engines):
            try:
                measure_peer(name, number, run, report, progress)
            except PeerError as error:
                report.left_out.append(f"{name}: {error}")
            progress.finish_part((number + 1) * run.num_steps)
        if "programs" in run.extras:
            report.left_out += measure_programs(run, report.rows.append, progress.say)


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


def write(report: PeerReport, arguments: argparse.Namespace) -> None:
    """Writes what was asked for."""
    if arguments.markdown:
        write_text(arguments.markdown, tables(report))
    if arguments.out:
        folder = Path(arguments.out)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "peers.json", report.numbers())
        write_text(folder / "peers.md", tables(report))
        draw(report, str(folder / "peers.svg"))


if __name__ == "__main__":
    sys.exit(main())
