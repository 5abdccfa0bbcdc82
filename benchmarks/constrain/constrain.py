"""`bough bench constrain`: constrained decoding held to its goals, beside xgrammar, llguidance and outlines_core."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from ...constrain import Vocabulary
from ...runtime.client.llm import LLM
from ...runtime.models.load import locate
from ...runtime.protocol.config import EngineConfig
from ...runtime.tokenizer.load import load_tokenizer
from ..gpu.gpu import describe_machine
from .cases import Case, maskbench_cases, maskbench_folder, suite_cases, suite_folder
from .contest import OURS, Absent, Contestant, Measured, contest, contestant, measure_service, write_vocabulary
from .generate import Samples, measure_speed, sample_masks, sample_model
from .regular import choices, regular_cases
from .report import ENGINES, Report, Sampled, Times, draw, markdown, standings, table

SECTIONS = ("suite", "maskbench", "regular", "service", "speed", "samples")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.show is not None:
        report = msgspec.json.decode(Path(arguments.show).read_bytes(), type=Report)
    else:
        chosen = arguments.sections.split(",")
        if unknown := sorted(set(chosen) - set(SECTIONS)):
            print(f"error: --sections: {unknown[0]!r} is none of {', '.join(SECTIONS)}", file=sys.stderr)
            return 2
        report = _Bench(arguments).run(chosen)
    print(table(report))
    if arguments.markdown is not None:
        Path(arguments.markdown).write_text(markdown(report) + "\n")
    return _draw(report, arguments.plot) if arguments.plot is not None else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bough bench constrain", description=__doc__)
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
    parser.add_argument("--plot", metavar="FILE", help="draw the result (needs matplotlib)")
    parser.add_argument("--show", metavar="FILE", help="measure nothing: render this JSON file")
    return parser


class _Bench:
    """Runs the sections, and writes the report after each."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        tokenizer = load_tokenizer(locate(arguments.model))
        self.vocabulary: Vocabulary = tokenizer.vocabulary(tokenizer.vocab_size)
        self.report = Report(
            date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            machine=describe_machine("cpu", None),
            versions={"llguidance": importlib.metadata.version("llguidance"), **_versions(arguments.peers)},
        )
        self.llm: LLM | None = None

    def run(self, chosen: Sequence[str]) -> Report:
        sections: dict[str, Callable[[], None]] = {
            "suite": self._suite,
            "maskbench": self._maskbench,
            "regular": self._regular,
            "service": self._service,
            "speed": self._speed,
            "samples": self._samples,
        }
        try:
            for name in chosen:
                started = time.perf_counter()
                sections[name]()
                print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
                if self.arguments.json is not None:
                    Path(self.arguments.json).write_bytes(msgspec.json.format(msgspec.json.encode(self.report)) + b"\n")
        finally:
            if self.llm is not None:
                self.llm.close()
        return self.report

    def _contest(self, cases: list[Case], kind: str) -> dict[str, list[Measured]]:
        """Ours on all cases, the peers beside it for as long as they may take."""
        random.Random(0).shuffle(cases)  # so that a prefix is a fair sample
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_vocabulary(self.vocabulary, folder / "vocabulary.json")
            contestants = list(self._contestants(folder))
            try:
                return contest(contestants, cases[: self.arguments.cases], self.vocabulary, kind)
            finally:
                for engine in contestants:
                    engine.close()

    def _contestants(self, folder: Path) -> Iterator[Contestant]:
        for name in ENGINES:
            if name not in (OURS, "llguidance") and self.arguments.peers is None:
                self.report.absent[name] = "no --peers"
                continue
            budget_s = float("inf") if name == OURS else self.arguments.peer_s
            try:
                yield contestant(
                    name,
                    self.arguments.model,
                    folder / "vocabulary.json",
                    self.arguments.peers or "",
                    folder,
                    budget_s=budget_s,
                )
            except Absent as error:
                self.report.absent[name] = str(error)

    def _suite(self) -> None:
        if self.arguments.suite is not None:
            self.report.suite = standings(self._contest(list(suite_cases(self.arguments.suite)), "schema"))

    def _maskbench(self) -> None:
        if self.arguments.maskbench is not None:
            self.report.maskbench = standings(self._contest(list(maskbench_cases(self.arguments.maskbench)), "schema"))

    def _regular(self) -> None:
        self.report.regular = standings(self._contest([*regular_cases(), choices(200)], "regex"))

    def _service(self) -> None:
        self.report.service_ms = Times.of(measure_service(self._real_cases(), self.vocabulary))

    def _real_cases(self) -> list[Case]:
        if self.arguments.maskbench is not None:
            return list(maskbench_cases(self.arguments.maskbench))
        return list(suite_cases(self.arguments.suite)) if self.arguments.suite is not None else []

    def _model(self) -> LLM:
        if self.llm is None:
            self.llm = LLM(self.arguments.model, max_num_seqs=16)
        return self.llm

    def _speed(self) -> None:
        self.report.speed = measure_speed(self._model(), rounds=self.arguments.rounds)

    def _samples(self) -> None:
        if self.arguments.suite is None:
            return
        cases = list(suite_cases(self.arguments.suite))
        self.report.from_masks = _sampled(sample_masks(cases, self.vocabulary, self.arguments.samples))
        if self.arguments.model_samples:
            self.report.from_model = _sampled(sample_model(cases, self._model(), self.arguments.model_samples))


def _sampled(samples: Samples) -> Sampled:
    return Sampled(samples.total, samples.schemas, samples.unfinished, samples.wrong)


def _versions(python: str | None) -> dict[str, str | None]:
    """Of the peers, as their interpreter knows them."""
    names = ("xgrammar", "outlines_core")
    if python is None:
        return dict.fromkeys(names)
    code = f"import importlib.metadata as m\nfor name in {names!r}: print(m.version(name))"
    try:
        result = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return dict.fromkeys(names)
    return dict(zip(names, result.stdout.split(), strict=True))


def _draw(report: Report, path: str) -> int:
    try:
        new_figure = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        print("error: --plot needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 1
    draw(report, new_figure).savefig(path, dpi=130)
    return 0


if __name__ == "__main__":
    sys.exit(main())
