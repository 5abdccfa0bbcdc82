"""Runs a family of kernels in a process of its own and writes a line for each row; see gpu.py, which starts it.

A kernel that reads out of bounds ends the process's CUDA context, and a peer may crash: that costs the family's rows
from there on, and no others.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
import time
import traceback
from collections.abc import Sequence

import msgspec
import torch

from .cases.problem import Case, Settings
from .rows import MARK, Row


def family_cases(family: str, settings: Settings) -> list[Case]:
    """The cases of a family, named `module` or `module:argument`."""
    module, _, argument = family.partition(":")
    cases: list[Case] = importlib.import_module(f".cases.{module}", __package__).cases(settings, argument)
    return cases


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bough.benchmarks.gpu.worker", description=__doc__)
    parser.add_argument("family")
    parser.add_argument("--device", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="in seconds of time.time()")
    arguments = parser.parse_args(argv)
    settings = Settings(arguments.device, quick=arguments.quick)
    for case in family_cases(arguments.family, settings):
        label = f"{arguments.family}/{case.label}"
        if time.time() > arguments.deadline:
            _send(f"{label}: no time")
            continue
        try:
            for row in case.run():
                _send(row)
        except Exception as error:  # noqa: BLE001  whatever a kernel raises is this case's result
            traceback.print_exc()
            reason = str(error).splitlines()[0] if str(error) else ""
            _send(f"{label}: {type(error).__name__}: {reason}")
        gc.collect()
        if settings.device != "cpu":
            torch.cuda.synchronize()  # raises if this process cannot use the device any more
            torch.cuda.empty_cache()
    return 0


def _send(told: Row | str) -> None:
    print(MARK + msgspec.json.encode(told).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
