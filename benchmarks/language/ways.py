"""Ways to run recorded programs on a server: as one request, or generation by generation from the client. Runs each
workload in all ways in turn; compares times, tokens and texts, with the server's counters for each."""

from __future__ import annotations

import asyncio
import json
import math
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from ...lang.backends.http import HttpBackend
from ...runtime.protocol.program import Fork, Gen, Op, Piece, Program, RoleBegin, RoleEnd, Select, Text
from ...runtime.protocol.program import walk as all_ops
from ...runtime.tokenizer.tokenizer import Tokenizer
from ..harness.measure import IDS, collect, gather_limited, traced
from ..harness.server_process import Counters, ServerProcess
from ..harness.wire import Wire
from ..peers.programs import plan_of, written
from ..peers.sides.peer_walk import Answer, Call, echoed_scores
from ..peers.sides.peer_walk import run as walk
from ..workloads.programs import Workload

Job = Callable[[], Awaitable[object]]
Ops = tuple[Op, ...]
Place = tuple[int, str]  # a value, by its branch and name
TIMEOUT_S = 600.0


@dataclass
class Record:
    """Texts that one run of one program sent, and was answered: values by any `run`, the rest with `full` alone."""

    values: dict[Place, str] = field(default_factory=dict)  # the text of each value
    # the texts of the tokens that each was generated after
    prompts: dict[Place, tuple[str, ...]] = field(default_factory=dict)
    num_bytes: int = 0  # of the bodies of all requests
    # that were in them, for the server to tokenise or to make messages of
    texts: list[str] = field(default_factory=list)
    tokenised: int = 0  # tokens that the server made of texts

    def send(self, body: bytes, texts: Iterable[str]) -> None:
        self.num_bytes += len(body)
        self.texts += texts


class OneRequest:
    """The whole program to `/v1/programs`."""

    name = "one request"

    def __init__(self, url: str, tokenizer: Tokenizer) -> None:
        self._backend = HttpBackend(url, timeout_s=TIMEOUT_S)
        self._tokenizer = tokenizer

    async def run(self, ops: Ops, record: Record, *, full: bool = False) -> None:
        program = Program(id=f"language-{next(IDS)}", ops=ops, trace=full)
        pieces, values, _ = await collect(self._backend.arun(program))
        record.values |= {(value.branch, value.name): value.text for value in values}
        if full:
            record.send(msgspec.json.encode(program), texts_of(ops))
            choices = [choice for op in all_ops(ops) if isinstance(op, Select) for choice in op.choices]
            record.tokenised = sum(len(piece.texts) for piece in pieces if piece.kind in ("text", "role"))
            record.tokenised += sum(len(self._tokenizer.encode(choice)) for choice in choices)
            record.prompts = prompts_of(ops, pieces)

    async def aclose(self) -> None:
        await self._backend.aclose()


class GenByGen:
    """The client walks the program, and sends all text so far to `/v1/completions` for each generation."""

    name = "gen by gen"

    def __init__(self, url: str, model: str, tokenizer: Tokenizer) -> None:
        self._wire = Wire(url)
        self._model = model
        self._tokenizer = tokenizer
        self._pieces: Callable[[tuple[str, ...], str], tuple[str, str]] = tokenizer.chat.role_pieces

    async def run(self, ops: Ops, record: Record, *, full: bool = False) -> None:
        plan = written(plan_of(ops), self._pieces)
        places = {op[2]: (op[1], op[2]) for op in plan if op[0] in ("gen", "select")}

        async def ask(call: Call) -> Answer:
            return Answer(await self.answer(call, places[call.name], record if full else None))

        result = await walk([plan], 1, math.inf, ask, primes=False)
        (values,) = result["programs"]
        record.values |= {(branch, name): text for branch, name, text, _ in values}

    async def aclose(self) -> None:
        self._wire.close()

    async def answer(self, call: Call, place: Place, record: Record | None) -> str:
        """The text of a generation or a choice; a record is filled in. Raises EngineError."""
        if record is not None:
            tokens = self._tokenizer.encode_prompt(call.prompt, special=True)
            record.prompts[place] = tuple(self._tokenizer.texts(tokens))
        body: dict[str, Any] = {"model": self._model, "prompt": call.prompt, **options_of(call)}
        if call.choices:
            prompts = [call.prompt + choice for choice in call.choices]
            body = {"model": self._model, "prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 0}
        content = json.dumps(body).encode()
        answer = await self._wire.post("/v1/completions", content)
        if record is not None:
            record.send(content, texts_in(body))
            record.tokenised += answer["usage"]["prompt_tokens"]
        if not call.choices:
            return str(answer["choices"][0]["text"])
        scores = echoed_scores(len(call.prompt), answer)
        return call.choices[scores.index(max(scores))]


_MESSAGE = re.compile("\x02(\\w+)\x03([^\x02\x04]*)\x04?")


class OpenAICalls(GenByGen):
    """The client walks the program, and sends all messages so far with the official `openai` client. Chats only."""

    name = "openai client"

    def __init__(self, url: str, model: str, tokenizer: Tokenizer) -> None:
        super().__init__(url, model, tokenizer)
        self._openai = openai_client(url)
        self._pieces = lambda roles, role: (f"\x02{role}\x03", "\x04")  # for `_MESSAGE` to find again

    async def aclose(self) -> None:
        await super().aclose()
        await self._openai.close()

    async def answer(self, call: Call, place: Place, record: Record | None) -> str:
        *said, (role, begun) = _MESSAGE.findall(call.prompt)
        assert (role, begun) == ("assistant", "")
        messages: list[Any] = [{"role": role, "content": content} for role, content in said]
        options = options_of(call)
        extra = {"ignore_eos": options.pop("ignore_eos", False)}
        options |= {"model": self._model, "messages": messages}
        answer = await self._openai.chat.completions.create(**options, extra_body=extra)
        if record is not None:
            body = {**options, **extra}
            record.send(json.dumps(body).encode(), texts_in(body))
            record.tokenised += answer.usage.prompt_tokens
            record.prompts[place] = tuple(self._tokenizer.texts(self._tokenizer.encode_chat(messages)))
        return str(answer.choices[0].message.content)


def openai_client(url: str) -> Any:
    """The official client as it comes. Raises ImportError: it is not installed."""
    import openai

    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", timeout=TIMEOUT_S, max_retries=0, http_client=http)


def is_chat(ops: Sequence[Op]) -> bool:
    """True if each generation is a whole message of the assistant, so that chat completions can make it."""
    roles: dict[int, str | None] = {0: None}  # "begun" where something follows the beginning of the message
    for op in ops:
        role = roles[op.branch]
        match op:
            case Fork():
                roles |= dict.fromkeys(op.children, role)
            case RoleBegin() | RoleEnd():
                roles[op.branch] = op.role if isinstance(op, RoleBegin) else None
            case Text() | Gen():
                if role is None or (isinstance(op, Gen) and role != "assistant"):
                    return False
                roles[op.branch] = "begun"
            case Select():
                return False
    return True


def options_of(call: Call) -> dict[str, Any]:
    """A generation's options in the API's words."""
    options: dict[str, Any] = {"max_tokens": call.num_tokens, "temperature": 0.0}
    return options | ({"ignore_eos": True} if call.pattern is None else {"regex": call.pattern})


def texts_in(body: dict[str, Any]) -> list[str]:
    """The texts that the body of a request to the API holds."""
    prompt = body.get("prompt", [])
    messages = [message["content"] for message in body.get("messages", ())]
    return [*([prompt] if isinstance(prompt, str) else prompt), *messages]


def texts_of(ops: Ops) -> list[str]:
    """The texts that a program holds, in blocks too."""
    parts = [op.choices if isinstance(op, Select) else op.parts for op in all_ops(ops) if isinstance(op, Text | Select)]
    return [part for each in parts for part in each if isinstance(part, str)]


def prompts_of(ops: Sequence[Op], pieces: Iterable[Piece]) -> dict[Place, tuple[str, ...]]:
    """The texts of the tokens before each value of a traced program that joins nothing by appending."""
    return {(op.branch, op.name): before for op, before, _ in traced(ops, pieces) if isinstance(op, Gen | Select)}


# -- Rounds ------------------------------------------------------------------------------------------------------------

_LOOK_S = 0.02


@dataclass(frozen=True)
class Round:
    """All jobs done once, on a cache that was empty before. `client_cpu_s`: processor seconds of this process."""

    wall_s: float
    client_cpu_s: float
    counted: Counters

    @property
    def idle_s(self) -> float:
        """In which the engine waited for something to do."""
        return max(0.0, self.wall_s - self.counted.step_s)


@dataclass(frozen=True)
class WayRounds:
    """The rounds of one way to do `num_programs` programs."""

    num_programs: int
    rounds: tuple[Round, ...]

    @property
    def median(self) -> Round:
        """The round whose time is the median (of an even number, the faster of the two)."""
        return sorted(self.rounds, key=lambda each: each.wall_s)[(len(self.rounds) - 1) // 2]

    @property
    def wall_s(self) -> float:
        return statistics.median(each.wall_s for each in self.rounds)

    @property
    def requests(self) -> float:
        """A program."""
        return self.rounds[0].counted.num_requests / self.num_programs


async def run_round(server: ServerProcess, jobs: Sequence[Job], at_once: int) -> Round:
    """Does all jobs, `at_once` at a time, on an emptied cache."""
    server.flush()
    before, cpu, started = server.counters(), time.process_time(), time.perf_counter()
    await gather_limited(jobs, at_once)
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    return Round(wall_s, cpu_s, server.counters() - before)


async def take_turns(
    server: ServerProcess, ways: Mapping[str, Sequence[Job]], *, at_once: int, num_rounds: int
) -> dict[str, WayRounds]:
    """`num_rounds` rounds of each way, in turn; who begins changes from round to round."""
    names = list(ways)
    found: dict[str, list[Round]] = {name: [] for name in names}
    for number in range(num_rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(await run_round(server, ways[name], at_once))
    return {name: WayRounds(len(ways[name]), tuple(rounds)) for name, rounds in found.items()}


async def watch_batch(server: ServerProcess, jobs: Sequence[Job]) -> list[tuple[float, int]]:
    """Numbers of generations at a time, by seconds since the start. Looking costs time: no round to be timed."""
    looks: list[tuple[float, int]] = []

    async def look() -> None:
        started = time.perf_counter()
        while True:
            seconds = time.perf_counter() - started
            looks.append((seconds, (await asyncio.to_thread(server.info))["stats"]["running"]))
            await asyncio.sleep(_LOOK_S)

    server.flush()
    watcher = asyncio.create_task(look())
    try:
        await asyncio.gather(*(job() for job in jobs))
    finally:
        watcher.cancel()
    return looks


# -- Every workload in every way that can run it -----------------------------------------------------------------------


Way = OneRequest | GenByGen


@dataclass(frozen=True)
class Traffic:
    """A program's means: bytes of the bodies that were sent, tokens in their texts, and tokens that the server made of
    texts."""

    num_bytes: float
    sent_tokens: float
    tokenised: float


@dataclass(frozen=True)
class Agreement:
    """Values beside those of the same programs as one request.

    retokenised generated after the same text, or one that differs because of this, but after other tokens
    """

    same: int  # as they are there
    retokenised: int
    # generated after the same tokens: two were about equally likely, and the last bits of sums depend on the batch; or
    # something is wrong
    different: int


@dataclass(frozen=True)
class WorkloadResult:
    """By the names of ways; `rounds` by programs at once, then by ways."""

    name: str
    num_programs: int
    rounds: dict[int, dict[str, WayRounds]]
    traffic: dict[str, Traffic]
    agreement: dict[str, Agreement]


async def measure_workload(
    server: ServerProcess, tokenizer: Tokenizer, workload: Workload, *, levels: Sequence[int], num_rounds: int
) -> WorkloadResult:
    """At each of `levels` so many programs at once. What is counted does not depend on that, and is of the most."""
    programs = workload.programs[: max(levels)]
    chosen: list[Way] = [OneRequest(server.url, tokenizer), GenByGen(server.url, server.model, tokenizer)]
    chosen += [OpenAICalls(server.url, server.model, tokenizer)] if all(map(is_chat, programs)) else []
    try:
        records = {way.name: await _record(server, way, programs) for way in chosen}
        rounds = {}
        for level in levels:
            jobs = {way.name: [partial(way.run, ops, Record()) for ops in programs[:level]] for way in chosen}
            rounds[level] = await take_turns(server, jobs, at_once=level, num_rounds=num_rounds)
    finally:
        for way in chosen:
            await way.aclose()
    traffic = {name: _traffic(found, tokenizer) for name, found in records.items()}
    agreed = {name: agreement(records[OneRequest.name], found) for name, found in records.items()}
    return WorkloadResult(workload.name, len(programs), rounds, traffic, agreed)


_CUT = "\ufffd"  # replacement for part of a character: sent again, it is another character


def agreement(wanted: Sequence[Record], found: Sequence[Record]) -> Agreement:
    same = retokenised = different = 0
    for one, other in zip(wanted, found, strict=True):
        for place, text in one.values.items():
            if other.values[place] == text:
                same += 1
            elif other.prompts[place] != one.prompts[place] or any(_CUT in token for token in one.prompts[place]):
                retokenised += 1
            else:
                different += 1
    return Agreement(same, retokenised, different)


async def _record(server: ServerProcess, way: Way, programs: Sequence[Ops]) -> list[Record]:
    """Also warms the way up."""
    records = [Record() for _ in programs]
    server.flush()
    await asyncio.gather(*(way.run(ops, record, full=True) for ops, record in zip(programs, records, strict=True)))
    return records


def _traffic(records: Sequence[Record], tokenizer: Tokenizer) -> Traffic:
    sent = [sum(len(tokenizer.encode(text, special=True)) for text in record.texts) for record in records]
    columns = ([record.num_bytes for record in records], sent, [record.tokenised for record in records])
    return Traffic(*map(statistics.fmean, columns))
