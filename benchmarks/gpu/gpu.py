"""Everything about speed on a GPU in one command: ceilings, kernels, and whole models beside others on the same work.

Each family of kernels and each engine runs in a process of its own, so that a kernel that fails, a peer that crashes or
one that hangs costs its own rows only. The JSON file is whole after every row.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...runtime.protocol.errors import BoughError, RequestError
from ..harness.report import describe_machine, now, number, nvidia_smi, say, write_json, write_text
from ..harness.shapes import SHAPES
from ..peers.process import OURS, PeerError, Side, side_command
from .models import Comparison
from .rows import Report, Row, table

_GRACE_S = 20.0  # after its deadline a process may end the case that it has begun


@dataclass(frozen=True)
class Job:
    """A family of kernels, or, without one, a model beside peers; and the seconds that it may take."""

    section: str
    family: str
    limit_s: float
    model: str = ""


def plan_jobs(sections: Sequence[str], models: Sequence[str]) -> list[Job]:
    """The most important ones first, so that a run cut short loses least."""
    large, *small = models
    jobs = [
        Job("C", "ceilings", 30.0),
        Job("K", "kernels:decode", 60.0),
        Job("K", "kernels:tree", 40.0),
        Job("M", "", 200.0, large),
        Job("K", "kernels:extend", 30.0),
        *(Job("K", f"layers:{family}", 40.0) for family in ("sampler", "small", "linear")),
        *(Job("M", "", 100.0, model) for model in small),
    ]
    return [job for job in jobs if job.section in sections]


def run(arguments: argparse.Namespace) -> int:
    device = arguments.device
    if device == "auto":  # a CPU only if asked for
        device = "cuda" if _has_gpu() else None
    if device is None or (device == "cpu" and not arguments.quick):
        what = "there is no GPU" if device is None else "a CPU is not what this measures"
        raise BoughError(f"{what}. To try the path out on tiny sizes: --device cpu --quick")
    report = Run(arguments, device).run()
    print(table(report))
    write_text(arguments.markdown, table(report, markdown=True))
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="gpu.json", metavar="FILE", help="all numbers, as JSON (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=520.0, metavar="SECONDS", help="default: %(default)g")
    parser.add_argument("--sections", default="C,K,M", help="C ceilings, K kernels, M whole models (default: all)")
    models = f"the large one first, of {', '.join(SHAPES)} (default: %(default)s)"
    parser.add_argument("--models", default="qwen3-8b,qwen3-0.6b", help=models)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: tries the path, measures nothing")
    parser.add_argument("--device", default="auto", help="cuda, cuda:1, ..., or cpu with --quick (default: a GPU)")
    peers = "interpreter that has vllm, sglang or transformers (may be repeated)"
    parser.add_argument("--peer-python", action="append", default=[], metavar="NAME=PATH", help=peers)
    parser.add_argument("--commit", help="what is measured, if the package lies in no git checkout")
    parser.add_argument("--markdown", metavar="FILE", help="write the table")


def _has_gpu() -> bool:
    return Path("/dev/nvidia0").exists() or nvidia_smi("name") is not None


class Run:
    """One run of the command. Deadlines are by time.time(), which all its processes know."""

    def __init__(self, arguments: argparse.Namespace, device: str) -> None:
        self._arguments = arguments
        self._device = device
        self._begun = time.time()
        self._out = Path(arguments.out)
        self._log = self._out.with_suffix(".log")
        machine, meaningful = describe_machine(device, arguments.commit), device != "cpu" and not arguments.quick
        self.report = Report(date=now(), machine=machine, meaningful=meaningful)

    def run(self) -> Report:
        """All jobs, in order, as far as the budget goes."""
        models = self._arguments.models.split(",")
        if unknown := [model for model in models if model not in SHAPES]:
            raise RequestError(f"--models: {unknown[0]!r} is none of {', '.join(SHAPES)}")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.write_text("")
        with tempfile.TemporaryDirectory() as cache:
            interpreted = {"TRITON_INTERPRET": "1"} if self._device == "cpu" else {}
            environment = {"TRITON_CACHE_DIR": cache, **interpreted}
            for job in plan_jobs(self._arguments.sections.split(","), models):
                limit_s = job.limit_s * (1 if job.family else max(1, len(self._arguments.peer_python)))
                deadline = min(time.time() + limit_s, self._begun + self._arguments.budget - _GRACE_S)
                if deadline < time.time():
                    self._skip(f"{job.section} {job.model or job.family}: no time")
                elif job.family:
                    self.measure_kernels(job.family, deadline, environment)
                else:
                    self._compare(job.model, deadline, environment)
        self.report.machine["clocks_after"] = nvidia_smi("clocks.sm,clocks.mem,temperature.gpu")
        self._keep()
        return self.report

    def measure_kernels(self, family: str, deadline: float, environment: dict[str, str]) -> None:
        """Takes the rows of a family from a process, and ends it where it takes too long."""
        options = {"family": family, "device": self._device, "quick": self._arguments.quick, "deadline": deadline}
        try:
            side = Side(family, side_command("kernels", OURS, None, options), log=self._log, variables=environment)
            with contextlib.closing(side):
                side.wait_ready(deadline + _GRACE_S - time.time())
                while told := side.ask("measure", deadline + _GRACE_S - time.time())["told"]:
                    if isinstance(told, str):
                        self._skip(told)
                    else:
                        self._take(msgspec.convert(told, Row))
        except PeerError as error:
            self._skip(str(error))

    def _compare(self, model: str, deadline: float, environment: dict[str, str]) -> None:
        tiny = not self.report.meaningful
        name, scale = ("tiny", 1 / 64) if tiny else (model, 1.0)
        peers = dict(entry.split("=", 1) for entry in self._arguments.peer_python)
        comparison = Comparison(name, peers, self._device, self._log, deadline, self._take, scale, environment)
        for line in comparison.run():
            self._skip(line)

    def _take(self, row: Row) -> None:
        self.report.add(row)
        self._keep(f"{row.sec} {row.label()}  {number(row.us, ',.1f', ' us')} {row.note}")

    def _skip(self, line: str) -> None:
        self.report.skipped.append(line)
        self._keep(f"skipped {line}")

    def _keep(self, line: str = "") -> None:
        """Writes the report, and tells the line that is new in it."""
        self.report.elapsed_s = time.time() - self._begun
        write_json(self._out, self.report)
        if line:
            say(f"{self.report.elapsed_s:5.0f} s  {line}")
