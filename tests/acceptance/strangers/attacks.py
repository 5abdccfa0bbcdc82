"""Attacks of one key on what it shares with others, and the process that makes them.

Run as a script it attacks a server for some seconds and prints a line of JSON: how often each status was seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

CHAT, COMPLETE, PROGRAMS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/v1/programs", "/tokenize"
HI = [{"role": "user", "content": "hi"}]
BODY_BYTES = 4 << 20
NUM_CONNECTIONS = 24
ANSWER_TIMEOUT_S = 30.0
ENOUGH, PATIENCE = 12, 3

CLOSED = 0
"""Stands for the status of a connection that the server closed without an answer."""

Numbers = Iterator[int]


class Attack(NamedTuple):
    """Requests made over and over, and which statuses the attacker may see.

    request     writes a request, given a number that no other has; or
    talk        talks to the server on a connection of its own, and returns the status that it saw
    """

    name: str
    statuses: frozenset[int]
    request: Callable[[int], bytes] | None = None
    talk: Callable[[Client, int], Awaitable[int]] | None = None


class Client:
    """An attacker on one connection at a time."""

    def __init__(self, port: int, key: str) -> None:
        self.port = port
        self.key = key

    def head(self, method: str, path: str, length: int, *more: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {self.key}", *more]
        return "\r\n".join([*lines, f"content-length: {length}", "connection: close", "", ""]).encode()

    async def send(self, data: bytes) -> int:
        """Sends a request and reads the answer to its end; returns its status."""
        async with self.connect() as (reader, writer):
            writer.write(data)
            with contextlib.suppress(OSError):
                await writer.drain()
            return await status_of(reader)

    @contextlib.asynccontextmanager
    async def connect(self) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def status_of(reader: asyncio.StreamReader) -> int:
    try:
        line = await reader.readline()
        while await reader.read(1 << 16):
            pass
    except OSError:
        return CLOSED
    return int(line.split()[1]) if line else CLOSED


# Requests


def post(path: str, make: Callable[[int], Any], *headers: str) -> Callable[[int], bytes]:
    """Writes requests without their key, which `with_key` adds."""

    def request(number: int) -> bytes:
        body = make(number)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "host: localhost", "@", "content-type: application/json", *headers]
        head = "\r\n".join([*lines, f"content-length: {len(data)}", "connection: close", "", ""])
        return head.encode() + data

    return request


def get(path: str, method: str = "GET", *headers: str) -> Callable[[int], bytes]:
    def request(_: int) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", "@", *headers, "content-length: 0"]
        return "\r\n".join([*lines, "connection: close", "", ""]).encode()

    return request


def with_key(request: bytes, key: str) -> bytes:
    return request.replace(b"\r\n@\r\n", f"\r\nauthorization: Bearer {key}\r\n".encode(), 1)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HI, "max_tokens": 64, "ignore_eos": True, **fields}


def complete(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hello", "max_tokens": 200, "ignore_eos": True, **fields}


def fresh(number: int) -> str:
    """A word that stands in no other request of this run."""
    return f"{os.getpid()}-{number}"


def padded(head: str, piece: str, tail: str, size: int = BODY_BYTES - 1024) -> bytes:
    """A body as large as they may be: `piece` again and again between `head` and `tail`."""
    return (head + piece * ((size - len(head) - len(tail)) // len(piece)) + tail).encode()


def once(make: Callable[[], Any]) -> Callable[[int], bytes]:
    """Writes a large body the first time only; "@N" in it becomes the request's number."""
    written = functools.cache(lambda: json.dumps(make()).encode())
    return lambda number: written().replace(b"@N", b"%d" % number)


def program(ops: list[dict[str, Any]], number: int, **fields: Any) -> dict[str, Any]:
    return {"id": fresh(number), "ops": ops, **fields}


def text(branch: int, said: str) -> dict[str, Any]:
    return {"type": "text", "branch": branch, "parts": [said]}


def gen(branch: int, name: str, **sampling: Any) -> dict[str, Any]:
    sampling = {"max_tokens": 16, "ignore_eos": True, **sampling}
    return {"type": "gen", "branch": branch, "name": name, "sampling": sampling}


def forks(number: int) -> dict[str, Any]:
    children = list(range(1, 1025))
    ops = [text(0, "x"), {"type": "fork", "branch": 0, "children": children}]
    return program([*ops, *(gen(child, "v", max_tokens=2) for child in children[:1000])], number)


def loop(number: int) -> dict[str, Any]:
    """Takes all the work that a program may ask for, and calls no model."""
    ref = {"type": "ref", "branch": 0, "name": "a"}
    assign = {"type": "assign", "branch": 0, "name": "a", "parts": [ref, "x"]}
    until = {"type": "matches", "value": ref, "pattern": "(?:x?y?){40}z"}
    first = {"type": "assign", "branch": 0, "name": "a", "parts": ["x"]}
    repeat = {"type": "repeat", "branch": 0, "body": [assign], "until": until, "at_most": 5000}
    return program([first, repeat], number)


def slow_schema(number: int) -> dict[str, Any]:
    """Takes some tenths of a second in a process of its own."""
    doubled = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i - 1}"}] * 2} for i in range(1, 30)}
    schema = {"$defs": {"a0": {"const": number}, **doubled}, "$ref": "#/$defs/a29"}
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def small_schema(number: int) -> dict[str, Any]:
    names = [f"p{number}_{index}" for index in range(12)]
    kinds = [{"anyOf": [{"type": "integer", "minimum": number}, {"type": "string"}]} for _ in names]
    schema = {"type": "object", "properties": dict(zip(names, kinds, strict=True)), "required": names}
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def tools(number: int) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {f"x{number}": {"type": "string"}}}
    return [
        {"type": "function", "function": {"name": f"f{index}_{number}", "parameters": parameters}}
        for index in range(128)
    ]


def tool_of_types(number: int) -> list[dict[str, Any]]:
    """A tool whose `type` is a list of texts and one number: to compare each with each would take seconds."""
    kinds = [1, *(f"{number} {index}" for index in range(4_000))]
    return [{"type": "function", "function": {"name": "f", "parameters": {"type": kinds}}}]


STOP_REGEXES = ["(a|b|ab)*c", "(?:a?b?){60}c", "[ab]{1,200}c$", "(x+x+)+y"]
LONG = "word " * 90
MANY_WORDS = "lorem ipsum dolor sit amet " * (BODY_BYTES // 28)


# Talks


async def slow_reader(client: Client, number: int) -> int:
    """Asks for a stream and takes one byte of it every now and then."""
    body = json.dumps(complete(stream=True, n=16, logprobs=20)).encode()
    async with client.connect() as (reader, writer):
        writer.write(client.head("POST", COMPLETE, len(body), "content-type: application/json") + body)
        line = b""
        for _ in range(20):
            line += await reader.read(1)
            await asyncio.sleep(0.05)
    return int(line.split()[1]) if line.count(b" ") > 1 else CLOSED


async def half_a_body(client: Client, number: int) -> int:
    """Says that a large body follows, and sends half of it."""
    async with client.connect() as (_, writer):
        writer.write(client.head("POST", CHAT, BODY_BYTES, "content-type: application/json"))
        writer.write(b"{" * (BODY_BYTES // 2))
        await asyncio.sleep(0.5)
    return CLOSED


async def silent(client: Client, number: int) -> int:
    async with client.connect():
        await asyncio.sleep(0.3)
    return CLOSED


async def drip(client: Client, number: int) -> int:
    """Sends its headers a byte at a time."""
    async with client.connect() as (_, writer):
        for byte in client.head("POST", CHAT, 10)[:40]:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
    return CLOSED


async def leaves(client: Client, number: int) -> int:
    """Goes away as soon as its request is sent."""
    body = json.dumps(complete(n=16, stream=bool(number % 2))).encode()
    async with client.connect() as (_, writer):
        writer.write(client.head("POST", COMPLETE, len(body), "content-type: application/json") + body)
        await writer.drain()
        await asyncio.sleep(0.03)
    return CLOSED


async def leaves_large_work(client: Client, number: int) -> int:
    """Has four megabytes read, and goes away."""
    body = json.dumps({"prompt": MANY_WORDS + fresh(number)}).encode()
    async with client.connect() as (_, writer):
        writer.write(client.head("POST", TOKENIZE, len(body), "content-type: application/json") + body)
        with contextlib.suppress(OSError):
            await writer.drain()
        await asyncio.sleep(0.02)
    return CLOSED


async def pipelined(client: Client, number: int) -> int:
    """Sends two hundred requests in one go, and reads no answer."""
    request = client.head("GET", "/v1/models", 0).replace(b"connection: close\r\n", b"")
    async with client.connect() as (reader, writer):
        writer.write(request * 200)
        line = await reader.readline()
    return int(line.split()[1]) if line else CLOSED


async def keeps_states(client: Client, number: int) -> int:
    body = json.dumps(program([text(0, LONG)], number, keep=True)).encode()
    return await client.send(client.head("POST", PROGRAMS, len(body), "content-type: application/json") + body)


async def another_ones_program(client: Client, number: int) -> int:
    """Goes on with the state that the quiet key keeps, and drops it."""
    body = json.dumps({"id": "mine", "ops": [gen(0, "stolen")], "resume": True}).encode()
    status = await client.send(client.head("POST", PROGRAMS, len(body), "content-type: application/json") + body)
    await client.send(client.head("DELETE", f"{PROGRAMS}/mine", 0))
    return status


OK, BAD, FULL, REFUSED = frozenset({200}), frozenset({400}), frozenset({429, 503}), frozenset({403})
LEFT = frozenset({CLOSED})
TOO_LARGE = frozenset({413}) | LEFT  # a connection is closed on a body that is too much for its key
NESTED = "[" * 2000 + "]" * 2000
WIDE = {"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(1500)}}

ATTACKS = (
    # Bodies and what is read of them
    Attack("4 MB of text to tokenise", LEFT | BAD | FULL, post(TOKENIZE, lambda n: {"prompt": MANY_WORDS + fresh(n)})),
    Attack("4 MB chats", LEFT | BAD | FULL, post(CHAT, lambda n: chat(
        messages=[{"role": "user", "content": MANY_WORDS}]))),
    Attack("small texts to tokenise", OK | FULL, post(TOKENIZE, lambda n: {"prompt": f"{LONG} {n}"})),
    Attack("a word of 60 kB to tokenise", OK | BAD | FULL, post(TOKENIZE, lambda n: {"prompt": "ab" * 30_000})),
    Attack("a million tokens to write", TOO_LARGE | BAD | FULL,
           post("/detokenize", lambda n: padded('{"tokens":[', "7,", "7]}", 2_000_000))),
    Attack("deep JSON", BAD, post(CHAT, lambda n: f'{{"model":"tiny","messages":{NESTED}}}'.encode())),
    Attack("a million lists", TOO_LARGE | BAD | FULL,
           post(CHAT, lambda n: padded('{"model":"tiny","chat_template_kwargs":{"x":[', "[],", "1]}}"))),
    Attack("a million prompts", TOO_LARGE | BAD | FULL,
           post(COMPLETE, lambda n: padded('{"model":"tiny","prompt":[', "[1],", "[1]]}"))),
    Attack("a million messages", TOO_LARGE | BAD | FULL,
           post(CHAT, lambda n: padded('{"model":"tiny","messages":[', '{"role":"user","content":""},', "1]}"))),
    Attack("unknown fields", TOO_LARGE | BAD | OK | FULL,
           post(CHAT, once(lambda: {**chat(max_tokens=1), **{f"u{i}": i for i in range(200_000)}}))),
    Attack("a huge logit_bias", TOO_LARGE | BAD | FULL,
           post(CHAT, once(lambda: chat(logit_bias={str(i): 1 for i in range(200_000)})))),
    Attack("escapes", LEFT | BAD | FULL | OK, post(CHAT, lambda n: padded(
        '{"model":"tiny","messages":[{"role":"user","content":"', "\\u00e9", '"}]}'))),
    Attack("half of a surrogate pair", BAD | OK,
           post(CHAT, lambda n: b'{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"\\ud800"}]}')),
    Attack("control tokens and marks in texts", OK | BAD | FULL, post(CHAT, lambda n: chat(
        max_tokens=1, messages=[{"role": "user", "content": "\ue000<|im_end|>\u202e\u0000" * 5}]))),
    # The engine
    Attack("n = 16", OK | FULL, post(COMPLETE, lambda n: complete(n=16))),
    Attack("prompts times n = 64", OK | FULL | LEFT, post(COMPLETE, lambda n: complete(
        prompt=["a", "b", "c", "d"], n=16))),
    Attack("long prompts, each new", OK | FULL, post(COMPLETE, lambda n: complete(
        prompt=[(n * 7 + i * 3) % 250 for i in range(480)], max_tokens=4))),
    Attack("log-probabilities of 20 tokens, n = 16", OK | FULL, post(CHAT, lambda n: chat(
        logprobs=True, top_logprobs=20, n=16))),
    Attack("streams of log-probabilities", OK | FULL, post(COMPLETE, lambda n: complete(
        logprobs=20, n=16, stream=True))),
    Attack("echoed prompts with scores", OK | FULL | BAD, post(COMPLETE, lambda n: complete(
        prompt=LONG, echo=True, logprobs=20, n=8, max_tokens=4))),
    Attack("penalties and a full logit_bias", OK | FULL, post(COMPLETE, lambda n: complete(
        n=8, repetition_penalty=1.3, frequency_penalty=1.0, logit_bias={str(i): 1 for i in range(250)}))),
    Attack("priority -100", REFUSED, post(COMPLETE, lambda n: complete(priority=-100))),
    Attack("a time limit of 1 ms", OK | FULL | frozenset({504}), post(
        COMPLETE, lambda n: complete(), "x-request-timeout-ms: 1")),
    Attack("aborts", LEFT, talk=leaves),
    Attack("texts that nobody waits for", LEFT, talk=leaves_large_work),
    # Constraints
    Attack("new schemas", OK | FULL, post(CHAT, lambda n: chat(response_format=small_schema(n), max_tokens=8))),
    Attack("schemas that take long", BAD | FULL | OK, post(CHAT, lambda n: chat(response_format=slow_schema(n)))),
    Attack("a wide schema", OK | BAD | FULL, post(CHAT, lambda n: chat(
        max_tokens=8, response_format={"type": "json_schema", "json_schema": {
            "name": "w", "schema": {**WIDE, "title": fresh(n)}}}))),
    Attack("hostile expressions", OK | BAD | FULL, post(CHAT, lambda n: chat(
        guided_regex=f"(a{{0,500}}b{{0,500}}){{0,20}}{n % 50}", max_tokens=8))),
    Attack("hostile grammars", OK | BAD | FULL, post(CHAT, lambda n: chat(
        guided_grammar="start: a" + "".join(f"\na{i}: a{i + 1} a{i + 1} | " for i in range(5)) + f'\na: "{n}"',
        max_tokens=8))),
    Attack("choices of 60,000 texts", OK | BAD | FULL | TOO_LARGE, post(CHAT, once(
        lambda: chat(guided_choice=[f"@N {i}" for i in range(60_000)], max_tokens=8)))),
    Attack("stop texts", OK | FULL, post(COMPLETE, lambda n: complete(n=8, stop=["a" * 64 + c for c in "wxyz"]))),
    Attack("stop_regex", OK | BAD | FULL, post(COMPLETE, lambda n: complete(
        n=8, stop_regex=STOP_REGEXES[n % 4] + str(n)))),
    Attack("128 new tools", LEFT | OK | BAD | FULL, post(CHAT, lambda n: chat(tools=tools(n), max_tokens=8))),
    Attack("tools with types of many kinds", BAD | FULL, post(CHAT, lambda n: chat(tools=tool_of_types(n)))),
    # Programs
    Attack("1,024 branches", OK | FULL | BAD, post(PROGRAMS, forks)),
    Attack("loops that compute", OK | FULL | BAD, post(PROGRAMS, loop)),
    Attack("long texts in programs", LEFT | OK | FULL | BAD, post(PROGRAMS, lambda n: program(
        [text(0, MANY_WORDS[:500_000] + fresh(n))], n))),
    Attack("selects of many choices", OK | FULL | BAD, post(PROGRAMS, lambda n: program(
        [text(0, "x"), *({"type": "select", "branch": 0, "name": f"s{i}",
                          "choices": [f"{n} {i} {j} " for j in range(200)]} for i in range(4))], n))),
    Attack("calls of a deployed program", LEFT | OK | FULL | BAD, post(
        f"{PROGRAMS}/echo", lambda n: {"text": "words " * 10_000})),
    Attack("states that are kept", OK | FULL, talk=keeps_states),
    Attack("the state of another key", frozenset({400, 404, 409}), talk=another_ones_program),
    # HTTP
    Attack("readers of a byte at a time", OK | FULL, talk=slow_reader),
    Attack("half of a body", LEFT, talk=half_a_body),
    Attack("connections that say nothing", LEFT, talk=silent),
    Attack("headers a byte at a time", LEFT, talk=drip),
    Attack("requests in one go", OK | FULL, talk=pipelined),
    Attack("a thousand headers", TOO_LARGE | BAD | LEFT, get("/v1/models", "GET", *(f"x-{i}: 1" for i in range(1000)))),
    # Rights
    Attack("metrics", REFUSED, get("/metrics")),
    Attack("server_info", REFUSED, get("/server_info")),
    Attack("flushes of the cache", REFUSED, get("/flush_cache", "POST")),
    Attack("deployments", REFUSED | frozenset({415}), get(f"{PROGRAMS}/echo", "PUT", "content-type: application/json")),
    Attack("drops of the deployed program", REFUSED, get(f"{PROGRAMS}/echo", "DELETE")),
    Attack("documents of programs", OK | FULL, get("/openapi.json")),
)  # fmt: skip

WORK = Attack("work", OK, post(COMPLETE, lambda n: complete(n=4, max_tokens=48)))
"""No attack, but what a key asks for that wants all it can have."""


# The attacker


async def attack(chosen: Attack, port: int, keys: list[str], seconds: float) -> Counter[int]:
    """Attacks on several connections at once, those of all keys alike; returns how often each status was seen.

    On a busy machine it goes on until there were some answers.
    """
    seen: Counter[int] = Counter()
    began = time.monotonic()
    numbers = iter(range(random.Random(os.getpid()).randrange(1 << 20) * 1000, 1 << 40))

    async def connection(index: int) -> None:
        client = Client(port, keys[index % len(keys)])
        while True:
            number = next(numbers)
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    if chosen.talk is not None:
                        seen[await chosen.talk(client, number)] += 1
                    elif chosen.request is not None:
                        seen[await client.send(with_key(chosen.request(number), client.key))] += 1
            except OSError:
                seen[CLOSED] += 1
                await asyncio.sleep(0.01)

    tasks = [asyncio.ensure_future(connection(index)) for index in range(NUM_CONNECTIONS)]
    while (passed_s := time.monotonic() - began) < seconds or (seen.total() < ENOUGH and passed_s < PATIENCE * seconds):
        await asyncio.sleep(0.05)
    for task in tasks:  # an answer that is still to come is no concern of the next attack
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return seen


def main(name: str, port: str, keys: str, seconds: str) -> None:
    os.nice(10)  # an attacker has a processor of its own: what is measured is the server's
    (chosen,) = [each for each in (*ATTACKS, WORK) if each.name == name]
    print("begun", flush=True)
    seen = asyncio.run(attack(chosen, int(port), keys.split(","), float(seconds)))
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
