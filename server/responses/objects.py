"""The objects of OpenAI's Responses API, as typed structs: bounds are part of the types, null means the default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...runtime.protocol.sampling_params import MAX_LOGPROBS
from ..openai.objects import NO_JSON, ConstraintReport, GenerationBody

MAX_ITEMS = 2048
"""Items of a conversation: those of a body, and those of the responses that it follows on."""

_Text = Annotated[str, Meta(max_length=1 << 22)]
_Id = Annotated[str, Meta(max_length=256)]
_Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]


# Items, which are input and output


class Part(msgspec.Struct, kw_only=True):
    """Part of a message or of reasoning."""

    type: str
    text: _Text | UnsetType | None = UNSET
    refusal: _Text | UnsetType | None = UNSET
    annotations: msgspec.Raw | UnsetType = UNSET
    logprobs: msgspec.Raw | UnsetType = UNSET


class Item(msgspec.Struct, kw_only=True):
    """An item of a conversation; its type decides which fields it has. A message may come without a type."""

    type: str | UnsetType = UNSET
    id: _Id | UnsetType | None = UNSET
    status: str | UnsetType | None = UNSET
    role: Literal["user", "system", "developer", "assistant"] | UnsetType = UNSET
    content: _Text | list[Part] | UnsetType | None = UNSET
    call_id: _Id | UnsetType = UNSET
    name: _Name | UnsetType = UNSET
    arguments: _Text | UnsetType = UNSET
    output: _Text | list[Part] | UnsetType = UNSET
    summary: list[Part] | UnsetType = UNSET


class ItemPage(msgspec.Struct, kw_only=True):
    """Some of the input items of a response."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str
    last_id: str
    has_more: bool


# Requests


class TextFormat(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The format of the text. A structural tag has either `structures` and `triggers`, or a `format`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    name: _Name | None = None
    schema: msgspec.Raw | UnsetType = UNSET
    description: str | None = None
    strict: bool | None = None
    structures: msgspec.Raw | UnsetType = UNSET
    triggers: msgspec.Raw | UnsetType = UNSET
    format: msgspec.Raw | UnsetType = UNSET


class TextConfig(msgspec.Struct, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(msgspec.Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseTool(msgspec.Struct, kw_only=True):
    """A tool; only functions are served, whose `parameters` keep their JSON text."""

    type: str
    name: _Name | None = None
    description: str | None = None
    parameters: msgspec.Raw = NO_JSON
    strict: bool | None = None


class ChosenTool(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str
    name: _Name | None = None


class ResponseToolChoice(ChosenTool, omit_defaults=True, kw_only=True):
    """A function by name, or with `allowed_tools` some of the functions."""

    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[ChosenTool], Meta(min_length=1, max_length=128)] | None = None


class ResponseOptions(GenerationBody, kw_only=True):
    """Options of an answer: OpenAI's, and what chats have beyond them."""

    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=32)] | None = None
    reasoning_end: Annotated[str, Meta(max_length=64)] | None = None


class UnsupportedOptions(ResponseOptions, kw_only=True):
    """Options that would change the answer and are not supported: anything but an empty value is an error."""

    access_programs: msgspec.Raw = NO_JSON
    background_options: msgspec.Raw = NO_JSON
    context_management: msgspec.Raw = NO_JSON
    conversation: msgspec.Raw = NO_JSON
    image: msgspec.Raw = NO_JSON
    moderation: msgspec.Raw = NO_JSON
    prompt: msgspec.Raw = NO_JSON
    prompt_cache_options: msgspec.Raw = NO_JSON


class ResponseBody(UnsupportedOptions, kw_only=True):
    """The body of POST /v1/responses."""

    input: _Text | Annotated[list[Item], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: _Text | None = None
    previous_response_id: _Id | None = None
    store: bool | None = None
    background: bool | None = None
    include: Annotated[list[str], Meta(max_length=16)] | None = None
    truncation: Literal["auto", "disabled"] | None = None


REFUSED_FIELDS = tuple(UnsupportedOptions.__annotations__)

INCLUDABLE = frozenset({
    "message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
})  # fmt: skip
"""Values of `include`. All but the first have no effect: the items that they are about do not occur."""


# Responses


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseError(msgspec.Struct, kw_only=True):
    """The failure of a response: OpenAI's `code`, and in `type` the code that the same failure has elsewhere."""

    code: str
    message: str
    param: str | None = None
    type: str | None = None


class IncompleteDetails(msgspec.Struct):
    reason: Literal["max_output_tokens"]


Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class Response(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    background: bool
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningConfig
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: str | ResponseToolChoice
    tools: list[ResponseTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None
    constraint: ConstraintReport | UnsetType = UNSET


class Event(msgspec.Struct, kw_only=True):
    """An event of a stream; its type decides which fields it has."""

    type: str
    sequence_number: int
    response: msgspec.Raw | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item: Item | UnsetType = UNSET
    part: Part | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: msgspec.Raw | UnsetType = UNSET


class ErrorEvent(msgspec.Struct, kw_only=True):
    """The last event of a stream that was cut off."""

    type: Literal["error"] = "error"
    sequence_number: int
    code: str
    message: str
    param: str | None
