"""Routes of the Responses API. A response in the background goes on without its client, whose events others may follow.

When a client leaves a response that is not in the background, its generation ends and nothing is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response as HttpResponse
from starlette.types import Message

from ...runtime.protocol.request import RequestOutput
from ..errors import ApiError, invalid, to_api_error
from ..http.access import caller_of, request_id_of, visit_of
from ..http.answers import PING, Backlog, EventStream, Merged, WaitingParts, note_error
from ..http.connection import run_while_connected
from ..service import Service, to_json
from .objects import ItemPage, ResponseBody
from .reply import ResponseReply, error_event
from .requests import Asked, input_of, references, translate
from .store import Store, Stored

REFUSED_WITHIN_S = 0.1
"""Time in which the engine may refuse a response in the background as a plain error; later, the response fails."""

MAX_LISTED, LISTED = 100, 20
"""Items in a list: at most, and if the request does not say."""

logger = logging.getLogger("bough.server")


class Responses:
    """The responses of a server, used on its event loop."""

    def __init__(self, service: Service) -> None:
        config = service.config
        self._service = service
        self._store = Store(
            max_bytes=config.max_response_bytes, max_count=config.max_responses, ttl_s=config.response_ttl_s
        )
        self._can_store = config.max_responses > 0 and config.max_response_bytes > 0

    # Making

    async def create(self, request: HttpRequest) -> HttpResponse:
        service, key = self._service, caller_of(request.scope).name
        service.door.check(key)
        body, size = await service.read(request, ResponseBody)
        stores = self._stores(body)
        earlier = self._store.conversation(key, body.previous_response_id)
        referenced = self._store.holders(key, references(body))
        size += sum(stored.num_bytes for stored in (*earlier, *referenced.values()))
        name = request_id_of(request.scope).removeprefix("req_")
        context = service.context(request, body.cache_salt)
        with service.door.prepared(key):
            work = partial(translate, body, context, earlier, referenced, name)
            asked = await service.beside(request, work, size=size)
        reply = ResponseReply(body, asked, service.shown, name=name, model=service.model_name, stored=stores)
        if body.background:
            return await self._in_background(request, body, asked, reply)

        def keep() -> None:
            if stores:
                self._store.put(key, _stored(body, asked, reply))

        param = asked.job.constraint.param
        quiet_s = service.config.ping_interval_s if body.stream else None
        outputs = await service.begin(request, asked.job, quiet_s=quiet_s, whole=True)
        if body.stream:
            events = _events(request, outputs, reply, keep, param)
            parts = Backlog(events, WaitingParts(), service.budget, close=outputs.close)
            return self._stream(parts, parts.aclose, write_error=reply.error_event)
        async with outputs:
            await service.run_while_connected(request, _collect(outputs, reply), grammar_param=param)
        keep()
        return _json(reply.final)

    def _stores(self, body: ResponseBody) -> bool:
        """Tells whether a response is to be stored. Raises ApiError: it should be, but cannot."""
        if not self._can_store:
            for name in ("store", "background"):
                if getattr(body, name):
                    message = f"this server stores no responses: {name} cannot be true"
                    raise invalid(name, message, code="unsupported_value")
        if body.background and body.store is False:
            raise invalid("background", "a response in the background is stored: store cannot be false")
        return self._can_store and body.store is not False

    def _stream(
        self,
        events: AsyncIterator[bytes],
        close: Callable[[], Any],
        *,
        write_error: Callable[[ApiError], bytes],
    ) -> EventStream:
        return EventStream(events, close=close, lifecycle=self._service.lifecycle, write_error=write_error)

    # In the background

    async def _in_background(
        self, request: HttpRequest, body: ResponseBody, asked: Asked, reply: ResponseReply
    ) -> HttpResponse:
        key, service = caller_of(request.scope).name, self._service
        outputs = await service.begin(request, asked.job, quiet_s=REFUSED_WITHIN_S, whole=True)
        outputs.quiet_s = None
        queued = reply.encoded()
        events = reply.begin()
        stored = _stored(body, asked, reply)
        if not self._store.put(key, stored):
            await outputs.close()
            message = "The responses of this key that are in the background leave no room. Wait for one, or cancel one."
            raise ApiError(429, "rate_limit_exceeded", message)
        visit_of(request.scope).stay()
        service.lifecycle.num_running += 1
        stored.task = asyncio.create_task(self._run(request, stored, outputs, reply, asked.job.constraint.param))
        for event in events:
            self._store.grow(key, stored, event)
        return self._followed(stored, 0) if body.stream else _json(queued)

    async def _run(
        self,
        request: HttpRequest,
        stored: Stored,
        outputs: Merged[RequestOutput],
        reply: ResponseReply,
        param: str,
    ) -> None:
        """Makes a response to its end, whether anybody follows it or not."""
        key = caller_of(request.scope).name

        async def fill() -> None:
            async for item in outputs:
                for event in () if item is None else reply.add(item[1]):
                    self._store.grow(key, stored, event)

        last: list[bytes] = []
        try:
            async with outputs:
                await run_while_connected(fill(), _stays, self._service.lifecycle)
        except asyncio.CancelledError:
            last = [] if reply.final else reply.cancel()
        except Exception as error:  # noqa: BLE001  the response tells of it
            last = [] if reply.final else reply.fail(_noted(request, error, param))
        for event in last:
            self._store.grow(key, stored, event)
        self._store.settle(key, stored, reply.final, reply.item_ids)
        visit_of(request.scope).end()
        self._service.lifecycle.num_running -= 1

    def _followed(self, stored: Stored, first: int) -> EventStream:
        events = self._follow(stored, first)
        return self._stream(events, events.aclose, write_error=lambda error: error_event(error, first))

    async def _follow(self, stored: Stored, first: int) -> AsyncGenerator[bytes]:
        """Yields the events of a response, from number `first` on, as they happen.

        Raises:
            ApiError: they had no room in the store.
        """
        while True:
            while stored.events is not None and first < len(stored.events):
                yield stored.events[first]
                first += 1
            if stored.events is None:
                message = "The events of the response are too many to be kept: ask for the response without stream."
                raise ApiError(422, "result_too_long", message)
            if stored.task is None:
                return
            try:
                async with asyncio.timeout(self._service.config.ping_interval_s):
                    await stored.news.wait()
            except TimeoutError:
                yield PING

    async def cancel(self, request: HttpRequest) -> HttpResponse:
        """Ends a response in the background; one that is over is only returned."""
        stored = self._find(request)
        if not stored.background:
            message = "Only a response that was created with background: true can be cancelled."
            raise ApiError(400, "invalid_value", message, param="response_id")
        await _stop(stored)
        return _json(stored.response)

    # Stored

    async def retrieve(self, request: HttpRequest) -> HttpResponse:
        """Returns a response; `?stream=true` (or 1) its events, those after number `starting_after`."""
        stored = self._find(request)
        if request.query_params.get("stream", "") not in ("1", "true"):
            return _json(stored.response)
        if stored.events is None:
            message = "Only a response that was created with background: true and stream: true can be streamed again."
            raise ApiError(400, "unsupported_value", message, param="stream")
        return self._followed(stored, _number(request, "starting_after", -1, 0, 2**31) + 1)

    async def delete(self, request: HttpRequest) -> HttpResponse:
        """Deletes a response, which ends if it is still being made."""
        key, response_id = caller_of(request.scope).name, request.path_params["response_id"]
        await _stop(self._store.drop(key, response_id))
        return to_json({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: HttpRequest) -> HttpResponse:
        """Lists the items of a response's own input, the last first unless `order` is `asc`."""
        stored = self._find(request)
        order, after = request.query_params.get("order", "desc"), request.query_params.get("after")
        if order not in ("asc", "desc"):
            raise invalid("order", "order must be asc or desc")
        limit = _number(request, "limit", LISTED, 1, MAX_LISTED)
        work = partial(_page, stored, after=after, limit=limit, descending=order == "desc")
        return await self._service.beside(request, work, size=len(stored.input))

    def _find(self, request: HttpRequest) -> Stored:
        return self._store.get(caller_of(request.scope).name, request.path_params["response_id"])


def _stored(body: ResponseBody, asked: Asked, reply: ResponseReply) -> Stored:
    background = body.background is True
    return Stored(
        reply.id,
        previous=body.previous_response_id,
        input=asked.input,
        response=reply.encoded(),
        item_ids=reply.item_ids,
        background=background,
        events=[] if background and body.stream else None,
    )


def _json(encoded: bytes) -> HttpResponse:
    return HttpResponse(encoded, media_type="application/json")


async def _events(
    request: HttpRequest,
    outputs: Merged[RequestOutput],
    reply: ResponseReply,
    keep: Callable[[], None],
    param: str,
) -> AsyncIterator[bytes]:
    """Yields the events of a stream. A response is stored before its client hears that it is over."""
    for event in reply.begin():
        yield event
    try:
        async for item in outputs:
            events = [PING] if item is None else reply.add(item[1])
            if reply.final:
                keep()
            for event in events:
                yield event
            if item is not None and item[1].logprobs:
                await asyncio.sleep(0)
    except Exception as error:
        if reply.final:  # its client has heard of the end
            raise
        events = reply.fail(_noted(request, error, param))
        keep()
        for event in events:
            yield event


def _noted(request: HttpRequest, error: Exception, param: str) -> ApiError:
    """Returns what a response tells of an error, which is noted for log and metrics."""
    answer = to_api_error(error, grammar_param=param)
    if answer.status == 500:
        logger.exception("the response to request %s failed", request_id_of(request.scope), exc_info=error)
    note_error(request.scope, answer.code)
    return answer


async def _collect(outputs: Merged[RequestOutput], reply: ResponseReply) -> None:
    reply.begin()
    async for item in outputs:
        if item is not None:
            reply.add(item[1])
            if item[1].logprobs:  # so many answers at a time are written that each makes way
                await asyncio.sleep(0)


async def _stays() -> Message:
    """The next message of a client that never leaves."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody sets the future")


async def _stop(stored: Stored) -> None:
    """Ends a response that is being made, and waits for that."""
    if stored.task is not None:
        if not stored.task.cancelling():
            stored.task.cancel()
        await asyncio.wait({stored.task})


def _number(request: HttpRequest, name: str, default: int, least: int, most: int) -> int:
    """Reads a whole number of the query. Raises ApiError: it is none, or out of range."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and least <= int(text) <= most):
        raise invalid(name, f"{name} must be a whole number in {least} .. {most}")
    return int(text)


def _page(stored: Stored, *, after: str | None, limit: int, descending: bool) -> HttpResponse:
    items = input_of(stored)
    if descending:
        items.reverse()
    if after is not None:
        ids = [item.id for item in items]
        if after not in ids:
            raise invalid("after", f"the input has no item {after[:100]!r}")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    first, last = (str(page[0].id), str(page[-1].id)) if page else ("", "")
    return to_json(ItemPage(data=page, first_id=first, last_id=last, has_more=len(items) > limit))
