"""Runs groups of cases in a process of its own and writes a line for each row; see gpu.py, which starts it.

A kernel that reads out of bounds ends the process's CUDA context, and a peer may crash: whoever started this goes on
with the next case in a new process.
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

from .cases.case import Case, Settings
from .rows import CONTEXT_LOST, MARK, Event


def group_cases(group: str, settings: Settings) -> list[Case]:
    """The cases of a group, named `module` or `module:argument`."""
    module, _, argument = group.partition(":")
    maker = importlib.import_module(f".cases.{module}", __package__)
    cases: list[Case] = maker.cases(settings, argument) if argument else maker.cases(settings)
    return cases


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bough.benchmarks.gpu.worker", description=__doc__)
    parser.add_argument("groups", nargs="+", metavar="GROUP")
    parser.add_argument("--first", type=int, default=0, help="number of the first case to run")
    parser.add_argument("--device", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--deadline", type=float, default=float("inf"))
    parser.add_argument("--spawned", type=float, default=0.0)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--fa3")
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--peer-path", action="append", default=[])
    arguments = parser.parse_args(argv)
    sys.path += arguments.peer_path
    settings = Settings(
        device=arguments.device,
        quick=arguments.quick,
        deadline=arguments.deadline,
        spawned=arguments.spawned,
        cold=arguments.cold,
        fa3=arguments.fa3,
        without=frozenset(arguments.without),
        announce=lambda peer: _send(Event(number=-1, peer=peer)),
    )
    cases = [(group, case) for group in arguments.groups for case in group_cases(group, settings)]
    for number, (group, case) in enumerate(cases[arguments.first :], arguments.first):
        if not _run(number, f"{group}/{case.label}", case, settings):
            return CONTEXT_LOST
    return 0


def _run(number: int, label: str, case: Case, settings: Settings) -> bool:
    """False if the device cannot be used by this process any more."""
    if case.takes_s(settings) > settings.left_s():
        why = f"no time: {case.takes_s(settings):.0f} s of {max(settings.left_s(), 0):.0f}"
        _send(Event(number=number, case=label, skipped=why))
        return True
    _send(Event(number=number, case=label, within_s=15.0 + 4 * case.estimate_s))
    started = time.perf_counter()
    try:
        for row in case.run():
            _send(Event(number=number, case=label, row=row))
    except Exception as error:  # noqa: BLE001  whatever a kernel or the engine raises is this case's result
        traceback.print_exc()
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        _send(Event(number=number, case=label, skipped=why))
    print(f"{label}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    gc.collect()
    if settings.device == "cpu":
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def _send(event: Event) -> None:
    print(MARK + msgspec.json.encode(event).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
