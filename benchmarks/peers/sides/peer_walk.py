"""Interpreter of programs for peers that take only prompts, run in the peer's environment.

A program is a `Plan` without roles: a task for each branch, which waits for values and for branches that it joins. The
driver decides how generations are answered: one by one, in lockstep, or by a request each.

Engines with a prefix cache compute a prefix anew for each of several simultaneous requests. As an expert user would,
the interpreter computes long prefixes of several programs or branches once in advance (`Call.is_prime`).
"""

from __future__ import annotations

import asyncio
import operator
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Plan = list[list[Any]]
"""Instructions of a program as JSON has them, a list each, beginning with what it is and its branch:

["text", branch, [part, ...]]: a part is a text, or [branch, name] of a value
["gen", branch, name, num_tokens, pattern]: exactly so many tokens; under a regular expression, at most so many
["select", branch, name, [choice, ...]]
["fork", branch, [child, ...]] and ["join", branch, [child, ...]], which waits for them
["role", branch, role] and ["end", branch, role]: a message; peers get the chat template's text instead
"""

Value = list[Any]  # [branch, name, text, number of tokens or None]
PRIMED_CHARS = 400  # from so many characters on, what is shared is computed before it is shared
LONGEST_CHOICE = 64  # tokens that clients allow a choice
_HOPS = 16  # turns of the event loop, in which all tasks come to where they wait for an answer


@dataclass(eq=False)
class Call:
    """A generation that can be begun: of `num_tokens`, at most so many under a `pattern`, or one of `choices`."""

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


Ask = Callable[[Call], Awaitable[Answer]]

Step = Callable[[list[Call]], list[tuple[Call, Answer]]]
"""Work of an engine that has many calls at once: takes some from the list of those that nobody has begun yet, and
returns those that have ended."""


def values_of(plan: Plan) -> list[tuple[int, str]]:
    """Branch and name of each value, in the order of the instructions."""
    return [(op[1], op[2]) for op in plan if op[0] in ("gen", "select")]


async def walk(plan: Plan, ask: Ask, *, primes: bool) -> list[Value]:
    """Runs one program. With `primes`, branches that share a long text wait until it is computed."""
    ops: dict[int, list[list[Any]]] = {}
    for op in plan:
        ops.setdefault(op[1], []).append(op)
    new = asyncio.get_running_loop().create_future
    known = {value: new() for value in values_of(plan)}
    branches: dict[int, asyncio.Task[None]] = {}
    values: list[Value] = []

    async def go(branch: int, text: str, num_computed: int) -> None:
        for kind, _, what, *more in ops.get(branch, ()):
            if kind == "text":
                text += "".join([part if isinstance(part, str) else await known[tuple(part)] for part in what])
            elif kind == "fork":
                if primes and len(what) > 1 and len(text) - num_computed >= PRIMED_CHARS:
                    await ask(Call("", text))
                    num_computed = len(text)
                branches.update({child: group.create_task(go(child, text, num_computed)) for child in what})
            elif kind == "join":
                await asyncio.wait([branches[child] for child in what])
            else:
                answer = await ask(Call(what, text, *more) if kind == "gen" else Call(what, text, choices=more[0]))
                num_computed = len(text)
                values.append([branch, what, answer.text, answer.num_tokens])
                known[branch, what].set_result(answer.text)
                text += answer.text

    async with asyncio.TaskGroup() as group:
        group.create_task(go(0, "", 0))
    return values


async def run(plans: Sequence[Plan], at_once: int, stop_s: float, ask: Ask, *, primes: bool = True) -> dict[str, Any]:
    """Runs programs, `at_once` at a time; none but the first is begun after `stop_s`."""
    started = time.perf_counter()
    places = asyncio.Semaphore(at_once)
    programs: list[list[Value] | None] = [None] * len(plans)

    async def run_one(number: int) -> None:
        async with places:
            if number == 0 or time.perf_counter() - started < stop_s:
                programs[number] = await walk(plans[number], ask, primes=primes)

    heads = shared_heads(plans) if primes and at_once > 1 else []
    await asyncio.gather(*(ask(Call("", head)) for head in heads))
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(len(plans)):
                group.create_task(run_one(number))
    except BaseExceptionGroup as failed:
        error: BaseException = failed
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from failed
    return {"seconds": time.perf_counter() - started, "programs": programs}


def shared_heads(plans: Sequence[Plan]) -> list[str]:
    """The long texts that branches of more than one program begin with."""
    heads = [{op[2][0] for op in first_texts(plan) if isinstance(op[2][0], str)} for plan in plans]
    counts = Counter(text for texts in heads for text in texts)
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


def replay(
    plan: Plan,
    state: Any,
    *,
    fork: Callable[[Any, int], Any],
    value: Callable[[Any, str], Any] = operator.getitem,
    **says: Callable[..., Any],
) -> dict[int, Any]:
    """Says what a plan says on a library's own states, as a program by hand would; returns its branches' states.

    fork    makes the states of so many branches, a group that can be joined
    value   what a state appends for another's value of that name
    says    for each other kind of instruction what its branch appends, of what stands behind the branch
    """
    states, groups = {0: state}, {}
    for kind, branch, *rest in plan:
        if kind == "text":
            for part in rest[0]:
                states[branch] += part if isinstance(part, str) else value(states[part[0]], part[1])
        elif kind == "fork":
            group = groups[tuple(rest[0])] = fork(states[branch], len(rest[0]))
            states |= dict(zip(rest[0], group, strict=True))
        elif kind == "join":
            groups[tuple(rest[0])].join()
        else:
            states[branch] += says[kind](*rest)
    return states


def run_serially(plans: Sequence[Plan], stop_s: float, answer: Callable[[Call], Answer]) -> dict[str, Any]:
    """One call after the other; the latest first, whose prompt begins as the one before did."""

    def step(calls: list[Call]) -> list[tuple[Call, Answer]]:
        call = calls.pop()
        return [(call, answer(call))]

    return run_stepping(plans, 1, stop_s, step, primes=False)


def run_stepping(
    plans: Sequence[Plan], at_once: int, stop_s: float, step: Step, *, primes: bool = True
) -> dict[str, Any]:
    """All calls that can be begun, side by side, a step of the engine at a time."""
    calls: list[Call] = []
    waiting: dict[Call, asyncio.Future[Answer]] = {}

    async def ask(call: Call) -> Answer:
        calls.append(call)
        waiting[call] = asyncio.get_running_loop().create_future()
        return await waiting[call]

    async def main() -> dict[str, Any]:
        result = asyncio.create_task(run(plans, at_once, stop_s, ask, primes=primes))
        while not result.done():
            for _ in range(_HOPS):
                await asyncio.sleep(0)
            if waiting:
                for call, answer in step(calls):
                    waiting.pop(call).set_result(answer)
        return await result

    return asyncio.run(main())


def echoed_scores(start: int, completion: dict[str, Any]) -> list[float]:
    """Mean log-probability of the tokens that reach beyond `start` characters, for each prompt that is echoed."""
    scores = {}
    for choice in completion["choices"]:
        found = choice["logprobs"]
        entries = zip(found["text_offset"], found["tokens"], found["token_logprobs"], strict=True)
        after = [value for offset, token, value in entries if offset + len(token) > start and value is not None]
        scores[choice["index"]] = sum(after) / len(after)
    return [scores[index] for index in range(len(scores))]


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
