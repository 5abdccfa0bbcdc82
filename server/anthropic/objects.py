"""The objects of the Messages API, as typed structs: bounds are part of the types, null always means the default."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ...runtime.protocol.sampling_params import MAX_STOP_LENGTH, MAX_STOP_STRINGS
from ..openai.fields import EMPTY, FieldNames
from ..openai.objects import NO_JSON

MIN_THINKING = 1024
"""Fewest tokens that may be granted to thinking, which is Anthropic's own bound."""

_Text = Annotated[str, Meta(max_length=1 << 22)]
_Name = Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,128}$")]
_Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]


# Requests


class CacheControl(msgspec.Struct):
    """A mark up to which a prompt is to be cached. All prompts are, so that it changes nothing."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(msgspec.Struct):
    """A block of content of any type; `type` says which of the fields it has. `input` keeps its JSON text."""

    type: str
    text: _Text | None = None
    thinking: _Text | None = None
    signature: str | None = None
    id: str | None = None
    name: _Name | None = None
    input: msgspec.Raw = NO_JSON
    tool_use_id: str | None = None
    content: _Text | Annotated[list[Block], Meta(max_length=2048)] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


_Content = _Text | Annotated[list[Block], Meta(max_length=2048)]


class MessageParam(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: _Content


class ToolParam(msgspec.Struct):
    """A tool of the client's, or (by its `type`) one that Anthropic's own servers know. `input_schema` keeps its JSON
    text."""

    name: _Name
    type: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = NO_JSON
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    input_examples: list[msgspec.Raw] | None = None
    eager_input_streaming: bool | None = None
    cache_control: CacheControl | None = None


class ToolChoiceParam(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(msgspec.Struct):
    type: str
    budget_tokens: Annotated[int, Meta(ge=MIN_THINKING, le=2**31 - 1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct):
    """The format of an answer; `schema` keeps its JSON text."""

    type: Literal["json_schema"]
    schema: msgspec.Raw


class OutputConfig(msgspec.Struct):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    task_budget: msgspec.Raw = NO_JSON


class Metadata(msgspec.Struct):
    user_id: Annotated[str, Meta(max_length=512)] | None = None


class CountBody(msgspec.Struct, kw_only=True):
    """The body of /v1/messages/count_tokens: the fields that make a prompt."""

    model: str
    messages: Annotated[list[MessageParam], Meta(min_length=1, max_length=2048)]
    system: _Text | Annotated[list[Block], Meta(max_length=2048)] | None = None
    tools: Annotated[list[ToolParam], Meta(max_length=128)] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: CacheControl | None = None


class MessagesBody(CountBody, kw_only=True):
    """The body of /v1/messages."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    stream: bool | None = None
    stop_sequences: Annotated[list[_Stop], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    top_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: Metadata | None = None


FIELDS = FieldNames(
    ignored=frozenset({
        "anthropic_version", "diagnostics", "inference_geo", "service_tier", "speed", "user_profile_id", "workspace_id",
    }),
    refused=dict.fromkeys(("container", "context_management", "mcp_servers"), EMPTY),
)  # fmt: skip
"""Known fields that do not change the output, and those that would and are not supported."""


# Answers


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning before an answer. It is the model's own text, which nobody needs to vouch for: nothing is signed."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call. `input` is the JSON text of an object."""

    id: str
    name: str
    input: msgspec.Raw = msgspec.Raw(b"{}")


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessageUsage(msgspec.Struct, kw_only=True):
    """Tokens of an answer. The prompt has `input_tokens`, which were computed, and those read from the cache.

    Whatever is computed is kept, so that none is written to the cache in particular.
    """

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicMessage(msgspec.Struct, tag_field="type", tag="message"):
    """An answer; at the beginning of a stream without content and `stop_reason`."""

    id: str
    model: str
    content: list[AnswerBlock]
    usage: MessageUsage
    role: Literal["assistant"] = "assistant"
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


class TokenCount(msgspec.Struct):
    input_tokens: int


# Events of a stream


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: AnthropicMessage


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class Stop(msgspec.Struct):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """The end of an answer: why it stopped, and all of its tokens."""

    delta: Stop
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass
