"""Whole models with random weights on bough and on peers, in turn, each in a separate process."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ...runtime.checkpoints.config import ModelConfig
from ..harness.shapes import shape, write_folder
from ..peers.process import OURS, PeerError, Side, side_command
from .roofline import decode_step_s, kv_bytes
from .rows import Row

_KV_BYTES = 45 << 30  # of each side's cache: both fit on one device beside their weights
_START_SHARE = 0.7  # of the time that a comparison has; then the other side runs alone
_VOCABULARY = 10_000  # prompts use the ids below it
_NUM_ROUNDS = 2


@dataclass(frozen=True)
class Requests:
    """Requests of the same lengths that arrive together, in tokens: `shared` in common, `own` of each."""

    count: int
    shared: int
    own: int
    output: int

    def scaled(self, scale: float) -> Requests:
        """The same in small."""
        count, output = max(1, int(self.count * scale)), max(4, int(self.output * scale))
        return Requests(count, int(self.shared * scale), max(1, int(self.own * scale)), output)

    def prompts(self, seed: str, vocabulary: int = _VOCABULARY) -> list[list[int]]:
        """Token ids below `vocabulary`; those of another seed are others."""
        ids = random.Random(seed)
        prefix = [ids.randrange(vocabulary) for _ in range(self.shared)]
        return [prefix + [ids.randrange(vocabulary) for _ in range(self.own)] for _ in range(self.count)]

    def step_floor_s(self, config: ModelConfig) -> float:
        """Seconds that a decode step takes at least, half way through the answers."""
        own = self.own + self.output // 2
        distinct = self.shared + self.count * own
        return decode_step_s(config, [self.shared + own] * self.count, distinct_tokens=distinct)


WORKLOADS = {
    "shared-8k": Requests(64, 8192, 256, 256),
    "shared-2k": Requests(64, 2048, 512, 256),
    "unshared": Requests(64, 0, 2560, 256),  # the twin of shared-2k
    **{f"{count} x 1k": Requests(count, 0, 1024, 65) for count in (1, 8, 32, 64, 128, 256)},
    "64 x 4k": Requests(64, 0, 4096, 65),
}


Times = dict[str, list[tuple[float, float]]]
"""workload -> for each round of a side its seconds for all, nothing cached before, and for a decode step"""


@dataclass
class Comparison:
    """Every workload on one model, ours and each peer in turn. A peer that is absent, fails or hangs has no time."""

    model: str
    peers: Mapping[str, str]  # engine -> interpreter that has it
    device: str
    log: Path
    deadline: float
    emit: Callable[[Row], None]  # gets a row whenever there is a new time
    scale: float = 1.0  # shrinks the workloads; 1 is full size
    environment: Mapping[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # what was left out, and why
    _found: dict[str, Times] = field(default_factory=dict)

    def run(self) -> list[str]:
        """Returns `skipped`."""
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            write_folder(self.model, Path(folder))
            ours = self.started(OURS, folder, self.deadline, stack)
            peers: list[str | None] = [*self.peers] or [None]
            for number, name in enumerate(peers):
                deadline = time.time() + (self.deadline - time.time()) / (len(peers) - number)
                with ExitStack() as beside:
                    theirs = [] if name is None else self.started(name, folder, deadline, beside)
                    self._run_rounds(ours + theirs, deadline)
        return self.skipped

    def started(self, name: str, folder: str, deadline: float, stack: ExitStack) -> list[Side]:
        """An engine that is loaded and warm, until the stack, its own, ends it; none if it cannot be had."""
        self._found[name] = {}
        ours = name == OURS
        kv, dtype = (64 << 20, "float32") if self.device == "cpu" else (_KV_BYTES, "bfloat16")
        options: dict[str, Any] = {"model": self.model, "model_file": folder, "device": self.device, "dtype": dtype}
        options |= {"max_model_len": 12_288, "max_num_seqs": 256}
        options |= {"kv_bytes": kv, "kv_tokens": kv // kv_bytes(shape(self.model))}
        command = side_command("random", name, None if ours else Path(self.peers[name]), options)
        limit_s = _START_SHARE * (deadline - time.time())
        warm_up = WORKLOADS["shared-2k"].scaled(self.scale / 16).prompts("warm up", 500)
        try:
            side = Side(name, command, log=self.log, variables=self.environment if ours else {})
            stack.callback(side.close)
            side.wait_ready(limit_s)
            side.ask("generate", limit_s, prompts=warm_up, num_tokens=16)
        except PeerError as error:
            stack.close()  # its memory is for the others
            self.skipped.append(f"M {self.model} {name}: {error}")
            return []
        return [side]

    def _run_rounds(self, sides: Sequence[Side], deadline: float) -> None:
        """One round of every workload, then a second if there is time. Sides take turns; who begins alternates."""
        took: dict[str, float] = {}
        vocabulary = min(_VOCABULARY, shape(self.model).vocab_size - 1)
        for number in range(_NUM_ROUNDS if sides else 0):
            for workload in WORKLOADS:
                if number and workload not in took:
                    continue
                if time.time() + took.get(workload, 0.0) > deadline:
                    self.skipped.append(f"M {self.model} {workload}, round {number + 1}: no time")
                    continue
                started, requests = time.time(), WORKLOADS[workload].scaled(self.scale)
                for side in sides if number % 2 == 0 else reversed(sides):
                    # Another peer's rounds were other prompts: ours must not find these in its cache.
                    times = self._found[side.name].setdefault(workload, [])
                    played = number if side.name != OURS else len(times)
                    prompts = requests.prompts(f"{workload} {played}", vocabulary)
                    try:
                        times.append(_time(side, prompts, requests.output, deadline))
                    except PeerError as error:
                        line = f"M {self.model} {workload}: {error}"
                        self.skipped += [line] if line not in self.skipped else []
                took[workload] = time.time() - started
                for row in self._rows(workload):
                    self.emit(row)

    def _rows(self, workload: str) -> Iterator[Row]:
        """The workload as a whole, and a decode step of it.

        What is computed of the whole depends on how much of a prompt a side finds in its cache: only steps have a
        floor.
        """
        requests = WORKLOADS[workload].scaled(self.scale)
        floor_s = requests.step_floor_s(shape(self.model))
        for at, (name, num_tokens) in enumerate(((workload, requests.output), (f"{workload} step", 1))):
            seconds = {side: [times[at] for times in rounds.get(workload, [])] for side, rounds in self._found.items()}
            row = Row(sec="M", name=name, cfg={"model": self.model}, unit="tok/s")
            if ours := seconds.pop(OURS):
                row.timed(ours)
                row.value = requests.count * num_tokens / median(ours)
                row.noise = (max(ours) - min(ours)) / min(ours)
            row.peers = {peer: median(theirs) * 1e6 if theirs else None for peer, theirs in seconds.items()}
            yield row.rated(floor_s=floor_s if at else None)


def _time(side: Side, prompts: list[list[int]], num_tokens: int, deadline: float) -> tuple[float, float]:
    """Seconds for all, and for a decode step: with all prompts cached, without what the first token takes."""

    def ask(count: int) -> float:
        limit_s = max(deadline - time.time(), 1.0)
        return float(side.ask("generate", limit_s, prompts=prompts, num_tokens=count)["seconds"])

    whole_s, first_s = ask(num_tokens), ask(1)
    return whole_s, (ask(num_tokens) - first_s) / (num_tokens - 1)
