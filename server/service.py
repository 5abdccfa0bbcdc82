"""Generations over HTTP: read, translate, run, answer; and what all routes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ..constrain.errors import GrammarError
from ..runtime.protocol.errors import BoughError
from ..runtime.protocol.request import Request, RequestOutput, TokenLogprob
from .config import ServerConfig
from .errors import ApiError, from_error_info, to_api_error
from .http.connection import Lifecycle, attend, read_body
from .http.event_stream import DONE, PING, EventStream, Merged, event
from .http.gate import caller_of, request_id_of
from .metrics import ServerMetrics
from .openai.objects import ChatBody, CompletionBody
from .openai.replies import ChatReply, CompletionReply, Header, Reply, Scores
from .openai.requests import Context, Job, chat_job, completion_job, decode_openai

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ..runtime.client.client import EngineClient

T = TypeVar("T")
B = TypeVar("B", bound=msgspec.Struct)


def to_json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


class Service:
    """Serves one engine. Lives on one event loop."""

    def __init__(self, client: EngineClient, config: ServerConfig, lifecycle: Lifecycle) -> None:
        self.client = client
        self.config = config
        self.lifecycle = lifecycle
        self.metrics = ServerMetrics()
        self.model_name = config.served_model_name or client.info.name
        self.created = int(time.time())

    async def read(self, request: HttpRequest, kind: type[B]) -> B:
        """Reads the body of an OpenAI route."""
        body, num_unknown = decode_openai(await self.read_body(request), kind, strict=self.config.strict_params)
        self.metrics.unknown_fields += num_unknown
        model = getattr(body, "model", None)
        if model is not None:
            self.check_model(model)
        return body

    def check_model(self, name: str) -> None:
        if name not in (self.model_name, self.client.info.name):
            raise ApiError(404, "model_not_found", f"The model {name[:200]!r} does not exist.", param="model")

    async def chat(self, request: HttpRequest) -> Response:
        body = await self.read(request, ChatBody)
        job = await asyncio.to_thread(chat_job, body, self.context(request, body.cache_salt))
        reply = ChatReply(body, job, self._header("chatcmpl", request), self.client.tokenizer)
        return await self._answer(request, job, reply, stream=body.stream is True)

    async def complete(self, request: HttpRequest) -> Response:
        body = await self.read(request, CompletionBody)
        job = await asyncio.to_thread(completion_job, body, self.context(request, body.cache_salt))
        scores = await self.attend(request, self._score(job)) if job.scores else ()
        reply = CompletionReply(body, job, self._header("cmpl", request), self.client.tokenizer, scores=scores)
        return await self._answer(request, job, reply, stream=body.stream is True)

    async def read_body(self, request: HttpRequest) -> bytes:
        return await read_body(request, limit=self.config.max_body_bytes, timeout_s=self.config.body_timeout_s)

    def _header(self, prefix: str, request: HttpRequest) -> Header:
        name = request_id_of(request.scope).removeprefix("req_")
        return Header(id=f"{prefix}-{name}", model=self.model_name, created=int(time.time()))

    def context(self, request: HttpRequest, salt: str | None) -> Context:
        name = caller_of(request.scope).name
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
            max_sequences=self.config.max_sequences,
        )

    async def _answer(self, request: HttpRequest, job: Job, reply: Reply, *, stream: bool) -> Response:
        param = job.constraint.param
        streams = [self._outputs(each, param) for each in job.requests]
        outputs = Merged(streams, quiet_s=self.config.ping_interval_s if stream else None)
        await self.start(request, outputs, grammar_param=param)
        if stream:
            chunks = _chunks(outputs, reply)
            return EventStream(chunks, close=outputs.close, lifecycle=self.lifecycle, grammar_param=param)
        async with outputs:
            await self.attend(request, _collect(outputs, reply), grammar_param=param)
        return to_json(reply.result())

    async def start(self, request: HttpRequest, merged: Merged[Any], *, grammar_param: str) -> None:
        """Waits for the first event, so that refusals are plain HTTP errors."""
        try:
            await self.attend(request, merged.start(), grammar_param=grammar_param)
        except BaseException:
            await merged.close()
            raise

    async def attend(self, request: HttpRequest, work: Coroutine[Any, Any, T], *, grammar_param: str = "") -> T:
        try:
            return await attend(work, request.receive, self.lifecycle)
        except (BoughError, GrammarError) as error:
            raise to_api_error(error, grammar_param=grammar_param) from error

    async def _outputs(self, request: Request, grammar_param: str) -> AsyncIterator[RequestOutput]:
        """Yields the outputs of one generation; its failure is raised."""
        stream = cast("AsyncGenerator[RequestOutput]", self.client.astream(request))
        async with aclosing(stream) as outputs:
            async for output in outputs:
                if output.finish is not None:
                    self.metrics.finished(output.finish)
                    if output.finish.reason in ("abort", "error"):
                        raise from_error_info(output.finish.error, grammar_param=grammar_param)
                yield output

    async def _score(self, job: Job) -> Scores:
        """Returns the log-probabilities of the prompts' tokens, from the second on."""
        scores: list[list[TokenLogprob]] = [[] for _ in job.scores]
        places = [index for index, request in enumerate(job.scores) if request is not None]
        streams = [self._outputs(request, "") for request in job.scores if request is not None]
        async with Merged(streams) as outputs:
            async for item in outputs:
                if item is not None:
                    scores[places[item[0]]] += item[1].logprobs or ()
        return scores


async def _chunks(outputs: Merged[RequestOutput], reply: Reply) -> AsyncIterator[bytes]:
    for chunk in reply.begin():
        yield event(chunk)
    async for item in outputs:
        for chunk in () if item is None else reply.add(*item):
            yield event(chunk)
        if item is None:
            yield PING
    for chunk in reply.end():
        yield event(chunk)
    yield DONE


async def _collect(outputs: Merged[RequestOutput], reply: Reply) -> None:
    reply.begin()
    async for item in outputs:
        if item is not None:
            reply.add(*item)
