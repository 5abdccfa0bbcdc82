"""Routes of programs: those sent as instructions, and those deployed by name and called with JSON arguments.

When a client leaves before the last event, its program is dropped, with its state, kept or not: closing its events
(`Merged.close`) ends the engine's stream (`runtime.client.streams.aiterate`), which drops the program
(`Executor.drop`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Scope

from ...constrain.errors import GrammarError, GrammarTooComplexError, cut, quoted
from ...constrain.spec import excess_of
from ...runtime.client.client import EngineClient
from ...runtime.programs.room import check_room
from ...runtime.programs.validate import MAX_DEPTH
from ...runtime.protocol.errors import BoughError, RequestError
from ...runtime.protocol.program import (
    STATE_LIFE_S,
    BranchFailed,
    Delta,
    Done,
    Failed,
    Fork,
    Gen,
    Op,
    Program,
    ProgramEvent,
    Repeat,
    Value,
    When,
    named_tools,
    walk,
)
from ...runtime.protocol.request import Usage
from ...runtime.protocol.template import Template
from ...runtime.templates.fill import check_template, fill
from ...runtime.templates.results import Results
from ...runtime.templates.validate import rehearse
from ...runtime.tokenizer.tokenizer import Tokenizer
from ...runtime.tools.registry import unknown_tool
from ..errors import ApiError, from_error_info, invalid, to_api_error
from ..http.access import caller_of, request_id_of, require_admin, visit_of
from ..http.answers import PING, Backlog, EventStream, Merged, WaitingEvents, note_error
from ..http.connection import LARGE_BODY, check_parts, decode
from ..http.dialect import DONE, event
from ..service import Service, to_json
from .openapi import card, document

MAX_OPS = 4096
MAX_BRANCHES = 1024
MAX_KEPT = 4096
"""Most ids of kept states that the server remembers for a key."""
MAX_DEPLOYED = 256
MAX_DEPLOYED_BYTES = 64 << 20

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class Programs:
    """The programs of a server, used on its event loop.

    Raises:
        RequestError: one of `templates` cannot be run.
    """

    def __init__(self, service: Service, templates: tuple[Template, ...] = ()) -> None:
        self._service = service
        # By key: the ids of states that may exist, and the time of their last use.
        self._kept: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._templates: dict[str, Template] = {}
        self._num_bytes: dict[str, int] = {}
        for template in templates:
            try:
                _check(template, service.client)
                self._put(template.name, template)
            except (ApiError, BoughError) as error:
                raise RequestError(f"the program {template.name!r}: {error.message}", param="program") from error

    # Sent

    async def run(self, request: HttpRequest) -> Response:
        """Runs the program in the body. The answer streams its ProgramEvents as JSON."""
        data = await self._service.read_body(request)
        read = partial(_program, data, self._service.client.tokenizer)
        program = await self._service.beside(request, read, size=len(data))
        _check_tools(program.ops, caller_of(request.scope).limits.tools, self._service.client.tools)
        if program.id in self._templates and not program.resume and _may_see(request, program.id):
            raise invalid("id", f"{program.id!r} is the name of a deployed program: choose another id")
        context = self._service.context(request, program.namespace or None)
        mine = msgspec.structs.replace(
            program,
            id=_scoped(request, program.id),
            namespace=context.namespace,
            timeout_s=min(program.timeout_s or context.timeout_s, context.timeout_s),
        )
        self._remember(caller_of(request.scope).name, mine)
        events = await self._start(request, mine, grammar_param="ops")
        parts = _written(events, request.scope)
        return EventStream(parts, close=events.close, lifecycle=self._service.lifecycle, grammar_param="ops")

    def _remember(self, key: str, program: Program) -> None:
        kept = self._kept[key]
        kept.pop(program.id, None)
        if program.keep:
            kept[program.id] = time.monotonic()
        if len(kept) > MAX_KEPT:
            del kept[next(iter(kept))]

    async def drop(self, request: HttpRequest) -> Response:
        """Deletes the caller's state of this id, or a deployed program of this name.

        The latter if the caller may see it and has no state of this id that may still exist; it takes an admin key.
        """
        program_id = request.path_params["program_id"]
        scoped = _scoped(request, program_id)
        used = self._kept[caller_of(request.scope).name].pop(scoped, None)
        life_s = STATE_LIFE_S + self._service.config.request_timeout_s
        is_known = program_id in self._templates and _may_see(request, program_id)
        if is_known and (used is None or time.monotonic() - used >= life_s):
            require_admin(caller_of(request.scope))
            del self._templates[program_id], self._num_bytes[program_id]
            return to_json({"id": program_id, "object": "program", "deleted": True})
        self._service.client.drop(scoped)
        return to_json({"id": program_id, "object": "program.state", "deleted": True})

    async def _start(
        self, request: HttpRequest, program: Program, *, grammar_param: str = "", pings: bool = True
    ) -> Merged[ProgramEvent]:
        """Starts a program and returns its events. Raises a refusal, which becomes a plain HTTP error."""
        visit = visit_of(request.scope)
        happens = self._service.client.arun(program, settle=lambda last: visit.charge(last.usage))
        backlog = Backlog(happens, WaitingEvents(), self._service.budget)
        events = Merged([backlog], quiet_s=self._service.config.ping_interval_s if pings else None, room=1)
        await self._service.start(request, events, grammar_param=grammar_param)
        return events

    # Deployed

    async def deploy(self, request: HttpRequest) -> Response:
        """Registers a compiled program under a name, replacing any that has it."""
        name = request.path_params["name"]
        require_admin(caller_of(request.scope))
        body = await self._service.read_body(request)
        read = partial(_deployable, body, name, self._service.client)
        template, answer = await self._service.beside(request, read, size=len(body))
        self._put(name, template, len(body))
        return answer

    def _put(self, name: str, template: Template, num_bytes: int = 0) -> None:
        if not _NAME.fullmatch(name):
            raise invalid(
                "name",
                "a program's name has 1 to 64 letters, digits, '_', '-' and '.', and does not begin with a digit",
            )
        if name not in self._templates and len(self._templates) >= MAX_DEPLOYED:
            raise ApiError(409, "too_many_programs", f"No more than {MAX_DEPLOYED} programs can be deployed.")
        others = sum(size for other, size in self._num_bytes.items() if other != name)
        if others + num_bytes > MAX_DEPLOYED_BYTES:
            message = f"Deployed programs may total {MAX_DEPLOYED_BYTES >> 20} MiB."
            raise ApiError(409, "too_many_programs", message)
        self._templates[name] = msgspec.structs.replace(template, name=name)
        self._num_bytes[name] = num_bytes

    async def list(self, request: HttpRequest) -> Response:
        templates = list(self._allowed(request))
        size = sum(self._num_bytes[template.name] for template in templates)
        return await self._service.beside(request, lambda: _listed(templates), size=size)

    async def describe(self, request: HttpRequest) -> Response:
        template, size = self._find(request)
        return await self._service.beside(request, lambda: to_json(card(template)), size=size)

    def _allowed(self, request: HttpRequest) -> Iterator[Template]:
        """Yields the deployed programs that the caller may call."""
        return (template for name, template in self._templates.items() if _may_see(request, name))

    def _find(self, request: HttpRequest) -> tuple[Template, int]:
        """Returns the deployed program that the path names, and its size in bytes; raises ApiError if there is none."""
        name = request.path_params["name"]
        template = self._templates.get(name) if _may_see(request, name) else None
        if template is None:
            raise ApiError(404, "program_not_found", f"No program {name[:100]!r} is deployed.", param="name")
        return template, self._num_bytes[name]

    async def openapi(self, request: HttpRequest) -> Response:
        templates = list(self._allowed(request))
        size = sum(self._num_bytes[template.name] for template in templates)
        return await self._service.beside(request, lambda: to_json(document(templates)), size=size)

    # Calling

    async def call(self, request: HttpRequest) -> Response:
        """Runs a deployed program with the arguments in the body; `?stream=true` (or 1) streams its events."""
        template, size = self._find(request)
        _check_tools(template.ops, caller_of(request.scope).limits.tools, self._service.client.tools, param="name")
        body = await self._service.read_body(request)
        context, size = self._service.context(request, None), max(size, len(body))
        ops, result = await self._service.beside(request, lambda: fill(template, _arguments(body)), size=size)
        stream = request.query_params.get("stream", "") in ("1", "true")
        program = Program(
            id=f"{context.id}/{template.name}",
            ops=ops,
            deltas=stream,
            namespace=context.namespace,
            timeout_s=context.timeout_s,
        )
        events = await self._start(request, program, pings=stream)
        results = Results(result)
        if stream:

            async def last(usage: Usage) -> bytes:
                return await self._service.beside(
                    request,
                    lambda: event({"type": "result", "result": results.read(), "usage": usage}),
                    size=results.num_chars,
                )

            chunks = _chunks(events, results, last)
            return EventStream(chunks, close=events.close, lifecycle=self._service.lifecycle, grammar_param="")
        async with events:
            usage = await self._service.run_while_connected(request, _collect(events, results))
        answer = {"id": request_id_of(request.scope), "object": "program.result", "program": template.name}
        return await self._service.beside(
            request, lambda: to_json({**answer, "result": results.read(), "usage": usage}), size=results.num_chars
        )


def _scoped(request: HttpRequest, program_id: str) -> str:
    """Returns the engine's id of a program, which holds the API key's name: each key has programs of its own."""
    name = caller_of(request.scope).name
    return f"{name}/{program_id}" if name else program_id


def _may_see(request: HttpRequest, name: str) -> bool:
    """True if the caller may know of a deployed program of this name."""
    names = caller_of(request.scope).limits.programs
    return names is None or name in names


def _check_size(program: Program) -> None:
    if not 1 <= len(program.id) <= 256:
        raise invalid("id", "id must have 1 to 256 characters")
    if program.timeout_s is not None and not program.timeout_s > 0:
        raise invalid("timeout_s", "timeout_s must be more than 0")
    _check_ops(program.ops)


def _check_ops(ops: tuple[Op, ...]) -> None:
    """Raises ApiError for too many instructions (with those in blocks) or branches, too deep blocks, or too long a
    constraint."""
    depth, level = 0, list(ops)
    while level := [inner for op in level for inner in _inner(op)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise invalid("ops", f"blocks may be nested {MAX_DEPTH} levels deep", code="invalid_program")
    everything = list(walk(ops))
    if len(everything) > MAX_OPS:
        raise invalid("ops", f"ops may have at most {MAX_OPS} entries", code="array_above_max_length")
    num_branches = sum(len(op.children) for op in everything if isinstance(op, Fork))
    if num_branches > MAX_BRANCHES:
        raise invalid("ops", f"ops may fork at most {MAX_BRANCHES} branches", code="array_above_max_length")
    for index, op in enumerate(everything):
        if isinstance(op, Gen) and (excess := excess_of(op.grammar)) is not None:
            raise invalid("ops", f"instruction {index}: {excess}", code=GrammarTooComplexError.code)


def _inner(op: Op) -> tuple[Op, ...]:
    return (*op.then, *op.otherwise) if isinstance(op, When) else op.body if isinstance(op, Repeat) else ()


def _check_tools(
    ops: tuple[Op, ...], allowed: tuple[str, ...] | None, known: Collection[str], *, param: str = "ops"
) -> None:
    """Checks that a key may call the tools of a program. The engine's own refusal would name the tools of all keys.

    Raises:
        ApiError: it may not call one.
        RequestError: it may, but there is no such tool.
    """
    if allowed is None:
        return
    for index, op in enumerate(walk(ops)):
        for name in named_tools(op):
            if name not in allowed:
                raise ApiError(403, "tool_not_allowed", f"The key may not call the tool {quoted(name)}.", param=param)
            if name not in known:
                raise unknown_tool(index, name, set(allowed).intersection(known))


def _arguments(data: bytes) -> dict[str, Any]:
    check_parts(data)
    try:
        arguments = msgspec.json.decode(data or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid("", "the body must be a JSON object: the program's arguments", code="invalid_json") from error
    return arguments


def _listed(templates: Sequence[Template]) -> Response:
    return to_json({"object": "list", "data": [card(template) for template in templates]})


def _program(data: bytes, tokenizer: Tokenizer) -> Program:
    """Decodes and checks a program. Raises ApiError, or BoughError if it does not fit."""
    program = decode(data, Program)
    _check_size(program)
    check_room(program.ops, tokenizer)
    return program


def _deployable(body: bytes, name: str, client: EngineClient) -> tuple[Template, Response]:
    """Decodes and checks a template; returns it with the answer that describes it. Raises as `_check`."""
    template = msgspec.structs.replace(decode(body, Template), name=name)
    return template, _check(template, client)


def _check(template: Template, client: EngineClient) -> Response:
    """Checks a program before it is deployed; returns the answer that describes it.

    Raises:
        ApiError, BoughError: it cannot be run or described.
    """
    _check_ops(template.ops)
    try:
        check_template(template)
        rehearse(template, client.tools)
        check_room(template.ops, client.tokenizer)
        return to_json(card(template))
    except GrammarError as error:
        raise to_api_error(error, grammar_param="parameters") from error
    except BoughError:
        raise
    except (ValueError, RecursionError) as error:
        raise invalid("parameters", f"the program cannot be described: {cut(str(error))}") from error


async def _written(events: Merged[ProgramEvent], scope: Scope) -> AsyncIterator[bytes]:
    """Yields events as they are, written as JSON, and notes the error of a program that fails."""
    async for item in events:
        if item is not None and isinstance(item[1], Failed):
            note_error(scope, item[1].error.code)
        yield PING if item is None else await _to_event(item[1])


async def _to_event(happened: ProgramEvent) -> bytes:
    """Writes one event. The end of a program may be large: other tasks have a turn between its texts."""
    if not isinstance(happened, Done) or sum(map(len, happened.texts.values())) <= LARGE_BODY:
        return event(happened)
    texts = []
    for branch, text in happened.texts.items():
        texts.append(b'"%d":%b' % (branch, msgspec.json.encode(text)))
        await asyncio.sleep(0)
    head, mark, tail = event(msgspec.structs.replace(happened, texts={})).partition(b'"texts":{')
    return b"".join((head, mark, b",".join(texts), tail))


async def _collect(events: Merged[ProgramEvent], results: Results) -> Usage:
    usage = Usage()
    async for item in events:
        if item is not None:
            results.feed(item[1])
            usage = _seen(item[1], usage)
    return usage


async def _chunks(
    events: Merged[ProgramEvent], results: Results, last: Callable[[Usage], Awaitable[bytes]]
) -> AsyncIterator[bytes]:
    """Yields events as they happen, then the `last` one with the result."""
    usage = Usage()
    async for item in events:
        if item is None:
            yield PING
            continue
        results.feed(item[1])
        usage = _seen(item[1], usage)
        if isinstance(item[1], Delta | Value | BranchFailed):
            yield event(item[1])
    yield await last(usage)
    yield DONE


def _seen(happened: ProgramEvent, usage: Usage) -> Usage:
    if isinstance(happened, Failed):
        raise from_error_info(happened.error, grammar_param="")
    return usage + happened.usage if isinstance(happened, Done) else usage
