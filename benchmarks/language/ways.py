"""Ways to run one recorded program on a server: as one request, or generation by generation from the client."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from ...constrain.spec import GrammarSpec, Regex
from ...lang.backends.http import HttpBackend
from ...lang.backends.messages.machine import MAX_STATES, MessageMachine, ModelCall
from ...lang.backends.messages.surplus import Answer
from ...lang.backends.messages.transcript import Prompt
from ...runtime.programs.choices import score_choices
from ...runtime.programs.executor import Executor
from ...runtime.protocol.errors import BoughError, EngineError
from ...runtime.protocol.program import (
    Done,
    Failed,
    Fork,
    Gen,
    Op,
    Piece,
    Program,
    ProgramEvent,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    Value,
    walk,
)
from ...runtime.tokenizer.tokenizer import Tokenizer

Ops = tuple[Op, ...]
Place = tuple[int, str]
"""A value, by its branch and name."""

TIMEOUT_S = 600.0
_OK = 200

_IDS = itertools.count()


@dataclass
class Record:
    """Record of what one run of one program sent, and was answered.

    values      the text of each value
    prompts     the texts of the tokens that each was generated after
    num_bytes   of the bodies of all requests
    texts       that were in them, for the server to tokenise or to make messages of
    tokenised   tokens that the server made of texts
    """

    values: dict[Place, str] = field(default_factory=dict)
    prompts: dict[Place, tuple[str, ...]] = field(default_factory=dict)
    num_bytes: int = 0
    texts: list[str] = field(default_factory=list)
    tokenised: int = 0

    def send(self, body: bytes, texts: Iterable[str]) -> None:
        self.num_bytes += len(body)
        self.texts += texts


class Way(Protocol):
    """One way. `run` fills in a record's values; with `full`, all of it."""

    name: str

    async def run(self, ops: Ops, record: Record, *, full: bool = False) -> None: ...

    async def aclose(self) -> None: ...


class OneRequest:
    """The whole program to `/v1/programs`."""

    name = "one request"

    def __init__(self, url: str, tokenizer: Tokenizer) -> None:
        self._backend = HttpBackend(url, timeout_s=TIMEOUT_S)
        self._tokenizer = tokenizer

    async def run(self, ops: Ops, record: Record, *, full: bool = False) -> None:
        program = Program(id=f"language-{next(_IDS)}", ops=ops, trace=full)
        pieces: list[Piece] = []
        async for event in self._backend.arun(program):
            if isinstance(event, Value):
                record.values[event.branch, event.name] = event.text
            elif isinstance(event, Piece):
                pieces.append(event)
            elif isinstance(event, Failed):
                raise EngineError(f"instruction {event.index} failed: {event.error.message}")
        if full:
            record.send(msgspec.json.encode(program), texts_of(ops))
            choices = [choice for op in walk(ops) if isinstance(op, Select) for choice in op.choices]
            record.tokenised = sum(len(piece.texts) for piece in pieces if piece.kind in ("text", "role"))
            record.tokenised += sum(len(self._tokenizer.encode(choice)) for choice in choices)
            record.prompts = prompts_of(ops, pieces)

    async def aclose(self) -> None:
        await self._backend.aclose()


class GenByGen:
    """The client walks the program, and sends all text so far to `/v1/completions` for each generation."""

    name = "gen by gen"

    def __init__(self, url: str, model: str, tokenizer: Tokenizer) -> None:
        self._client = PlainClient(url)
        self._model = model
        self._tokenizer = tokenizer
        self._programs = Executor(MessageMachine(self), time.monotonic, max_states=MAX_STATES)
        self._records: dict[str, Record | None] = {}
        self._tasks: dict[ModelCall, asyncio.Task[None]] = {}

    async def run(self, ops: Ops, record: Record, *, full: bool = False) -> None:
        program = Program(id=f"language-{next(_IDS)}", ops=ops)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def listen(event: ProgramEvent) -> None:
            if isinstance(event, Value):
                record.values[event.branch, event.name] = event.text
            elif isinstance(event, Failed):
                done.set_exception(EngineError(event.error.message, code=event.error.code))
            elif isinstance(event, Done):
                done.set_result(None)

        self._records[program.id] = record if full else None
        try:
            self._programs.run(program, listen)
            await done
        finally:
            del self._records[program.id]

    async def aclose(self) -> None:
        await self._client.aclose()

    # For the machine

    def begin(self, call: ModelCall) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(call))
        self._tasks[call] = task
        task.add_done_callback(lambda _: self._tasks.pop(call, None))

    def cancel(self, call: ModelCall) -> None:
        self._tasks[call].cancel()

    async def _answer(self, call: ModelCall) -> None:
        result: Answer | BoughError
        try:
            text = await self.answer(call, self._records[call.run.program.id])
            result = Answer(Value(branch=call.op.branch, name=call.op.name, text=text))
        except (OSError, EngineError) as error:
            result = EngineError(str(error) or type(error).__name__, code="request_failed")
        call.finish(result)

    async def answer(self, call: ModelCall, record: Record | None) -> str:
        """The text of a generation or a choice; a record is filled in. Raises EngineError."""
        op = call.op
        text = self.written(call.prompt)
        if record is not None:
            tokens = self._tokenizer.encode_prompt(text, special=True)
            record.prompts[op.branch, op.name] = tuple(self._tokenizer.texts(tokens))
        if isinstance(op, Select):
            return await self._select(op, text, record)
        assert isinstance(op, Gen)
        body = {"model": self._model, "prompt": text, **options_of(op)}
        answer = await self._post(body, record)
        return str(answer["choices"][0]["text"])

    async def _select(self, op: Select, text: str, record: Record | None) -> str:
        prompts = [text + choice for choice in op.choices]
        answer = await self._post(
            {"model": self._model, "prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 0}, record
        )
        found: list[list[float]] = [[] for _ in prompts]
        for choice in answer["choices"]:
            found[choice["index"]] = logprobs_after(len(text), choice["logprobs"])
        scores = score_choices(op.method, found)
        return op.choices[max(range(len(scores)), key=scores.__getitem__)]

    async def _post(self, body: dict[str, Any], record: Record | None) -> Any:
        content = json.dumps(body).encode()
        status, answer = await self._client.post("/v1/completions", content)
        if status != _OK:
            raise EngineError(answer["error"]["message"], code=answer["error"]["code"])
        if record is not None:
            record.send(content, texts_in(body))
            record.tokenised += answer["usage"]["prompt_tokens"]
        return answer

    def written(self, prompt: Prompt) -> str:
        """A branch as one text, with what the model's chat template writes around messages."""
        if not prompt.messages and prompt.role is None:
            return prompt.loose
        parts: list[str] = []
        roles: tuple[str, ...] = ()
        for message in prompt.messages:
            pieces = self._tokenizer.chat.role_pieces(roles, message.role)
            parts += (pieces.prefix, message.content, pieces.suffix)
            roles = (*roles, message.role)
        if prompt.role is not None:
            parts += (self._tokenizer.chat.role_pieces(roles, prompt.role).prefix, prompt.content)
        return "".join(parts)


class OpenAICalls(GenByGen):
    """The client walks the program, and sends all messages so far with the official `openai` client. Chats only."""

    name = "openai client"

    def __init__(self, url: str, model: str, tokenizer: Tokenizer) -> None:
        super().__init__(url, model, tokenizer)
        self._openai = openai_client(url)

    async def aclose(self) -> None:
        await super().aclose()
        await self._openai.close()

    async def answer(self, call: ModelCall, record: Record | None) -> str:
        op, prompt = call.op, call.prompt
        assert isinstance(op, Gen) and prompt.messages and prompt.role == "assistant"
        messages: list[Any] = [{"role": message.role, "content": message.content} for message in prompt.messages]
        options = options_of(op)
        extra = {"ignore_eos": options.pop("ignore_eos", False)}
        answer = await self._openai.chat.completions.create(
            model=self._model, messages=messages, extra_body=extra, **options
        )
        if record is not None:
            body = {"model": self._model, "messages": messages, **extra, **options}
            record.send(json.dumps(body).encode(), texts_in(body))
            record.tokenised += answer.usage.prompt_tokens
            tokens = self._tokenizer.encode_chat(messages)
            record.prompts[op.branch, op.name] = tuple(self._tokenizer.texts(tokens))
        return str(answer.choices[0].message.content)


def openai_client(url: str) -> Any:
    """The official client as it comes.

    Raises:
        ImportError: it is not installed.
    """
    import openai

    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", timeout=TIMEOUT_S, max_retries=0, http_client=http)


def is_chat(ops: Sequence[Op]) -> bool:
    """True if each generation is a whole message of the assistant, so that chat completions can make it."""
    roles: dict[int, str | None] = {0: None}
    begun: dict[int, bool] = {}
    for op in ops:
        if isinstance(op, Fork):
            roles |= dict.fromkeys(op.children, roles[op.branch])
        elif isinstance(op, Gen | Select):
            if isinstance(op, Select) or roles[op.branch] != "assistant" or begun.get(op.branch):
                return False
            begun[op.branch] = True
        elif isinstance(op, Text):
            if roles[op.branch] is None:
                return False
            begun[op.branch] = True
        elif isinstance(op, RoleBegin):
            roles[op.branch], begun[op.branch] = op.role, False
        elif isinstance(op, RoleEnd):
            roles[op.branch] = None
    return True


def options_of(op: Gen) -> dict[str, Any]:
    """A generation's options in the API's words."""
    sampling = op.sampling
    options: dict[str, Any] = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
    if sampling.ignore_eos:
        options["ignore_eos"] = True
    return options | _constraint(op.grammar)


def _constraint(grammar: GrammarSpec | None) -> dict[str, Any]:
    if grammar is None:
        return {}
    if not isinstance(grammar, Regex):
        raise NotImplementedError(f"the workloads have no {type(grammar).__name__}")
    return {"regex": grammar.pattern}


def logprobs_after(start: int, logprobs: dict[str, Any]) -> list[float]:
    """Those of the tokens that reach beyond `start` characters of an echoed prompt."""
    entries = zip(logprobs["text_offset"], logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    return [value for offset, token, value in entries if offset + len(token) > start and value is not None]


def texts_in(body: dict[str, Any]) -> list[str]:
    """The texts that the body of a request to the API holds."""
    prompt = body.get("prompt", [])
    messages = [message["content"] for message in body.get("messages", ())]
    return [*([prompt] if isinstance(prompt, str) else prompt), *messages]


def texts_of(ops: Ops) -> list[str]:
    """The texts that a program holds, in blocks too."""
    texts: list[str] = []
    for op in walk(ops):
        if isinstance(op, Text):
            texts += (part for part in op.parts if isinstance(part, str))
        elif isinstance(op, Select):
            texts += op.choices
    return texts


def prompts_of(ops: Sequence[Op], pieces: Iterable[Piece]) -> dict[Place, tuple[str, ...]]:
    """The texts of the tokens before each value of a traced program that joins nothing by appending."""
    texts = {(piece.branch, piece.op): piece.texts for piece in pieces}
    branches: dict[int, tuple[str, ...]] = {0: ()}
    num_ops = {0: 0}
    prompts: dict[Place, tuple[str, ...]] = {}
    for op in ops:
        before = branches[op.branch]
        if isinstance(op, Gen | Select):
            prompts[op.branch, op.name] = before
        branches[op.branch] = before + texts.get((op.branch, num_ops[op.branch]), ())
        num_ops[op.branch] += 1
        if isinstance(op, Fork):
            branches |= dict.fromkeys(op.children, before)
            num_ops |= dict.fromkeys(op.children, 0)
    return prompts


# -- The least client -------------------------------------------------------------------------------------------------


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _IdleTooLongError(ConnectionError):
    """The connection was closed before anything was answered."""


class PlainClient:
    """Posts to one server. Used on one event loop; as many connections as there are requests at once."""

    def __init__(self, url: str) -> None:
        split = urlsplit(url)
        assert split.hostname is not None and split.port is not None
        self._host, self._port = split.hostname, split.port
        self._idle: list[Connection] = []

    async def post(self, path: str, content: bytes) -> tuple[int, Any]:
        """The status and the JSON value of the answer. Raises OSError: the server has gone."""
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._post(connection, path, content)
            except _IdleTooLongError:
                continue  # servers close what nobody used for a while
        return await self._post(await asyncio.open_connection(self._host, self._port), path, content)

    async def _post(self, connection: Connection, path: str, content: bytes) -> tuple[int, Any]:
        reader, writer = connection
        kept = False
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            try:
                head_bytes = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionResetError) as error:
                raise _IdleTooLongError("the server closed the connection") from error
            status, headers = read_head(head_bytes)
            body = await reader.readexactly(int(headers["content-length"]))
            kept = headers.get("connection") != "close"
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("the server closed the connection") from error
        finally:
            if kept:
                self._idle.append((reader, writer))
            else:
                writer.close()
        return status, json.loads(body)

    async def aclose(self) -> None:
        while self._idle:
            _, writer = self._idle.pop()
            writer.close()
            await writer.wait_closed()


def read_head(head: bytes) -> tuple[int, dict[str, str]]:
    """The status of an answer, and its headers by their names in lower case."""
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}
