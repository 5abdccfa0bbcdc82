"""Supported OpenAI objects as typed structs: bounds are part of the types, and null always means the default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...constrain.spec import MAX_OPTIONS
from ...runtime.protocol.sampling_params import (
    MAX_LOGPROBS,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)

MAX_N = 64

MAX_GRAMMAR_CHARS = 1 << 18
"""Characters of a grammar or pattern."""

NO_JSON = msgspec.Raw(b"null")
"""The default of fields that keep their JSON text (whose order of keys matters)."""

_Text = Annotated[str, Meta(max_length=1 << 22)]
_StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
_Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
_Name = Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
_Grammar = Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
_Options = Annotated[list[str], Meta(min_length=1, max_length=MAX_OPTIONS)]


# Requests


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(msgspec.Struct):
    """A named schema; `schema` keeps its JSON text."""

    name: _Name
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The format of an answer: OpenAI's types, and "json", "regex" and "grammar" as TGI and Fireworks have them.

    A structural tag has either `structures` and `triggers`, or a `format`. Other engines have a schema in `schema` or
    `value`.
    """

    type: Literal["text", "json_object", "json_schema", "structural_tag", "json", "regex", "grammar"]
    json_schema: JsonSchemaFormat | None = None
    structures: msgspec.Raw | UnsetType = UNSET
    triggers: msgspec.Raw | UnsetType = UNSET
    format: msgspec.Raw | UnsetType = UNSET
    schema: msgspec.Raw | UnsetType = UNSET
    value: msgspec.Raw | UnsetType = UNSET
    pattern: _Grammar | None = None
    grammar: _Grammar | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's form of a constraint, with its options, of which only the defaults are supported."""

    json: msgspec.Raw = NO_JSON
    regex: _Grammar | None = None
    choice: _Options | None = None
    grammar: _Grammar | None = None
    json_object: bool | None = None
    structural_tag: msgspec.Raw = NO_JSON
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """The fields that chats and completions share, in OpenAI's, vLLM's and SGLang's spellings."""

    model: str
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10.0)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]] | None = None
    seed: int | None = None
    stop: _StopString | Annotated[list[_StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stop_regex: _StopString | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    token_healing: bool | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    return_token_ids: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    json_schema: msgspec.Raw = NO_JSON
    regex: _Grammar | None = None
    ebnf: _Grammar | None = None
    guided_json: msgspec.Raw = NO_JSON
    guided_regex: _Grammar | None = None
    guided_choice: _Options | None = None
    guided_grammar: _Grammar | None = None
    guided_json_object: bool | None = None
    grammar: _Grammar | None = None
    format: msgspec.Raw = NO_JSON
    response_schema: msgspec.Raw = NO_JSON
    output_format: ResponseFormat | None = None
    structural_tag: msgspec.Raw = NO_JSON
    constraint_policy: Literal["exact", "best_effort"] | None = None
    unnamed_properties: Literal["omit", "allow"] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    metadata: Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)] | None = None
    user: str | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: _Text | None = None
    refusal: _Text | None = None


class CalledFunction(msgspec.Struct):
    name: _Name
    arguments: str


class ToolCallInput(msgspec.Struct):
    """A call in the history. `function` is missing only in calls of unsupported kinds."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Message(msgspec.Struct):
    """A message. `prefix`, or `partial`, of the last one says that the answer continues it."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: _Text | Annotated[list[ContentPart], Meta(max_length=2048)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCallInput], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: _Text | None = None
    function_call: CalledFunction | None = None
    reasoning: _Text | None = None
    prefix: bool | None = None
    partial: bool | None = None


class FunctionDefinition(msgspec.Struct):
    """A function that the model may call; `parameters` keeps its JSON text."""

    name: _Name
    description: str | None = None
    parameters: msgspec.Raw = NO_JSON
    strict: bool | None = None


class Tool(msgspec.Struct):
    type: str
    function: FunctionDefinition | None = None


class NamedFunction(msgspec.Struct):
    name: str


class AllowedTool(msgspec.Struct):
    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=128)]


class ToolChoice(msgspec.Struct):
    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


_Messages = Annotated[list[Message], Meta(min_length=1, max_length=2048)]
_Tools = Annotated[list[Tool], Meta(max_length=128)]
_TemplateArguments = Annotated[dict[str, Any], Meta(max_length=32)]
_Documents = Annotated[list[dict[str, _Text]], Meta(max_length=1024)]


class ChatBody(GenerationBody, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: _Messages
    stop: _StopString | Annotated[list[_StopString], Meta(max_length=4)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: _Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionDefinition], Meta(max_length=128)] | None = None
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    modalities: list[str] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: _TemplateArguments | None = None
    documents: _Documents | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    reasoning_end: Annotated[str, Meta(max_length=64)] | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """The body of /v1/completions. `prompt` is one text, texts, token ids, or lists of token ids."""

    prompt: str | list[int | str | list[int]]
    suffix: _Text | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """The body of /tokenize: either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: _Messages | None = None
    tools: _Tools | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: _TemplateArguments | None = None
    return_token_strs: bool = False


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: Annotated[list[int], Meta(max_length=1 << 20)]
    model: str | None = None
    skip_special_tokens: bool = False


# Responses


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChoiceViolation(msgspec.Struct):
    """A violation in the answer of choice `index`: its place in the value (a JSON pointer), and a description."""

    index: int
    pointer: str
    message: str


class ConstraintReport(msgspec.Struct):
    """The receipt of a constraint: keywords that were enforced, and places in the schema that were checked at the end.

    `narrowed`, if present, lists places some of whose rare values were left out, and `closed` objects that got no keys
    but those that the schema names. `violations`, in mode "best_effort",
    is what the check found.
    """

    mode: Literal["exact", "best_effort"]
    enforced: list[str]
    checked: list[str]
    violations: list[ChoiceViolation] | UnsetType = UNSET
    narrowed: list[str] | UnsetType = UNSET
    closed: list[str] | UnsetType = UNSET


class TopLogprob(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct, gc=False):
    content: list[ContentLogprob]
    refusal: None = None


class FunctionOutput(msgspec.Struct):
    """In a delta, `name` comes once, and `arguments` piece by piece."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCall(msgspec.Struct, kw_only=True):
    """A call, or in a stream (with `index`) a piece of one."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionOutput


class AnswerMessage(msgspec.Struct):
    """An answer; `function_call` is there for clients that do not know tools."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    function_call: FunctionOutput | UnsetType = UNSET


class PromptLogprob(msgspec.Struct, gc=False):
    """Log-probability of a prompt token or an alternative: `rank` 1 is the likeliest, null beyond the alternatives."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""For each token of a prompt, vLLM's form: itself and its alternatives, by id; null for the first."""


class ChatChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: str
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    constraint: ConstraintReport | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    function_call: FunctionOutput | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType = UNSET
    constraint: ConstraintReport | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionLogprobs(msgspec.Struct, gc=False):
    """Parallel lists over tokens; the first token of an echoed prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """A completion, or (with `usage` in the last only) a chunk of one."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType = UNSET
    constraint: ConstraintReport | UnsetType = UNSET


class ModelCard(msgspec.Struct):
    id: str
    created: int
    root: str
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "bough"


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"
