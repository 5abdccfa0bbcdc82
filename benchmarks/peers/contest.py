"""Contest with a peer: rounds of prompts or programs in which bough and the peer take turns; a peer from environment to
rows (setup, fresh processes, rounds, quality); and the report: ratios, rates, starts, memory, quality."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Generic, Protocol, TypeVar

from ..harness import report as common
from ..harness.report import say, table
from ..workloads.prompts import Prompts, PromptWorkload, RoundTime, Sizes, count
from ..workloads.prose import PASSAGE
from .environments import KINDS, make_environment, make_model
from .process import OURS, PeerError, Side, side_command

_MAX_STARTS = 3
_START_SHARE = 0.3  # of a peer's time, for fresh processes
_READY_S = 600.0
_JUDGE_S = 300.0
_NUM_SCORED = 1500  # tokens of the passage
_NUMBERS_OF_A_PEER = 10_000  # more rounds than any peer has: all have prompts of their own
_WARM_UP_TOKENS = 8
_STRIDE = 4  # of positions, where an engine tells its choice only by generating
_MORE_THAN_BEFORE = 1.2  # a round is begun if there is time for one that takes so much longer

FLOAT32 = "float32"
REST_S = 0.5  # after each turn: what a side still does once it has answered does not run beside the other

# -- Rounds ------------------------------------------------------------------------------------------------------------


class Rated(Protocol):
    """Result of a side's work in a round."""

    @property
    def rate(self) -> float: ...


Made = TypeVar("Made", bound=Rated)


@dataclass
class Pairs(Generic[Made]):
    """The rounds of two sides so far: `ours[i]` and `theirs[i]` are of the same work."""

    ours: list[Made] = field(default_factory=list)
    theirs: list[Made] = field(default_factory=list)
    note: str = ""  # why there are no more

    @property
    def ratios(self) -> list[float]:
        """Ratios of ours to theirs, a round each: by rates, since answers may differ in length."""
        return [ours.rate / theirs.rate for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def rates(self) -> tuple[float, float]:
        """Medians of ours and theirs."""
        return median(each.rate for each in self.ours), median(each.rate for each in self.theirs)


Key = tuple[str, ...]  # name of what is played, in parts: a workload of prompts, or one of programs and its level
Work = Callable[[Side], Made]  # job of each side in a round


class OursFailedError(PeerError):
    """Failure of our own side."""


class Turns:
    """Two sides that do the same work in turn; who begins changes from round to round.

    deadline  in `time.monotonic` seconds: what would not end before is left out
    """

    def __init__(self, ours: Side, theirs: Side, deadline: float) -> None:
        self.ours, self.theirs = ours, theirs
        self.deadline = deadline
        self._took: dict[Key, float] = {}

    def play(
        self, contests: Mapping[Key, Pairs[Made]], num_rounds: int, prepare: Callable[[Key], Work[Made] | None]
    ) -> None:
        """Rounds of every contest, `num_rounds` at most, each once before any a second time.

        What the peer fails at is noted, and not tried again; what we fail at is an error of ours.

        prepare   makes the work of a round, new for each; None: this one is not worth it

        Raises:
            OursFailedError: our side failed.
        """
        for number in range(num_rounds):
            for key, pairs in contests.items():
                if self._allows(key, number, pairs) and (work := prepare(key)) is not None:
                    say(f"{self.theirs.name}: {', '.join(key)}")
                    self._round(key, number, pairs, work)

    def _allows(self, key: Key, number: int, pairs: Pairs[Made]) -> bool:
        """Tells whether there can be a round of that number; why not is noted."""
        left_s = self.deadline - time.monotonic()
        pairs.note = pairs.note or self.theirs.ended
        if not pairs.note and (left_s <= 0 or self._took.get(key, 0.0) * _MORE_THAN_BEFORE > left_s):
            pairs.note = f"no time for more than {number} rounds"
        return not pairs.note

    def _round(self, key: Key, number: int, pairs: Pairs[Made], work: Work[Made]) -> None:
        started = time.monotonic()
        found: dict[str, Made] = {}
        for side in (self.ours, self.theirs) if number % 2 == 0 else (self.theirs, self.ours):
            try:
                found[side.name] = work(side)
            except (PeerError, ValueError) as error:
                if side is self.ours:
                    raise OursFailedError(f"{', '.join(key)}: {error}") from error
                pairs.note = str(error)
                return
            time.sleep(REST_S)
        pairs.ours.append(found[self.ours.name])
        pairs.theirs.append(found[self.theirs.name])
        self._took[key] = time.monotonic() - started


# -- The report --------------------------------------------------------------------------------------------------------


@dataclass
class PeerRow:
    """A line of the table: one workload against one peer."""

    workload: str
    peer: str
    ratios: list[float] = field(default_factory=list)  # of each round: how many times as fast ours was
    # ours, theirs: what each reached, in words
    ours: str = ""
    theirs: str = ""
    note: str = ""  # what a reader has to know, or why there is no ratio

    @property
    def ratio(self) -> float | None:
        """The median."""
        return median(self.ratios) if self.ratios else None


@dataclass
class Starts:
    """One side's fresh processes, one after the other. `peak_bytes`: after a long prompt and an answer."""

    name: str
    first_token_s: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Quality:
    """Scores of a side for a text, token by token."""

    logprobs: tuple[float, ...]  # of each token after the first, if the side tells them
    likeliest: dict[int, int]  # position -> the token that it would choose after so many

    @property
    def perplexity(self) -> float | None:
        return math.exp(-sum(self.logprobs) / len(self.logprobs)) if self.logprobs else None

    def agreement(self, other: Quality) -> float:
        """Share of the positions that both have at which they choose the same."""
        both = self.likeliest.keys() & other.likeliest.keys()
        return sum(self.likeliest[at] == other.likeliest[at] for at in both) / len(both)


@dataclass
class PeerReport:
    """All that was found. `facts` are of machine and versions; `left_out` says what was not measured, and why."""

    facts: dict[str, Any]
    rows: list[PeerRow] = field(default_factory=list)
    starts: dict[str, Starts] = field(default_factory=dict)
    quality: dict[str, Quality] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def numbers(self) -> dict[str, Any]:
        """All there is, for a file."""
        return {
            **self.facts,
            "rows": [asdict(row) | {"ratio": row.ratio} for row in self.rows],
            "starts": {name: asdict(found) for name, found in self.starts.items()},
            "quality": self.quality_numbers(),
            "left_out": self.left_out,
        }

    def quality_numbers(self) -> dict[str, dict[str, Any]]:
        """The quality of each side beside the model's own weights in float32."""
        reference = self.quality.get(FLOAT32)
        wanted = reference and reference.perplexity
        return {
            name: {
                "perplexity": found.perplexity,
                "ratio": found.perplexity / wanted if found.perplexity and wanted else None,
                "agreement": reference and found.agreement(reference),
                "positions": len(found.likeliest),
            }
            for name, found in self.quality.items()
        }


def row_of(workload: str, peer: str, pairs: Pairs[RoundTime]) -> PeerRow:
    """The rounds of a workload of prompts as a line."""
    row = PeerRow(workload, peer, pairs.ratios, note=pairs.note)
    if row.ratios:
        row.ours, row.theirs = (f"{rate:,.0f} tok/s" for rate in pairs.rates)
    valid = [[each.num_valid for each in side] for side in (pairs.ours, pairs.theirs)]
    if row.ratios and valid[0][0] is not None:
        texts = (f"{sum(filter(None, each)) / len(each):.3g}" for each in valid)
        row.note = "valid answers a round: {} / {}".format(*texts) + (f"; {row.note}" if row.note else "")
    return row


def start_rows(ours: Starts, theirs: Starts) -> list[PeerRow]:
    """Fresh processes as lines: how many times as soon ours has its first token, and as much memory the peer needs.

    A line without a figure, where the system does not tell it, is left out.
    """
    first_token_s = [side.first_token_s for side in (ours, theirs)]
    mebibytes = [[count / 2**20 for count in side.peak_bytes if count] for side in (ours, theirs)]
    lines = (("start to first token", "{:.1f} s", first_token_s), ("peak memory", "{:,.0f} MiB", mebibytes))
    rows = []
    for what, form, (mine, others) in lines:
        if ratios := [b / a for a, b in zip(mine, others, strict=False)]:
            rows.append(PeerRow(what, theirs.name, ratios, form.format(median(mine)), form.format(median(others))))
    return rows


def tables(report: PeerReport, *, markdown: bool = True) -> str:
    """All tables."""
    parts = [table(_HEADS, [_cells(row) for row in report.rows], markdown=markdown)] if report.rows else []
    if report.quality:
        rows = [_quality_cells(name, numbers) for name, numbers in report.quality_numbers().items()]
        parts.append(table(_QUALITY_HEADS, rows, markdown=markdown))
    if report.left_out:
        parts.append("Not measured:\n\n" + "\n".join(f"- {text}" for text in report.left_out))
    return "\n\n".join(parts)


_HEADS = (*("workload", "peer", "bough", "the peer", "ratio"), *("least", "most", "rounds", "remarks"))
_QUALITY_HEADS = ("weights", "perplexity", "over float32's", "same choice as float32")


def _cells(row: PeerRow) -> Sequence[str]:
    numbers = ["-", "-", "-"]
    if row.ratio is not None:
        numbers = [f"{row.ratio:.2f}x", f"{min(row.ratios):.2f}", f"{max(row.ratios):.2f}"]
    return (row.workload, row.peer, row.ours or "-", row.theirs or "-", *numbers, str(len(row.ratios)), row.note)


def _quality_cells(name: str, numbers: Mapping[str, Any]) -> Sequence[str]:
    perplexity, over, same = (numbers[key] for key in ("perplexity", "ratio", "agreement"))
    more = "" if over is None else f"{over - 1:+.2%}"
    agreement = common.number(same, ".1%", f" of {numbers['positions']}")
    return (name, *(cell or "-" for cell in (common.number(perplexity, ".3f"), more, agreement)))


# -- A peer ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeerRun:
    """Settings of a run, for all its parts."""

    model: str
    prompts: Prompts
    sizes: Sizes
    workloads: Sequence[PromptWorkload]
    extras: set[str]  # of "start", "quality", "programs": which to measure
    num_rounds: int
    threads: int
    limit_s: float  # seconds for each peer, beside making its environment and model and loading
    python: str | None
    log: Path  # gets what all processes print
    quick: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)  # of ours: fields of EngineConfig
    peers: Sequence[str] = tuple(KINDS)  # those that were chosen

    @property
    def passage(self) -> list[int]:
        """Tokens that are read for the quality."""
        return self.prompts.tokenizer.encode_prompt(PASSAGE)[: _NUM_SCORED // (5 if self.quick else 1)]

    def ours(self, *, alone: bool = False, dtype: str = "auto") -> Side:
        """Our engine, loading. `alone`: for one sequence."""
        settings = self.settings if dtype == "auto" else {}
        options = {"model": self.model, "config": {"dtype": dtype, **settings}}
        return self.side(OURS, "prompts", None, options | {"max_num_seqs": 1 if alone else self.sizes.most_seqs})

    def theirs(self, name: str, interpreter: Path, model_file: Path, *, alone: bool = False) -> Side:
        """A peer's engine, loading."""
        num_seqs, num_tokens = 1 if alone else self.sizes.most_seqs, self.sizes.context_tokens
        return start_peer(name, interpreter, model_file, self.threads, num_seqs, num_tokens, self.log)

    def side(self, name: str, kind: str, interpreter: Path | None, options: Mapping[str, Any]) -> Side:
        """An engine that is given prompts, or programs (`kind`), loading; see `side_command`."""
        return _start(name, kind, interpreter, options, self.threads, self.log)


def start_peer(
    name: str, interpreter: Path, model_file: Path, threads: int, num_seqs: int, num_tokens: int, log: Path
) -> Side:
    """A peer's engine for `num_seqs` sequences of `num_tokens` tokens at most, loading."""
    options = {"model_file": str(model_file), "threads": threads, "cache_gib": 1 if num_seqs == 1 else 4}
    options |= {"max_num_seqs": num_seqs, "max_model_len": num_tokens}
    return _start(name, "prompts", interpreter, options, threads, log)


def _start(name: str, kind: str, interpreter: Path | None, options: Mapping[str, Any], threads: int, log: Path) -> Side:
    command = side_command(kind, name, interpreter, options)
    return Side(name, command, log=log, variables={"OMP_NUM_THREADS": str(threads)})


def measure_quality_of_ours(run: PeerRun, report: PeerReport) -> None:
    """The model as it is, in float32, and as our engine computes it. Raises PeerError: our engine failed."""
    for name, dtype in ((FLOAT32, "float32"), (OURS, "auto")):
        say(f"quality of {name}")
        with closing(run.ours(dtype=dtype)) as side:
            side.wait_ready(_READY_S)
            report.quality[name] = judge(side, run.passage, _JUDGE_S)


def measure_peer(name: str, number: int, run: PeerRun, report: PeerReport) -> None:
    """All there is to measure against one peer; `report` gets its rows. `number` is the peer's, for prompts of its own.
    Raises PeerError: the peer cannot be had, or our own side failed. Rows found before are kept."""
    say(f"{name}: environment")
    interpreter = make_environment(name, run.python)
    say(f"{name}: model")
    model_file = make_model(KINDS[name], run.model, interpreter)
    start = partial(run.theirs, name, interpreter, model_file)
    if "start" in run.extras:
        say(f"{name}: fresh processes")
        _measure_starts(name, start, run, report)
    say(f"{name}: loading")
    with closing(run.ours()) as ours, closing(start()) as theirs:
        warm_up = run.prompts.draw(2, 2, run.sizes.prompt)
        for side in (ours, theirs):
            side.wait_ready(_READY_S)
            for prompts in (warm_up[:1], warm_up):
                side.ask("generate", _READY_S, prompts=prompts, num_tokens=_WARM_UP_TOKENS)
        if "quality" in run.extras:
            say(f"{name}: quality")
            try:
                report.quality[name] = judge(theirs, run.passage, _JUDGE_S)
            except PeerError as error:
                report.left_out.append(f"{name}, quality: {error}")
        turns = Turns(ours, theirs, time.monotonic() + run.limit_s * (1 - _START_SHARE))
        contests: dict[Key, Pairs[RoundTime]] = {(each.name,): Pairs() for each in run.workloads}
        numbers = itertools.count((number + 1) * _NUMBERS_OF_A_PEER)
        try:
            turns.play(contests, run.num_rounds, prompt_rounds(run.workloads, run.prompts, numbers, turns.deadline))
        finally:
            report.rows += [row_of(workload, name, pairs) for (workload,), pairs in contests.items()]


def prompt_rounds(
    workloads: Sequence[PromptWorkload], prompts: Prompts, numbers: Iterator[int], deadline: float
) -> Callable[[Key], Work[RoundTime]]:
    """Maker of the work of rounds, for `Turns.play`. Prompts depend on a round's number, so that no side has seen any
    of them."""
    by_name = {each.name: each for each in workloads}

    def prepare(key: Key) -> Work[RoundTime]:
        workload = by_name[key[0]]
        arguments = workload.make(prompts, next(numbers))

        def work(side: Side) -> RoundTime:
            limit_s = max(1.0, deadline - time.monotonic())
            return count(workload, arguments, side.ask(workload.job, limit_s, **arguments), prompts.is_character)

        return work

    return prepare


def _measure_starts(name: str, start: Callable[..., Side], run: PeerRun, report: PeerReport) -> None:
    ours, theirs = Starts(OURS), Starts(name)
    starters = [(ours, lambda: run.ours(alone=True)), (theirs, lambda: start(alone=True))]
    try:
        num_rounds = min(run.num_rounds, _MAX_STARTS)
        take_turns(starters, num_rounds, run.prompts, run.sizes, run.limit_s * _START_SHARE)
    except PeerError as error:
        report.left_out.append(f"{name}, fresh processes: {error}")
    report.starts |= {name: theirs, f"{OURS} beside {name}": ours}
    report.rows += start_rows(ours, theirs)


Starter = tuple[Starts, Callable[[], Side]]


def take_turns(starters: Sequence[Starter], num_rounds: int, prompts: Prompts, sizes: Sizes, limit_s: float) -> None:
    """Starts `num_rounds` fresh processes of each side, in turn; fewer where there is no time for another. Raises
    PeerError: one did not come up, or failed, in time."""
    deadline, took_s = time.monotonic() + limit_s, 0.0
    (short,), (long,) = prompts.draw(0, 1, sizes.prompt), prompts.draw(1, 1, sizes.prefill)
    for _ in range(num_rounds):
        began = time.monotonic()
        if began + took_s > deadline:
            return
        for found, start in starters:
            started = time.perf_counter()
            with closing(start()) as side:
                side.wait_ready(deadline - time.monotonic())
                side.ask("generate", deadline - time.monotonic(), prompts=[short], num_tokens=1)
                found.first_token_s.append(time.perf_counter() - started)
                side.ask("generate", deadline - time.monotonic(), prompts=[long], num_tokens=sizes.answer)
                found.peak_bytes.append(side.ask("memory", deadline - time.monotonic())["peak_bytes"])
        took_s = time.monotonic() - began


def judge(side: Side, tokens: Sequence[int], limit_s: float) -> Quality:
    """Has a side read a text. Raises PeerError: the side failed."""
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
