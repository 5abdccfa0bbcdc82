"""Prompt workloads for comparisons on the CPU: one table, generated anew for each round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...constrain.json_schema.validate import violations
from ...runtime.tokenizer.tokenizer import Tokenizer
from .prose import QUESTIONS, Prose

Facts = Mapping[str, Any]
Maker = Callable[["Prompts", int], dict[str, Any]]

SCHEMA, RESIDENT = (Path(__file__).with_name(f"{name}.json").read_text().rstrip() for name in ("character", "resident"))
"""Schemas of an object of a few fields; a resident has lists of names, too."""


@dataclass(frozen=True)
class Sizes:
    """Tokens and counts of all workloads."""

    answer: int = 128
    prompt: int = 40
    prefill: int = 1400
    prefix: int = 2000
    num_shared: int = 64
    own: int = 32
    short_answer: int = 16
    json_answer: int = 160
    num_json: int = 16
    num_chats: int = 8
    num_turns: int = 4
    turn: int = 40
    batches: tuple[int, ...] = (8, 16, 32, 64)

    @property
    def most_seqs(self) -> int:
        return max(1, *self.batches, self.num_shared, self.num_json, self.num_chats)

    @property
    def context_tokens(self) -> int:
        """Tokens that the longest sequence may need, with room."""
        chat = self.num_turns * (self.turn + self.answer)
        return max(self.prefill, self.prefix + self.own, self.prompt + self.json_answer, chat) + self.answer + 128


# For a look at whether everything works: ratios of so little work say little.
_FEWER: dict[str, Any] = {"num_shared": 16, "num_json": 4, "num_chats": 2, "num_turns": 2, "batches": (8,)}
QUICK = Sizes(answer=32, prefill=512, prefix=512, json_answer=96, **_FEWER)


@dataclass(frozen=True)
class PromptWorkload:
    """Something that is timed."""

    name: str
    job: Literal["generate", "constrained", "chat", "shared"]  # of `peer_side.JOBS`
    make: Maker  # its arguments for a round of that number; no two rounds have prompts in common
    # the tokens that a rate is of: computed prompt tokens, or generated ones
    counts: Literal["prompt", "output"] = "output"


@dataclass(frozen=True)
class RoundTime:
    """One round of one side."""

    seconds: float
    num_tokens: int
    num_valid: int | None = None  # answers that satisfy the schema, where there is one

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.num_tokens / self.seconds


class Prompts:
    """Draws prompts as token ids: of prose, of as many tokens as asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def draw(self, number: int, count: int, length: int) -> list[list[int]]:
        """`count` prompts of `length` tokens; each `number` gives others."""
        prose = Prose(number)
        return [self.tokenizer.encode(prose.text(2 * length + 8))[:length] for _ in range(count)]

    def questions(self, number: int, count: int) -> list[list[int]]:
        """Short chat prompts as people write them, of about 40 tokens."""
        prose = Prose(number)
        return self._asked(prose.random.choice(QUESTIONS).format(prose.name(), prose.name()) for _ in range(count))

    def about_someone(self, number: int, count: int) -> list[list[int]]:
        """Chat prompts that ask for a character as JSON."""
        prose = Prose(number)
        return self._asked(f"Describe the character {prose.name()} {prose.name()} as JSON." for _ in range(count))

    def _asked(self, texts: Iterable[str]) -> list[list[int]]:
        return [self.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]

    def is_character(self, tokens: list[int]) -> bool:
        """True if an answer is a value of SCHEMA."""
        return not violations(SCHEMA, self.tokenizer.decode(tokens))


def workloads(sizes: Sizes) -> list[PromptWorkload]:
    """All there are, in the order of the report."""

    def prefill(prompts: Prompts, number: int) -> dict[str, Any]:
        return {"prompts": prompts.draw(number, 1, sizes.prefill), "num_tokens": 1}

    def shared(prompts: Prompts, number: int) -> dict[str, Any]:
        (prefix,) = prompts.draw(number, 1, sizes.prefix)
        own = prompts.draw(-1 - number, sizes.num_shared, sizes.own)
        return {"prompts": [prefix + each for each in own], "num_tokens": sizes.short_answer}

    def constrained(prompts: Prompts, number: int) -> dict[str, Any]:
        asked = prompts.about_someone(number, sizes.num_json)
        return {"prompts": asked, "schema": SCHEMA, "num_tokens": sizes.json_answer}

    def chat(prompts: Prompts, number: int) -> dict[str, Any]:
        numbers = range(number * 1000, number * 1000 + sizes.num_chats)
        return {"chats": [prompts.draw(n, sizes.num_turns, sizes.turn) for n in numbers], "num_tokens": sizes.turn}

    def decode(count: int) -> Maker:
        return lambda prompts, number: {"prompts": prompts.questions(number, count), "num_tokens": sizes.answer}

    return [
        PromptWorkload("single stream decode", "generate", decode(1)),
        *(PromptWorkload(f"batch {count} decode", "generate", decode(count)) for count in sizes.batches),
        PromptWorkload(f"prefill, {sizes.prefill:,} tokens", "generate", prefill, counts="prompt"),
        PromptWorkload(f"{sizes.num_shared} requests, one prefix of {sizes.prefix:,}", "shared", shared),
        PromptWorkload(f"JSON schema, batch {sizes.num_json}", "constrained", constrained),
        PromptWorkload(f"{sizes.num_chats} chats of {sizes.num_turns} turns", "chat", chat),
    ]


def count(workload: PromptWorkload, arguments: Facts, answer: Facts, valid: Callable[[list[int]], bool]) -> RoundTime:
    """Counts a side's answer. Raises ValueError: it has fewer tokens than it was asked for, so that its time would not
    be that of the same work."""
    outputs: Sequence[list[int]] = answer["tokens"]
    asked = arguments["num_tokens"]
    if workload.job == "constrained":
        return RoundTime(answer["seconds"], sum(map(len, outputs)), sum(map(valid, outputs)))
    if any(len(output) != asked for output in outputs):
        raise ValueError(f"answers of {sorted({len(output) for output in outputs})} tokens instead of {asked}")
    if workload.counts == "prompt":
        return RoundTime(answer["seconds"], sum(map(len, arguments["prompts"])))
    num_turns = len(arguments["chats"][0]) if workload.job == "chat" else 1
    return RoundTime(answer["seconds"], num_turns * asked * len(outputs))
