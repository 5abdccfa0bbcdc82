"""OpenTelemetry spans of programs, named by the semantic conventions for generative AI."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from ...constrain.spec import JsonSchema
from ...runtime.protocol.program import (
    BranchFailed,
    BranchRestarted,
    Done,
    Fork,
    Gen,
    Op,
    Program,
    ProgramEvent,
    RoleBegin,
    RoleEnd,
    Select,
    Use,
    Value,
    walk,
)
from ...runtime.protocol.request import Usage
from ...runtime.protocol.sampling_params import SamplingParams
from ...runtime.tools.registry import ToolCall
from ..backend import Backend

MAX_CONTENT = 8192
"""Characters of a text that are recorded at most."""

_PROVIDERS = {"Anthropic": "anthropic", "OpenAI": "openai"}
"""By the backend's class; all others are our own engine."""

_NS = 1_000_000_000
_MAX_INTEGER = 2**63
"""Attributes hold signed integers of 64 bits."""

Attributes = dict[str, AttributeValue]


def observer(tracer_provider: TracerProvider | None, *, content: bool) -> Callable[[str, str, Backend], ProgramSpans]:
    """Returns what begins the spans of a run."""
    tracer = trace.get_tracer("bough", tracer_provider=tracer_provider)

    def begin(title: str, program_id: str, backend: Backend) -> ProgramSpans:
        return ProgramSpans(tracer, title, program_id, backend, content=content)

    return begin


def headers() -> dict[str, str]:
    """Returns headers that name the current span to others, as the global propagator says."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


class _Asked(NamedTuple):
    """An instruction that makes a value; whether it is in a message, and when it was sent."""

    op: Gen | Select | Use
    in_message: bool
    sent_ns: int


class ProgramSpans:
    """The spans of one run. Fed under the session's lock."""

    def __init__(self, tracer: Tracer, title: str, program_id: str, backend: Backend, *, content: bool) -> None:
        self._tracer = tracer
        self._content = content
        self._model = _model_of(backend)
        self._common: Attributes = {"gen_ai.provider.name": _PROVIDERS.get(type(backend).__name__, "bough")}
        if self._model:
            self._common["gen_ai.request.model"] = self._model
        self._asked: dict[tuple[int, str], _Asked] = {}
        self._in_message: dict[int, bool] = {}
        self._last_ns: dict[int, int] = {}
        self._tools: set[str] = set()
        self._usage = Usage()
        self._num_requests = 0
        self._ended = False
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": title,
            "bough.program.id": program_id,
            **self._common,
        }
        self._span = tracer.start_span(f"invoke_workflow {title}", kind=SpanKind.INTERNAL, attributes=attributes)
        self._context = trace.set_span_in_context(self._span)

    def current(self) -> AbstractContextManager[object]:
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def sent(self, program: Program) -> None:
        now = time.time_ns()
        for op in walk(program.ops):
            self._note(op, now)

    def _note(self, op: Op, now: int) -> None:
        match op:
            case RoleBegin(branch=branch):
                self._in_message[branch] = True
            case RoleEnd(branch=branch):
                self._in_message[branch] = False
            case Fork(branch=branch, children=children):
                self._in_message |= dict.fromkeys(children, self._in_message.get(branch, False))
            case Gen() | Select() | Use():
                self._asked[op.branch, op.name] = _Asked(op, self._in_message.get(op.branch, False), now)

    def take(self, event: ProgramEvent) -> None:
        match event:
            case Value():
                self._value(event)
            case BranchFailed(branch=branch, error=error):
                self._span.add_event("branch failed", {"bough.branch": branch, "error.type": error.code})
            case BranchRestarted(branch=branch, attempt=attempt, error=error):
                attributes: Attributes = {"bough.branch": branch, "bough.attempt": attempt, "error.type": error.code}
                self._span.add_event("branch restarted", attributes)
            case Done(usage=usage, requests=num_requests):
                self._usage += usage
                self._num_requests += num_requests

    def watched(self, tool: ToolCall) -> ToolCall:
        self._tools.add(tool.name)
        return _WatchedTool(tool, self._start_tool)

    def end(self, error: BaseException | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._span.set_attributes({**_usage(self._usage), "bough.requests": self._num_requests})
        if error is not None:
            _fail(self._span, error, getattr(error, "code", type(error).__qualname__))
        self._span.end()

    def _value(self, value: Value) -> None:
        asked = self._asked.get((value.branch, value.name))
        now = time.time_ns()
        before, self._last_ns[value.branch] = self._last_ns.get(value.branch, 0), now
        if asked is None or (isinstance(asked.op, Use) and asked.op.tool in self._tools):
            return
        timings = value.timings
        took_s = timings.queue_s + timings.prefill_s + timings.decode_s
        # of what others do for us only the end is known, and that it began after what came before it
        start = now - int(took_s * _NS) if took_s else max(asked.sent_ns, before)
        if isinstance(asked.op, Use):
            span = self._start_tool(asked.op.tool, start)
        else:
            span = self._start_call(asked, value, start)
        span.set_attributes({"bough.value": value.name, "bough.branch": value.branch, "bough.turn": value.turn})
        if self._content:
            span.set_attributes(_content(asked.op, value))
        span.end(now)

    def _start_call(self, asked: _Asked, value: Value, start: int) -> Span:
        op = asked.op
        attributes = dict(self._common)
        if isinstance(op, Gen):
            operation = "chat" if asked.in_message else "text_completion"
            attributes |= _requested(op.sampling)
            attributes["gen_ai.output.type"] = "json" if isinstance(op.grammar, JsonSchema) else "text"
            attributes["gen_ai.response.finish_reasons"] = [value.finish_reason]
            attributes["bough.forced_tokens"] = value.usage.forced_tokens
        else:
            operation = "select"
            attributes["bough.choices"] = len(op.choices) if isinstance(op, Select) else 0
        attributes |= {"gen_ai.operation.name": operation, "bough.queue_s": value.timings.queue_s}
        attributes |= _usage(value.usage)
        name = f"{operation} {self._model}" if self._model else operation
        return self._tracer.start_span(name, self._context, SpanKind.CLIENT, attributes, start_time=start)

    def _start_tool(self, name: str, start: int | None = None, arguments: Mapping[str, Any] | None = None) -> Span:
        attributes: Attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
        attributes["gen_ai.tool.type"] = "function"
        if self._content and arguments is not None:
            attributes["gen_ai.tool.call.arguments"] = _short(json.dumps(arguments, default=str))
        kind = SpanKind.INTERNAL
        return self._tracer.start_span(f"execute_tool {name}", self._context, kind, attributes, start_time=start)


class _WatchedTool:
    """A tool, each call of which is a span; spans that the tool itself makes are below it."""

    def __init__(self, tool: ToolCall, start: Callable[[str, int | None, Mapping[str, Any]], Span]) -> None:
        self._tool = tool
        self._start = start
        self.name = tool.name
        self.timeout_s = tool.timeout_s
        self.max_chars = tool.max_chars
        self.parameters = tool.parameters

    def call(self, arguments: dict[str, Any]) -> str | Awaitable[str]:
        span = self._start(self.name, None, arguments)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                found = self._tool.call(arguments)
        except BaseException as error:
            _fail(span, error, type(error).__qualname__)
            span.end()
            raise
        if inspect.isawaitable(found):
            return self._awaited(span, found)
        span.end()
        return found

    async def _awaited(self, span: Span, found: Awaitable[str]) -> str:
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                return await found
        except BaseException as error:
            _fail(span, error, type(error).__qualname__)
            raise
        finally:
            span.end()


def _model_of(backend: Backend) -> str:
    """The name of the model, if the backend says it."""
    info = getattr(getattr(backend, "client", None), "info", None)
    name = getattr(info, "name", None) or getattr(backend, "model_name", None)
    return name if isinstance(name, str) else ""


def _requested(sampling: SamplingParams) -> Attributes:
    found: dict[str, AttributeValue | None] = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p if sampling.top_p != 1 else None,
        "gen_ai.request.top_k": sampling.top_k if sampling.top_k and sampling.top_k > 0 else None,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
        "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
        "gen_ai.request.seed": sampling.seed if (sampling.seed or 0) < _MAX_INTEGER else None,
        "gen_ai.request.choice.count": sampling.n if sampling.n != 1 else None,
        "gen_ai.request.stop_sequences": list(sampling.stop_strings) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _usage(usage: Usage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
    }


def _content(op: Gen | Select | Use, value: Value) -> Attributes:
    if isinstance(op, Use):
        return {"gen_ai.tool.call.result": _short(value.text)}
    part = {"type": "text", "content": _short(value.text)}
    message = {"role": "assistant", "parts": [part], "finish_reason": value.finish_reason}
    return {"gen_ai.output.messages": json.dumps([message], ensure_ascii=False)}


def _fail(span: Span, error: BaseException, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, getattr(error, "message", str(error))))
    span.record_exception(error)


def _short(text: str) -> str:
    return text if len(text) <= MAX_CONTENT else f"{text[:MAX_CONTENT]}... ({len(text):,} characters)"
