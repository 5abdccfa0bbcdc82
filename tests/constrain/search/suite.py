"""Runs JSON schemas with known instances through our masks alone and says which came out wrong, and where.

`python -m tests.constrain.search.suite` takes seconds: it is meant for work on the compiler.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType

from bough.benchmarks.constrain.cases import SchemaCase, maskbench_cases, maskbench_folder, suite_cases, suite_folder
from bough.benchmarks.constrain.contest import Outcome, Score
from bough.benchmarks.harness.report import percentile
from bough.runtime.models.load import locate
from bough.runtime.tokenizer.load import load_tokenizer

from .judge import Ours, Refused, Walk, by_group, judge

_COMPILE_S = 20.0
_SLOW_S = 2.0


class _Limited:
    """A subject whose compilations are cut off, as far as Python can."""

    def __init__(self, ours: Ours) -> None:
        self._ours = ours

    def compile(self, schema: str) -> Callable[[str], Walk]:
        def late(number: int, frame: FrameType | None) -> None:
            raise Refused(f"took longer than {_COMPILE_S:.0f} s")

        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, _COMPILE_S, 1.0)  # again and again, should someone swallow it
        try:
            return self._ours.compile(schema)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise Refused(f"BROKEN {type(error).__name__}: {error}") from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.constrain.search.suite", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="of the suite (default: the one beside the checkout)")
    parser.add_argument("--maskbench", type=Path, default=maskbench_folder(), help="a folder of MaskBench's files")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokens (default: %(default)s)")
    parser.add_argument("--only", default="", help="groups and cases whose name holds this regular expression")
    parser.add_argument("--optional", action="store_true", help="the suite's optional files, too")
    parser.add_argument("--part", choices=("suite", "maskbench", "both"), default="both")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes")
    parser.add_argument("-v", "--verbose", action="store_true", help="list each failing instance")
    arguments = parser.parse_args(argv)
    tokenizer = load_tokenizer(locate(arguments.model))
    subject = _Limited(Ours(tokenizer.vocabulary(tokenizer.vocab_size)))
    report: dict[str, list[Outcome]] = {}
    suite = arguments.folder or suite_folder()
    sources: dict[str, Iterable[SchemaCase]] = {}
    if suite is not None and arguments.part != "maskbench":
        sources["suite"] = suite_cases(suite, optional=arguments.optional)
    if arguments.maskbench is not None and arguments.part != "suite":
        sources["maskbench"] = maskbench_cases(arguments.maskbench)
    for name, cases in sources.items():
        chosen = [case for case in cases if re.search(arguments.only, case.name)]
        report[name] = [_judged(case, subject) for case in chosen]
        print(f"== {name}")
        _print(report[name], chosen, verbose=arguments.verbose)
    if arguments.json is not None:
        rows = {name: [_row(outcome) for outcome in outcomes] for name, outcomes in report.items()}
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _judged(case: SchemaCase, subject: _Limited) -> Outcome:
    started = time.monotonic()
    outcome = judge(case, subject)
    if time.monotonic() - started > _SLOW_S:
        print(f"  {time.monotonic() - started:.1f} s for {case.name}", file=sys.stderr, flush=True)
    return outcome


def _print(outcomes: Sequence[Outcome], cases: Sequence[SchemaCase], *, verbose: bool) -> None:
    for group, counts in by_group(outcomes).items():
        print(f"  {group:34} {counts}")
    print(f"  {'TOTAL':34} {Score.of(outcomes)}")
    others = [outcome for outcome in outcomes if outcome.group != "format"]
    if len(others) < len(outcomes):
        print(f"  {'without format, an annotation there':34} {Score.of(others)}")
    impossible = sum(outcome.impossible for outcome in outcomes)
    print(f"  {impossible} were refused since no value satisfies them, which is right if no instance is valid")
    for reason, count in Counter(_short(outcome.refused) for outcome in outcomes if outcome.refused).most_common():
        print(f"  {count:5} refused: {reason}")
    compile_ms = [outcome.compile_ms for outcome in outcomes]
    mask_us = [us for outcome in outcomes for us in outcome.mask_us]
    print("  compile ms " + _percentiles(compile_ms) + "; mask us " + _percentiles(mask_us))
    if verbose:
        for outcome, case in zip(outcomes, cases, strict=True):
            _explain(outcome, case)


def _explain(outcome: Outcome, case: SchemaCase) -> None:
    if outcome.verdict == "right":
        return
    print(f"{outcome.verdict.upper()} {outcome.name}\n    schema   {case.schema[:600]}")
    if outcome.refused:
        print(f"    refused  {outcome.refused[:300]}")
    for index in outcome.under:
        print(f"    UNDER    {case.instances[index].name}: {case.instances[index].text[:300]}")
    for index, at, why in outcome.over:
        data = case.instances[index].text.encode()
        before, after = data[:at].decode(errors="replace")[-200:], data[at:].decode(errors="replace")[:100]
        print(f"    over     {case.instances[index].name}: {before} >>>{after}<<< {why}")


def _short(reason: str) -> str:
    """A reason without the place, so that equal ones are counted together."""
    return re.sub(r" \(at .*\)|\d+", "", reason.partition("\n")[0])[:110]


def _percentiles(values: Sequence[float]) -> str:
    return " / ".join(f"p{percent:g} {percentile(values, percent):.1f}" for percent in (50, 90, 99, 99.9, 100))


def _row(outcome: Outcome) -> dict[str, object]:
    return {
        "name": outcome.name,
        "verdict": outcome.verdict,
        "refused": outcome.refused,
        "compile_ms": round(outcome.compile_ms, 3),
        "over": outcome.over,
        "under": outcome.under,
        "mask_us_p99": round(percentile(outcome.mask_us, 99), 1) if outcome.mask_us else None,
    }


if __name__ == "__main__":
    sys.exit(main())
