"""The answer of the Responses API: from the engine's outputs to items, and to the events of a stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ...runtime.protocol.request import Finish, RequestOutput, TokenLogprob
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
        self._reasoning = _ReasoningCount(asked.job.reasoning_end, shown)
        self._reader = reader(asked.job.toolbox, asked.job.reasoning_end, optional=asked.may_reason)
        self._streams = body.stream is True
        self._with_logprobs = wants_logprobs(body)
        self._name = name
        self._response = _begun(body, asked, self.id, model=model, stored=stored)
        self._item: Item | None = None
        self._texts: list[str] = []
        self._logprobs: list[bytes] = []
        self._num_logprobs = 0
        self._pending: list[ContentLogprob] = []
        self._events: list[bytes] = []
        self._next = 0

    def begin(self) -> list[bytes]:
        self._tell("response.created")
        if self._response.background:
            self._tell("response.queued")
            self._response.status = "in_progress"
        self._tell("response.in_progress")
        return self._taken()

    def add(self, output: RequestOutput) -> list[bytes]:
        """Raises ApiError: there are too many log-probabilities."""
        num_reasoning = self._reasoning.add(output.tokens)
        if output.logprobs and self._with_logprobs:
            self._keep_logprobs(output.logprobs[num_reasoning:])
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
        return self._taken()

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
        return error_event(error, self._next)

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
        self._item = item
        self._texts, self._logprobs = [], []
        self._emit("response.output_item.added", output_index=self._index, item=item)

    @property
    def _index(self) -> int:
        return len(self._response.output)

    def _place(self, *, content: bool = True) -> dict[str, Any]:
        """Where an event belongs."""
        assert self._item is not None
        place = {"item_id": self._item.id, "output_index": self._index}
        return {**place, "content_index": 0} if content else place

    def _write(self, kind: str, text: str, logprobs: Sequence[ContentLogprob] = ()) -> None:
        """Adds to the text of the item under way, or of a new one."""
        says = kind == "message"
        if self._item is None or self._item.type != kind:
            self._close()
            if says:
                item = Item(type=kind, id=f"msg_{self._name}_{self._index}", role="assistant", content=[])
            else:
                item = Item(type=kind, id=f"rs_{self._name}_{self._index}", summary=[], content=[])
            self._open(item)
            self._emit("response.content_part.added", **self._place(), part=_part(says, ""))
        self._texts.append(text)
        if not says:
            self._emit("response.reasoning_text.delta", **self._place(), delta=text)
            return
        encoded = msgspec.json.encode(logprobs)
        if logprobs:
            self._logprobs.append(encoded[1:-1])
        if text:
            self._emit("response.output_text.delta", **self._place(), delta=text, logprobs=msgspec.Raw(encoded))

    def _add_call(self, piece: Called) -> None:
        self._pending = []
        if piece.name is not None:
            self._close()
            call_id = f"call_{self._name}_{piece.position}"
            item_id = f"fc_{self._name}_{self._index}"
            self._open(Item(type="function_call", id=item_id, call_id=call_id, name=piece.name, arguments=""))
        if piece.arguments:
            self._texts.append(piece.arguments)
            place = self._place(content=False)
            self._emit("response.function_call_arguments.delta", **place, delta=piece.arguments)

    def _close(self, status: str = "completed") -> None:
        """Ends the item under way."""
        item, text = self._item, "".join(self._texts)
        if item is None:
            return
        item.status = status
        if item.type == "function_call":
            item.arguments = text
            done = {**self._place(content=False), "name": item.name, "arguments": text}
            self._emit("response.function_call_arguments.done", **done)
        else:
            says = item.type == "message"
            part = _part(says, text, msgspec.Raw(b"[%b]" % b",".join(self._logprobs)))
            item.content = [part]
            if says:
                self._emit("response.output_text.done", **self._place(), text=text, logprobs=part.logprobs)
            else:
                self._emit("response.reasoning_text.done", **self._place(), text=text)
            self._emit("response.content_part.done", **self._place(), part=part)
        self._emit("response.output_item.done", output_index=self._index, item=item)
        self._response.output.append(item)
        self._item = None

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
        self._num_logprobs += sum(1 + len(entry.top) for entry in entries)
        if self._num_logprobs > MAX_RESPONSE_LOGPROBS:
            message = f"A response has at most {MAX_RESPONSE_LOGPROBS} log-probabilities: ask for fewer alternatives."
            raise ApiError(422, "result_too_long", message, param="top_logprobs")
        self._pending += chat_logprobs(entries, self._shown)

    # The end

    def _finish(self, finish: Finish) -> None:
        cut_off = finish.reason == "length"
        if self._pending and self._item is not None and self._item.type == "message":
            self._write("message", "", self._take_logprobs("", last=True))
        if self._item is None and not self._response.output:
            self._write("message", "")
        self._close("incomplete" if cut_off else "completed")
        self._usage.add(0, finish.usage)
        usage, response = self._usage.total(), self._response
        has_reasoned = any(item.type == "reasoning" for item in response.output)
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details={**usage.prompt_tokens_details, "cache_write_tokens": 0},
            output_tokens=usage.completion_tokens,
            output_tokens_details={
                **usage.completion_tokens_details,
                "reasoning_tokens": self._reasoning.num_tokens if has_reasoned else 0,
            },
            total_tokens=usage.total_tokens,
        )
        self._constraint.add(0, finish.constraint)
        response.constraint = self._constraint.total()
        if cut_off:
            response.incomplete_details = IncompleteDetails("max_output_tokens")
        self._end("incomplete" if cut_off else "completed")

    def _break_off(self, status: Status, event: str) -> list[bytes]:
        if self._item is not None:
            self._streams, streams = False, self._streams  # the item is not done
            self._close("incomplete")
            self._streams = streams
        self._end(status, event)
        return self._taken()

    def _end(self, status: Status, event: str = "") -> None:
        self._response.status = status
        self._response.completed_at = int(time.time()) if status == "completed" else None
        self.final = msgspec.json.encode(self._response)
        self._tell(event or f"response.{status}")

    # Events

    def _tell(self, kind: str) -> None:
        """Emits an event with the whole response."""
        if self._streams:
            self._emit(kind, response=msgspec.Raw(self.encoded()))

    def _emit(self, kind: str, **fields: Any) -> None:
        if self._streams:
            self._events.append(_encode(Event(type=kind, sequence_number=self._next, **fields)))
            self._next += 1

    def _taken(self) -> list[bytes]:
        events, self._events = self._events, []
        return events


class _ReasoningCount:
    """Counts the tokens up to the text that ends the reasoning."""

    def __init__(self, end: str | None, shown: ShownTokens) -> None:
        self.num_tokens = 0
        self._end = (end or "").encode()
        self._shown = shown
        self._tail = b""
        self._is_open = end is not None

    def add(self, tokens: Sequence[int]) -> int:
        """Returns how many of these tokens belong to the reasoning."""
        count = 0
        while self._is_open and count < len(tokens):
            self._tail += bytes(self._shown[tokens[count]].bytes)
            count += 1
            self._is_open = self._end not in self._tail
            self._tail = self._tail[-len(self._end) :]
        self.num_tokens += count
        return count


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
