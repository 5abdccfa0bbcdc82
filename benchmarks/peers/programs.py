"""Program workloads on bough and on each peer with its best client, in turn: time for the same programs.

All sides get the programs as plain data, with new texts for each round.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from ...constrain.spec import Regex
from ...runtime.models.load import locate
from ...runtime.protocol.errors import BoughError
from ...runtime.protocol.program import Fork, Gen, Hole, Join, Op, RoleBegin, RoleEnd, Select, Text
from ...runtime.tokenizer.tokenizer import Tokenizer
from ..harness.report import geometric_means, say
from ..harness.server_process import ServerProcess
from ..workloads.programs import WORKLOADS, Size
from .contest import Key, OursFailedError, Pairs, PeerRow, PeerRun, Turns, Work
from .environments import KINDS, make_environment, make_model, make_tokenizer
from .process import OURS, PeerError, Side
from .sides.peer_walk import Plan, first_texts

# -- Programs as data --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """Load of a batch: its number of programs, and how many of them run at once."""

    name: str
    num_programs: int
    at_once: int


@dataclass(frozen=True)
class ProgramSizes:
    """`scale` is that of the workloads' lengths; see `Size`."""

    scale: float
    levels: tuple[Level, ...]


ONE_BY_ONE = "one by one"
SIZES = ProgramSizes(0.5, (Level("32 at once", 32, 32), Level(ONE_BY_ONE, 4, 1)))
QUICK_SIZES = ProgramSizes(0.05, (Level("4 at once", 4, 4), Level(ONE_BY_ONE, 1, 1)))


@dataclass(frozen=True)
class Found:
    """Result of a side with a batch of programs."""

    seconds: float  # for those that it finished, which may be fewer than it was given
    num_programs: int
    num_tokens: int  # generated, those of choices not counted
    num_short: int  # generations of other lengths than asked for
    num_matching: int  # of `num_patterned` answers under a regular expression, those that satisfy it
    num_patterned: int

    @property
    def rate(self) -> float:
        """Programs a second."""
        return self.num_programs / self.seconds


class Plans:
    """Programs of all workloads, at the sizes of a run."""

    def __init__(self, tokenizer: Tokenizer, sizes: ProgramSizes) -> None:
        self._tokenizer = tokenizer
        most = max(level.num_programs for level in sizes.levels)
        size = Size(sizes.scale, most)
        self._programs = {name: make(size).programs[:most] for name, make in WORKLOADS.items()}

    @property
    def names(self) -> list[str]:
        return list(self._programs)

    def make(self, name: str, number: int, count: int, *, roles: bool) -> list[Plan]:
        """The first `count` programs of a workload for round `number`.

        Each round's texts begin with other words, so that no cache holds anything of the rounds before. With `roles`,
        messages are instructions of their own; else they are text as the model's chat template writes it.
        """
        plans = [plan_of(ops) for ops in self._programs[name][:count]]
        for plan in plans:
            for op in first_texts(plan):
                op[2][0] = f"Round {number}. {op[2][0]}"
        return plans if roles else [written(plan, self._tokenizer.chat.role_pieces) for plan in plans]


def written(plan: Plan, pieces: Callable[[tuple[str, ...], str], tuple[str, str]]) -> Plan:
    """The same plan with text in place of roles: what `pieces` has around a message after messages of such roles."""
    found: Plan = []
    roles: dict[int, tuple[str, ...]] = {0: ()}
    suffixes: dict[int, str] = {}
    for op in plan:
        kind, branch = op[0], op[1]
        if kind == "role":
            prefix, suffixes[branch] = pieces(roles[branch], op[2])
            roles[branch] = (*roles[branch], op[2])
            op = ["text", branch, [prefix]]
        elif kind == "end":
            op = ["text", branch, [suffixes[branch]]]
        elif kind == "fork":
            roles |= dict.fromkeys(op[2], roles[branch])
        found.append(op)
    return found


def plan_of(ops: Sequence[Op]) -> Plan:
    """A recorded program as data."""
    plan: Plan = []
    roles: dict[int, str] = {}  # of the message that is open in each branch
    for op in ops:
        match op:
            case Text():
                known = [part for part in op.parts if not isinstance(part, Hole)]  # only templates have holes
                parts = [part if isinstance(part, str) else [part.branch, part.name] for part in known]
                plan.append(["text", op.branch, parts])
            case Gen():
                pattern = op.grammar.pattern if isinstance(op.grammar, Regex) else None
                plan.append(["gen", op.branch, op.name, op.sampling.max_tokens, pattern])
            case Select():
                plan.append(["select", op.branch, op.name, list(op.choices)])
            case Fork() | Join():
                plan.append(["fork" if isinstance(op, Fork) else "join", op.branch, list(op.children)])
            case RoleBegin():
                roles[op.branch] = op.role
                plan.append(["role", op.branch, op.role])
            case RoleEnd():
                plan.append(["end", op.branch, roles[op.branch]])
            case _:
                raise NotImplementedError(f"the workloads have no {type(op).__name__}")
    return plan


def check(plans: Sequence[Plan], answer: Mapping[str, Any]) -> Found:
    """Checks and counts a side's answer to `plans`.

    answer   {"seconds", "programs"}: of each program None if it was not finished, else [branch, name, text, number of
             tokens or None] for each value

    Raises:
        ValueError: values are missing, or a choice is none of those given.
    """
    num_tokens = num_short = num_matching = num_patterned = 0
    finished = [(plan, values) for plan, values in zip(plans, answer["programs"], strict=True) if values is not None]
    if not finished:
        raise ValueError("no program was finished in time")
    for plan, values in finished:
        found = {(branch, name): (text, count) for branch, name, text, count in values}
        for kind, branch, name, *asked in (op for op in plan if op[0] in ("gen", "select")):
            if (branch, name) not in found:
                raise ValueError(f"there is no {name} of branch {branch}")
            text, count = found[branch, name]
            if kind == "select":
                if text not in asked[0]:
                    raise ValueError(f"{text!r} is none of the choices")
                continue
            num_wanted, pattern = asked
            num_tokens += num_wanted if count is None else count
            num_short += pattern is None and count not in (None, num_wanted)
            num_patterned += pattern is not None
            num_matching += pattern is not None and re.fullmatch(pattern, text) is not None
    return Found(answer["seconds"], len(finished), num_tokens, num_short, num_matching, num_patterned)


# -- Peers -------------------------------------------------------------------------------------------------------------


SGLANG = "sglang"  # SGLang's language on our own server: no peer of our engine's, but of programs that run in it
_SEQS = (64, 2048)  # at most so many sequences of so many tokens
_SLOTS = (32, 1024)  # of llama.cpp in the process


@dataclass(frozen=True)
class Peer:
    """`about` says in a few words what is run, `environment` in which of RECIPES, `engine` what computes."""

    name: str
    about: str
    environment: str
    engine: str = "llama.cpp"
    limited: bool = False  # answers one call after the other, so that a part of the programs says how fast it is
    # step by step in its own process, by our interpreter of plans: faster than a server, nothing one can have
    driven: bool = False


PEERS = (
    Peer("openvino", "continuous batching in the process", "openvino", "openvino", driven=True),
    Peer("llama.cpp", f"{_SLOTS[0]} sequences in the process", "llama.cpp", driven=True),
    Peer("vllm", "server, openai client", "vllm", "vllm"),
    Peer("llama.cpp server", "llama-cpp-python's, openai client", "clients", limited=True),
    Peer("guidance", "on llama.cpp", "clients", limited=True),
    Peer("outlines", "on llama.cpp", "clients", limited=True),
)
LANGUAGE = Peer(SGLANG, "its language on our server", "sglang")


WORKLOAD = "ten workloads of programs"
BEST = "best of each"
BEST_CLIENT = "best server or library with a client"

_READY_S = 1200.0
_ASK_S = 600.0
_STOP_S = 4.0  # of peers that answer one call after the other
_HOPELESS = 2.0  # so many times as slow as the best peer: one round is enough
_MAX_ROUNDS = 5
_LIMIT_S = 24 * 60.0  # for the rounds of all peers

Results = dict[str, dict[Key, Pairs[Found]]]  # by peers' names


def measure(run: PeerRun, emit: Callable[[PeerRow], None]) -> list[str]:
    """Measures all peers: what was left out, and why. `emit` gets each row at the end. Raises PeerError: our own side
    failed."""
    contest = ProgramContest(run, QUICK_SIZES if run.quick else SIZES)
    options = {"model": run.model, "settings": {"max_num_seqs": _SEQS[0], **run.settings}}
    with closing(run.side(OURS, "programs", None, options)) as ours:
        contest.prepare(ours)
        peers = (*(peer for peer in PEERS if peer.engine in run.peers), LANGUAGE)
        for number, peer in enumerate(peers):
            contest.measure(ours, peer, share=1 / (len(peers) - number))
    for row in rows_of(contest.results, contest.sizes):
        emit(row)
    return contest.left_out + failures(contest.results)


class ProgramContest:
    """The rounds so far of all peers, and what is left out."""

    def __init__(self, run: PeerRun, sizes: ProgramSizes) -> None:
        self.results: Results = {}
        self.left_out: list[str] = []
        self.sizes = sizes
        self._run = run
        self._levels = {level.name: level for level in sizes.levels}
        self._plans = Plans(run.prompts.tokenizer, sizes)
        self._warm_up = Plans(run.prompts.tokenizer, QUICK_SIZES)
        self._numbers = itertools.count(1)
        self._deadline = time.monotonic() + min(run.limit_s, _LIMIT_S)

    def prepare(self, side: Side) -> None:
        """Waits for a side, and has it run each workload once, so that what it makes once is made. Raises PeerError: it
        is not there."""
        side.wait_ready(_READY_S)
        for name in self._warm_up.names:
            plans = self._warm_up.make(name, 0, 1, roles=side.name == OURS)
            try:
                side.ask("programs", _ASK_S, plans=plans, at_once=1, stop_s=_STOP_S)
            except PeerError:
                if side.name == OURS:
                    raise

    def measure(self, ours: Side, peer: Peer, share: float) -> None:
        """All rounds against one peer, in that share of the time that is left."""
        started = time.monotonic()
        say(f"programs: {peer.name}")
        found: dict[Key, Pairs[Found]] = {(name, at): Pairs() for name in self._plans.names for at in self._levels}
        try:
            with self._started(peer) as theirs:
                self.prepare(theirs)
                self._deadline += time.monotonic() - started  # only rounds count
                turns = Turns(ours, theirs, time.monotonic() + share * (self._deadline - time.monotonic()))
                self.results[peer.name] = found
                turns.play(found, min(self._run.num_rounds, _MAX_ROUNDS), partial(self._work, peer))
        except OursFailedError:
            raise
        except PeerError as error:
            self.left_out.append(f"programs, {peer.name}: {error}")

    @contextmanager
    def _started(self, peer: Peer) -> Iterator[Side]:
        """A peer's side, loading; what it needs is made first. Raises PeerError: something could not be had."""
        run = self._run
        interpreter = make_environment(peer.environment, run.python)
        with ExitStack() as stack:
            if peer is LANGUAGE:
                options = self._our_server(stack)
            else:
                num_seqs, num_tokens = _SLOTS if peer.name == "llama.cpp" else _SEQS
                options = {"threads": run.threads, "max_num_seqs": num_seqs, "max_model_len": num_tokens}
                options |= {"cache_gib": 4, "model_file": str(make_model(KINDS[peer.engine], run.model, interpreter))}
                options["tokenizer"] = str(make_tokenizer(locate(run.model)))
            yield stack.enter_context(closing(run.side(peer.name, "programs", interpreter, options)))

    def _our_server(self, stack: ExitStack) -> dict[str, Any]:
        """Options of SGLang's language for our server, which ends with `stack`."""
        flags = [word for name, value in self._run.settings.items() for word in (f"--{name.replace('_', '-')}", value)]
        try:
            variables = {"OMP_NUM_THREADS": str(self._run.threads)}
            server = stack.enter_context(ServerProcess(["--model", self._run.model, *flags], variables=variables))
        except BoughError as error:
            raise PeerError(f"our server: {error}") from error
        address = urlsplit(server.url)
        return {"host": address.hostname, "port": address.port, "model": server.model}

    def _work(self, peer: Peer, key: Key) -> Work[Found] | None:
        """A round's work: new texts in the programs of a workload, as many as its level says."""
        if self._hopeless(peer.name, key):
            return None
        name, level, number = key[0], self._levels[key[1]], next(self._numbers)

        def work(side: Side) -> Found:
            is_ours = side.name == OURS
            plans = self._plans.make(name, number, level.num_programs, roles=is_ours)
            at_once, stop_s = (1, _STOP_S) if peer.limited and not is_ours else (level.at_once, _ASK_S)
            return check(plans, side.ask("programs", _ASK_S, plans=plans, at_once=at_once, stop_s=stop_s))

        return work

    def _hopeless(self, peer: str, key: Key) -> bool:
        """Another peer is so much better here that this one cannot be the best."""
        mine = self.results[peer][key]
        others = [found[key] for name, found in self.results.items() if name not in (peer, SGLANG)]
        ratios = [pairs.ratio for pairs in others if pairs.ratios]
        return bool(ratios and mine.ratios) and mine.ratio > _HOPELESS * min(ratios)


def rows_of(results: Results, sizes: ProgramSizes) -> Iterator[PeerRow]:
    """The best peer of each workload and level, the means over all, those over peers that are not driven, and SGLang's
    language on our server."""
    peers = {name: found for name, found in results.items() if name != SGLANG}
    driven = [peer.name for peer in PEERS if peer.driven]
    clients = {name: found for name, found in peers.items() if name not in driven}
    for number, level in enumerate(sizes.levels):
        suffix = "" if number == 0 else f", {level.name}"
        keys = dict.fromkeys(key for found in results.values() for key in found if key[1] == level.name)
        best = {key: name for key in keys if (name := best_peer(peers, key)) is not None}
        for key, name in best.items():
            yield _row(key, name, peers)
        means = [(BEST, peers)] + ([(BEST_CLIENT, clients)] if len(clients) < len(peers) else [])
        for title, among in means:
            if pairs := [among[name][key] for key in best if (name := best_peer(among, key)) is not None]:
                least = f"{level.name}; the least is {min(each.ratio for each in pairs):.2f}x"
                yield _mean(pairs, WORKLOAD + suffix, title, least)
        if language := [results[SGLANG][key] for key in keys if SGLANG in results and results[SGLANG][key].ratios]:
            note = f"{level.name}; the same engine, no peer of the rows above"
            yield _mean(language, f"programs{suffix}", "SGLang's language on our server", note)


def _mean(pairs: Sequence[Pairs[Found]], workload: str, peer: str, note: str) -> PeerRow:
    """The mean over workloads; `note` follows their number."""
    ratios = geometric_means([each.ratios for each in pairs])
    return PeerRow(workload, peer, ratios, note=f"geometric mean over {len(pairs)}, {note}")


def best_peer(results: Results, key: Key) -> str | None:
    """The one that ours is the least ahead of; None: no peer has run it."""
    ratios = {name: found[key].ratio for name, found in results.items() if key in found and found[key].ratios}
    return min(ratios, key=ratios.__getitem__) if ratios else None


def failures(results: Results) -> list[str]:
    """Lines on what peers could not run, one for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, found in results.items():
        for key, pairs in found.items():
            if not pairs.ratios:
                reasons.setdefault((name, pairs.note or "not run"), []).append(", ".join(key))
    return [
        f"programs, {name}: {'all' if len(keys) == len(results[name]) else '; '.join(keys)}: {note}"
        for (name, note), keys in reasons.items()
    ]


def _row(key: Key, best: str, peers: Results) -> PeerRow:
    pairs = peers[best][key]
    ours, theirs = (f"{rate:.3g}/s" for rate in pairs.rates)
    note = "; ".join([*(peer.about for peer in PEERS if peer.name == best), *_remarks(key, best, peers)])
    return PeerRow(", ".join(key), best, pairs.ratios, ours, theirs, note)


def _remarks(key: Key, best: str, peers: Results) -> Iterator[str]:
    """Ratios of the other peers, where the best did less than it was asked, and answers that match their patterns."""
    pairs = peers[best][key]
    ours, theirs = pairs.ours[0], pairs.theirs[0]
    others = sorted((found[key].ratio, name) for name, found in peers.items() if name != best and found[key].ratios)
    if others:
        yield "of others: " + ", ".join(f"{name} {ratio:.1f}x" for ratio, name in others)
    if any(his.num_programs < mine.num_programs for mine, his in zip(pairs.ours, pairs.theirs, strict=True)):
        yield f"{theirs.num_programs} of {ours.num_programs} programs"
    if any(each.num_short for each in pairs.theirs):
        yield f"{theirs.num_short} of its answers were shorter"
    if ours.num_patterned:
        matching = [f"{side.num_matching} of {side.num_patterned}" for side in (ours, theirs)]
        yield f"answers that match: {matching[0]}, the peer's {matching[1]}"
