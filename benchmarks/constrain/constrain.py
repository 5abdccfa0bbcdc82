"""`bough bench constrain`: constrained decoding held to its goals, beside xgrammar, llguidance and outlines_core."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ...constrain import Vocabulary
from ...runtime.client.llm import LLM
from ...runtime.models.load import locate
from ...runtime.protocol.config import EngineConfig
from ...runtime.protocol.errors import RequestError
from ...runtime.tokenizer.load import load_tokenizer
from ..harness.pictures import write_picture
from ..harness.report import describe_machine, machine_line, now, say, versions, write_json, write_text
from ..peers.process import OURS, PeerError
from .cases import SchemaCase, choices, maskbench_cases, maskbench_folder, regular_cases, suite_cases, suite_folder
from .contest import Contestant, contest, engine_command, write_vocabulary
from .generate import measure_speed, sample_masks, sample_model
from .report import ENGINES, ConstrainReport, Standing, Standings, charts, goal_table, lines

SECTIONS = ("suite", "maskbench", "regular", "speed", "samples")


def run(arguments: argparse.Namespace) -> int:
    chosen = arguments.sections.split(",")
    if unknown := sorted(set(chosen) - set(SECTIONS)):
        raise RequestError(f"--sections: {unknown[0]!r} is none of {', '.join(SECTIONS)}")
    report = _Bench(arguments).run(chosen)
    print(lines(report))
    write_text(arguments.markdown, goal_table(report, markdown=True))
    write_picture(arguments.plot, charts(report), caption=machine_line(report.machine, report.date[:10]))
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--plot", metavar="FILE", help="draw the result as SVG")


class _Bench:
    """Runs the sections, and writes the report after each."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        tokenizer = load_tokenizer(locate(arguments.model))
        self.vocabulary: Vocabulary = tokenizer.vocabulary(tokenizer.vocab_size)
        self.report = ConstrainReport(now(), describe_machine(), versions("llguidance"))
        self.llm: LLM | None = None

    def run(self, chosen: Sequence[str]) -> ConstrainReport:
        try:
            for name in chosen:
                started = time.perf_counter()
                self._measure(name)
                say(f"{name}: {time.perf_counter() - started:.0f} s")
                write_json(self.arguments.json, self.report)
        finally:
            if self.llm is not None:
                self.llm.close()
        return self.report

    def _measure(self, section: str) -> None:
        report, arguments, suite = self.report, self.arguments, list(suite_cases(self.arguments.suite))
        match section:
            case "suite":
                report.suite = self._contest(suite)
            case "maskbench":
                report.maskbench = self._contest(list(maskbench_cases(arguments.maskbench)))
            case "regular":
                report.regular = self._contest([*regular_cases(), choices(200)], "regex")
            case "speed":
                report.speed = measure_speed(self._model(), rounds=arguments.rounds)
            case "samples" if suite:
                report.from_masks = sample_masks(suite, self.vocabulary, arguments.samples)
                if arguments.model_samples:
                    report.from_model = sample_model(suite, self._model(), arguments.model_samples)

    def _model(self) -> LLM:
        self.llm = self.llm or LLM(self.arguments.model, max_num_seqs=16)
        return self.llm

    def _contest(self, cases: list[SchemaCase], kind: str = "schema") -> Standings:
        """Ours on all cases, the peers beside it for as long as they may take."""
        if not cases:
            return {}
        random.Random(0).shuffle(cases)  # so that a prefix is a fair sample
        with tempfile.TemporaryDirectory() as path, contextlib.ExitStack() as stack:
            vocabulary, contestants = Path(path) / "vocabulary.json", []
            write_vocabulary(self.vocabulary, vocabulary)
            for name in ENGINES:
                budget_s = float("inf") if name == OURS else self.arguments.peer_s
                try:
                    command = engine_command(name, self.arguments.model, vocabulary, self.arguments.peers)
                    engine = Contestant(name, command, vocabulary.with_name(f"{name}.log"), budget_s=budget_s)
                    contestants.append(stack.enter_context(contextlib.closing(engine)))
                except PeerError as error:
                    self.report.absent[name] = str(error)
            outcomes = contest(contestants, cases[: self.arguments.cases], self.vocabulary, kind)
            self.report.versions |= {engine.name: engine.version for engine in contestants if engine.version}
        return {name: Standing.of(found) for name, found in outcomes.items() if found}
