"""One peer from its environment to its rows: set up, fresh processes, rounds, quality."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from ..workloads.prompts import Prompts, PromptWorkload, Sizes
from ..workloads.prose import PASSAGE
from .environments import PeerError, make_environment
from .models import KINDS, make_model
from .process import OURS, Side, side_command
from .report import FLOAT32, PeerReport, Quality, Starts, memory_row, row_of, start_row
from .rounds import Rounds, Turns

_MAX_STARTS = 3
_START_SHARE = 0.3  # of a peer's time, for fresh processes
_READY_S = 600.0
_JUDGE_S = 300.0
_NUM_SCORED = 1500  # tokens of the passage
_NUMBERS_OF_A_PEER = 10_000  # more rounds than any peer has: all have prompts of their own
_WARM_UP_TOKENS = 8
_SAID_WIDTH = 48  # of what is being done
_STRIDE = 4  # of positions, where an engine tells its choice only by generating


@dataclass(frozen=True)
class PeerRun:
    """Settings of a run, for all its parts.

    extras        of "start", "quality", "programs": which to measure
    limit_s       seconds for each peer, beside making its environment and model and loading
    log           gets what all processes print
    goals         (workload, peer) -> the ratio asked for
    settings      of ours: fields of EngineConfig
    peers         those that were chosen
    """

    model: str
    prompts: Prompts
    sizes: Sizes
    workloads: Sequence[PromptWorkload]
    extras: set[str]
    num_rounds: int
    threads: int
    limit_s: float
    python: str | None
    log: Path
    goals: Mapping[tuple[str, str], float]
    quick: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    peers: Sequence[str] = tuple(KINDS)

    @property
    def num_steps(self) -> int:
        """Steps of progress for each peer."""
        return 3 + self.num_rounds * len(self.workloads)

    @property
    def passage(self) -> list[int]:
        """Tokens that are read for the quality."""
        return self.prompts.tokenizer.encode_prompt(PASSAGE)[: _NUM_SCORED // (5 if self.quick else 1)]

    def ours(self, *, alone: bool = False, dtype: str = "auto") -> Side:
        """Our engine, loading. `alone`: for one sequence."""
        settings = self.settings if dtype == "auto" else {}
        options = {"model": self.model, "config": {"dtype": dtype, **settings}}
        return self.side(OURS, "prompts", None, options | {"max_num_seqs": 1 if alone else self._max_seqs})

    def theirs(self, name: str, interpreter: Path, model_file: Path, *, alone: bool = False) -> Side:
        """A peer's engine, loading."""
        num_seqs = 1 if alone else self._max_seqs
        options = {
            "model_file": str(model_file),
            "threads": self.threads,
            "max_num_seqs": num_seqs,
            "max_model_len": self.sizes.context_tokens,
            "cache_gib": 1 if alone else 4,
        }
        return self.side(name, "prompts", interpreter, options)

    @property
    def _max_seqs(self) -> int:
        return max(1, *self.sizes.batches, self.sizes.num_shared, self.sizes.num_json, self.sizes.num_chats)

    def side(self, name: str, kind: str, interpreter: Path | None, options: Mapping[str, Any]) -> Side:
        """An engine that is given prompts, or programs (`kind`), loading; see `side_command`."""
        variables = {"OMP_NUM_THREADS": str(self.threads)}
        return Side(name, side_command(kind, name, interpreter, options), log=self.log, variables=variables)


def measure_quality_of_ours(run: PeerRun, report: PeerReport, progress: Progress) -> None:
    """The model as it is, in float32, and as our engine computes it.

    Raises:
        PeerError: our engine failed.
    """
    for name, dtype in ((FLOAT32, "float32"), (OURS, "auto")):
        progress.say(f"quality of {name}")
        side = run.ours(dtype=dtype)
        try:
            side.wait_ready(_READY_S)
            report.quality[name] = judge(side, run.passage, _JUDGE_S)
        finally:
            side.end()


def measure_peer(name: str, number: int, run: PeerRun, report: PeerReport, progress: Progress) -> None:
    """All there is to measure against one peer; `report` gets its rows. `number` is the peer's, for prompts of its own.

    Raises:
        PeerError: the peer cannot be had, or our own side failed. Rows found before are kept.
    """
    progress.say(f"{name}: environment")
    interpreter = make_environment(name, python=run.python, say=progress.detail)
    progress.step()
    progress.say(f"{name}: model")
    model_file = make_model(KINDS[name], run.model, interpreter, say=progress.detail)
    progress.step()

    def start(*, alone: bool = False) -> Side:
        return run.theirs(name, interpreter, model_file, alone=alone)

    if "start" in run.extras:
        progress.say(f"{name}: fresh processes")
        _measure_starts(name, start, run, report)
    progress.step()
    progress.say(f"{name}: loading")
    with ExitStack() as stack:
        ours = run.ours()
        stack.callback(ours.end)
        theirs = start()
        stack.callback(theirs.end)
        for side in (ours, theirs):
            side.wait_ready(_READY_S)
            _warm_up(side, run)
        if "quality" in run.extras:
            progress.say(f"{name}: quality")
            _measure_quality(theirs, run, report)
        _measure_rounds(ours, theirs, (number + 1) * _NUMBERS_OF_A_PEER, run, report, progress)


def _measure_rounds(
    ours: Side, theirs: Side, first_number: int, run: PeerRun, report: PeerReport, progress: Progress
) -> None:
    deadline = time.monotonic() + run.limit_s * (1 - _START_SHARE)
    turns = Turns(ours, theirs, deadline)
    rounds = Rounds(turns, run.workloads, prompts=run.prompts, first_number=first_number)
    name = theirs.name
    try:
        rounds.run(run.num_rounds, begin=lambda workload: progress.say(f"{name}: {workload}"), end=progress.step)
    finally:
        report.rows += [row_of(contest, run.goals) for contest in rounds.contests.values()]


def _measure_starts(name: str, start: Callable[..., Side], run: PeerRun, report: PeerReport) -> None:
    ours, theirs = Starts(OURS), Starts(name)
    starters = [(ours, lambda: run.ours(alone=True)), (theirs, lambda: start(alone=True))]
    try:
        num_rounds = min(run.num_rounds, _MAX_STARTS)
        take_turns(starters, num_rounds, run.prompts, run.sizes, run.limit_s * _START_SHARE)
    except PeerError as error:
        report.left_out.append(f"{name}, fresh processes: {error}")
    report.starts[name] = theirs
    report.starts[f"{OURS} beside {name}"] = ours
    report.rows += [row for row in (start_row(ours, theirs), memory_row(ours, theirs)) if row.ratios]


def _measure_quality(theirs: Side, run: PeerRun, report: PeerReport) -> None:
    try:
        report.quality[theirs.name] = judge(theirs, run.passage, _JUDGE_S)
    except PeerError as error:
        report.left_out.append(f"{theirs.name}, quality: {error}")


def _warm_up(side: Side, run: PeerRun) -> None:
    prompts = run.prompts.draw(2, 2, run.sizes.prompt)
    for some in (prompts[:1], prompts):
        side.ask("generate", _READY_S, prompts=some, num_tokens=_WARM_UP_TOKENS)


def start_once(start: Callable[[], Side], found: Starts, prompts: Prompts, sizes: Sizes, limit_s: float) -> None:
    """Starts one fresh process more. `start` must not wait.

    Raises:
        PeerError: it did not come up, or failed, in time.
    """
    deadline = time.monotonic() + limit_s
    (short, long) = prompts.draw(0, 1, sizes.prompt) + prompts.draw(1, 1, sizes.prefill)
    began = time.perf_counter()
    side = start()
    try:
        side.wait_ready(limit_s)
        side.ask("generate", deadline - time.monotonic(), prompts=[short], num_tokens=1)
        found.first_token_s.append(time.perf_counter() - began)
        side.ask("generate", deadline - time.monotonic(), prompts=[long], num_tokens=sizes.answer)
        found.peak_bytes.append(side.ask("memory", deadline - time.monotonic())["peak_bytes"])
    finally:
        side.end()


def take_turns(
    starters: Sequence[tuple[Starts, Callable[[], Side]]],
    num_rounds: int,
    prompts: Prompts,
    sizes: Sizes,
    limit_s: float,
) -> None:
    """Starts `num_rounds` fresh processes of each side, in turn; fewer where there is no time for another.

    Raises:
        PeerError: see start_once.
    """
    deadline, took_s = time.monotonic() + limit_s, 0.0
    for _ in range(num_rounds):
        began = time.monotonic()
        if began + took_s > deadline:
            return
        for found, start in starters:
            start_once(start, found, prompts, sizes, deadline - time.monotonic())
        took_s = time.monotonic() - began


def judge(side: Side, tokens: Sequence[int], limit_s: float) -> Quality:
    """Has a side read a text.

    Raises:
        PeerError: the side failed.
    """
    answer: dict[str, Any] = side.ask("score", limit_s, tokens=list(tokens))
    likeliest = answer["likeliest"]
    if likeliest is not None:
        chosen = {position + 1: token for position, token in enumerate(likeliest)}
    else:
        positions = range(_STRIDE, len(tokens), _STRIDE)
        prompts = [list(tokens[:position]) for position in positions]
        outputs = side.ask("generate", limit_s, prompts=prompts, num_tokens=1)["tokens"]
        chosen = {position: output[0] for position, output in zip(positions, outputs, strict=True)}
    return Quality(tuple(answer["logprobs"] or ()), chosen)


class Progress:
    """Counts steps of a known number. Where nobody looks (not a terminal) only what begins is printed, a line each."""

    def __init__(self, total: int) -> None:
        self._bar = tqdm(total=total, unit="step", disable=None, file=sys.stderr, dynamic_ncols=True)

    def say(self, what: str) -> None:
        """Shows what is being done."""
        if self._bar.disable:
            print(what, file=sys.stderr, flush=True)
        else:
            self._bar.set_description(what[:_SAID_WIDTH].ljust(_SAID_WIDTH))

    def detail(self, line: str) -> None:
        """A line of what a tool prints meanwhile; on a terminal only."""
        if not self._bar.disable:
            self._bar.set_postfix_str(line[:_SAID_WIDTH])

    def step(self) -> None:
        self._bar.set_postfix_str("", refresh=False)
        self._bar.update()

    def finish_part(self, total_done: int) -> None:
        """Goes to where a part ends, also if it ended early."""
        self._bar.update(max(0, total_done - self._bar.n))

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()
