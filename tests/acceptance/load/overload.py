"""The server when more is asked of it than it can do: goodput, refusals, waits, memory, and how soon all is well again.

Requests come at fixed rates whatever becomes of them (an open loop), from clients that try again as OpenAI's do: twice,
after the time that `retry-after` says. The capacity, of which the rates are multiples, is measured before. With few
seats and long answers it is the engine that bounds it, so that who asks need not share the processor with it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from bough.benchmarks.harness.report import percentile, share
from bough.benchmarks.harness.wire import HttpAnswer, Wire

RETRIES = 2
"""Times that OpenAI's clients try again."""
LONGEST_WAIT_S = 60.0
"""They heed `retry-after` up to here."""
_PROMPT = "once upon a time "
SETTLING_S = 1.0
"""Beginning of a phase, in which seats fill: not counted."""
RECOVERY_S = 5.0
"""Time after which everything is to be as it was before."""


class Target(NamedTuple):
    """A server, as the measurement sees it: `resident_bytes()` is the memory of its processes."""

    url: str
    model: str
    resident_bytes: Callable[[], int]


@dataclass(frozen=True)
class OfferedLoad:
    """Each request asks for `num_tokens`; `num_seats` of them run at a time."""

    num_seats: int
    num_tokens: int


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A time with one rate of requests. Times of all requests that it began; the goodput of the phase's own time.

    factor         the rate as a multiple of the capacity
    goodput        tokens a second, of answers that were complete in the end
    first_s        times to the first token, each with when the request came, in seconds since the phase began
    refusal_s      times to an answer that says no
    late_s         delays of sending, which are this program's own fault
    mean_batch     tokens that went through the model in a step: the seats that were taken, whatever a step took
    """

    factor: float
    seconds: float
    goodput: float
    num_offered: int
    num_refused: int
    num_failed: int
    first_s: tuple[tuple[float, float], ...]
    refusal_s: tuple[float, ...]
    late_s: tuple[float, ...]
    mean_batch: float
    resident_bytes: int

    def median_first_s(self, after_s: float = 0.0) -> float:
        """The median time to the first token of those that came `after_s` seconds or more after the beginning."""
        return percentile([first for came, first in self.first_s if came >= after_s], 50)


class OverloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity in requests and tokens a second, then the phases; the last is the return to a light load."""

    capacity: float
    tokens_per_s: float
    phases: tuple[Phase, ...]

    def goodput_share(self, factor: float) -> float:
        """The goodput at a multiple of the capacity, as a share of the capacity."""
        return next(phase.goodput for phase in self.phases if phase.factor == factor) / self.tokens_per_s


@dataclass
class _Crowd:
    """Fate of the clients of a phase. `tokens` are the times at which those of complete answers came."""

    began: float
    tokens: list[float] = field(default_factory=list)
    first_s: list[tuple[float, float]] = field(default_factory=list)
    refusal_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    num_failed: int = 0


class Overload:
    """Measures `target`, phase after phase, with requests of `load`."""

    def __init__(self, target: Target, load: OfferedLoad) -> None:
        self._target = target
        self._load = load
        self._rng = random.Random(0)
        body = {"model": target.model, "prompt": _PROMPT, "max_tokens": load.num_tokens, "stream": True}
        self._body = json.dumps({**body, "temperature": 0, "ignore_eos": True}).encode()

    async def run(
        self,
        factors: Sequence[float],
        seconds: float,
        tell: Callable[[str], None] = lambda _: None,
        *,
        capacity: float | None = None,
    ) -> OverloadReport:
        """Measures the capacity, `factors` of it for `seconds` each, and the first of them again after the last.

        With a `capacity` that is known, in requests a second, the rates are multiples of that one.
        """
        async with Wire(self._target.url) as wire:
            measured, tokens_per_s = await self._capacity(wire, seconds)
            capacity = capacity or measured
            tell(f"capacity {measured:.1f} requests/s, {tokens_per_s:.0f} tokens/s")
            phases: list[Phase] = []
            crowds = []
            for factor in (*factors, factors[0]):
                last = len(phases) == len(factors)
                phase, waiting = await self._phase(
                    wire, factor, capacity, seconds + RECOVERY_S * last, drains=len(phases) < len(factors) - 1
                )
                crowds.append(waiting)
                phases.append(phase)
                tell(f"{factor:g}x: goodput {share(phase.goodput, tokens_per_s)}, {phase.num_refused} refused")
            await asyncio.gather(*(task for crowd in crowds for task in crowd))
        return OverloadReport(capacity=measured, tokens_per_s=tokens_per_s, phases=tuple(phases))

    async def _capacity(self, wire: Wire, seconds: float) -> tuple[float, float]:
        """Requests and tokens a second while there is always another one that waits."""
        began = time.monotonic()
        crowd = _Crowd(began)

        async def keep_asking() -> None:
            while time.monotonic() < began + SETTLING_S + seconds:
                await self._client(wire, crowd)

        await asyncio.gather(*(keep_asking() for _ in range(2 * self._load.num_seats)))
        tokens_per_s = _between(crowd.tokens, began + SETTLING_S, began + SETTLING_S + seconds) / seconds
        return tokens_per_s / self._load.num_tokens, tokens_per_s

    async def _phase(
        self, wire: Wire, factor: float, capacity: float, seconds: float, *, drains: bool
    ) -> tuple[Phase, list[asyncio.Task[None]]]:
        """Offers a multiple of the capacity. With `drains`, waits for all that came of it, which are else returned."""
        began = time.monotonic()
        crowd = _Crowd(began)
        tasks: list[asyncio.Task[None]] = []
        due, work = began, None
        while (due := due + self._rng.expovariate(factor * capacity)) < began + SETTLING_S + seconds:
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            crowd.late_s.append(time.monotonic() - due)
            if work is None and due >= began + SETTLING_S:
                work = await self._work(wire)
            tasks.append(asyncio.ensure_future(self._client(wire, crowd)))
        start, stop = began + SETTLING_S, began + SETTLING_S + seconds
        await asyncio.sleep(max(stop - time.monotonic(), 0.0))
        mean_batch = _rate(work or (0, 0), await self._work(wire))
        resident_bytes = self._target.resident_bytes()
        answers = [task for task in tasks if not task.done()]
        if drains:
            await asyncio.gather(*answers)
        else:  # of those that are being answered now, what came in time counts as well
            await asyncio.wait(answers or [asyncio.ensure_future(asyncio.sleep(0))], timeout=self._answer_s(capacity))
        phase = Phase(
            factor=factor,
            seconds=seconds,
            goodput=_between(crowd.tokens, start, stop) / seconds,
            num_offered=len(tasks),
            num_refused=len(crowd.refusal_s),
            num_failed=crowd.num_failed,
            first_s=tuple(crowd.first_s),
            refusal_s=tuple(crowd.refusal_s),
            late_s=tuple(crowd.late_s),
            mean_batch=mean_batch,
            resident_bytes=resident_bytes,
        )
        return phase, [task for task in tasks if not task.done()]

    async def _work(self, wire: Wire) -> tuple[int, int]:
        """Steps of the engine so far, and tokens computed in them."""
        answer = await wire.ask("GET", "/server_info")
        stats = json.loads(await answer.read())["stats"]
        return stats["steps_total"], stats["computed_tokens_total"]

    def _answer_s(self, capacity: float) -> float:
        """Seconds that an answer takes in a full batch."""
        return self._load.num_seats / capacity

    async def _client(self, wire: Wire, crowd: _Crowd) -> None:
        came = time.monotonic()
        for attempt in range(RETRIES + 1):
            try:
                answer = await wire.ask("POST", "/v1/completions", self._body)
                if answer.status == 200:
                    await self._take(answer, crowd, came)
                    return
                await answer.read()
            except (OSError, EOFError):
                crowd.num_failed += 1
                return
            if answer.status not in (429, 503):
                crowd.num_failed += 1
                return
            crowd.refusal_s.append(answer.head_s - answer.sent_s)
            if attempt < RETRIES:
                await asyncio.sleep(self._wait_s(answer, attempt))

    def _wait_s(self, answer: HttpAnswer, attempt: int) -> float:
        told = float(answer.headers.get("retry-after", "0"))
        if 0 < told <= LONGEST_WAIT_S:
            return told
        return float(min(0.5 * 2.0**attempt, 8.0) * (1 - 0.25 * self._rng.random()))

    async def _take(self, answer: HttpAnswer, crowd: _Crowd, came: float) -> None:
        crowd.first_s.append((came - crowd.began, answer.head_s - answer.sent_s))
        times, last = [], b""
        async for part in answer.parts():
            last = part
            times += [time.monotonic()] * part.count(b'"choices"')
        if not last.endswith(b"data: [DONE]\n\n"):
            crowd.num_failed += 1
            return
        # Chunks are tokens as a rule; where several came as one, or one more says how it ended, shares make up for it.
        crowd.tokens += [times[index * len(times) // self._load.num_tokens] for index in range(self._load.num_tokens)]


def _rate(before: tuple[int, int], after: tuple[int, int]) -> float:
    return (after[1] - before[1]) / max(after[0] - before[0], 1)


def _between(times: Sequence[float], start: float, stop: float) -> int:
    return sum(start <= moment < stop for moment in times)
