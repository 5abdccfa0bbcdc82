"""What a fresh process costs: seconds until its first token, with its files in the system's cache, and its memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..workloads.prompts import Prompts, Sizes
from .process import Side


@dataclass
class Starts:
    """One side's fresh processes, one after the other. `peak_bytes`: after a long prompt and an answer."""

    name: str
    first_token_s: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)


def start_once(start: Callable[[], Side], found: Starts, prompts: Prompts, sizes: Sizes, limit_s: float) -> None:
    """One fresh process more. `start` must not wait.

    Raises:
        PeerError: it did not come up, or failed, in time.
    """
    deadline = time.monotonic() + limit_s
    (short, long) = prompts.draw(0, 1, sizes.prompt) + prompts.draw(1, 1, sizes.prefill)
    began = time.perf_counter()
    side = start()
    try:
        side.wait_ready(limit_s)
        side.ask("generate", deadline - time.monotonic(), prompts=[short], num_tokens=1)
        found.first_token_s.append(time.perf_counter() - began)
        side.ask("generate", deadline - time.monotonic(), prompts=[long], num_tokens=sizes.answer)
        found.peak_bytes.append(side.ask("memory", deadline - time.monotonic())["peak_bytes"])
    finally:
        side.end()


def take_turns(
    starters: Sequence[tuple[Starts, Callable[[], Side]]],
    num_rounds: int,
    prompts: Prompts,
    sizes: Sizes,
    limit_s: float,
) -> None:
    """`num_rounds` fresh processes of each side, in turn; fewer where there is no time for another.

    Raises:
        PeerError: see start_once.
    """
    deadline, took_s = time.monotonic() + limit_s, 0.0
    for _ in range(num_rounds):
        began = time.monotonic()
        if began + took_s > deadline:
            return
        for found, start in starters:
            start_once(start, found, prompts, sizes, deadline - time.monotonic())
        took_s = time.monotonic() - began
