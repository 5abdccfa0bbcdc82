"""The routes of the Messages API: an answer, whole or as a stream, and the count of a prompt's tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..http.access import caller_of, request_id_of
from ..service import Service, to_json
from .objects import FIELDS, CountBody, MessagesBody, TokenCount
from .replies import MessageReply
from .requests import count_tokens, message_job

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class Messages:
    """Serves /v1/messages and what is below it."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def create(self, request: Request) -> Response:
        service, tenant = self._service, caller_of(request.scope).name
        service.door.check(tenant)
        body, size = await service.read(request, MessagesBody, names=FIELDS)
        with service.door.prepared(tenant):
            work = partial(message_job, body, service.context(request, None))
            job = await service.beside(request, work, size=size)
        name = request_id_of(request.scope).removeprefix("req_")
        reply = MessageReply(body, job, name=name, model=service.model_name)
        return await service.answer(request, job, reply, stream=body.stream is True)

    async def count(self, request: Request) -> Response:
        body, size = await self._service.read(request, CountBody, names=FIELDS)
        work = partial(count_tokens, body, self._service.context(request, None))
        return to_json(TokenCount(await self._service.beside(request, work, size=size)))
