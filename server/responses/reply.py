"""The answer of the Responses API: from the engine's outputs to items, and to the events of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ...runtime.protocol.request import Finish, RequestOutput, TokenLogprob
from ...runtime.tokenizer.reasoning import THINK
from ...runtime.tools.tag_reader import Called, Said
from ..errors import ApiError
from ..openai.objects import ContentLogprob
from ..openai.replies import ConstraintCount, ShownTokens, Thought, UsageCount, chat_logprobs, reader
from .objects import (
    ErrorEvent,
    Event,
    IncompleteDetails,
    Item,
    Part,
    ReasoningConfig,
    Response,
    ResponseBody,
    ResponseError,
    ResponseUsage,
    Status,
    TextConfig,
    TextFormat,
)
from .requests import Asked, wants_logprobs

MAX_RESPONSE_LOGPROBS = 1 << 16
"""Log-probabilities of a response, alternatives included. A stream repeats all of them four times at its end."""

_EMPTY_LIST = msgspec.Raw(b"[]")
_CODES = {429: "rate_limit_exceeded", 503: "rate_limit_exceeded"} | dict.fromkeys((400, 422), "invalid_prompt")


class ResponseReply:
    """Takes outputs as they come. `begin`, `add`, `fail` and `cancel` return the events of a stream, if it is one.

    final    the response as JSON, once it is over; empty before
    """

    def __init__(
        self, body: ResponseBody, asked: Asked, shown: ShownTokens, *, name: str, model: str, stored: bool
    ) -> None:
        """`name` is what its ids have in common, and `stored` tells the client whether the response is kept."""
        self.id = f"resp_{name}"
        self.final = b""
        self._asked = asked
        self._shown = shown
        self._usage = UsageCount(asked.job)
        self._constraint = ConstraintCount()
        self._reasoning = _ReasoningCount(asked.job.reasoning_end, shown, optional=asked.job.reasoning_optional)
        self._reader = reader(asked.job)
        self._with_logprobs = wants_logprobs(body)
        self._name = name
        self._response = _begun(body, asked, self.id, model=model, stored=stored)
        self._growing: _Growing | None = None
        self._num_logprobs = 0
        self._pending: list[ContentLogprob] = []
        self._events = _Events(enabled=body.stream is True)

    def begin(self) -> list[bytes]:
        self._tell_all("response.created")
        if self._response.background:
            self._tell_all("response.queued")
            self._response.status = "in_progress"
        self._tell_all("response.in_progress")
        return self._events.take()

    def add(self, output: RequestOutput) -> list[bytes]:
        """Raises ApiError: there are too many log-probabilities."""
        self._reasoning.add(output.tokens)
        if self._with_logprobs:
            self._keep_logprobs(output.logprobs or ())
        pieces = [*self._reader.push(output.text)]
        if output.finish is not None:
            pieces += self._reader.finish()
        for index, piece in enumerate(pieces):
            if isinstance(piece, Thought):
                self._write("reasoning", piece.text)
            elif isinstance(piece, Said):
                self._write("message", piece.text, self._take_logprobs(piece.text, last=index == len(pieces) - 1))
            else:
                self._add_call(piece)
        if output.finish is not None:
            self._finish(output.finish)
        return self._events.take()

    def fail(self, error: ApiError) -> list[bytes]:
        """Ends the response with an error."""
        code = _CODES.get(error.status, "server_error")
        self._response.error = ResponseError(code=code, message=error.message, param=error.param, type=error.code)
        return self._break_off("failed", "response.failed")

    def cancel(self) -> list[bytes]:
        """Ends the response as its client asked for. OpenAI has no event of its own for that."""
        return self._break_off("cancelled", "response.incomplete")

    def error_event(self, error: ApiError) -> bytes:
        """The last event of a stream that is cut off while the response may go on."""
        return error_event(error, self._events.count)

    def encoded(self) -> bytes:
        """The response as JSON, as far as it is."""
        return self.final or msgspec.json.encode(self._response)

    @property
    def item_ids(self) -> tuple[str, ...]:
        items = (*self._asked.items, *self._response.output)
        return tuple(item.id for item in items if isinstance(item.id, str))

    # Items

    def _open(self, item: Item) -> None:
        item.status = "in_progress"
        self._growing = _Growing(item)
        self._events.add("response.output_item.added", output_index=self._index, item=item)

    @property
    def _index(self) -> int:
        return len(self._response.output)

    def _tell(self, event: str, *, content_index: int | UnsetType = 0, **fields: Any) -> None:
        """Tells of something that happened to the item that grows."""
        assert self._growing is not None
        item_id = self._growing.item.id
        self._events.add(event, item_id=item_id, output_index=self._index, content_index=content_index, **fields)

    def _write(self, kind: str, text: str, logprobs: Sequence[ContentLogprob] = ()) -> None:
        """Adds to the text of the item that grows, or of a new one."""
        says = kind == "message"
        if self._growing is None or self._growing.item.type != kind:
            self._close()
            if says:
                item = Item(type=kind, id=f"msg_{self._name}_{self._index}", role="assistant", content=[])
            else:
                item = Item(type=kind, id=f"rs_{self._name}_{self._index}", summary=[], content=[])
            self._open(item)
            self._tell("response.content_part.added", part=_part(says, ""))
        assert self._growing is not None
        self._growing.texts.append(text)
        if not says:
            self._tell("response.reasoning_text.delta", delta=text)
            return
        encoded = msgspec.json.encode(logprobs)
        if logprobs:
            self._growing.logprobs.append(encoded[1:-1])
        if text or logprobs:
            self._tell("response.output_text.delta", delta=text, logprobs=msgspec.Raw(encoded))

    def _add_call(self, piece: Called) -> None:
        self._pending = []
        if piece.name is not None:
            self._close()
            call_id = f"call_{self._name}_{piece.position}"
            item_id = f"fc_{self._name}_{self._index}"
            self._open(Item(type="function_call", id=item_id, call_id=call_id, name=piece.name, arguments=""))
        if piece.arguments and self._growing is not None:
            self._growing.texts.append(piece.arguments)
            self._tell("response.function_call_arguments.delta", content_index=UNSET, delta=piece.arguments)

    def _close(self, status: str = "completed") -> None:
        """Ends the item that grows, if there is one."""
        if self._growing is None:
            return
        item, text = self._growing.item, "".join(self._growing.texts)
        item.status = status
        if item.type == "function_call":
            item.arguments = text
            done = "response.function_call_arguments.done"
            self._tell(done, content_index=UNSET, name=item.name, arguments=text)
        else:
            says = item.type == "message"
            part = _part(says, text, msgspec.Raw(b"[%b]" % b",".join(self._growing.logprobs)))
            item.content = [part]
            if says:
                self._tell("response.output_text.done", text=text, logprobs=part.logprobs)
            else:
                self._tell("response.reasoning_text.done", text=text)
            self._tell("response.content_part.done", part=part)
        self._events.add("response.output_item.done", output_index=self._index, item=item)
        self._response.output.append(item)
        self._growing = None

    def _take_logprobs(self, text: str, *, last: bool) -> list[ContentLogprob]:
        """Takes the pending log-probabilities of `text`, or all if nothing follows it: it may have been held back."""
        num_bytes, count = len(text.encode()), len(self._pending)
        if not last:
            count = 0
            while count < len(self._pending) and num_bytes > 0:
                num_bytes -= len(self._pending[count].bytes or ())
                count += 1
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    def _keep_logprobs(self, entries: Sequence[TokenLogprob]) -> None:
        """Adds to what is pending, without the tokens of the reasoning."""
        self._pending += chat_logprobs(entries, self._shown)
        self._num_logprobs += sum(1 + len(entry.top) for entry in entries)
        count = self._reasoning.take()
        self._num_logprobs -= sum(1 + len(entry.top_logprobs) for entry in self._pending[:count])
        self._pending = self._pending[count:]
        if self._num_logprobs > MAX_RESPONSE_LOGPROBS:
            message = f"A response has at most {MAX_RESPONSE_LOGPROBS} log-probabilities: ask for fewer alternatives."
            raise ApiError(422, "result_too_long", message, param="top_logprobs")

    # The end

    def _finish(self, finish: Finish) -> None:
        cut_off = finish.reason == "length"
        if self._pending and self._growing is not None and self._growing.item.type == "message":
            self._write("message", "", self._take_logprobs("", last=True))
        if self._growing is None and not self._response.output:
            self._write("message", "")
        self._close("incomplete" if cut_off else "completed")
        self._usage.add(0, finish.usage)
        usage, response = self._usage.total(), self._response
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details={**usage.prompt_tokens_details, "cache_write_tokens": 0},
            output_tokens=usage.completion_tokens,
            output_tokens_details={
                **usage.completion_tokens_details,
                "reasoning_tokens": self._reasoning.num_tokens,
            },
            total_tokens=usage.total_tokens,
        )
        self._constraint.add(0, finish.constraint)
        response.constraint = self._constraint.total()
        if cut_off:
            response.incomplete_details = IncompleteDetails("max_output_tokens")
        self._end("incomplete" if cut_off else "completed")

    def _break_off(self, status: Status, event: str) -> list[bytes]:
        if self._growing is not None:
            with self._events.paused():  # the item is not done
                self._close("incomplete")
        self._end(status, event)
        return self._events.take()

    def _end(self, status: Status, event: str = "") -> None:
        self._response.status = status
        self._response.completed_at = int(time.time()) if status == "completed" else None
        self.final = msgspec.json.encode(self._response)
        self._tell_all(event or f"response.{status}")

    def _tell_all(self, event: str) -> None:
        """Tells of the whole response."""
        if self._events.enabled:
            self._events.add(event, response=msgspec.Raw(self.encoded()))


@dataclass
class _Growing:
    """An item while it grows: pieces of its text, and log-probabilities as JSON without the brackets."""

    item: Item
    texts: list[str] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)


class _Events:
    """The events of a response, if it is a stream; `count` of them were made."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.count = 0
        self._made: list[bytes] = []

    def add(self, kind: str, **fields: Any) -> None:
        if self.enabled:
            self._made.append(_encode(Event(type=kind, sequence_number=self.count, **fields)))
            self.count += 1

    def take(self) -> list[bytes]:
        """Returns what was made since the last time."""
        made, self._made = self._made, []
        return made

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Makes none meanwhile."""
        enabled, self.enabled = self.enabled, False
        yield
        self.enabled = enabled


class _ReasoningCount:
    """Counts the tokens up to the text that ends the reasoning; if that is `optional`, only if the answer opens it."""

    def __init__(self, end: str | None, shown: ShownTokens, *, optional: bool) -> None:
        self._begin = THINK.begin.encode() if optional else b""  # until it is known whether there is reasoning
        self._end = (end or "").encode()
        self._is_open = end is not None
        self._shown = shown
        self._tail = b""
        self._count = self._num_taken = 0

    @property
    def num_tokens(self) -> int:
        """The tokens that are known to be reasoning."""
        return 0 if self._begin else self._count

    def take(self) -> int:
        """Returns how many more there are than the last time."""
        taken, self._num_taken = self._num_taken, self.num_tokens
        return self._num_taken - taken

    def add(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not self._is_open:
                return
            self._tail += bytes(self._shown[token].bytes)
            self._count += 1
            if self._tail.startswith(self._begin):
                self._begin = b""
            elif not self._begin.startswith(self._tail):
                self._is_open = False  # and what begins otherwise is none
            if not self._begin:
                self._is_open = self._end not in self._tail
                self._tail = self._tail[-len(self._end) :]


def _begun(body: ResponseBody, asked: Asked, response_id: str, *, model: str, stored: bool) -> Response:
    """The response as it is before anything is generated: it repeats what was asked for."""
    sampling = asked.job.requests[0].sampling
    text = body.text or TextConfig()
    return Response(
        id=response_id,
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=body.background is True,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=body.reasoning or ReasoningConfig(),
        safety_identifier=body.safety_identifier,
        store=stored,
        temperature=sampling.temperature,
        text=TextConfig(text.format or TextFormat(type="text"), text.verbosity),
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _part(says: bool, text: str, logprobs: msgspec.Raw = _EMPTY_LIST) -> Part:
    if not says:
        return Part(type="reasoning_text", text=text)
    return Part(type="output_text", text=text, annotations=_EMPTY_LIST, logprobs=logprobs)


def error_event(error: ApiError, number: int) -> bytes:
    event = ErrorEvent(sequence_number=number, code=error.code, message=error.message, param=error.param)
    return _encode(event)


def _encode(event: Event | ErrorEvent) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), msgspec.json.encode(event))
