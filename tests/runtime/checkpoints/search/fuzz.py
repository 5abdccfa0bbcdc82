"""Looks for files of models that do worse than to be refused: another exception, a hang, a signal, too much memory.

    python -m tests.runtime.checkpoints.search.fuzz [--kind gguf] [--seed 0] [--count 100000] [--sanitized asan]

Each file follows from its kind and a seed, and is loaded by a process of its own (`trial`), which goes on with the next
one; it is started again when it has ended or was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

KINDS = ("gguf", "safetensors", "tokenizer", "config")
MEMORY = 2 << 30
HANG_S = 10.0
"""Processor time of one file, and a tenth of the time that may pass meanwhile on a machine that does other things."""

_ROOT = Path(__file__).parents[4]
_START = """
import sys
sys.path.append({root!r})  # at the end: the checkout's folders hide no package
from tests.runtime.checkpoints.search.trial import main
main({memory}, {native})
"""
_START_S = 120.0


class Finding(NamedTuple):
    """A file that did worse than to be refused. `kind` and `seed` make it again."""

    kind: str
    seed: int
    note: str

    def __str__(self) -> str:
        return f"--kind {self.kind} --seed {self.seed} --count 1: {self.note}"


@dataclass
class Tally:
    """Counts of a run. `reasons` are refusals by their beginnings."""

    works: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        findings = sorted([*self.findings, *other.findings])
        return Tally(self.works + other.works, self.refused + other.refused, self.reasons + other.reasons, findings)

    def __str__(self) -> str:
        total = self.works + self.refused + len(self.findings)
        return (
            f"{total} files: {self.works} work, {self.refused} are refused for {len(self.reasons)} reasons, "
            f"{len(self.findings)} findings"
        )


class TrialProcess:
    """A process that loads files, and the watch over it."""

    def __init__(
        self, memory: int = MEMORY, environment: Mapping[str, str] | None = None, *, native: bool = False
    ) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        code = _START.format(root=str(_ROOT), memory=memory, native=native)
        settings = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=tempfile.gettempdir(),
            env={**os.environ, **settings, **(environment or {})},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        verdict, note = self._answer(_START_S, _START_S)
        if verdict != "ready":
            self.close()
            raise RuntimeError(f"the process of the trials does not start: {note}")

    @property
    def process_id(self) -> int:
        return self._process.pid

    def ask(self, kind: str, seed: int) -> tuple[str, str]:
        """The verdict on a file: works, refused or broken; "ended" if the process has to be started again."""
        try:
            self._input.write(json.dumps([kind, seed]).encode() + b"\n")
            self._input.flush()
        except BrokenPipeError:
            return "ended", self._last_words()
        return self._answer(HANG_S, 10 * HANG_S)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._input, self._output, self._log):
            try:
                stream.close()
            except BrokenPipeError:  # what was not written any more
                continue
        self._selector.close()

    def _answer(self, cpu_s: float, wall_s: float) -> tuple[str, str]:
        used, asked = self._cpu_s(), time.monotonic()
        while not self._selector.select(timeout=1.0):
            if self._cpu_s() - used > cpu_s or time.monotonic() - asked > wall_s:
                return "ended", f"no answer after {self._cpu_s() - used:.0f} s of processor time"
        line = self._output.readline()
        if not line:
            return "ended", self._last_words()
        verdict, note = json.loads(line)
        return verdict, note

    def _cpu_s(self) -> float:
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _last_words(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        telling = [line for line in lines if "runtime error" in line or "ERROR" in line or "SUMMARY" in line]
        return f"ended with status {status}: {' | '.join((telling or lines)[-8:])[-1500:]}"


class Trials:
    """Processes that try files, one after another each. They are started when they are needed, which takes seconds, and
    again when a file has ended one; a context manager that ends them.

    memory         bytes of address space that a process may have; 0: as many as it likes
    environment    beside this process's own, as that of a sanitised library
    native         folders are computed by the CPU library, too
    """

    def __init__(
        self,
        num_processes: int = 2,
        *,
        memory: int = MEMORY,
        environment: Mapping[str, str] | None = None,
        native: bool = False,
    ) -> None:
        self._start = partial(TrialProcess, memory, environment, native=native)
        self._processes: list[TrialProcess | None] = [None] * num_processes

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process is not None:
                process.close()

    def run(self, kind: str, seed: int, count: int, show: Callable[[Finding], None] = lambda _: None) -> Tally:
        """Tries the files of `count` seeds from `seed` on."""
        stride = len(self._processes)

        def part(first: int) -> Tally:
            return self._try_each(first, kind, range(seed + first, seed + count, stride), show)

        with ThreadPoolExecutor(stride) as threads:
            return sum(threads.map(part, range(stride)), Tally())

    def _try_each(self, place: int, kind: str, seeds: Iterable[int], show: Callable[[Finding], None]) -> Tally:
        """Tries files in the process at `place`."""
        tally = Tally()
        for each in seeds:
            process = self._processes[place] = self._processes[place] or self._start()
            verdict, note = process.ask(kind, each)
            if verdict == "works":
                tally.works += 1
            elif verdict == "refused":
                tally.refused += 1
                tally.reasons[note[:60]] += 1
            else:
                tally.findings.append(Finding(kind, each, note))
                show(tally.findings[-1])
            if verdict == "ended":
                process.close()
                self._processes[place] = None
        return tally


def main() -> int:
    """The command line; the exit status is 1 if there are findings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=KINDS, help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2_000, help="files of each kind (default: %(default)s)")
    parser.add_argument("--native", action="store_true", help="folders are computed by the CPU library, too")
    parser.add_argument("--reasons", action="store_true", help="show why files were refused")
    arguments = parser.parse_args()
    found = 0
    with Trials(native=arguments.native) as trials:
        for kind in [arguments.kind] if arguments.kind else KINDS:
            began = time.monotonic()
            tally = trials.run(kind, arguments.seed, arguments.count, lambda each: print(each, flush=True))
            print(f"{kind}: {tally}, in {time.monotonic() - began:.0f} s", flush=True)
            if arguments.reasons:
                for reason, times in tally.reasons.most_common():
                    print(f"    {times:5d}  {reason}")
            found += len(tally.findings)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
