"""Everything about speed on a GPU in one command: ceilings, kernels, the engine, and others on the same work.

Each part runs in a process of its own, so that a kernel that fails, a peer that crashes or one that hangs costs its own
rows only. The JSON file is whole after every row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..harness.child import Child, GoneError, python_command
from ..harness.report import describe_machine, now, nvidia_smi
from ..harness.shapes import SHAPES
from .peers import Comparison, compare
from .report import markdown, table, write_pictures
from .rows import CONTEXT_LOST, MARK, Event, Report, Row, read_report

_STARTUP_S = 90.0  # a process imports torch and makes its first CUDA context within that
_LAST_S = 12.0  # of the budget, for what is still on its way


@dataclass(frozen=True)
class Job:
    """Groups of cases for one process (or a comparison, if `groups` is empty), and how long they may take."""

    section: str
    groups: tuple[str, ...]
    box_s: float
    model: str = ""
    cold: bool = False


def plan_jobs(sections: Sequence[str], models: Sequence[str]) -> list[Job]:
    """The most important ones first, so that a run cut short loses least."""
    large, *small = models
    jobs = [
        Job("C", ("ceilings",), 30.0),
        Job("K", ("kernels:decode", "kernels:tree"), 70.0),
        Job("E", (f"engine:{large}",), 90.0, large, cold=True),
        Job("P", (), 170.0, large),
        Job("K", ("kernels:extend", "layers:sampler", "layers:small", "layers:linear"), 80.0),
    ]
    for model in small:
        jobs.append(Job("E", (f"engine:{model}",), 50.0, model))
    jobs.append(Job("E", (f"engine:{large}:start",), 30.0, large))
    for model in small:
        jobs.append(Job("P", (), 80.0, model))
        jobs.append(Job("E", (f"engine:{model}:options",), 60.0, model))
    jobs += [
        Job("E", (f"engine:{large}:options",), 90.0, large),
        Job("K", ("kernels:compiled", "layers:compiled"), 90.0),
    ]
    return [job for job in jobs if job.section in sections]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.show:
        report = read_report(Path(arguments.show))
    else:
        device = _device(arguments.device)
        if device is None or (device == "cpu" and not arguments.quick):
            what = "there is no GPU" if device is None else "a CPU is not what this measures"
            print(f"error: {what}. To try the path out on tiny sizes: --device cpu --quick", file=sys.stderr)
            return 1
        report = Run(arguments, device).run()
    print(table(report))
    if arguments.markdown:
        Path(arguments.markdown).write_text(markdown(report) + "\n")
    if arguments.pictures:
        for path in write_pictures(report, Path(arguments.pictures)):
            print(path, file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bough bench gpu", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", default="gpu.json", metavar="FILE", help="all numbers, as JSON (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=520.0, metavar="SECONDS", help="default: %(default)g")
    parser.add_argument("--sections", default="C,K,E,P", help="C ceilings, K kernels, E engine, P peers (default: all)")
    parser.add_argument(
        "--models",
        default="qwen3-8b,qwen3-0.6b",
        help=f"the large one first, of {', '.join(SHAPES)} (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: tries the path, measures nothing")
    parser.add_argument("--device", default="auto", help="cuda, cuda:1, ..., or cpu with --quick (default: a GPU)")
    parser.add_argument(
        "--peer-python", action="append", default=[], metavar="NAME=PATH",
        help="interpreter that has vllm, sglang or transformers (may be repeated)",
    )  # fmt: skip
    parser.add_argument(
        "--peer-path", action="append", default=[], metavar="FOLDER", help="where flashinfer and others can be imported"
    )
    parser.add_argument("--fa3", metavar="FILE", help="library that registers FlashAttention 3's operators")
    parser.add_argument("--commit", help="what is measured, if the package lies in no git checkout")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables of docs/performance.md")
    parser.add_argument("--pictures", metavar="FOLDER", help="draw roofline, steps and workloads as SVG")
    parser.add_argument("--show", metavar="FILE", help="measure nothing: render this JSON file")
    return parser


def _device(name: str) -> str | None:
    """The device to measure; None if there is none. A CPU only if asked for."""
    if name != "auto":
        return name
    return "cuda" if Path("/dev/nvidia0").exists() or nvidia_smi("name") else None


@dataclass
class Run:
    """One run of the command. `begun` is by time.time(), as every deadline is."""

    arguments: argparse.Namespace
    device: str
    begun: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._out = Path(self.arguments.out)
        self._log = self._out.with_suffix(".log")
        self._without: set[str] = set()
        self._report = Report(
            date=now(),
            machine=describe_machine(self.device, self.arguments.commit),
            meaningful=self.device != "cpu" and not self.arguments.quick,
        )

    def run(self) -> Report:
        """All jobs, in order, as far as the budget goes."""
        models = self.arguments.models.split(",")
        unknown = [model for model in models if model not in SHAPES]
        if unknown:
            raise SystemExit(f"error: --models: {unknown[0]!r} is none of {', '.join(SHAPES)}")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.write_text("")
        with tempfile.TemporaryDirectory() as cache:
            for job in plan_jobs(self.arguments.sections.split(","), models):
                box_s = job.box_s if job.groups else job.box_s * max(1, len(self.arguments.peer_python))
                deadline = min(time.time() + box_s, self.begun + self.arguments.budget - _LAST_S)
                if deadline - time.time() < 5.0:
                    self._skip(f"{job.section} {job.model or ' '.join(job.groups)}: no time")
                elif job.groups:
                    self._work(job, deadline, {"TRITON_CACHE_DIR": cache} if job.section == "E" else {})
                else:
                    self._compare(job.model, deadline, {"TRITON_CACHE_DIR": cache})
        self._report.machine["clocks_after"] = nvidia_smi("clocks.sm,clocks.mem,temperature.gpu")
        self._keep()
        return self._report

    def _work(self, job: Job, deadline: float, environment: dict[str, str]) -> None:
        """Runs the groups in a process, and what is left of them in another after one is lost."""
        first = 0
        while time.time() < deadline:
            child = Child(
                self._worker_command(job, first, deadline),
                mark=MARK,
                log=self._log,
                environment=environment | self._interpreter(),
            )
            try:
                reached, status = self._follow(child, first, deadline)
            finally:
                child.end()
            if status == 0:
                return
            if reached < first:
                self._skip(f"{' '.join(job.groups)}: the process did not start; see {self._log}")
                return
            first = reached + 1

    def _worker_command(self, job: Job, first: int, deadline: float) -> list[str]:
        command = [*python_command("gpu.worker"), *job.groups, "--first", str(first), "--device", self.device]
        command += ["--deadline", str(deadline), "--spawned", str(time.time())]
        command += ["--quick"] if self.arguments.quick else []
        command += ["--cold"] if job.cold else []
        command += ["--fa3", self.arguments.fa3] if self.arguments.fa3 else []
        for option, values in (("--peer-path", self.arguments.peer_path), ("--without", sorted(self._without))):
            command += [part for value in values for part in (option, value)]
        return command

    def _interpreter(self) -> dict[str, str]:
        """Without a GPU, Triton's kernels run in its interpreter."""
        return {"TRITON_INTERPRET": "1"} if self.device == "cpu" else {}

    def _follow(self, child: Child, first: int, deadline: float) -> tuple[int, int]:
        """Takes rows until the process ends; returns the last case it began, and its status (-1: ended by us)."""
        reached, label, peer = first - 1, "", None
        within_s = _STARTUP_S
        while True:
            try:
                line = child.receive(min(within_s, deadline + _LAST_S / 2 - time.time()))
            except GoneError as error:
                self._skip(f"{label or 'start'}{f', {peer}' if peer else ''}: {error}")
                if peer is not None:
                    self._without.add(peer)
                return reached, -1
            if line is None:
                status = child.wait()
                if status not in (0, CONTEXT_LOST):
                    self._skip(
                        f"{label or 'start'}{f', {peer}' if peer else ''}: the process ended with status {status}"
                    )
                return reached, status
            event = msgspec.json.decode(line, type=Event)
            if event.peer is not None:
                peer = event.peer
                continue
            if event.within_s is not None:
                within_s, peer = event.within_s, None
            reached, label = event.number, event.case
            if event.skipped is not None:
                self._skip(f"{label}: {event.skipped}")
            if event.row is not None:
                self._take(event.row)

    def _compare(self, model: str, deadline: float, environment: dict[str, str]) -> None:
        peers = dict(entry.split("=", 1) for entry in self.arguments.peer_python)
        tiny = self.device == "cpu" or self.arguments.quick
        comparison = Comparison(
            model="tiny" if tiny else model,
            peers=peers,
            device=self.device,
            log=self._log,
            deadline=deadline,
            scale=1 / 64 if tiny else 1.0,
            environment=environment | self._interpreter(),
        )
        for line in compare(comparison, self._take):
            self._skip(line)

    def _take(self, row: Row) -> None:
        self._report.add(row)
        self._keep()
        time_text = "" if row.us is None else f"{row.us:,.1f} us"
        print(f"{time.time() - self.begun:5.0f} s  {row.sec} {row.label()}  {time_text} {row.note}", file=sys.stderr)

    def _skip(self, line: str) -> None:
        self._report.skipped.append(line)
        self._keep()
        print(f"{time.time() - self.begun:5.0f} s  skipped {line}", file=sys.stderr)

    def _keep(self) -> None:
        self._report.elapsed_s = time.time() - self.begun
        self._report.write(self._out)


if __name__ == "__main__":
    sys.exit(main())
