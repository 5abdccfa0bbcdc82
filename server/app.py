"""ASGI application: its routes, and the server that runs it until it has drained."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..constrain.errors import GrammarError
from ..runtime.protocol.errors import BoughError
from ..runtime.protocol.template import Template
from ..runtime.tools.registry import ToolCall
from .anthropic.dialect import DIALECTS
from .anthropic.messages import Messages
from .config import ServerConfig
from .errors import ApiError, invalid, to_api_error
from .http.access import caller_of, require_admin
from .http.answers import ErrorResponse
from .http.connection import ClientClosedError, Lifecycle
from .http.gate import Gate
from .http.protocol import BoundedProtocol, bounded_protocol, connection_limit
from .openai.objects import ChatBody, DetokenizeBody, ModelCard, ModelList, TokenizeBody
from .openai.requests import check_chars, encode_chat
from .openai.tools import to_toolbox
from .programs.programs import Programs
from .responses.routes import Responses
from .service import Service, to_json

if TYPE_CHECKING:
    from ..runtime.client.client import EngineClient

_GRACE_S = 2.0
"""Left after the drain, in which answers that were cut off reach their clients."""

_CUT_OFF_S = 0.5
"""Left after that, in which requests that are cancelled end."""

TOKENIZED_CONTEXTS, WRITTEN_CONTEXTS = 2, 8
"""A text that is longer than texts of so many contexts may be is not tokenised, nor are more tokens written."""

MAX_UNACCEPTED = 2048
"""Connections that wait to be accepted."""

ACCEPTED_AT_ONCE = 8
"""Connections that are accepted before what is open has its turn: a flood of them must not stop the event loop."""

LAG_EVERY_S = 0.02
"""Between two looks at how late the event loop is."""

logger = logging.getLogger("bough.server")


def create_app(
    client: EngineClient,
    config: ServerConfig,
    lifecycle: Lifecycle | None = None,
    *,
    programs: tuple[Template, ...] = (),
) -> Gate:
    """Returns the ASGI application that serves `client` and deployed `programs`. The caller closes the client."""
    service = Service(client, config, lifecycle or Lifecycle())
    table = Routes(service, programs).table()
    app = Starlette(routes=[Route(path, endpoint, methods=[method]) for method, path, endpoint in table])
    app.router.redirect_slashes = False
    for kind in (ApiError, BoughError, GrammarError, Exception):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(ClientClosedError, _on_closed)
    app.add_exception_handler(HTTPException, _on_http_error)
    paths = frozenset(path for _, path, _ in table)
    return Gate(
        app,
        config=config,
        metrics=service.metrics,
        lifecycle=service.lifecycle,
        accounts=service.accounts,
        paths=paths,
        dialects=DIALECTS,
    )


async def _on_error(request: Request, error: Exception) -> Response:
    return ErrorResponse(to_api_error(error), request.scope)


async def _on_closed(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it, but it is counted


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answers what the router itself refuses."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        answer = ApiError(404, "unknown_url", f"Unknown request URL: {request.method} {request.url.path[:200]}")
    elif status == 405:
        answer = ApiError(405, "method_not_allowed", f"{request.method} is not allowed here.")
    else:
        answer = to_api_error(error)
    response = ErrorResponse(answer, request.scope)
    response.headers.update(getattr(error, "headers", None) or {})
    return response


class Routes:
    """The table of all routes, and those about the model and the server itself."""

    def __init__(self, service: Service, programs: tuple[Template, ...] = ()) -> None:
        self._service = service
        self._client = service.client
        self._programs = Programs(service, programs)
        self._messages = Messages(service)
        self._responses = Responses(service)

    def table(self) -> list[tuple[str, str, Callable[..., Any]]]:
        return [
            ("POST", "/v1/chat/completions", self._service.chat),
            ("POST", "/v1/completions", self._service.complete),
            ("POST", "/v1/messages", self._messages.create),
            ("POST", "/v1/messages/count_tokens", self._messages.count),
            ("POST", "/v1/responses", self._responses.create),
            ("GET", "/v1/responses/{response_id}", self._responses.retrieve),
            ("DELETE", "/v1/responses/{response_id}", self._responses.delete),
            ("POST", "/v1/responses/{response_id}/cancel", self._responses.cancel),
            ("GET", "/v1/responses/{response_id}/input_items", self._responses.input_items),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{model_id:path}", self.model),
            ("POST", "/v1/programs", self._programs.run),
            ("GET", "/v1/programs", self._programs.list),
            ("POST", "/v1/programs/{name}", self._programs.call),
            ("PUT", "/v1/programs/{name}", self._programs.deploy),
            ("GET", "/v1/programs/{name}", self._programs.describe),
            ("GET", "/v1/tools", self.tools),
            ("GET", "/openapi.json", self._programs.openapi),
            ("DELETE", "/v1/programs/{program_id:path}", self._programs.drop),
            ("POST", "/tokenize", self.tokenize),
            ("POST", "/detokenize", self.detokenize),
            ("GET", "/livez", self.livez),
            ("GET", "/readyz", self.readyz),
            ("GET", "/health", self.readyz),
            ("GET", "/metrics", self.metrics),
            ("GET", "/server_info", self.server_info),
            ("POST", "/flush_cache", self.flush_cache),
            ("POST", "/admin/flush_cache", self.flush_cache),
        ]

    async def models(self, _: Request) -> Response:
        return to_json(ModelList([self._card()]))

    async def model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["model_id"])
        return to_json(self._card())

    def _card(self) -> ModelCard:
        info = self._client.info
        return ModelCard(self._service.model_name, self._service.created, info.name, info.max_model_len)

    async def tools(self, request: Request) -> Response:
        """Lists the tools that the caller's programs may use."""
        allowed = caller_of(request.scope).limits.tools
        tools = [tool for tool in self._client.tools.values() if allowed is None or tool.name in allowed]
        return to_json({"object": "list", "data": [_tool_card(tool) for tool in tools]})

    async def tokenize(self, request: Request) -> Response:
        body, size = await self._service.read(request, TokenizeBody)
        return await self._service.beside(request, partial(self._tokenized, body), size=size)

    def _tokenized(self, body: TokenizeBody) -> Response:
        tokens = self._tokens(body)
        answer = {"tokens": tokens, "count": len(tokens), "max_model_len": self._client.info.max_model_len}
        if body.return_token_strs:
            answer["token_strs"] = self._client.tokenizer.texts(tokens)
        return to_json(answer)

    def _tokens(self, body: TokenizeBody) -> list[int]:
        tokenizer, limit = self._client.tokenizer, TOKENIZED_CONTEXTS * self._client.info.max_model_len
        if (body.prompt is None) == (body.messages is None):
            raise invalid("prompt", "give either prompt or messages", code="missing_required_parameter")
        if body.prompt is not None:
            check_chars(len(body.prompt), max_tokens=limit, param="prompt")
            encode = tokenizer.encode_prompt if body.add_special_tokens else tokenizer.encode
            return encode(body.prompt, special=True)
        chat = ChatBody(
            model="",
            messages=body.messages or [],
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        return encode_chat(chat, to_toolbox(chat), tokenizer, max_tokens=limit)

    async def detokenize(self, request: Request) -> Response:
        most = WRITTEN_CONTEXTS * self._client.info.max_model_len
        body, size = await self._service.read(request, DetokenizeBody, max_tokens=most)
        if len(body.tokens) > most:
            raise invalid("tokens", f"at most {most} tokens can be decoded at a time", code="array_above_max_length")
        return await self._service.beside(request, partial(self._detokenized, body), size=size)

    def _detokenized(self, body: DetokenizeBody) -> Response:
        for index, token in enumerate(body.tokens):
            if not 0 <= token < self._client.info.vocab_size:
                raise invalid(f"tokens[{index}]", "there is no such token", code="invalid_token_id")
        text = self._client.tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens)
        return to_json({"prompt": text})

    async def livez(self, _: Request) -> Response:
        return to_json({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        if self._service.lifecycle.draining:
            raise self._service.lifecycle.refusal()
        self._client.check()
        return to_json({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        stats = await self._service.stats()
        text = self._service.metrics.render(stats, self._client.info, self._service.accounts)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def server_info(self, _: Request) -> Response:
        stats = await self._service.stats()
        config = {name: value for name, value in msgspec.structs.asdict(self._service.config).items() if name != "keys"}
        model = msgspec.structs.replace(self._client.info, path="")  # where files lie is no business of clients
        return to_json({"version": version("bough"), "model": model, "server": config, "stats": stats})

    async def flush_cache(self, request: Request) -> Response:
        require_admin(caller_of(request.scope))
        return to_json({"flushed": await self._service.beside(request, self._client.flush_cache)})


def _tool_card(tool: ToolCall) -> dict[str, Any]:
    about = {"id": tool.name, "object": "tool", "description": getattr(tool, "description", "")}
    return {**about, "parameters": tool.parameters, "timeout_s": tool.timeout_s}


class DrainingServer(uvicorn.Server):
    """uvicorn with a drain: after the first signal it still listens, but refuses new work, until running requests have
    finished or the drain times out. It also ends when the engine dies. At the end it closes the client."""

    def __init__(
        self,
        config: ServerConfig,
        client: EngineClient,
        lifecycle: Lifecycle,
        programs: tuple[Template, ...] = (),
        *,
        announce: Callable[[], None] | None = None,
    ) -> None:
        """`announce` is called once signals are handled and connections accepted."""
        app = create_app(client, config, lifecycle, programs=programs)
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                http=bounded_protocol(
                    config.max_connections or connection_limit(), config.header_timeout_s, config.send_timeout_s
                ),
                ws="none",
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                backlog=ACCEPTED_AT_ONCE,
                timeout_graceful_shutdown=int(_GRACE_S) + 1,  # what is slow has been cut off before
            )
        )
        self.engine_died = False
        self.ended_by: int | None = None  # the signal that cut the drain short
        self._client = client
        self._lifecycle = lifecycle
        self._announce = announce
        self._drain_delay_s = config.drain_delay_s
        self._drain_timeout_s = config.drain_timeout_s
        self._drains_since: float | None = None
        self._signal: signal.Signals | None = None  # the first, until it is told of
        self._loop_lag = app.metrics.loop_lag

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(MAX_UNACCEPTED)  # uvicorn has it that only so many wait as are accepted at once
        self._look_at_lag(asyncio.get_running_loop(), 0.0)
        if self._announce is not None:
            self._announce()

    def _look_at_lag(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        if due:
            self._loop_lag.observe(max(now - due, 0.0))
        if not self.should_exit:
            loop.call_at(now + LAG_EVERY_S, self._look_at_lag, loop, now + LAG_EVERY_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the drain; the second ends it. The log's lock may be held by what this interrupts."""
        if self._drains_since is None:
            self._signal = signal.Signals(sig)
            self._lifecycle.drain(self._drain_delay_s + self._drain_timeout_s)
            self._drains_since = time.monotonic()
        else:
            self.ended_by = sig
            self.should_exit = True
            self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        told, self._signal = self._signal, None
        if told is not None:
            logger.info("%s: finishing running requests; a second signal exits at once", told.name)
        if not self._client.alive:
            logger.error("the engine has ended")
            self.engine_died = True
            self._lifecycle.drain()
            return True
        return self._drained or await super().on_tick(counter)

    @property
    def _drained(self) -> bool:
        if self._drains_since is None:
            return False
        left_s = self._drains_since + self._drain_delay_s - time.monotonic()
        return left_s <= 0 and (self._lifecycle.num_running == 0 or left_s <= -self._drain_timeout_s)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timeout_s = 1.0 if self.engine_died else 0.0  # the streams' own errors come first
        loop = asyncio.get_running_loop()
        timers = loop.call_later(timeout_s, self._lifecycle.expire), loop.call_later(_GRACE_S, self._cut_off)
        await super().shutdown(sockets)
        for timer in timers:
            timer.cancel()
        if cut_off := set(self.server_state.tasks):
            await asyncio.wait(cut_off, timeout=_CUT_OFF_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # or what a client does not read would keep its socket open
        # Or threads that wait for its answers would keep the event loop from ending.
        self._client.close(at_once=self.ended_by is not None)

    def _cut_off(self) -> None:
        """Ends what a client does not read, or what waits for something that does not come."""
        for connection in list(self.server_state.connections):
            cast("BoundedProtocol", connection).cut_off()
        for task in list(self.server_state.tasks):
            task.cancel()
