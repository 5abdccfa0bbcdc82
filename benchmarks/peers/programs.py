"""The workloads of programs, ours against each peer with its best client, in turn: time for the same programs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from ...runtime.models.load import locate
from ...runtime.protocol.errors import BoughError
from ..harness.report import geometric_means
from ..harness.server_process import ServerProcess
from .contest import PeerRun
from .environments import PeerError, make_environment, say
from .models import KINDS, make_model, make_tokenizer, model_folder
from .plan import QUICK_SIZES, SIZES, Found, Plans, ProgramSizes, check
from .process import OURS, Side
from .report import PeerRow
from .rounds import Key, OursFailedError, Pairs, Turns, Work

SGLANG = "sglang"
"""SGLang's language on our own server: no peer of our engine's, but of programs that run in it."""

_MAX_SEQS = 64
_CONTEXT_TOKENS = 2048
_SLOTS = 32
_SLOT_TOKENS = 1024


@dataclass(frozen=True)
class Peer:
    """`about` says in a few words what is run, `environment` in which of RECIPES, `engine` what computes.

    limited   answers one call after the other, so that a part of the programs says how fast it is
    driven    step by step in its own process, by our interpreter of plans: faster than a server, nothing one can have
    """

    name: str
    about: str
    environment: str
    engine: str = "llama.cpp"
    limited: bool = False
    driven: bool = False


PEERS = (
    Peer("openvino", "continuous batching in the process", "openvino", "openvino", driven=True),
    Peer("llama.cpp", f"{_SLOTS} sequences in the process", "llama.cpp", driven=True),
    Peer("vllm", "server, openai client", "vllm", "vllm"),
    Peer("llama.cpp server", "llama-cpp-python's, openai client", "clients", limited=True),
    Peer("guidance", "on llama.cpp", "clients", limited=True),
    Peer("outlines", "on llama.cpp", "clients", limited=True),
)
LANGUAGE = Peer(SGLANG, "its language on our server", "sglang")


WORKLOAD = "ten workloads of programs"
BEST = "best of each"
BEST_CLIENT = "best server or library with a client"

_DRIVEN = frozenset(peer.name for peer in PEERS if peer.driven)

_READY_S = 1200.0
_ASK_S = 600.0
_STOP_S = 4.0  # of peers that answer one call after the other
_HOPELESS = 2.0  # so many times as slow as the best peer: one round is enough
_MAX_ROUNDS = 5
_LIMIT_S = 24 * 60.0  # for the rounds of all peers

Results = dict[str, dict[Key, Pairs[Found]]]
"""By peers' names."""


def measure(run: PeerRun, emit: Callable[[PeerRow], None]) -> list[str]:
    """Measures all peers: what was left out, and why. `emit` gets each row at the end.

    Raises:
        PeerError: our own side failed.
    """
    contest = ProgramContest(run, QUICK_SIZES if run.quick else SIZES)
    options = {"model": run.model, "settings": {"max_num_seqs": _MAX_SEQS, **run.settings}}
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
        say(f"programs: {peer.name}")
        found: dict[Key, Pairs[Found]] = {
            (name, level): Pairs() for name in self._plans.names for level in self._levels
        }
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
                slots, source = peer.name == "llama.cpp", locate(run.model)
                options = {
                    "model_file": str(make_model(KINDS[peer.engine], run.model, interpreter)),
                    "tokenizer": str(make_tokenizer(source, model_folder(source) / "tokenizer")),
                    "threads": run.threads,
                    "max_num_seqs": _SLOTS if slots else _MAX_SEQS,
                    "max_model_len": _SLOT_TOKENS if slots else _CONTEXT_TOKENS,
                    "cache_gib": 4,
                }
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
    clients = {name: found for name, found in peers.items() if name not in _DRIVEN}
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
    row = PeerRow(", ".join(key), best, pairs.ratios)
    row.ours, row.theirs = (f"{rate:.3g}/s" for rate in pairs.rates)
    row.note = "; ".join([*(peer.about for peer in PEERS if peer.name == best), *_remarks(key, best, peers)])
    return row


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
