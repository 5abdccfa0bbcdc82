"""Programs of the language compared with the same by hand with the official `openai` client, on the same server."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...lang.backends.http import HttpBackend
from ...lang.function import Function
from ..harness.server_process import ServerProcess
from ..workloads.prose import INSTRUCTIONS, Prose
from . import programs
from .ways import TIMEOUT_S, Job, WayRounds, openai_client, run_round, take_turns, watch_batch

# -- By hand: a call a generation --------------------------------------------------------------------------------------


Messages = list[dict[str, str]]


class Caller:
    """Calls of one model. `client` is an `openai.AsyncOpenAI`."""

    def __init__(self, client: Any, model: str) -> None:
        self.client = client
        self.model = model

    async def chat(self, messages: Messages, max_tokens: int, **options: Any) -> list[str]:
        options = {"temperature": 0, "extra_body": {"ignore_eos": True}, **options}
        completion = await self.client.chat.completions.create(
            model=self.model, messages=messages, max_tokens=max_tokens, **options
        )
        return [choice.message.content for choice in completion.choices]

    async def complete(self, prompt: str, max_tokens: int, regex: str) -> str:
        completion = await self.client.completions.create(
            model=self.model, prompt=prompt, max_tokens=max_tokens, temperature=0, extra_body={"regex": regex}
        )
        return str(completion.choices[0].text)


def user(content: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": content}


async def tree_of_thought(caller: Caller, problem: str, max_tokens: int) -> list[str]:
    async def grow(messages: Messages, instruction: str, *later: str) -> list[str]:
        async def try_idea(number: int) -> list[str]:
            asked = [*messages, user(f"{instruction} Idea {number}.")]
            (answer,) = await caller.chat(asked, max_tokens)
            return await grow([*asked, user(answer, "assistant")], *later) if later else [answer]

        return [leaf for leaves in await asyncio.gather(try_idea(1), try_idea(2)) for leaf in leaves]

    return await grow([user(problem)], *programs.LEVELS)


async def judge(caller: Caller, article: str, max_tokens: int) -> list[str]:
    messages = [user(f"The article:\n\n{article}")]
    asked = [[*messages, user(f"Judge its {dimension}.")] for dimension in programs.DIMENSIONS]
    judgements = [answer for (answer,) in await asyncio.gather(*(caller.chat(each, max_tokens) for each in asked))]
    listing = "".join(f"\n- {judgement}" for judgement in judgements)
    merged = [*messages, user(f"Judgements:{listing}\n\nGive a score from 1 to 10.")]
    return [*judgements, *await caller.chat(merged, programs.SCORE_TOKENS)]


async def self_consistency(caller: Caller, question: str, max_tokens: int) -> str:
    """With sixteen calls, as for an API that takes no `n`."""
    answers = await asyncio.gather(
        *(caller.chat([user(question)], max_tokens, temperature=0.8, seed=seed) for seed in range(programs.NUM_SAMPLES))
    )
    return programs.majority([answer for (answer,) in answers])


async def self_consistency_n(caller: Caller, question: str, max_tokens: int) -> str:
    """With `n`: one call."""
    drawn: dict[str, Any] = {"temperature": 0.8, "seed": 1, "n": programs.NUM_SAMPLES}
    return programs.majority(await caller.chat([user(question)], max_tokens, **drawn))


async def react(caller: Caller, question: str) -> list[str]:
    text = INSTRUCTIONS + f"Question: {question}\n"
    steps: list[str] = []
    for _ in range(programs.MAX_TURNS):
        text += "Thought:"
        step = await caller.complete(text, programs.STEP_TOKENS, programs.STEP)
        steps.append(step)
        observation = await asyncio.to_thread(programs.search, step)  # a tool may block
        text += f"{step}Observation: {observation}\n"
        if observation == programs.NOTHING:
            break
    answer = await caller.complete(text + programs.LAST_WORDS, programs.ANSWER_TOKENS, programs.ANSWER)
    return [*steps, answer]


# -- Contests ---------------------------------------------------------------------------------------------------------

OURS, THEIRS = "program", "openai client"


@dataclass(frozen=True)
class Setting:
    """Lengths of prompts, in words, and of answers, in tokens."""

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
    Contest("tree of thought, 2 x 4", programs.tree_of_thought, tree_of_thought),
    Contest("judge, 6 branches", programs.judge, judge),
    Contest("self-consistency, 16 calls", programs.self_consistency, self_consistency, same=False),
    Contest("self-consistency, n=16", programs.self_consistency, self_consistency_n, same=False),
)
REACT = Contest("ReAct, tool in the engine", programs.react, react)


@dataclass(frozen=True)
class ContestResult:
    """Rounds by side. `num_same` of the programs said the same on both sides; None where they cannot."""

    name: str
    setting: str
    at_once: int
    rounds: dict[str, WayRounds]
    num_same: int | None
    # of one more round of each side: how many generations ran, by seconds; empty if nobody looked
    batches: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Throughput, ours over theirs."""
        return self.rounds[THEIRS].wall_s / self.rounds[OURS].wall_s

    @property
    def bound(self) -> float:
        """Ratio if nothing of our time were left but the model's own."""
        forward_s = statistics.median(each.counted.forward_s for each in self.rounds[OURS].rounds)
        return self.rounds[THEIRS].wall_s / forward_s


async def measure_contest(
    server: ServerProcess, contest: Contest, setting: Setting, *, at_once: int, num_rounds: int, watch: bool
) -> ContestResult:
    texts = [Prose(100 + number).text(setting.num_words) for number in range(at_once)]
    arguments = [(text, setting.max_tokens) if setting.max_tokens else (text,) for text in texts]
    backend = HttpBackend(server.url, timeout_s=TIMEOUT_S)
    client = openai_client(server.url)
    caller = Caller(client, server.model)
    said: dict[str, dict[int, Any]] = {OURS: {}, THEIRS: {}}

    async def ours(number: int) -> None:
        state = await contest.ours.arun(*arguments[number], backend=backend)
        said[OURS][number] = state.ret_value

    async def theirs(number: int) -> None:
        said[THEIRS][number] = await contest.theirs(caller, *arguments[number])

    jobs: dict[str, Sequence[Job]] = {
        side: [partial(run, number) for number in range(at_once)] for side, run in ((OURS, ours), (THEIRS, theirs))
    }
    try:
        for side in jobs:  # warm connections, compiled grammars
            await run_round(server, jobs[side], at_once)
        rounds = await take_turns(server, jobs, at_once=at_once, num_rounds=num_rounds)
        batches = {side: await watch_batch(server, jobs[side]) for side in jobs} if watch else {}
    finally:
        await backend.aclose()
        await client.close()
    num_same = sum(said[OURS][n] == said[THEIRS][n] for n in range(at_once)) if contest.same else None
    return ContestResult(contest.name, setting.name, at_once, rounds, num_same, batches)
