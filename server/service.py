"""Service of generations over HTTP: reads, translates, runs and answers requests; shared parts of all routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ..constrain.errors import GrammarError
from ..constrain.workers.turns import FairThreads
from ..runtime.protocol.counters import EngineStats
from ..runtime.protocol.errors import BoughError, EngineStoppedError, OverloadedError, RequestError
from ..runtime.protocol.request import Request, RequestOutput, Usage
from .config import ServerConfig
from .errors import ApiError, from_error_info, to_api_error
from .http.access import Accounts, Bill, Visit, caller_of, request_id_of, visit_of
from .http.answers import PING, Backlog, Budget, EventStream, Merged, WaitingParts, size_of_logprobs
from .http.connection import (
    LARGE_BODY,
    MAX_ITEMS,
    MAX_TOKEN_IDS,
    ClientClosedError,
    Lifecycle,
    read_body,
    run_while_connected,
)
from .http.dialect import Dialect, dialect_of
from .http.door import Door, Party
from .metrics import ServerMetrics
from .openai.fields import OPENAI_FIELDS, FieldNames
from .openai.objects import ChatBody, CompletionBody
from .openai.replies import ChatReply, CompletionReply, Header, Reply, Scores, ShownTokens
from .openai.requests import (
    Context,
    Job,
    chat_job,
    completion_job,
    decode_openai,
    encode_prompts,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ..runtime.client.client import EngineClient

T = TypeVar("T")
B = TypeVar("B", bound=msgspec.Struct)

NUM_SMALL, NUM_LARGE = 3, 2
"""Threads for what is small, which takes some milliseconds, and for what is large, which may take half a second, and a
chat template one. No key holds the last thread of either kind."""

MAX_WAITING = 1024
"""Requests that may wait for either kind of thread; those of one key may be half of them."""

MAX_ECHOED_AT_ONCE = 1 << 14
"""Characters of prompts whose answer is written on the event loop."""


def to_json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _begun(threads: FairThreads, caller: str, work: Callable[[], T]) -> asyncio.Future[T]:
    """Has `work` done on a thread. Raises ApiError: the system has none."""
    try:
        return asyncio.wrap_future(threads.submit(caller, work))
    except RuntimeError as error:
        message = "The machine has no thread left for this request. Try again later."
        raise ApiError(503, "engine_overloaded", message) from error


class Service:
    """Serves one engine. Lives on one event loop."""

    def __init__(self, client: EngineClient, config: ServerConfig, lifecycle: Lifecycle) -> None:
        self.client = client
        self.config = config
        self.lifecycle = lifecycle
        self.metrics = ServerMetrics()
        self.accounts = Accounts()
        self.door = Door(client.info.max_requests, {key.name: key.weight for key in config.keys})
        self.model_name = config.served_model_name or client.info.name
        self.created = int(time.time())
        self.budget = Budget()
        self.shown = ShownTokens(client.tokenizer)
        self._small = FairThreads("requests", NUM_SMALL, most_running=NUM_SMALL - 1)
        self._large = FairThreads("large-requests", NUM_LARGE, most_running=NUM_LARGE - 1)
        self._observer = FairThreads("stats", 1)  # nobody waits behind a caller's work
        self._asked: asyncio.Future[EngineStats] | None = None

    async def read(
        self, request: HttpRequest, kind: type[B], *, max_tokens: int = 0, names: FieldNames = OPENAI_FIELDS
    ) -> tuple[B, int]:
        """Reads a body, in which `max_tokens` token ids may stand; returns it with its size in bytes. `names` are
        fields that it may have beside those of `kind`."""
        data = await self.read_body(request)
        max_items = max(MAX_ITEMS, min(max_tokens, MAX_TOKEN_IDS))
        strict = self.config.strict_params
        work = partial(decode_openai, data, kind, strict=strict, max_items=max_items, names=names)
        large = len(data) > LARGE_BODY
        body, num_unknown = await self.beside(request, work, size=len(data)) if large else work()
        self.metrics.unknown_fields += num_unknown
        model = getattr(body, "model", None)
        if model is not None:
            self.check_model(model)
        return body, len(data)

    async def beside(self, request: HttpRequest, work: Callable[[], T], *, size: int = 0) -> T:
        """Returns what `work` does on a thread; `size` is in bytes, of what it is done with.

        Callers take turns, large work has a thread of its own, and what waits is dropped when its client leaves.

        Raises:
            ApiError: too much waits already, of all callers or of this one, or there is no thread.
        """
        caller, large = caller_of(request.scope).name, size > LARGE_BODY
        threads = self._large if large else self._small
        may_wait = large or threads.busy(caller)
        if may_wait and (threads.num_waiting() >= MAX_WAITING or threads.num_waiting(caller) >= MAX_WAITING // 2):
            raise ApiError(503, "engine_overloaded", "Too many requests are waiting to be parsed. Try again later.")
        done = _begun(threads, caller, work)
        return await self.run_while_connected(request, done) if may_wait else await done

    async def stats(self) -> EngineStats:
        """Returns the engine's counters, for which it is asked once for all who wait. Raises ApiError: there is no
        thread to ask on."""
        if self._asked is None or self._asked.done():
            self._asked = _begun(self._observer, "", self.client.stats)
        return await asyncio.shield(self._asked)

    def check_model(self, name: str) -> None:
        if name not in (self.model_name, self.client.info.name):
            raise ApiError(404, "model_not_found", f"The model {name[:200]!r} does not exist.", param="model")

    async def chat(self, request: HttpRequest) -> Response:
        tenant = caller_of(request.scope).name
        self.door.check(tenant)
        body, size = await self.read(request, ChatBody)
        with self.door.prepared(tenant):
            job = await self.beside(request, partial(chat_job, body, self.context(request, body.cache_salt)), size=size)
        scores = await self.run_while_connected(request, self._score(request, job)) if job.scores else []
        reply = ChatReply(body, job, self._header("chatcmpl", request), self.shown, scores=scores)
        return await self.answer(request, job, reply, stream=body.stream is True)

    async def complete(self, request: HttpRequest) -> Response:
        tenant = caller_of(request.scope).name
        self.door.check(tenant)
        max_tokens = self.config.max_sequences * self.client.info.max_model_len
        body, size = await self.read(request, CompletionBody, max_tokens=max_tokens)
        context = self.context(request, body.cache_salt)
        with self.door.prepared(tenant):
            prompts: list[list[int]] = []
            if size > LARGE_BODY:  # others have their turn in between
                while not await self.beside(request, partial(encode_prompts, body, context, prompts), size=size):
                    pass
            job = await self.beside(request, partial(completion_job, body, context, prompts), size=size)
        visit_of(request.scope).charge(Usage(prompt_tokens=job.num_echoed))
        scores = await self.run_while_connected(request, self._score(request, job)) if job.scores else []
        reply = CompletionReply(body, job, self._header("cmpl", request), self.shown, scores=scores)
        return await self.answer(request, job, reply, stream=body.stream is True)

    async def read_body(self, request: HttpRequest) -> bytes:
        return await read_body(request, limit=self.config.max_body_bytes, timeout_s=self.config.body_timeout_s)

    def _header(self, prefix: str, request: HttpRequest) -> Header:
        name = request_id_of(request.scope).removeprefix("req_")
        return Header(id=f"{prefix}-{name}", model=self.model_name, created=int(time.time()))

    def context(self, request: HttpRequest, salt: str | None) -> Context:
        caller = caller_of(request.scope)
        name, most = caller.name, self.door.most(caller.name)
        asked_ms = request.headers.get("x-request-timeout-ms", "")
        timeout_s = self.config.request_timeout_s
        if asked_ms.isdecimal() and 0 < len(asked_ms) < 10:
            timeout_s = min(timeout_s, int(asked_ms) / 1000)
        return Context(
            id=request_id_of(request.scope),
            namespace=name if salt is None else f"{name}/{salt}",
            tokenizer=self.client.tokenizer,
            info=self.client.info,
            timeout_s=timeout_s,
            max_sequences=self.config.max_sequences if most is None else min(self.config.max_sequences, most),
            urgent=caller.urgent,
        )

    async def begin(
        self, request: HttpRequest, job: Job, *, quiet_s: float | None, whole: bool
    ) -> Merged[RequestOutput]:
        """Begins the generations of a job, and waits for the first output, at most `quiet_s`. Raises ApiError as
        `_generate` does, or if one is refused."""
        if await request.is_disconnected():  # it may have waited for long, and what follows costs the most
            raise ClientClosedError
        param = job.constraint.param
        outputs = self._generate(request, job.requests, grammar_param=param, quiet_s=quiet_s, whole=whole)
        await self.start(request, outputs, grammar_param=param)
        return outputs

    async def answer(self, request: HttpRequest, job: Job, reply: Reply, *, stream: bool) -> Response:
        """Runs a job and returns its reply, whole or as a stream in the dialect of the request."""
        param = job.constraint.param
        quiet_s = self.config.ping_interval_s if stream else None
        outputs = await self.begin(request, job, quiet_s=quiet_s, whole=not stream)
        if stream:
            chunks = _chunks(outputs, reply, dialect_of(request.scope))
            parts = Backlog(chunks, WaitingParts(), self.budget, close=outputs.close)
            return EventStream(parts, close=parts.aclose, lifecycle=self.lifecycle, grammar_param=param)
        async with outputs:
            await self.run_while_connected(request, _collect(outputs, reply), grammar_param=param)
        small = sum(map(len, job.echoes)) <= MAX_ECHOED_AT_ONCE and not job.shows_tokens
        if small and all(each.sampling.logprobs is None for each in (*job.requests, *job.scores) if each is not None):
            return to_json(reply.result())
        return await self.beside(request, lambda: to_json(reply.result()))

    def _generate(
        self,
        http: HttpRequest,
        requests: Sequence[Request],
        *,
        grammar_param: str = "",
        quiet_s: float | None = None,
        whole: bool,
    ) -> Merged[RequestOutput]:
        """Begins the generations of one request; those whose outputs are kept until the `whole` is there have a bound
        of log-probabilities. Raises ApiError: there is no place for all of them."""
        party, visit = self.door.together(caller_of(http.scope).name, len(requests)), visit_of(http.scope)
        streams = [self._outputs(each, visit, party, grammar_param, whole=whole) for each in requests]
        return Merged(streams, quiet_s=quiet_s, at_close=party.close)

    async def start(self, request: HttpRequest, merged: Merged[Any], *, grammar_param: str) -> None:
        """Waits for the first event, so that refusals are plain HTTP errors; for a stream not beyond its first ping."""
        try:
            await self.run_while_connected(request, merged.start(), grammar_param=grammar_param)
        except BaseException:
            await merged.close()
            raise

    async def run_while_connected(self, request: HttpRequest, work: Awaitable[T], *, grammar_param: str = "") -> T:
        try:
            return await run_while_connected(work, request.receive, self.lifecycle)
        except OverloadedError as error:
            raise self.door.refused(error) from error
        except (BoughError, GrammarError) as error:
            raise to_api_error(error, grammar_param=grammar_param) from error

    async def _outputs(
        self, request: Request, visit: Visit, party: Party, grammar_param: str, *, whole: bool
    ) -> AsyncIterator[RequestOutput]:
        """Yields the outputs of one generation, whose tokens `visit` pays for, read or not; its failure is raised.

        One that the engine did not take costs nothing.
        """
        bill, begun = Bill(visit, len(request.prompt)), False
        stream = cast("AsyncGenerator[RequestOutput]", self.client.astream(request, settle=bill.settle))
        try:
            with party.running():
                async with aclosing(stream) as outputs:
                    async for output in outputs:
                        begun = True
                        bill.add(output)
                        if whole and output.logprobs:
                            visit.keep(size_of_logprobs(output.logprobs))
                        if output.finish is not None:
                            self.metrics.finished(output.finish)
                            if output.finish.reason in ("abort", "error"):
                                raise from_error_info(output.finish.error, grammar_param=grammar_param)
                        yield output
        except (OverloadedError, RequestError, EngineStoppedError):
            if not begun:
                bill.waive()
            raise
        finally:
            bill.pay()

    async def _score(self, http: HttpRequest, job: Job) -> Scores:
        """Returns the log-probabilities of the prompts' tokens, from the second on."""
        scores: Scores = [[] for _ in job.scores]
        places = [index for index, request in enumerate(job.scores) if request is not None]
        requests = [request for request in job.scores if request is not None]
        async with self._generate(http, requests, whole=True) as outputs:
            async for item in outputs:
                if item is not None:
                    scores[places[item[0]]] += item[1].logprobs or ()
        return scores


async def _chunks(outputs: Merged[RequestOutput], reply: Reply, dialect: Dialect) -> AsyncIterator[bytes]:
    for chunk in reply.begin():
        if chunk is not None:
            yield dialect.event(chunk)
        await asyncio.sleep(0)  # an echoed prompt may be long
    async for item in outputs:
        for chunk in () if item is None else reply.add(*item):
            yield dialect.event(chunk)
        if item is None:
            yield PING
        elif item[1].logprobs:
            await asyncio.sleep(0)
    for chunk in reply.end():
        yield dialect.event(chunk)
    if dialect.done:
        yield dialect.done


async def _collect(outputs: Merged[RequestOutput], reply: Reply) -> None:
    for _ in reply.begin():
        await asyncio.sleep(0)  # an echoed prompt may be long
    async for item in outputs:
        if item is not None:
            reply.add(*item)
            if item[1].logprobs:  # so many answers at a time are written that each makes way
                await asyncio.sleep(0)
