"""Promise: a program in which Python reads nothing is one request, and says the same as one gen at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import bough

from .server_process import ServerProcess

pytestmark = [pytest.mark.model, pytest.mark.slow]

NUM_BRANCHES, NUM_GENS = 3, 4
TOPICS = ("the sea", "a mountain", "the night")
NAMES = [f"line_{number}" for number in range(NUM_GENS)]


@bough.function
def poem(s: bough.State, *, eager: bool) -> None:
    """Writes poems in branches; greedy and seeded lines take turns. With `eager`, each line is read at once."""
    s += "Short lines, written by a poet who counts every word.\n"
    branches = s.fork(NUM_BRANCHES)
    for branch, topic in zip(branches, TOPICS, strict=True):
        branch += f"A poem about {topic}:\n"
        for number, name in enumerate(NAMES):
            line = bough.gen(name, max_tokens=12, stop="\n", temperature=number % 2, seed=number)
            branch += f"{number + 1}. " + line + "\n"
            if eager:
                assert isinstance(branch[name], str)
    branches.join()


def counts(server: ServerProcess) -> tuple[float, float]:
    """Answers to /v1/programs, as the HTTP side counts them, and programs, as the engine counts them."""
    metrics = server.metrics()
    responses = metrics.get('bough_http_responses_total{path="/v1/programs",status="200"}', 0.0)
    return responses, metrics["bough_programs_total"]


def test_a_program_without_reads_is_one_request(server: ServerProcess, figures: Callable[[str], None]) -> None:
    lines: list[list[list[str]]] = []
    requests: list[tuple[float, float]] = []
    with bough.HttpBackend(server.url) as backend:
        for eager in (False, True):
            before = counts(server)
            state = poem.run(eager=eager, backend=backend)
            lines.append([state[name] for name in NAMES])
            requests.append(tuple(b - a for a, b in zip(before, counts(server), strict=True)))  # type: ignore[arg-type]
    figures(
        f"{NUM_BRANCHES} branches of {NUM_GENS} gens: {requests[0][0]:.0f} request; "
        f"with every value read at once: {requests[1][0]:.0f}; outputs equal: {lines[0] == lines[1]}"
    )
    assert requests[0] == (1, 1)
    assert min(requests[1]) >= NUM_BRANCHES * NUM_GENS
    assert len({text for texts in lines[0] for text in texts}) > NUM_BRANCHES  # they did write something
    assert lines[0] == lines[1]
