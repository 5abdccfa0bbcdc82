"""Walks programs on behalf of a client that has nothing but prompts to send.

A program is a `Plan` without roles. `Crew` says which generations can be begun; whoever drives
it begins them in any order, as many at once as the engine takes, and gives it the answers.

Engines with a prefix cache compute a text that many requests bring at once for each of them. As one who knows that
would do, `Crew` has long texts that several programs or branches begin with computed once before (`is_prime`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Plan = list[list[Any]]
"""Instructions of a program as JSON has them, a list each, beginning with what it is and its branch:

["text", branch, [part, ...]]: a part is a text, or [branch, name] of a value
["gen", branch, name, num_tokens, pattern]: exactly so many tokens; under a regular expression, at most so many
["select", branch, name, [choice, ...]]
["fork", branch, [child, ...]] and ["join", branch, [child, ...]], which waits for them
["role", branch, role] and ["end", branch]: a message; peers get the chat template's text instead
"""

Value = list[Any]
"""[branch, name, text, number of tokens or None]"""

PRIMED_CHARS = 400
"""From so many characters on, what is shared is computed before it is shared."""


@dataclass(eq=False)
class Call:
    """A generation that can be begun: of `num_tokens`, at most so many under a `pattern`, or one of `choices`.

    walk    its program; None: of what several begin with
    """

    walk: Walk | None
    branch: int
    name: str
    prompt: str
    num_tokens: int = 0
    pattern: str | None = None
    choices: list[str] = field(default_factory=list)

    @property
    def is_prime(self) -> bool:
        """Nothing is wanted but that the prompt is in the cache."""
        return self.num_tokens == 0 and not self.choices


@dataclass(frozen=True)
class Answer:
    """`num_tokens` is None where nobody counts them."""

    text: str
    num_tokens: int | None = None


class Walk:
    """One program on its way. With `primes`, branches that share a long text wait until it is computed."""

    def __init__(self, plan: Plan, *, primes: bool) -> None:
        self._primes = primes
        self._computed = {0: 0}  # characters of each branch
        self._held: dict[int, list[int]] = {}  # children that wait for their parent's text
        self.values: list[Value] = []
        self._texts: dict[int, list[str]] = {0: []}
        self._known: dict[tuple[int, str], str] = {}
        self._waiting: set[int] = set()  # for an answer
        self._left: dict[int, deque[list[Any]]] = {}
        for op in plan:
            self._left.setdefault(op[1], deque()).append(op)
            if op[0] == "fork":
                for child in op[2]:
                    self._left.setdefault(child, deque())
        self.over = False

    def finish(self, call: Call, answer: Answer) -> None:
        self._computed[call.branch] = len(call.prompt)
        if call.is_prime:
            children = self._held.pop(call.branch)
            self._computed |= dict.fromkeys(children, len(call.prompt))
            self._waiting.difference_update(children, [call.branch])
            return
        self._known[call.branch, call.name] = answer.text
        self.values.append([call.branch, call.name, answer.text, answer.num_tokens])
        self._texts[call.branch].append(answer.text)
        self._waiting.discard(call.branch)

    def advance(self) -> Iterator[Call]:
        """Yields the calls that can be begun now, each once."""
        moved = True
        while moved:
            moved = False
            for branch in list(self._texts):
                left = self._left[branch]
                while left and branch not in self._waiting and self._can_go(left[0]):
                    moved = True
                    call = self._go(left.popleft())
                    if call is not None:
                        yield call
        self.over = not self._waiting and not any(self._left[branch] for branch in self._texts)

    def _can_go(self, op: list[Any]) -> bool:
        if op[0] == "text":
            return all(isinstance(part, str) or tuple(part) in self._known for part in op[2])
        if op[0] == "join":
            return all(child not in self._waiting and not self._left[child] for child in op[2])
        return True

    def _go(self, op: list[Any]) -> Call | None:
        kind, branch = op[0], op[1]
        texts = self._texts[branch]
        if kind == "text":
            texts.extend(part if isinstance(part, str) else self._known[part[0], part[1]] for part in op[2])
        elif kind == "fork":
            for child in op[2]:
                self._texts[child] = list(texts)
                self._computed[child] = self._computed[branch]
            prompt = "".join(texts)
            if self._primes and len(op[2]) > 1 and len(prompt) - self._computed[branch] >= PRIMED_CHARS:
                self._held[branch] = op[2]
                self._waiting.update(op[2], [branch])
                return Call(self, branch, "", prompt)
        elif kind == "gen":
            self._waiting.add(branch)
            return Call(self, branch, op[2], "".join(texts), op[3], op[4])
        elif kind == "select":
            self._waiting.add(branch)
            return Call(self, branch, op[2], "".join(texts), choices=op[3])
        return None


class Crew:
    """Programs of a batch, `at_once` at a time. `ready` is for the driver to take from, at either end."""

    def __init__(self, plans: Sequence[Plan], at_once: int, stop_s: float, *, primes: bool = True) -> None:
        self.ready: deque[Call] = deque()
        self._walks = [Walk(plan, primes=primes) for plan in plans]
        self._at_once = at_once
        self._num_begun = self._num_over = 0
        self._started = time.perf_counter()
        self._stop_s = stop_s
        self.ready.extend(Call(None, 0, "", head) for head in (shared_heads(plans) if primes and at_once > 1 else ()))
        self._num_heads = len(self.ready)
        if not self.ready:
            self._begin_first()

    @property
    def over(self) -> bool:
        """Nothing is left to do: all is done, or there was no time to begin more."""
        return self._num_heads == 0 and self._num_over == self._num_begun

    def finish(self, call: Call, answer: Answer) -> None:
        if call.walk is not None:
            call.walk.finish(call, answer)
            self._go_on(call.walk)
            return
        self._num_heads -= 1
        if self._num_heads == 0:
            self._begin_first()

    def result(self) -> dict[str, Any]:
        values = [walk.values if walk.over else None for walk in self._walks]
        return {"seconds": time.perf_counter() - self._started, "programs": values}

    def _begin_first(self) -> None:
        for _ in range(min(self._at_once, len(self._walks))):
            self._begin()

    def _begin(self) -> None:
        if self._num_begun < len(self._walks) and (
            self._num_begun == 0 or time.perf_counter() - self._started < self._stop_s
        ):
            self._num_begun += 1
            self._go_on(self._walks[self._num_begun - 1])

    def _go_on(self, walk: Walk) -> None:
        self.ready.extend(walk.advance())
        if walk.over:
            self._num_over += 1
            self._begin()


def shared_heads(plans: Sequence[Plan]) -> list[str]:
    """The long texts that branches of more than one program begin with."""
    counts: dict[str, int] = {}
    for plan in plans:
        counts_here = {op[2][0] for op in first_texts(plan) if isinstance(op[2][0], str)}
        for text in counts_here:
            counts[text] = counts.get(text, 0) + 1
    return [text for text, count in counts.items() if count > 1 and len(text) >= PRIMED_CHARS]


def first_texts(plan: Plan) -> Iterator[list[Any]]:
    """The instruction that is the first of its branch to append anything, for each that begins empty."""
    empty = {0}
    for op in plan:
        if op[0] == "fork" and op[1] in empty:
            empty.update(op[2])
        elif op[0] in ("text", "gen", "select") and op[1] in empty:
            empty.discard(op[1])
            if op[0] == "text":
                yield op


class Stepping(Protocol):
    """An engine that works on many calls at once, a step at a time."""

    def add(self, call: Call) -> None: ...

    def step(self) -> list[tuple[Call, Answer]]:
        """The calls that this step ended."""


def run_serially(plans: Sequence[Plan], stop_s: float, answer: Callable[[Call], Answer]) -> dict[str, Any]:
    """One call after the other; the latest first, whose prompt begins as the one before did."""
    crew = Crew(plans, 1, stop_s, primes=False)
    while crew.ready:
        call = crew.ready.pop()
        crew.finish(call, answer(call))
    return crew.result()


def run_stepping(plans: Sequence[Plan], at_once: int, stop_s: float, engine: Stepping) -> dict[str, Any]:
    crew = Crew(plans, at_once, stop_s)
    while not crew.over:
        while crew.ready:
            engine.add(crew.ready.popleft())
        for call, found in engine.step():
            crew.finish(call, found)
    return crew.result()


async def run_async(
    plans: Sequence[Plan], at_once: int, stop_s: float, answer: Callable[[Call], Awaitable[Answer]]
) -> dict[str, Any]:
    """A task for each call, so that as many are on their way as can be."""
    crew = Crew(plans, at_once, stop_s)
    tasks: set[asyncio.Task[None]] = set()

    async def do(call: Call) -> None:
        crew.finish(call, await answer(call))

    while not crew.over:
        while crew.ready:
            tasks.add(asyncio.create_task(do(crew.ready.popleft())))
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    return crew.result()


def gbnf(pattern: str) -> str:
    """A regular expression of literals, classes, groups and counts in llama.cpp's notation for grammars."""
    written: list[str] = []
    for part in re.findall(r"\[(?:\\.|[^\]])*\]|\{[^}]*\}|\\.|.", pattern):
        if part[0] in "{?*+":
            written[-1] += part
        elif part in ("(", ")", "|") or (part[0] == "[" and len(part) > 1):
            written.append(part)
        else:
            written.append(_literal(part[-1]))
    return " ".join(written)


def gbnf_of_choices(choices: Sequence[str]) -> str:
    """One of several texts."""
    return " | ".join(_literal(choice) for choice in choices)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
