"""Constraints meant to hang or exhaust a server: each is to be refused in time, and nobody else may notice.

python -m tests.constrain.search.hostile --count 50
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from bough.benchmarks.harness.report import percentile

LIMIT_S = 6.0
_START_S = 180.0
_KEY = "test-key"
_CHAT = "/v1/chat/completions"
_REFUSED = (400, 503)
"""Too complex, and too much while others wait."""


class Hostile(msgspec.Struct):
    """Outcomes of hostile requests, and of the ordinary ones that ran beside them.

    slow        name and seconds of those that were answered later than the limit
    wrong       name and status of those that were answered with something else than a refusal or a document
    others_ms   how long ordinary requests took while the hostile ones were under way; quiet_ms: before
    harmed      ordinary requests that failed or gave another text than before
    """

    total: int
    refused: int
    answered: int
    slowest_s: float
    slow: list[tuple[str, float]]
    wrong: list[tuple[str, int]]
    quiet_ms: list[float]
    others_ms: list[float]
    harmed: int

    @property
    def passed(self) -> bool:
        return not (self.slow or self.wrong or self.harmed)


def hostile_bodies(count: int = 50) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests, each with a name, whose constraints take any naive compiler beyond its time or memory."""
    makers: tuple[Callable[[int], dict[str, Any]], ...] = (
        lambda n: {"guided_regex": f"(a|b)*a(a|b){{{n + 14}}}(c|d)*c(c|d){{{n + 14}}}"},
        lambda n: {"guided_regex": f"((a{{1,{90 + n}}}){{1,90}}){{1,90}}"},
        lambda n: _schema({"allOf": [{"anyOf": [_record(i, n), _record(i + 1, n)]} for i in range(24)]}),
        lambda n: _schema({"patternProperties": {f"{chr(97 + i)}.*{n}": {"minimum": i} for i in range(24)}}),
        lambda n: _schema({"not": {"anyOf": [{"properties": {f"k{i}": {"const": n}}} for i in range(40)]}}),
        lambda n: _schema({"type": "string", "minLength": 10**9 + n}),
        lambda n: _schema({"oneOf": [_record(i, n, required=False) for i in range(30)]}),
        lambda n: _schema({"type": "array", "uniqueItems": True, "items": {"enum": list(range(5_000 + n))}}),
        lambda n: _schema(_nested(n)),
        lambda n: {"ebnf": f'root ::= a\na ::= a a | a a a | "x{n}" | b\nb ::= a b | b a | ""'},
        lambda n: _schema({"type": "string", "pattern": f"^(([a-z]{{1,200}} ?){{1,200}}x{n}){{1,200}}$"}),
        lambda n: _schema({"allOf": [{"pattern": f"(a|b){{{i + n}}}.*[ab]{{{i}}}"} for i in range(3, 30)]}),
    )
    for number in range(count):
        maker = makers[number % len(makers)]
        yield f"{number % len(makers)}.{number // len(makers)}", maker(number // len(makers))


def _schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def _record(index: int, number: int, *, required: bool = True) -> dict[str, Any]:
    record: dict[str, Any] = {"properties": {f"p{index}": {"type": "string", "pattern": f"{number}.*{index}"}}}
    return record | ({"required": [f"p{index}"]} if required else {})


def _nested(number: int) -> Any:
    schema: Any = {"type": "integer", "minimum": number}
    for level in range(400):
        schema = {"type": "object", "properties": {"a": schema}} if level % 2 else {"type": "array", "items": schema}
    return schema


def listed_bodies(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Group F of a list of bad requests: constraints of every kind that are wrong."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["id"].startswith("F") and "body" in row:
            yield row["id"], expanded(row["body"])


def expanded(value: Any) -> Any:
    """The markers of bad_requests.jsonl, replaced by what they stand for."""
    if isinstance(value, str) and value.startswith("@rep:"):
        text, times = value[5:].rsplit(":", 1)
        return text * int(times)
    if isinstance(value, list):
        return [expanded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "@list" in value:
        return [expanded(value["@list"][0])] * value["@list"][1]
    if "@keys" in value:
        prefix, item, count = value["@keys"]
        return {f"{prefix}{index}": item for index in range(count)}
    if "@nest" in value:
        template, inner, times = value["@nest"]
        text = json.dumps(inner)
        for _ in range(times):
            text = json.dumps(template).replace('"@hole"', text)
        return json.loads(text)
    return {key: expanded(item) for key, item in value.items()}


def measure_hostile(
    model: str, bodies: Sequence[tuple[str, dict[str, Any]]], *, concurrency: int = 8, limit_s: float = LIMIT_S
) -> Hostile:
    """Sends all bodies to a server of its own, so many at a time, beside a steady stream of ordinary requests."""
    with _server(model) as url:
        result = asyncio.run(_attack(url, bodies, concurrency))
    result.slow = [(name, elapsed_s) for name, elapsed_s in result.slow if elapsed_s > limit_s]
    return result


async def _attack(url: str, bodies: Sequence[tuple[str, dict[str, Any]]], concurrency: int) -> Hostile:
    result = Hostile(len(bodies), 0, 0, 0.0, [], [], [], [], 0)
    limits = httpx.Limits(max_connections=concurrency + 4)
    headers = {"authorization": f"Bearer {_KEY}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60.0, limits=limits) as client:
        expected = await _ordinary(client)
        for _ in range(20):
            await _timed(client, result.quiet_ms, result, expected)
        over = asyncio.Event()
        stream = asyncio.create_task(_steady(client, over, result, expected))
        places = asyncio.Semaphore(concurrency)

        async def send(name: str, body: dict[str, Any]) -> None:
            async with places:
                await _send(client, name, body, result)

        await asyncio.gather(*(send(name, body) for name, body in bodies))
        over.set()
        await stream
    return result


async def _send(client: httpx.AsyncClient, name: str, body: dict[str, Any], result: Hostile) -> None:
    content = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8} | body
    started = time.perf_counter()
    try:
        status = (await client.post(_CHAT, json=content)).status_code
    except httpx.HTTPError:
        status = 0
    elapsed_s = time.perf_counter() - started
    result.slowest_s = max(result.slowest_s, elapsed_s)
    if elapsed_s > LIMIT_S:
        result.slow.append((name, elapsed_s))
    result.refused += status in _REFUSED
    result.answered += status == 200
    if status != 200 and status not in _REFUSED:
        result.wrong.append((name, status))


async def _steady(client: httpx.AsyncClient, over: asyncio.Event, result: Hostile, expected: str) -> None:
    while not over.is_set():
        await _timed(client, result.others_ms, result, expected)
        await asyncio.sleep(0.05)


async def _timed(client: httpx.AsyncClient, times_ms: list[float], result: Hostile, expected: str) -> None:
    started = time.perf_counter()
    with contextlib.suppress(httpx.HTTPError):
        text = await _ordinary(client)
        times_ms.append((time.perf_counter() - started) * 1e3)
        result.harmed += text != expected
        return
    result.harmed += 1


async def _ordinary(client: httpx.AsyncClient) -> str:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Berlin"]}}, "required": ["city"]}
    body = {"model": "m", "messages": [{"role": "user", "content": "A city?"}], "temperature": 0, "max_tokens": 24}
    response = await client.post(_CHAT, json=body | _schema(schema | {"additionalProperties": False}))
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])


def summary(result: Hostile) -> str:
    """One line."""
    return (
        f"{result.refused} refused and {result.answered} answered of {result.total}, the slowest after "
        f"{result.slowest_s:.1f} s; {len(result.slow)} late, {len(result.wrong)} wrong; others p99 "
        f"{percentile(result.others_ms, 99):.0f} ms (before {percentile(result.quiet_ms, 99):.0f}), "
        f"{result.harmed} harmed"
    )


@contextmanager
def _server(model: str) -> Iterator[str]:
    """A server of its own on a free port of this machine, which takes one key."""
    options = ("--served-model-name", "m", "--max-model-len", "4096", "--max-body-bytes", str(4 << 20), "--port", "0")
    environment = {**os.environ, "BOUGH_API_KEY": _KEY}
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-P", "-m", "bough.cli", "serve", "--model", model, *options]
        process = subprocess.Popen(command, stderr=log, env=environment)
        try:
            yield _url(process, log)
        finally:
            process.terminate()
            process.wait()


def _url(process: subprocess.Popen[bytes], log: Any) -> str:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        log.seek(0)
        if found := re.search(r"listening on (http://\S+)", log.read()):
            return found[1]
        time.sleep(0.2)
    raise RuntimeError(f"the server was not ready within {_START_S:.0f} s")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.constrain.search.hostile", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="what the server loads (default: %(default)s)")
    parser.add_argument("--count", type=int, default=50, help="bodies made here (default: %(default)s)")
    parser.add_argument("--listed", type=Path, metavar="FILE", help="a list of bad requests to send, too")
    arguments = parser.parse_args(argv)
    bodies = list(hostile_bodies(arguments.count))
    if arguments.listed is not None:
        bodies += listed_bodies(arguments.listed)
    result = measure_hostile(arguments.model, bodies)
    print(summary(result))
    return not result.passed


if __name__ == "__main__":
    sys.exit(main())
