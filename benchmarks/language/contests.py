"""Programs of the language against the same by hand with the official `openai` client, on the same server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...lang.backend import Backend
from ...lang.backends.http import HttpBackend
from ...lang.function import Function
from ..harness.server_process import ServerProcess
from ..workloads.prose import Prose
from . import openai_client as by_hand
from . import programs as programs
from .rounds import Job, Rounds, run_round, take_turns, watch_batch
from .ways import TIMEOUT_S, openai_client

OURS, THEIRS = "program", "openai client"
GOAL = 4.0


@dataclass(frozen=True)
class Setting:
    """How long prompts are, in words, and answers, in tokens."""

    name: str
    num_words: int
    max_tokens: int


LONG_PROMPTS = Setting("long prompts, short answers", 400, 4)
LONG_ANSWERS = Setting("short prompts, long answers", 20, 24)
SHORT_QUESTION = Setting("short question", 8, 0)


@dataclass(frozen=True)
class Contest:
    """`same`: both sides generate the same texts; else they are drawn, each side with seeds of its own."""

    name: str
    ours: Function[Any]
    theirs: Callable[..., Awaitable[Any]]
    same: bool = True


CONTESTS = (
    Contest("tree of thought, 2 x 4", programs.tree_of_thought, by_hand.tree_of_thought),
    Contest("judge, 6 branches", programs.judge, by_hand.judge),
    Contest("self-consistency, 16 calls", programs.self_consistency, by_hand.self_consistency, same=False),
    Contest("self-consistency, n=16", programs.self_consistency, by_hand.self_consistency_n, same=False),
)
REACT = Contest("ReAct, tool in the engine", programs.react, by_hand.react)


@dataclass(frozen=True)
class ContestResult:
    """Rounds by side. `num_same` of the programs said the same on both sides; None where they cannot.

    batches   of one more round of each side: how many generations ran, by seconds; empty if nobody looked
    """

    name: str
    setting: str
    at_once: int
    rounds: dict[str, Rounds]
    num_same: int | None
    batches: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Throughput, ours over theirs."""
        return self.rounds[THEIRS].wall_s / self.rounds[OURS].wall_s

    @property
    def bound(self) -> float:
        """What the ratio would be if nothing of our time were left but the model's own."""
        return self.rounds[THEIRS].wall_s / self.rounds[OURS].forward_s

    def numbers(self) -> dict[str, Any]:
        return {
            "contest": self.name,
            "setting": self.setting,
            "at_once": self.at_once,
            "ratio": self.ratio,
            "bound": self.bound,
            "num_same": self.num_same,
            "sides": {side: rounds.numbers() for side, rounds in self.rounds.items()},
            "batches": self.batches,
        }


async def measure_contest(
    server: ServerProcess,
    contest: Contest,
    setting: Setting,
    *,
    at_once: int,
    num_rounds: int,
    watch: bool,
    on_round: Callable[[], object],
) -> ContestResult:
    texts = [Prose(100 + number).text(setting.num_words) for number in range(at_once)]
    arguments = [(text, setting.max_tokens) if setting.max_tokens else (text,) for text in texts]
    backend = HttpBackend(server.url, timeout_s=TIMEOUT_S)
    client = openai_client(server.url)
    caller = by_hand.Caller(client, server.model)
    said: dict[str, list[Any]] = {side: [None] * at_once for side in (OURS, THEIRS)}
    jobs: dict[str, Sequence[Job]] = {
        OURS: [partial(_ours, contest, backend, args, said[OURS], n) for n, args in enumerate(arguments)],
        THEIRS: [partial(_theirs, contest, caller, args, said[THEIRS], n) for n, args in enumerate(arguments)],
    }
    try:
        for side in jobs:  # warm connections, compiled grammars
            await run_round(server, jobs[side], at_once)
            on_round()
        rounds = await take_turns(server, jobs, at_once=at_once, num_rounds=num_rounds, on_round=on_round)
        batches = {side: await watch_batch(server, jobs[side]) for side in jobs} if watch else {}
    finally:
        await backend.aclose()
        await client.close()
    num_same = sum(a == b for a, b in zip(said[OURS], said[THEIRS], strict=True)) if contest.same else None
    return ContestResult(contest.name, setting.name, at_once, rounds, num_same, batches)


def num_rounds_of(num_rounds: int) -> int:
    """How often `measure_contest` calls `on_round`."""
    return 2 * (1 + num_rounds)


async def _ours(contest: Contest, backend: Backend, arguments: tuple[Any, ...], said: list[Any], place: int) -> None:
    state = await contest.ours.arun(*arguments, backend=backend)
    said[place] = state.ret_value


async def _theirs(
    contest: Contest, caller: by_hand.Caller, arguments: tuple[Any, ...], said: list[Any], place: int
) -> None:
    said[place] = await contest.theirs(caller, *arguments)
