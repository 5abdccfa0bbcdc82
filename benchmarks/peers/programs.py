"""The workloads of programs, ours against each peer with its best client, in turn: time for the same programs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from ...runtime.models.load import locate
from ..harness.report import geometric_means
from ..harness.server_process import ServerProcess
from .contest import PeerRun
from .environments import RECIPES, PeerError, Recipe, make_environment
from .models import make_model, make_tokenizer, model_folder
from .plan import QUICK_SIZES, SIZES, Found, Level, Plans, ProgramSizes, check
from .process import OURS, Side
from .report import PeerRow, asked
from .rounds import Asks, OursFailedError, Pairs, Turns

SGLANG = "sglang"
"""SGLang's language on our own server: no peer of our engine's, but of programs that run in it."""

_CLIENTS = Recipe(
    steps=(
        *RECIPES["llama.cpp"].steps,
        (
            "llama-cpp-python[server]==0.3.36",
            "guidance==0.3.1",
            "outlines==1.3.3",
            "huggingface_hub",
            "numba==0.68.1",
            "openai==3.54.0",
        ),
    ),
    variables=RECIPES["llama.cpp"].variables,
    imports=("llama_cpp.server", "guidance", "outlines", "openai"),
)
_SGLANG = Recipe(
    # The last release whose language can be installed without its engine.
    steps=(("sglang==0.4.10.post2", "pybase64", "pydantic"),),
    imports=("sglang",),
)

_MAX_SEQS = 64
_CONTEXT_TOKENS = 2048
_SLOTS = 32
_SLOT_TOKENS = 1024


@dataclass(frozen=True)
class Peer:
    """`kind` of model files, see `peer_models`. `about` says in a few words what is run.

    weight    of its share of the time: the best ones have rounds enough
    limited   answers one call after the other, so that a part of the programs says how fast it is
    driven    step by step in its own process, by our interpreter of plans: faster than a server, nothing one can have
    """

    name: str
    about: str
    environment: str
    recipe: Recipe
    kind: str
    weight: int = 2
    limited: bool = False
    driven: bool = False

    @property
    def engine(self) -> str:
        """Engine that computes: one of RECIPES."""
        return self.environment if self.environment in RECIPES else "llama.cpp"


PEERS = (
    Peer(
        "openvino",
        "continuous batching in the process",
        "openvino",
        RECIPES["openvino"],
        "openvino-int8",
        5,
        driven=True,
    ),
    Peer("llama.cpp", f"{_SLOTS} sequences in the process", "llama.cpp", RECIPES["llama.cpp"], "gguf", 4, driven=True),
    Peer("vllm", "server, openai client", "vllm", RECIPES["vllm"], "folder", 3),
    Peer("llama.cpp server", "llama-cpp-python's, openai client", "clients", _CLIENTS, "gguf", limited=True),
    Peer("guidance", "on llama.cpp", "clients", _CLIENTS, "gguf", limited=True),
    Peer("outlines", "on llama.cpp", "clients", _CLIENTS, "gguf", limited=True),
)
LANGUAGE = Peer(SGLANG, "its language on our server", "sglang", _SGLANG, "gguf")


def start_ours(run: PeerRun) -> Side:
    """Our side, loading."""
    settings = {"max_num_seqs": _MAX_SEQS, **run.settings}
    options = {"model": run.model, "settings": settings}
    return run.side(OURS, "programs", None, options)


def start_peer(run: PeerRun, peer: Peer) -> Side:
    """A peer's side, loading; what it needs is made first.

    Raises:
        PeerError: its environment or model could not be had.
    """
    interpreter = make_environment(peer.environment, recipe=peer.recipe, python=run.python)
    source = locate(run.model)
    options = {
        "model_file": str(make_model(peer.kind, run.model, interpreter)),
        "tokenizer": str(make_tokenizer(source, model_folder(source) / "tokenizer")),
        "threads": run.threads,
        "max_num_seqs": _SLOTS if peer.name == "llama.cpp" else _MAX_SEQS,
        "max_model_len": _SLOT_TOKENS if peer.name == "llama.cpp" else _CONTEXT_TOKENS,
        "cache_gib": 4,
    }
    return run.side(peer.name, "programs", interpreter, options)


def start_language(run: PeerRun, server: ServerProcess) -> Side:
    """SGLang's language, on our server.

    Raises:
        PeerError: its environment could not be made.
    """
    interpreter = make_environment(LANGUAGE.environment, recipe=LANGUAGE.recipe, python=run.python)
    address = urlsplit(server.url)
    options = {"host": address.hostname, "port": address.port, "model": server.model}
    return run.side(SGLANG, "programs", interpreter, options)


WORKLOAD = "ten workloads of programs"
BEST = "best of each"
BEST_CLIENT = "best server or library with a client"
_LEAST = 1.0  # asked for of each workload

_DRIVEN = frozenset(peer.name for peer in PEERS if peer.driven)

_READY_S = 1200.0
_ASK_S = 600.0
_STOP_S = 4.0  # of peers that answer one call after the other
_HOPELESS = 2.0  # so many times as slow as the best peer: one round is enough
_MAX_ROUNDS = 5
_LIMIT_S = 24 * 60.0  # for the rounds of all peers

Key = tuple[str, str]
"""A workload and a level, by their names."""


Results = dict[str, dict[Key, Pairs[Found]]]
"""By peers' names."""


def measure(
    run: PeerRun, emit: Callable[[PeerRow], None], say: Callable[[str], object] = lambda line: None
) -> list[str]:
    """Measures all peers: what was left out, and why. `emit` gets each row at the end, `say` what is being done.

    Raises:
        PeerError: our own side failed.
    """
    contest = ProgramContest(run, QUICK_SIZES if run.quick else SIZES, say)
    ours = start_ours(run)
    try:
        contest.prepare(ours)
        peers = (*(peer for peer in PEERS if peer.engine in run.peers), LANGUAGE)
        for number, peer in enumerate(peers):
            contest.measure(ours, peer, share=peer.weight / sum(each.weight for each in peers[number:]))
    finally:
        ours.end()
    for row in rows_of(contest.results, contest.sizes, run.goals):
        emit(row)
    return contest.left_out + failures(contest.results)


class ProgramContest:
    """The rounds so far of all peers, and what is left out."""

    def __init__(self, run: PeerRun, sizes: ProgramSizes, say: Callable[[str], object]) -> None:
        self.results: Results = {}
        self.left_out: list[str] = []
        self.sizes = sizes
        self._run = run
        self._say = say
        self._plans = Plans(run.prompts.tokenizer, sizes)
        self._warm_up = Plans(run.prompts.tokenizer, QUICK_SIZES)
        self._numbers = itertools.count(1)
        self._deadline = time.monotonic() + min(run.limit_s, _LIMIT_S)

    def prepare(self, side: Side) -> None:
        """Waits for a side, and has it run each workload once, so that what it makes once is made.

        Raises:
            PeerError: it is not there.
        """
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
        self._say(f"programs: {peer.name}")
        try:
            with self._started(peer) as theirs:
                self.prepare(theirs)
                self._deadline += time.monotonic() - started  # only rounds count
                self._rounds(ours, theirs, peer, time.monotonic() + share * (self._deadline - time.monotonic()))
        except OursFailedError:
            raise
        except PeerError as error:
            self.left_out.append(f"programs, {peer.name}: {error}")

    @contextmanager
    def _started(self, peer: Peer) -> Iterator[Side]:
        if peer is not LANGUAGE:
            side = start_peer(self._run, peer)
            try:
                yield side
            finally:
                side.end()
            return
        try:
            variables = {"OMP_NUM_THREADS": str(self._run.threads)}
            flags = {f"--{name.replace('_', '-')}": value for name, value in self._run.settings.items()}
            settings = [word for flag in flags.items() for word in flag]
            server = ServerProcess(["--model", self._run.model, *settings], variables=variables)
        except RuntimeError as error:
            raise PeerError(f"our server: {error}") from error
        with server:
            side = start_language(self._run, server)
            try:
                yield side
            finally:
                side.end()

    def _rounds(self, ours: Side, theirs: Side, peer: Peer, deadline: float) -> None:
        keys = [(name, level) for name in self._plans.names for level in self.sizes.levels]
        found = self.results.setdefault(peer.name, {(name, level.name): Pairs() for name, level in keys})
        turns = Turns(ours, theirs, deadline)
        for number in range(min(self._run.num_rounds, _MAX_ROUNDS)):
            for name, level in keys:
                key = (name, level.name)
                if number and self._hopeless(peer.name, key):
                    continue
                if turns.allow(", ".join(key), number, found[key]):
                    self._say(f"programs: {peer.name}, {', '.join(key)}")
                    self._round(turns, number, peer, name, level)

    def _round(self, turns: Turns, number: int, peer: Peer, name: str, level: Level) -> None:
        plans_number = next(self._numbers)

        def work(side: Asks) -> Found:
            plans = self._plans.make(name, plans_number, level.num_programs, roles=side is turns.ours)
            limited = peer.limited and side is turns.theirs
            at_once, stop_s = (1, _STOP_S) if limited else (level.at_once, _ASK_S)
            return check(plans, side.ask("programs", _ASK_S, plans=plans, at_once=at_once, stop_s=stop_s))

        key = (name, level.name)
        turns.play(", ".join(key), number, self.results[peer.name][key], work)

    def _hopeless(self, peer: str, key: Key) -> bool:
        """Another peer is so much better here that this one cannot be the best."""
        mine = self.results[peer][key]
        others = [found[key] for name, found in self.results.items() if name not in (peer, SGLANG)]
        ratios = [pairs.ratio for pairs in others if pairs.ratios]
        return bool(ratios and mine.ratios) and mine.ratio > _HOPELESS * min(ratios)


def rows_of(results: Results, sizes: ProgramSizes, goals: Mapping[tuple[str, str], float]) -> Iterator[PeerRow]:
    """The best peer of each workload and level, the means over all, those over peers that are not driven, and SGLang's
    language on our server."""
    peers = {name: found for name, found in results.items() if name != SGLANG}
    for number, level in enumerate(sizes.levels):
        suffix = "" if number == 0 else f", {level.name}"
        keys = dict.fromkeys(key for found in results.values() for key in found if key[1] == level.name)
        best = {key: name for key in keys if (name := best_peer(peers, key)) is not None}
        for key, name in best.items():
            yield _row(key, name, peers)
        goal = asked(goals, WORKLOAD, BEST) if number == 0 else None
        if best:
            yield _mean([peers[name][key] for key, name in best.items()], PeerRow(WORKLOAD + suffix, BEST, goal), level)
        clients = {name: found for name, found in peers.items() if name not in _DRIVEN}
        pairs = [clients[name][key] for key in best if (name := best_peer(clients, key)) is not None]
        if pairs and len(clients) < len(peers):
            yield _mean(pairs, PeerRow(WORKLOAD + suffix, BEST_CLIENT, goal), level)
        language = [results[SGLANG][key] for key in keys if SGLANG in results and results[SGLANG][key].ratios]
        if language:
            row = PeerRow(f"programs{suffix}", "SGLang's language on our server", None)
            row.ratios = geometric_means([each.ratios for each in language])
            row.note = f"geometric mean over {len(language)}, {level.name}; the same engine, no peer of the rows above"
            yield row


def _mean(pairs: Sequence[Pairs[Found]], row: PeerRow, level: Level) -> PeerRow:
    """`row`, as the mean over workloads."""
    least = min(each.ratio for each in pairs)
    row.ratios = geometric_means([each.ratios for each in pairs])
    row.note = f"geometric mean over {len(pairs)}, {level.name}; the least is {least:.2f}x"
    return row


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
    row = PeerRow(", ".join(key), best, _LEAST, pairs.ratios)
    row.ours, row.theirs = (f"{median(each.rate for each in side):.3g}/s" for side in (pairs.ours, pairs.theirs))
    about = [peer.about for peer in PEERS if peer.name == best]
    remarks = [*about, _others(key, best, peers), _partial(pairs), _matching(pairs)]
    row.note = "; ".join(remark for remark in remarks if remark)
    return row


def _others(key: Key, best: str, peers: Results) -> str:
    others = {name: found[key].ratio for name, found in peers.items() if name != best and found[key].ratios}
    texts = [f"{name} {ratio:.1f}x" for name, ratio in sorted(others.items(), key=lambda item: item[1])]
    return "of others: " + ", ".join(texts) if texts else ""


def _partial(pairs: Pairs[Found]) -> str:
    """Remarks where a peer did less than it was asked."""
    remarks: list[Any] = []
    if any(theirs.num_programs < ours.num_programs for ours, theirs in zip(pairs.ours, pairs.theirs, strict=True)):
        remarks.append(f"{pairs.theirs[0].num_programs} of {pairs.ours[0].num_programs} programs")
    if any(each.num_short for each in pairs.theirs):
        remarks.append(f"{pairs.theirs[0].num_short} of its answers were shorter")
    return ", ".join(remarks)


def _matching(pairs: Pairs[Found]) -> str:
    """Counts the answers under a pattern that satisfy it."""
    if not pairs.ours[0].num_patterned:
        return ""
    shares = [f"{side[0].num_matching} of {side[0].num_patterned}" for side in (pairs.ours, pairs.theirs)]
    return f"answers that match: {shares[0]}, the peer's {shares[1]}"
