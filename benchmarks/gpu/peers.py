"""Whole workloads on our engine and on others, taking turns, each in a process with its own share of the memory."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from ..harness.child import Child, GoneError, python_command
from ..harness.shapes import shape, write_folder
from . import side as gpu_side
from .roofline import decode_step_s, generation_s, kv_bytes
from .rows import Row, spread

WORKLOADS = ("shared-8k", "w1", "shared-2k", "unshared")

_KV_BYTES = 45 << 30  # of each side's cache: both fit on one device beside their weights
_OURS = "bough"
_START_SHARE = 0.7  # of the time that a comparison has; then the other side runs alone


@dataclass(frozen=True)
class Comparison:
    """One model. `peers`: engine -> interpreter that has it. `scale` shrinks the workloads; 1 is full size."""

    model: str
    peers: Mapping[str, str]
    device: str
    log: Path
    deadline: float
    scale: float = 1.0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Side:
    """A running engine and what it took: workload -> one entry for each round. `note` says why it runs no more."""

    name: str
    child: Child | None
    times: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    note: str = ""


def compare(comparison: Comparison, emit: Callable[[Row], None]) -> list[str]:
    """Runs every workload on ours and on each peer in turn; `emit` gets a row whenever there is a new time.

    A peer that is absent, fails or hangs has no time. Returns what was left out, and why.
    """
    skipped: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        write_folder(comparison.model, Path(folder))
        ours = _start(comparison, _OURS, folder)
        try:
            if not comparison.peers:
                skipped += _run_rounds(comparison, ours, [], emit)
            peers: list[_Side] = []
            for number, name in enumerate(comparison.peers):
                share_s = (comparison.deadline - time.time()) / (len(comparison.peers) - number)
                peers.append(_start(comparison, name, folder))
                try:
                    skipped += _run_rounds(replace(comparison, deadline=time.time() + share_s), ours, peers, emit)
                finally:
                    _end(peers[-1])
        finally:
            _end(ours)
    return skipped


def _end(side: _Side) -> None:
    if side.child is not None:
        side.child.end()


def _start(comparison: Comparison, name: str, folder: str) -> _Side:
    config = shape(comparison.model)
    on_cpu = comparison.device == "cpu"
    script = [str(Path(gpu_side.__file__).resolve())]
    command = python_command("gpu.side") if name == _OURS else [comparison.peers[name], "-P", "-u", *script]
    command += [name, "--model", comparison.model, "--folder", folder, "--device", comparison.device]
    command += ["--kv-bytes", str(64 << 20 if on_cpu else _KV_BYTES), "--kv-token-bytes", str(int(kv_bytes(config)))]
    command += ["--scale", str(comparison.scale), "--vocabulary", str(min(10_000, config.vocab_size - 1))]
    environment = comparison.environment if name == _OURS else {"HF_HUB_OFFLINE": "1"}
    try:
        return _Side(name, Child(command, mark=gpu_side.MARK, log=comparison.log, environment=environment))
    except OSError as error:
        return _Side(name, None, note=f"{command[0]}: {error.strerror}")


def _ready(side: _Side, deadline: float) -> bool:
    """Waits for the engine; False if there is none to be had."""
    if side.child is None or side.note:
        return False
    try:
        answer = side.child.receive(_START_SHARE * (deadline - time.time()))
    except GoneError as error:
        side.note = f"not ready: {error}"
        return False
    if answer is None:
        side.note = "it ended while it started; see the log"
        return False
    return "ready" in json.loads(answer)


def _run_rounds(comparison: Comparison, ours: _Side, peers: Sequence[_Side], emit: Callable[[Row], None]) -> list[str]:
    """One round of every workload, then a second if there is time: ours and the last of the peers, whose turn it is.

    Sides take turns; who begins alternates.
    """
    sides = [ours, *peers[-1:]]
    running = [side for side in sides if side.times or _ready(side, comparison.deadline)]
    skipped = [f"P {comparison.model} {side.name}: {side.note}" for side in sides if side.note]
    if not running:
        return skipped
    took: dict[str, float] = {}
    for number in range(2):
        for workload in WORKLOADS:
            if number and workload not in took:
                continue
            expected_s = took.get(workload, 0.0)
            if time.time() + expected_s > comparison.deadline:
                skipped.append(f"P {comparison.model} {workload}, round {number + 1}: no time")
                continue
            started = time.time()
            for side in running if number % 2 == 0 else reversed(running):
                _ask(side, workload, number, comparison.deadline)
            took[workload] = time.time() - started
            for row in _rows(comparison, workload, ours, peers):
                emit(row)
    skipped += [f"P {comparison.model} {side.name}: {side.note}" for side in running if side.note]
    return skipped


def _ask(side: _Side, workload: str, number: int, deadline: float) -> None:
    if side.child is None or side.note:
        return
    # Another peer's rounds were other prompts: ours must not find these in its cache.
    seed = number + 1 if side.name != _OURS else 1 + len(side.times.get(workload, []))
    try:
        side.child.send(json.dumps({"workload": workload, "seed": seed}))
        answer = side.child.receive(max(deadline - time.time(), 1.0))
    except GoneError as error:
        side.note = f"{workload}: {error}"
        return
    if answer is None:
        side.note = f"{workload}: it ended; see the log"
        return
    times = json.loads(answer)
    if "error" in times:
        print(f"{side.name}, {workload}: {times['error']}", file=sys.stderr, flush=True)
        return
    side.times.setdefault(workload, []).append(times)


def _rows(comparison: Comparison, workload: str, ours: _Side, peers: Sequence[_Side]) -> Iterator[Row]:
    """The workload as a whole, and its decode alone where that was timed."""
    one = gpu_side.make_workload(workload, 0, scale=comparison.scale)
    config = shape(comparison.model)
    lengths = [(len(prompt), output) for prompt, output in zip(one.prompts, one.outputs, strict=True)]
    if not one.decode:
        yield _row(comparison, workload, ours, peers, "seconds", "output_tokens", generation_s(config, lengths))
        return
    # What is computed depends on how much of a prompt a side finds in its cache: the whole has no one floor.
    yield _row(comparison, workload, ours, peers, "seconds", "output_tokens", None)
    common = _num_common(one.prompts)
    floor_s = 0.0
    for step in range(1, one.outputs[0]):
        contexts = [prompt + step for prompt, _ in lengths]
        distinct = common + sum(length - common for length in contexts)
        floor_s += decode_step_s(config, contexts, distinct_tokens=distinct)
    yield _row(comparison, f"{workload} decode", ours, peers, "decode_s", "decode_tokens", floor_s)


def _num_common(prompts: Sequence[Sequence[int]]) -> int:
    """Leading tokens that all have."""
    first, *others = prompts
    return next((i for i, token in enumerate(first) if any(other[i] != token for other in others)), len(first))


def _row(
    comparison: Comparison,
    name: str,
    ours: _Side,
    peers: Sequence[_Side],
    key: str,
    tokens: str,
    floor_s: float | None,
) -> Row:
    workload = name.removesuffix(" decode")
    row = Row(sec="P", name=name, cfg={"model": comparison.model}, unit="tok/s")
    seconds = [times[key] for times in ours.times.get(workload, [])]
    if seconds:
        low, high = spread(seconds)
        row.us, row.us_p10, row.us_p90 = median(seconds) * 1e6, low * 1e6, high * 1e6
        row.value = ours.times[workload][0][tokens] / median(seconds)
        row.noise = (max(seconds) - min(seconds)) / min(seconds)
    else:
        row.note = ours.note
    for peer in peers:
        theirs: list[float] = [times[key] for times in peer.times.get(workload, [])]
        row.peers[peer.name] = median(theirs) * 1e6 if theirs else None
    return row.rated(floor_s=floor_s)
