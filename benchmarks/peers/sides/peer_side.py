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

MARK = "@bench "
"""Begins a line that is meant for the parent; all others are chatter of libraries."""

ENGINES = {
    "bough": "peer_bough.BoughEngine",
    "llama.cpp": "peer_llama_cpp.LlamaCppEngine",
    "openvino": "peer_openvino.OpenVinoEngine",
    "vllm": "peer_vllm.VllmEngine",
    "transformers": "peer_transformers.TransformersEngine",
}
"""Engines that are given prompts as tokens: the module beside this one, and its class, made with the options."""

CLIENTS = {
    "bough": "peer_bough.BoughClient",
    "openvino": "peer_openvino.OpenVinoClient",
    "llama.cpp": "peer_llama_cpp.LlamaCppClient",
    "llama.cpp server": "peer_http.ServerClient",
    "vllm": "peer_http.ServerClient",
    "guidance": "peer_guidance.GuidanceClient",
    "outlines": "peer_outlines.OutlinesClient",
    "sglang": "peer_sglang.SglangClient",
}
"""Engines that are given programs, by a client."""

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
        """Runs programs, and begins none after `stop_s`; see `plan.check` for what it returns.

        Raises:
            NotImplementedError: there are no means for these.
        """


Job = Callable[[Any, dict[str, Any]], dict[str, Any]]


class _Clock:
    """Seconds since it was made, and processor seconds of this process and its children."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), cpu_seconds()

    def answer(self, tokens: list[list[int]]) -> dict[str, Any]:
        cpu_s = cpu_seconds() - self._cpu
        return {"seconds": time.perf_counter() - self._wall, "cpu_s": cpu_s, "tokens": tokens}


def _generate(engine: Engine, message: dict[str, Any]) -> dict[str, Any]:
    clock = _Clock()
    return clock.answer(engine.generate(message["prompts"], message["num_tokens"]))


def _constrained(engine: Engine, message: dict[str, Any]) -> dict[str, Any]:
    clock = _Clock()
    return clock.answer(engine.constrained(message["prompts"], message["schema"], message["num_tokens"]))


def _chat(engine: Engine, message: dict[str, Any]) -> dict[str, Any]:
    """`chats` holds the user's turns of each, as tokens; all chats go on turn by turn, with their own answers."""
    chats: list[list[list[int]]] = message["chats"]
    texts: list[list[int]] = [[] for _ in chats]
    answers: list[list[int]] = []
    clock = _Clock()
    for turn in range(len(chats[0])):
        texts = [text + chat[turn] for text, chat in zip(texts, chats, strict=True)]
        answers = engine.generate(texts, message["num_tokens"])
        texts = [text + answer for text, answer in zip(texts, answers, strict=True)]
    return clock.answer(answers)


def _shared(engine: Engine, message: dict[str, Any]) -> dict[str, Any]:
    """The first prompt alone, and then all: what they begin with is there for caches of prefixes to find."""
    clock = _Clock()
    engine.generate(message["prompts"][:1], 1)
    return clock.answer(engine.generate(message["prompts"], message["num_tokens"]))


def _score(engine: Engine, message: dict[str, Any]) -> dict[str, Any]:
    logprobs, likeliest = engine.score(message["tokens"])
    return {"logprobs": logprobs, "likeliest": likeliest}


def _programs(client: Client, message: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    result = client.run(message["plans"], message["at_once"], message["stop_s"])
    return {"seconds": time.perf_counter() - started} | result


def _memory(engine: object, message: dict[str, Any]) -> dict[str, Any]:
    return {"peak_bytes": peak_bytes()}


JOBS: dict[str, Job] = {
    "generate": _generate,
    "constrained": _constrained,
    "chat": _chat,
    "shared": _shared,
    "score": _score,
    "programs": _programs,
    "memory": _memory,
}


def peak_bytes() -> int:
    """The most memory (resident set) that this process and each of its children has had; 0 where nobody tells."""
    lines = [line for status, _ in _family(os.getpid()) for line in status.splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def cpu_seconds() -> float:
    """Processor seconds of this process and its children so far, in hundredths."""
    counts = [stat.rpartition(")")[2].split()[11:13] for _, stat in _family(os.getpid())]
    ticks = sum(int(user) + int(system) for user, system in counts)
    return ticks / os.sysconf("SC_CLK_TCK") if counts else time.process_time()


def _family(pid: int) -> list[tuple[str, str]]:
    """Status and stat of a process and its children, as the system tells them; nothing of one that has ended."""
    path = Path(f"/proc/{pid}")
    try:
        texts = (path / "status").read_text(), (path / "stat").read_text()
        children = " ".join(task.read_text() for task in path.glob("task/*/children")).split()
    except OSError:
        return []
    return [texts, *(each for child in children for each in _family(int(child)))]


def serve(engine: Engine | Client) -> int:
    """Does jobs until there are no more."""
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        try:
            send(JOBS[message["job"]](engine, message))
        except Exception as error:  # noqa: BLE001  a peer may raise anything; the other side goes on
            send({"error": f"{type(error).__name__}: {error}"[:500]})
    return 0


def send(message: dict[str, Any]) -> None:
    print(MARK + json.dumps(message), flush=True)


def load(place: str, options: dict[str, Any]) -> Any:
    """The engine or client of ENGINES or CLIENTS."""
    module, _, name = place.partition(".")
    return getattr(importlib.import_module(f".{module}", __package__), name)(options)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("prompts", "programs"))
    parser.add_argument("engine", choices=sorted({*ENGINES, *CLIENTS}))
    parser.add_argument("options", help="a JSON object: model, threads, max_num_seqs, and what else the engine reads")
    arguments = parser.parse_args(argv)
    places = ENGINES if arguments.kind == "prompts" else CLIENTS
    started = time.perf_counter()
    engine = load(places[arguments.engine], json.loads(arguments.options) | {"client": arguments.engine})
    send({"ready": time.perf_counter() - started})
    return serve(engine)


if __name__ == "__main__":
    sys.exit(main())
