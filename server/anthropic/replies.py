"""From the engine's outputs to a message, or to the events of its stream: one path for both, so that they agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ...constrain.workers.decoders import json_decoder
from ...runtime.protocol.request import Finish, RequestOutput
from ...runtime.tools.tag_reader import Said
from ..openai.replies import Piece, Thought, reader
from ..openai.requests import Job
from .objects import (
    AnswerBlock,
    AnthropicMessage,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageDelta,
    MessagesBody,
    MessageStart,
    MessageStop,
    MessageUsage,
    Stop,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)

_OBJECT = json_decoder(dict[str, Any])


class MessageReply:
    """The answer to /v1/messages.

    A stream begins with the first output, not before: its first event says how much of the prompt was cached.
    """

    def __init__(self, body: MessagesBody, job: Job, *, name: str, model: str) -> None:
        """`name` is the request's own part of the ids of message and calls."""
        self._name = name
        self._model = model
        self._max_tokens = body.max_tokens
        self._stop_sequences = body.stop_sequences or ()
        self._omits_thinking = body.thinking is not None and body.thinking.display == "omitted"
        self._num_prompt = len(job.prompts[0])
        self._limit = job.requests[0].sampling.max_tokens
        self._reader = reader(job)
        self._blocks: list[AnswerBlock] = []
        self._texts: list[list[str]] = []
        self._is_open = False
        self._blank = ""  # white space that is no block of its own if a call is next to it
        self._calls = False
        self._usage: MessageUsage | None = None
        self._stop = Stop("end_turn", None)

    def begin(self) -> Iterator[msgspec.Struct]:
        return iter(())

    def add(self, index: int, output: RequestOutput) -> Sequence[msgspec.Struct]:
        events: list[msgspec.Struct] = []
        if self._usage is None:
            cached = output.finish.usage.cached_tokens if output.finish is not None else output.cached_tokens or 0
            self._usage = self._counted(cached, 0)
            events.append(MessageStart(self._message(self._usage, content=[])))
        pieces = [*self._reader.push(output.text)]
        if output.finish is not None:
            pieces += self._reader.finish()
        for piece in pieces:
            events += self._take(piece)
        if output.finish is not None:
            if self._blank and not self._calls:
                events += self._grow(TextBlock(""), self._blank)
            events += self._close()
            self._stop = self._stopped(output.finish)
            self._usage = self._counted(output.finish.usage.cached_tokens, output.finish.usage.completion_tokens)
        return events

    def end(self) -> Sequence[msgspec.Struct]:
        assert self._usage is not None
        return [MessageDelta(self._stop, self._usage), MessageStop()]

    def result(self) -> AnthropicMessage:
        assert self._usage is not None
        for block, texts in zip(self._blocks, self._texts, strict=True):
            text = "".join(texts)
            if isinstance(block, TextBlock):
                block.text = text
            elif isinstance(block, ThinkingBlock):
                block.thinking = text
            else:
                block.input = _read_object(text)
        message = self._message(self._usage, content=self._blocks)
        message.stop_reason, message.stop_sequence = self._stop.stop_reason, self._stop.stop_sequence
        return message

    def _message(self, usage: MessageUsage, *, content: list[AnswerBlock]) -> AnthropicMessage:
        return AnthropicMessage(f"msg_{self._name}", self._model, content, usage)

    def _counted(self, num_cached: int, num_written: int) -> MessageUsage:
        return MessageUsage(
            input_tokens=self._num_prompt - num_cached,
            cache_read_input_tokens=num_cached,
            output_tokens=num_written,
        )

    def _take(self, piece: Piece) -> Iterator[msgspec.Struct]:
        if isinstance(piece, Thought):
            yield from self._grow(ThinkingBlock(""), "" if self._omits_thinking else piece.text)
        elif isinstance(piece, Said):
            yield from self._say(piece.text)
        elif piece.name is None:
            yield from self._grow(self._blocks[-1], piece.arguments)
        else:
            yield from self._close()
            self._blank, self._calls = "", True
            yield from self._grow(ToolUseBlock(f"toolu_{self._name}_{piece.position}", piece.name), "")

    def _say(self, text: str) -> Iterator[msgspec.Struct]:
        if not (self._is_open and isinstance(self._blocks[-1], TextBlock)):
            text, self._blank = self._blank + text, ""
            if not text.strip():
                self._blank = text
                return
        yield from self._grow(TextBlock(""), text)

    def _grow(self, block: AnswerBlock, text: str) -> Iterator[msgspec.Struct]:
        """Adds to the open block if it is of the type of `block`, which is begun otherwise. No two calls are one."""
        if not self._is_open or type(self._blocks[-1]) is not type(block):
            yield from self._close()
            self._blocks.append(block)
            self._texts.append([])
            self._is_open = True
            yield BlockStart(len(self._blocks) - 1, block)
        if text:
            self._texts[-1].append(text)
            yield BlockDelta(len(self._blocks) - 1, _delta(block, text))

    def _close(self) -> Iterator[msgspec.Struct]:
        if self._is_open:
            self._is_open = False
            yield BlockStop(len(self._blocks) - 1)

    def _stopped(self, finish: Finish) -> Stop:
        reason: StopReason = "tool_use" if self._calls else "end_turn"
        if finish.reason == "length":
            reason = "max_tokens" if self._limit == self._max_tokens else "model_context_window_exceeded"
        elif isinstance(finish.matched, str) and finish.matched in self._stop_sequences:
            return Stop("stop_sequence", finish.matched)
        return Stop(reason, None)


def _delta(block: AnswerBlock, text: str) -> TextDelta | ThinkingDelta | InputDelta:
    if isinstance(block, TextBlock):
        return TextDelta(text)
    return ThinkingDelta(text) if isinstance(block, ThinkingBlock) else InputDelta(text)


def _read_object(text: str) -> msgspec.Raw:
    """Returns a call's arguments; none of them if they were cut off, which `stop_reason` tells."""
    try:
        _OBJECT.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return msgspec.Raw(b"{}")
    return msgspec.Raw(text.encode())
