"""One side of a comparison on the CPU: an engine in a process of its own that does jobs when it is told to.

Ours runs as a module of the package. In a peer's interpreter this folder is a package by itself, `sides`, so that no
file here imports anything of bough but bough's own side; see `process.side_command`. All sides get the same tokens, or
the same programs.

In comes a line of JSON, {"job": name, ...its arguments}; out goes a line that begins with "@bench ": the answer, or
{"error": text}. A job waits for nothing but its engine; between jobs the process sleeps. The end of the input ends it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

MARK = "@bench "  # begins a line that is meant for the parent; all others are chatter of libraries
KINDS: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("engines.json").read_text())
"""Engines by kind: the module of each, relative to this folder, and what makes it of the options.

prompts    are given prompts as tokens
programs   are given programs, by a client
random     are given prompts, too: on a GPU, of a model of random weights; they generate only
masks      are given texts to compile and tokens to walk
kernels    measure a family of kernels on a GPU
"""

Scores = tuple[list[float] | None, list[int] | None]
"""Log-probability of each token of a text but the first, and the token that the engine would have chosen there.

None: the engine does not tell.
"""


class Engine(Protocol):
    """Engine of a side that is given prompts. A method that an engine has no means for raises NotImplementedError."""

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Greedy, all prompts at once, exactly `num_tokens` each, whatever the tokens mean."""

    def constrained(self, prompts: list[list[int]], schema: str, num_tokens: int) -> list[list[int]]:
        """Greedy under a JSON Schema, all prompts at once, until the engine's own constraint ends or `num_tokens`."""

    def score(self, tokens: list[int]) -> Scores:
        """Scores of a text."""


class Client(Protocol):
    """Engine of a side that is given programs."""

    def run(self, plans: list[Any], at_once: int, stop_s: float) -> dict[str, Any]:
        """Runs programs, and begins none after `stop_s`; see `programs.check` for what it returns. Raises
        NotImplementedError: there are no means for these."""


def _timed(work: Callable[..., list[list[int]]]) -> Callable[..., dict[str, Any]]:
    """A job that answers with the tokens that `work` makes, and the seconds that they took."""

    def job(engine: Engine, **asked: Any) -> dict[str, Any]:
        started = time.perf_counter()
        tokens = work(engine, **asked)
        return {"seconds": time.perf_counter() - started, "tokens": tokens}

    return job


def _chat(engine: Engine, chats: list[list[list[int]]], num_tokens: int) -> list[list[int]]:
    """`chats` holds the user's turns of each, as tokens; all chats go on turn by turn, with their own answers."""
    texts: list[list[int]] = [[] for _ in chats]
    answers: list[list[int]] = []
    for turn in range(len(chats[0])):
        texts = [text + chat[turn] for text, chat in zip(texts, chats, strict=True)]
        answers = engine.generate(texts, num_tokens)
        texts = [text + answer for text, answer in zip(texts, answers, strict=True)]
    return answers


def _shared(engine: Engine, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """The first prompt alone, and then all: what they begin with is there for caches of prefixes to find."""
    engine.generate(prompts[:1], 1)
    return engine.generate(prompts, num_tokens)


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "generate": _timed(lambda engine, **asked: engine.generate(**asked)),
    "constrained": _timed(lambda engine, **asked: engine.constrained(**asked)),
    "chat": _timed(_chat),
    "shared": _timed(_shared),
    "score": lambda engine, tokens: dict(zip(("logprobs", "likeliest"), engine.score(tokens), strict=True)),
    "programs": lambda client, **asked: client.run(**asked),
    "walk": lambda engine, **asked: engine.walk(**asked),
    "measure": lambda family: family.measure(),
    "memory": lambda engine: {"peak_bytes": peak_bytes()},
}
"""By name: the engine, and the rest of the message as arguments, make the answer."""


def peak_bytes() -> int:
    """The most memory (resident set) that this process and each of its children has had; 0 where nobody tells."""
    lines = [line for status in _statuses(os.getpid()) for line in status.splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _statuses(pid: int) -> list[str]:
    """Status of a process and its children, as the system tells it; nothing of one that has ended."""
    path = Path(f"/proc/{pid}")
    try:
        status = (path / "status").read_text()
        children = " ".join(task.read_text() for task in path.glob("task/*/children")).split()
    except OSError:
        return []
    return [status, *(each for child in children for each in _statuses(int(child)))]


def serve(engine: Engine | Client) -> int:
    """Does jobs until there are no more."""
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        try:
            send(JOBS[message.pop("job")](engine, **message))
        except Exception as error:  # noqa: BLE001  a peer may raise anything; the other side goes on
            send({"error": f"{type(error).__name__}: {error}"[:500]})
    return 0


def send(message: dict[str, Any]) -> None:
    print(MARK + json.dumps(message), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("engine", choices=sorted({name for engines in KINDS.values() for name in engines}))
    parser.add_argument("options", help="a JSON object: model, threads, max_num_seqs, and what else the engine reads")
    arguments = parser.parse_args(argv)
    module, _, name = KINDS[arguments.kind][arguments.engine].rpartition(".")
    options = json.loads(arguments.options) | {"client": arguments.engine}
    started = time.perf_counter()
    engine = getattr(importlib.import_module(f".{module}", __package__), name)(options)
    send({"ready": time.perf_counter() - started, "version": getattr(engine, "version", None)})
    return serve(engine)


if __name__ == "__main__":
    sys.exit(main())
