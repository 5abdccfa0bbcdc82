"""The programs of `language_programs` as one writes them with the official `openai` client: a call a generation."""

from __future__ import annotations

import asyncio
from typing import Any

from .programs import (
    ANSWER,
    ANSWER_TOKENS,
    DIMENSIONS,
    INSTRUCTIONS,
    LAST_WORDS,
    LEVELS,
    MAX_TURNS,
    NOTHING,
    NUM_SAMPLES,
    SCORE_TOKENS,
    STEP,
    STEP_TOKENS,
    majority,
    search,
)

Messages = list[dict[str, str]]


class Caller:
    """Calls of one model. `client` is an `openai.AsyncOpenAI`."""

    def __init__(self, client: Any, model: str) -> None:
        self.client = client
        self.model = model

    async def chat(self, messages: Messages, max_tokens: int, **options: Any) -> list[str]:
        completion = await self.client.chat.completions.create(
            model=self.model,
            messages=messages,
            max_tokens=max_tokens,
            extra_body={"ignore_eos": True},
            **{"temperature": 0, **options},
        )
        return [choice.message.content for choice in completion.choices]

    async def complete(self, prompt: str, max_tokens: int, regex: str) -> str:
        completion = await self.client.completions.create(
            model=self.model, prompt=prompt, max_tokens=max_tokens, temperature=0, extra_body={"regex": regex}
        )
        return str(completion.choices[0].text)


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


async def tree_of_thought(caller: Caller, problem: str, max_tokens: int) -> list[str]:
    async def grow(messages: Messages, level: int) -> list[str]:
        if level == len(LEVELS):
            return [messages[-1]["content"]]
        grown = await asyncio.gather(*(try_idea(messages, level, number) for number in (1, 2)))
        return [leaf for leaves in grown for leaf in leaves]

    async def try_idea(messages: Messages, level: int, number: int) -> list[str]:
        asked = [*messages, user(f"{LEVELS[level]} Idea {number}.")]
        (answer,) = await caller.chat(asked, max_tokens)
        return await grow([*asked, assistant(answer)], level + 1)

    return await grow([user(problem)], 0)


async def judge(caller: Caller, article: str, max_tokens: int) -> list[str]:
    messages = [user(f"The article:\n\n{article}")]
    answers = await asyncio.gather(
        *(caller.chat([*messages, user(f"Judge its {dimension}.")], max_tokens) for dimension in DIMENSIONS)
    )
    judgements = [answer for (answer,) in answers]
    listing = "".join(f"\n- {judgement}" for judgement in judgements)
    merged = [*messages, user(f"Judgements:{listing}\n\nGive a score from 1 to 10.")]
    return [*judgements, *await caller.chat(merged, SCORE_TOKENS)]


async def self_consistency(caller: Caller, question: str, max_tokens: int) -> str:
    """With sixteen calls, as for an API that takes no `n`."""
    answers = await asyncio.gather(
        *(caller.chat([user(question)], max_tokens, temperature=0.8, seed=seed) for seed in range(NUM_SAMPLES))
    )
    return majority([answer for (answer,) in answers])


async def self_consistency_n(caller: Caller, question: str, max_tokens: int) -> str:
    """With `n`: one call."""
    return majority(await caller.chat([user(question)], max_tokens, temperature=0.8, seed=1, n=NUM_SAMPLES))


async def react(caller: Caller, question: str) -> list[str]:
    text = INSTRUCTIONS + f"Question: {question}\n"
    steps: list[str] = []
    for _ in range(MAX_TURNS):
        text += "Thought:"
        step = await caller.complete(text, STEP_TOKENS, STEP)
        steps.append(step)
        observation = await asyncio.to_thread(search, step)  # a tool may block
        text += f"{step}Observation: {observation}\n"
        if observation == NOTHING:
            break
    answer = await caller.complete(text + LAST_WORDS, ANSWER_TOKENS, ANSWER)
    return [*steps, answer]
