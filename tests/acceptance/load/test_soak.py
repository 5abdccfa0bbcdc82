"""Promise: each of ten thousand requests gets what it would get alone, whatever befalls the others; nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bough.benchmarks.harness.report import percentile
from bough.benchmarks.harness.wire import HttpAnswer, Wire

from ..server_process import ServerProcess
from .mix import BAD, CHOICES, MOST_TOKENS, PATTERN, TOOLS, Ask, body_of, make_ask, make_program, submission
from .resources import family, resident, slope, sockets_and_threads

pytestmark = [pytest.mark.slow, pytest.mark.alone]

POOL = MOST_TOKENS * 5 // 4
MAX_RUNNING, MAX_WAITING = 32, 112
MOST_OPEN = 110
"""Requests that are open at a time at most: more than the server takes."""
MAX_THREADS = 64
"""Threads that tools have, which come when they are needed."""
PATIENCE_S = 1.0
"""Longest wait before a refused request is sent again, whatever `retry-after` says."""

BEHAVIOURS = {
    "reads": 75, "leaves": 8, "hangs up": 4, "drops": 2, "is wrong": 9, "reads slowly": 1, "has 50 ms": 1
}  # fmt: skip
"""Acts of clients, by weight."""

LATE = {"generation_timeout", "queue_timeout"}


@dataclass
class Heard:
    """The choices of an answer, complete or not.

    error   the code of the error in its place, or after its beginning
    """

    status: int = 200
    error: str | None = None
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    scores: dict[int, list[float]] = field(default_factory=dict)
    num_ends: int = 0

    def add(self, data: dict[str, Any]) -> None:
        if "error" in data:
            assert self.error is None, "two errors"
            self.error, self.num_ends = data["error"]["code"], self.num_ends + 1
        for choice in data.get("choices", ()):
            part = choice.get("delta") or choice.get("message") or {}
            index, text = choice["index"], choice.get("text", part.get("content")) or ""
            self.texts[index] = self.texts.get(index, "") + text
            if choice["finish_reason"] is not None:
                assert index not in self.reasons, "an end after the end"
                self.reasons[index] = choice["finish_reason"]
            if choice.get("logprobs") is not None:
                self.scores.setdefault(index, []).extend(_numbers(choice["logprobs"]))

    def add_event(self, event: bytes) -> None:
        for line in event.split(b"\n\n"):
            if line == b"data: [DONE]":
                self.num_ends += 1
            elif line.startswith(b"data: "):
                assert not self.num_ends, "an event after the last one"
                self.add(json.loads(line[6:]))


def _numbers(logprobs: dict[str, Any]) -> list[float]:
    return [0.0 if number is None else number for number in logprobs["token_logprobs"]]


@dataclass
class Told:
    """The events of a program: its values, and how it ended."""

    values: dict[tuple[int, str, int], tuple[object, ...]] = field(default_factory=dict)
    end: tuple[object, ...] = ()

    def add_event(self, event: bytes) -> None:
        for line in event.split(b"\n\n"):
            if line.startswith(b"data: "):
                data = json.loads(line[6:])
                assert not self.end, "an event after the last one"
                if data["type"] == "value":
                    key = (data["branch"], data["name"], data.get("turn", 0))
                    self.values[key] = (data["text"], data["finish_reason"], data.get("samples"))
                elif data["type"] == "done":
                    self.end = ("done", tuple(sorted(data["texts"].items())))
                elif data["type"] == "failed":
                    self.end = ("failed", data["error"]["code"], data.get("index"))


# What each would get alone


class References:
    """Answers of a server that does one thing at a time, with room for it and without a cache."""

    def __init__(self, num_asks: int, num_programs: int, folder: Path) -> None:
        self.num_asks, self.num_programs = num_asks, num_programs
        options = ["--num-pages", "4096", "--max-num-seqs", "1", "--no-enable-prefix-caching"]
        with ServerProcess(*_options(folder), *options) as server:
            self.asks, self.programs = asyncio.run(self._gather(server))

    async def _gather(self, server: ServerProcess) -> tuple[list[Heard], list[list[Told]]]:
        async with Wire(server.url) as wire:
            asks = []
            for index in range(self.num_asks):
                asks.append(await _whole(wire, make_ask(index)))
                assert asks[-1].status == 200, (make_ask(index), asks[-1])
            programs = [await _run_program(wire, index, f"p{index}") for index in range(self.num_programs)]
            return asks, programs


async def _whole(wire: Wire, ask: Ask, headers: dict[str, str] | None = None) -> Heard:
    answer = await wire.ask("POST", ask.path, body_of(ask), headers)
    heard = Heard(answer.status)
    heard.add(json.loads(await answer.read()))
    return heard


async def _run_program(wire: Wire, index: int, name: str) -> list[Told]:
    """Runs all submissions of a program; a kept state is dropped after the last."""
    parts, told = make_program(index), []
    for number, ops in enumerate(parts):
        body = submission(ops, name, keep=len(parts) > 1, resume=number > 0)
        answer = await _insist(lambda body=body: wire.ask("POST", "/v1/programs", body))  # type: ignore[misc]
        assert answer.status == 200, await answer.read()
        one = Told()
        async for event in answer.parts():
            one.add_event(event)
        told.append(one)
        if one.end[0] == "failed":  # and its state is gone
            break
    if len(parts) > 1:
        assert (await (await wire.ask("DELETE", f"/v1/programs/{name}")).read()).endswith(b"true}")
    return told


async def _insist(send: Callable[[], Awaitable[HttpAnswer]], refused: Counter[int] | None = None) -> HttpAnswer:
    """Sends until it is not refused for being too much."""
    while True:
        answer = await send()
        if answer.status not in (429, 503):
            return answer
        body = json.loads(await answer.read())
        assert body["error"]["code"] == "engine_overloaded", body
        wait_s = int(answer.headers["retry-after"])
        assert 1 <= wait_s <= 60
        if refused is not None:
            refused[answer.status] += 1
        await asyncio.sleep(min(wait_s, PATIENCE_S))


# The crowd


def _options(folder: Path) -> list[str]:
    tools = folder / "tools_of_soak.py"
    tools.write_text(TOOLS)
    # In bfloat16, which torch computes in where the processor can, an answer depends on what is beside it.
    model = ["--model", str(folder), "--served-model-name", "tiny", "--dtype", "float32"]
    return [*model, "--tools", str(tools), "--no-request-log"]


class Soak:
    """A run against `server`. All that clients do is drawn from `seed`."""

    def __init__(self, server: ServerProcess, references: References, seed: int) -> None:
        self.server = server
        self.references = references
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.refused: Counter[int] = Counter()
        self.memory: list[tuple[int, int]] = []  # things done, bytes of the server and the engine

    async def run(self, num_requests: int, num_programs: int) -> None:
        todo = ["request"] * num_requests + ["program"] * num_programs
        self.rng.shuffle(todo)
        slots = asyncio.Semaphore(MOST_OPEN)
        async with (
            Wire(self.server.url) as wire,
            Wire(self.server.url, buffer=4096) as slow,
            asyncio.TaskGroup() as tasks,
        ):
            for number, what in enumerate(todo):
                await slots.acquire()
                work = self._program(wire, number) if what == "program" else self._request(wire, slow)
                task = tasks.create_task(work)
                task.add_done_callback(lambda _: slots.release())
                if self.rng.random() < 1 / 60:  # a burst is over
                    await asyncio.sleep(self.rng.random() * 0.3)
                if number % max(len(todo) // 50, 1) == 0:
                    self._note(number, len(todo))

    def _note(self, number: int, total: int) -> None:
        self.memory.append((number, resident(family(self.server.process.pid))))
        if len(self.memory) % 5 == 1:
            print(f"soak: {number} of {total}, {self.memory[-1][1] >> 20} MiB, refused {self.refused.total()} times")

    async def _request(self, wire: Wire, slow: Wire) -> None:
        (what,) = self.rng.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))
        index, stream = self.rng.randrange(self.references.num_asks), self.rng.random() < 0.5
        ask, expected = make_ask(index), self.references.asks[index]
        match what:
            case "reads":
                heard = await self._answer(wire, ask, stream=stream)
                _assert_equal(ask, heard, expected)
            case "leaves":
                await self._leave(wire, ask, expected)
            case "hangs up":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.rng.random() * 0.2):
                        await (await wire.ask("POST", ask.path, body_of(ask))).read()
            case "drops":
                for _ in range(2):
                    assert (await (await wire.ask("DELETE", "/v1/programs/nobody")).read()).endswith(b"true}")
            case "is wrong":
                await self._be_wrong(wire)
            case "reads slowly":
                heard = await self._answer(slow, ask, stream=True, pause_s=0.01)
                _assert_equal(ask, heard, expected)
            case _:
                heard = await self._answer(wire, ask, stream=stream, headers={"x-request-timeout-ms": "50"})
                if heard.error is None:
                    _assert_equal(ask, heard, expected)
                else:
                    assert heard.error in LATE and heard.status in (200, 503, 504), heard
                    _assert_begun(heard, expected)
        self.done[what] += 1

    async def _answer(
        self, wire: Wire, ask: Ask, *, stream: bool, pause_s: float = 0.0, headers: dict[str, str] | None = None
    ) -> Heard:
        send = lambda: wire.ask("POST", ask.path, body_of(ask, stream=stream), headers)  # noqa: E731
        answer = await (_insist(send, self.refused) if headers is None else send())
        while answer.status == 503 and headers is not None:
            body = json.loads(await answer.read())
            if body["error"]["code"] in LATE:
                return Heard(503, body["error"]["code"])
            await asyncio.sleep(PATIENCE_S)
            answer = await send()
        heard = Heard(answer.status)
        if not answer.headers["content-type"].startswith("text/event-stream"):
            heard.add(json.loads(await answer.read()))
            return heard
        async for event in answer.parts():
            heard.add_event(event)
            await asyncio.sleep(pause_s)
        assert heard.num_ends == 1, "a stream without its last event"
        return heard

    async def _leave(self, wire: Wire, ask: Ask, expected: Heard) -> None:
        """Reads some events of a stream, perhaps none, and hangs up."""
        answer = await _insist(lambda: wire.ask("POST", ask.path, body_of(ask, stream=True)), self.refused)
        heard, left = Heard(answer.status), self.rng.randrange(21)
        parts = answer.parts()
        while left and (event := await anext(parts, None)) is not None:
            heard.add_event(event)
            left -= 1
        await parts.aclose()  # type: ignore[attr-defined]
        answer.leave()
        _assert_begun(heard, expected)

    async def _be_wrong(self, wire: Wire) -> None:
        ask, status, code = self.rng.choice(BAD)
        answer = await _insist(lambda: wire.ask("POST", ask.path, body_of(ask)), self.refused)
        error = json.loads(await answer.read())["error"]
        assert answer.status == status and code in (None, error["code"]), (ask, answer.status, error)

    async def _program(self, wire: Wire, number: int) -> None:
        index = self.rng.randrange(self.references.num_programs)
        if self.rng.random() < 0.1:
            body = submission(make_program(index)[0], f"left-{number}", keep=self.rng.random() < 0.5, resume=False)
            answer = await _insist(lambda: wire.ask("POST", "/v1/programs", body), self.refused)
            await anext(answer.parts(), b"")
            answer.leave()
            await (await wire.ask("DELETE", f"/v1/programs/left-{number}")).read()
            self.done["leaves a program"] += 1
            return
        told, expected = await _run_program(wire, index, f"program-{number}"), self.references.programs[index]
        if any(one.end[1] == "engine_overloaded" for one in told):
            self.done["overloaded programs"] += 1
            return
        assert [one.end for one in told] == [one.end for one in expected], (index, told, expected)
        assert [one.values for one in told] == [one.values for one in expected], (index, told, expected)
        self.done["programs"] += 1


def _assert_begun(heard: Heard, expected: Heard) -> None:
    """Said nothing but a beginning of what was to be said."""
    for index, text in heard.texts.items():
        assert expected.texts[index].startswith(text), (heard, expected)


def _assert_equal(ask: Ask, heard: Heard, expected: Heard) -> None:
    assert heard.error is None and (heard.texts, heard.reasons) == (expected.texts, expected.reasons), (ask, heard)
    for index, scores in expected.scores.items():
        assert heard.scores[index] == pytest.approx(scores, abs=1e-4), ask
    for index, text in heard.texts.items():
        if heard.reasons[index] == "stop" and ask.family == "schema":
            assert set(json.loads(text)) == {"name", "kind"}
        elif heard.reasons[index] == "stop" and ask.family == "regex":
            assert re.fullmatch(f"{PATTERN}|(ab|c)*x", text) or text in CHOICES


class Probe:
    """Asks /livez and /readyz again and again, from a thread; keeps how long each took, and what was no 200."""

    def __init__(self, server: ServerProcess) -> None:
        self.seconds: list[float] = []
        self.wrong: list[tuple[str, int]] = []
        self._address = re.findall(r"//([\d.]+):(\d+)", server.url)[0]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(self._address[0], int(self._address[1]), timeout=60)
        while not self._over.wait(0.03):
            for path in ("/livez", "/readyz"):
                asked = time.monotonic()
                connection.request("GET", path)
                answer = connection.getresponse()
                answer.read()
                self.seconds.append(time.monotonic() - asked)
                if answer.status != 200:
                    self.wrong.append((path, answer.status))
        connection.close()

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def crowded(folder: Path) -> Iterator[ServerProcess]:
    """A server with seats for many and pages for one."""
    options = ["--num-pages", str(POOL), "--max-num-seqs", str(MAX_RUNNING), "--max-waiting", str(MAX_WAITING)]
    with ServerProcess(*_options(folder), *options, "--max-batch-tokens", "64") as server:
        yield server


def test_soak(folder: Path, crowded: ServerProcess, full: bool, figures: Callable[[str], None]) -> None:
    num_requests, num_programs = (10_000, 2_000) if full else (400, 80)
    started = time.monotonic()
    references = References(600, 60, folder) if full else References(60, 12, folder)
    print(f"soak: what each would get alone took {time.monotonic() - started:.1f} s")
    pids = family(crowded.process.pid)
    assert len(pids) == 2
    soak = Soak(crowded, references, seed=0)
    asyncio.run(soak.run(num_requests // 10, num_programs // 10))  # all threads are there by then
    crowded.wait_until(_quiet, 30.0)
    before = sockets_and_threads(pids)
    soak.memory.clear()
    began = time.monotonic()
    with Probe(crowded) as probe:
        asyncio.run(soak.run(num_requests, num_programs))
        seconds = time.monotonic() - began
    crowded.wait_until(_quiet, 30.0)
    found = crowded.metrics()
    preempted = found["bough_preemptions_total"] / found["bough_requests_total"]
    grown = slope(soak.memory)
    figures(
        f"{num_requests} requests and {num_programs} programs in {seconds:.0f} s: {dict(soak.done)}, "
        f"{soak.refused.total()} refusals; {preempted:.0%} preemptions a request; {grown:.0f} bytes each in the last "
        f"half; /livez and /readyz p99.9 {1e3 * percentile(probe.seconds, 99.9):.0f} ms of {len(probe.seconds)}"
    )
    assert preempted >= 0.3, "the pool is not small enough"
    assert not probe.wrong
    _assert_nothing_left(crowded)
    assert pids == family(crowded.process.pid)
    after = sockets_and_threads(pids)
    assert after[0] <= before[0] and after[1] <= before[1] + MAX_THREADS, (before, after)
    if full:
        assert grown < 2048, soak.memory


def _quiet(found: dict[str, float]) -> bool:
    return found["bough_running"] == found["bough_waiting"] == found["bough_locked_pages"] == 0


def _assert_nothing_left(server: ServerProcess) -> None:
    found = server.metrics()
    assert found["bough_states"] == 0
    assert found["bough_restarts_total"] == 0
    ended = sum(value for name, value in found.items() if name.startswith("bough_finished_total"))
    assert ended == found["bough_requests_total"], "not every request has ended once"
    assert not [line for line in server.lines if "ERROR" in line or "Traceback" in line]
    asyncio.run(_flush(server))
    found = server.metrics()
    assert found["bough_free_pages"] == found["bough_num_pages"]


async def _flush(server: ServerProcess) -> None:
    async with Wire(server.url) as wire:
        assert json.loads(await (await wire.ask("POST", "/flush_cache", b"{}")).read()) == {"flushed": True}
