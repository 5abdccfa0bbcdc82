"""Translation of OpenAI bodies to engine requests, by pure functions; nothing OpenAI-specific remains after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple, TypedDict, TypeVar

import msgspec

from ...constrain.errors import quoted
from ...constrain.spec import spec_chars
from ...runtime.protocol.counters import ModelInfo
from ...runtime.protocol.request import Request
from ...runtime.protocol.sampling_params import MAX_LOGIT_BIAS, SamplingParams
from ...runtime.tokenizer.reasoning import THINK
from ...runtime.tokenizer.tokenizer import MAX_TOKEN_CHARS, Tokenizer
from ...runtime.tools.forms import CLOSE_TAG, OPEN_TAG, describe_tools, find_form
from ..errors import ApiError, invalid
from ..http.connection import MAX_ITEMS, check_parts, decode
from .constraint import Constraint, after_reasoning, to_constraint
from .fields import OPENAI_FIELDS, FieldNames
from .infill import Infill, find_infill
from .legacy import renamed, with_calls, with_tools
from .objects import ChatBody, CompletionBody, ContentPart, GenerationBody, Message
from .tools import Toolbox, to_template, to_toolbox

B = TypeVar("B", bound=msgspec.Struct)

COMPLETION_MAX_TOKENS = 16
"""Default of /v1/completions, which is OpenAI's own."""

MAX_ECHOED_CHARS = 1 << 22
"""Characters of prompts in an answer that begins with them."""

MAX_ECHOED_LOGPROBS = 1 << 19
"""Log-probabilities of echoed prompts, alternatives included, each counted `n` times."""

MAX_SHOWN_TOKENS = 1 << 20
"""Tokens of prompts in an answer that has their ids."""

_SEEDS = (-(2**63), 2**64 - 1)
_TAIL_TOKENS = 16
_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


MAX_ENCODED_AT_ONCE = 1 << 17
"""Characters and token ids of prompts before others have their turn."""

MAX_SENT_GRAMMAR_CHARS = 1 << 23
"""Characters of a constraint times the sequences of its request: each takes it to the engine."""


def decode_openai(
    data: bytes,
    kind: type[B],
    *,
    strict: bool = False,
    max_items: int = MAX_ITEMS,
    names: FieldNames = OPENAI_FIELDS,
) -> tuple[B, int]:
    """Decodes a body of `kind`, with `max_items` commas at most; returns it with the number of unknown fields.

    Raises:
        ApiError: as `decode`; or a field that would change the output is not supported; or, with `strict`, not known.
    """
    body = decode(data, kind, max_items=max_items)
    num_unknown, known = 0, frozenset(kind.__struct_fields__)
    for name, value in _FIELDS.decode(data).items():
        if name not in known and names.is_unknown(name, value):
            if strict:
                raise invalid(name[:64], f"there is no parameter {name[:64]!r}", code="unknown_parameter")
            num_unknown += 1
    return body, num_unknown


@dataclass(frozen=True, kw_only=True)
class Context:
    """Input of a translation beside the body.

    id               begins the ids of its engine requests
    max_sequences    generations that it may ask for: prompts times n
    urgent           the caller may send a priority below 0
    """

    id: str
    namespace: str
    tokenizer: Tokenizer
    info: ModelInfo
    timeout_s: float
    max_sequences: int
    urgent: bool = False

    @property
    def max_tokens(self) -> int:
        """Limit of prompt and completion together."""
        return min(self.info.max_model_len, self.info.max_request_tokens)


class Thinking(NamedTuple):
    """Reasoning at the beginning of an answer: the text that closes it; the prompt may have `opened` it."""

    end: str
    opened: bool = False


class Job(NamedTuple):
    """A body as engine requests.

    requests   generations, in the order of the answer's choices; empty if nothing is to be generated
    scores     one per prompt whose tokens' log-probabilities are wanted too (None: the prompt is a single token)
    prompts    the prompts' token ids
    echoes     their texts, with which answers begin; empty if they do not
    reasoning_end    closes the reasoning that answers begin with, which is told from the rest (None: none)
    reasoning_optional    they begin with it only if they say so
    thinking         the reasoning that answers may begin with, constraint or not
    shows_tokens     answers have the ids of the prompts' tokens and of their own
    """

    requests: tuple[Request, ...]
    prompts: tuple[tuple[int, ...], ...]
    scores: tuple[Request | None, ...] = ()
    echoes: tuple[str, ...] = ()
    constraint: Constraint = Constraint()
    toolbox: Toolbox = Toolbox()
    reasoning_end: str | None = None
    reasoning_optional: bool = False
    thinking: Thinking | None = None
    shows_tokens: bool = False

    @property
    def num_echoed(self) -> int:
        """Tokens of the prompts that no request is made for: they are only written back."""
        if self.requests:
            return 0
        pairs = zip_longest(self.prompts, self.scores)
        return sum(len(prompt) for prompt, score in pairs if score is None)


def chat_job(body: ChatBody, context: Context, *, splits: bool = False, budget: int | None = None) -> Job:
    """Makes a job of a body.

    splits   reasoning is told from the answer even where nothing constrains this
    budget   the most tokens of reasoning

    Raises:
        ApiError, RequestError: the body cannot be served; `param` names the field.
    """
    if not body.functions and body.function_call is None:
        return _chat_job(body, context, splits=splits, budget=budget)
    try:
        job = _chat_job(with_tools(body), context, splits=splits, budget=budget)
    except ApiError as error:
        raise renamed(error) from error
    return job._replace(toolbox=job.toolbox._replace(legacy=True))


def _chat_job(body: ChatBody, context: Context, *, splits: bool, budget: int | None) -> Job:
    body = _with_open_message(body)
    _check_shared(body)
    if body.add_special_tokens:
        message = "the chat template writes the special tokens of a chat"
        raise invalid("add_special_tokens", message, code="unsupported_value")
    if body.modalities not in (None, [], ["text"]):
        raise invalid("modalities", "only text is supported", code="unsupported_value")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs to be true")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise invalid("max_tokens", "max_tokens and max_completion_tokens are both given and differ")
    _check_count(1, body, context)
    toolbox = to_toolbox(body) if body.tools or body.tool_choice else Toolbox()
    template = context.tokenizer.chat.source
    if toolbox.mode != "none" and "tools" in template:
        toolbox = toolbox._replace(form=find_form(template))
    constraint = to_constraint(body, toolbox)
    _check_min_tokens(body, constraint)
    max_tokens = body.max_tokens if body.max_tokens is not None else body.max_completion_tokens
    prompt = tuple(encode_chat(body, toolbox, context.tokenizer, max_tokens=context.max_tokens))
    prompt = _truncated(prompt, body, context, max_tokens)
    thinking = find_thinking(context.tokenizer, prompt, template_kwargs(body, template))
    if body.reasoning_end is not None:
        thinking = Thinking(body.reasoning_end) if body.reasoning_end else None
    budget = _thinking_budget(body, template) if budget is None else budget
    splits = splits or constraint.grammar is not None or budget is not None
    reasoning_end = thinking.end if thinking is not None and splits else None
    told = body.reasoning_end is not None or budget is not None or (thinking is not None and thinking.opened)
    optional = not told and _is_free(constraint, toolbox)
    constraint = constraint._replace(grammar=after_reasoning(constraint.grammar, reasoning_end, budget))
    limit_name = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
    _check_length(len(prompt), max_tokens, context, prompt_name="messages", limit_name=limit_name)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = _sampling(body, context, max_tokens=max_tokens, logprobs=logprobs)
    if not body.continue_final_message:  # what the template ends with is not to be written otherwise
        sampling = msgspec.structs.replace(sampling, token_healing=False)
    if _has_control(context.tokenizer, toolbox.form.trigger if toolbox.form else "", reasoning_end or ""):
        sampling = msgspec.structs.replace(sampling, skip_special_tokens=False)
    requests = _children(body, [prompt], sampling, constraint, context)
    scores = _scores(body, [prompt], body.prompt_logprobs, context)
    return Job(
        requests,
        (prompt,),
        scores,
        constraint=constraint,
        toolbox=toolbox,
        reasoning_end=reasoning_end,
        reasoning_optional=optional,
        thinking=thinking,
        shows_tokens=_shows_tokens(body, [prompt]),
    )


def _is_free(constraint: Constraint, toolbox: Toolbox) -> bool:
    """Tells whether an answer may be any text, in which calls may be."""
    return constraint.grammar is None or (toolbox.mode == "auto" and constraint.param == "tools")


def find_thinking(tokenizer: Tokenizer, prompt: Sequence[int], kwargs: Mapping[str, Any] | None) -> Thinking | None:
    """Finds the reasoning that an answer to `prompt` may begin with; None if it begins with none.

    A template may open the section itself; or leave that to the model, unless it was told `enable_thinking: false`.
    """
    source, end = tokenizer.chat.source, THINK.end
    if end not in source:
        return None
    tail = tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special_tokens=False)
    opened, closed = tail.rfind(THINK.begin), tail.rfind(end)
    if opened > closed:
        return Thinking(end, opened=True)
    if closed >= 0 or "enable_thinking" not in source or (kwargs or {}).get("enable_thinking") is False:
        return None
    return Thinking(end)


def _thinking_budget(body: ChatBody, template: str) -> int | None:
    """Returns how many tokens the reasoning may have. Raises ApiError: the model is not known to reason."""
    budget = body.thinking_token_budget
    if budget is None or budget < 0:
        return None
    if THINK.end not in template and not body.reasoning_end:
        message = "the chat template of this model knows no reasoning; set reasoning_end to the text that ends it"
        raise invalid("thinking_token_budget", message, code="unsupported_parameter")
    return budget


def _has_control(tokenizer: Tokenizer, *marks: str) -> bool:
    """Tells whether a mark that is looked for in the text is a control token, which texts leave out otherwise."""
    return any(not tokenizer.special_ids.isdisjoint(tokenizer.encode(mark, special=True)) for mark in marks)


def completion_job(body: CompletionBody, context: Context, encoded: Sequence[list[int]] = ()) -> Job:
    """Makes a job of a body, whose prompts may have been `encoded` before.

    Raises:
        ApiError, RequestError: the body cannot be served; `param` names the field.
    """
    _check_shared(body)
    max_tokens = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and not body.echo:
        raise invalid("max_tokens", "max_tokens can be 0 only with echo", code="integer_below_min_value")
    if body.token_healing and body.echo and body.logprobs is not None:
        raise invalid("token_healing", "token_healing cannot be combined with echo and logprobs: tokens change")
    for name in ("suffix", "truncate_prompt_tokens"):
        if body.echo and getattr(body, name):
            raise invalid(name, f"{name} cannot be combined with echo: the prompt is not the text that was sent")
    constraint = to_constraint(body)
    _check_min_tokens(body, constraint)
    asked = body.max_tokens
    whole = tuple(map(tuple, encoded or _all_prompts(body, context)))
    prompts = tuple(_truncated(prompt, body, context, asked) for prompt in whole)
    for prompt in prompts:
        if asked is None:  # a default is not worth an error
            max_tokens = min(max_tokens, max(context.max_tokens - len(prompt), 1))
        _check_length(len(prompt), max_tokens, context, prompt_name="prompt", limit_name="max_tokens")
    echoed = body.logprobs if body.echo else None
    if echoed is not None:
        _check_prompt_logprobs(prompts, echoed, body.n or 1, "logprobs")
    sampling = _sampling(body, context, max_tokens=max_tokens, logprobs=body.logprobs)
    requests = _children(body, prompts, sampling, constraint, context) if max_tokens else ()
    wanted = [number for number in (echoed, body.prompt_logprobs) if number is not None]
    scores = _scores(body, prompts, max(wanted, default=None), context)
    echoes = _echoes(body, prompts, context.tokenizer) if body.echo else ()
    shows_tokens = _shows_tokens(body, prompts)
    return Job(requests, prompts, scores, echoes, constraint=constraint, shows_tokens=shows_tokens)


def _shows_tokens(body: GenerationBody, prompts: Sequence[Sequence[int]]) -> bool:
    """Raises ApiError: the prompts have more tokens than an answer may hold."""
    if body.return_token_ids and sum(map(len, prompts)) * (body.n or 1) > MAX_SHOWN_TOKENS:
        message = f"prompts may have {MAX_SHOWN_TOKENS} tokens in all, counted n times, if their ids are returned"
        raise invalid("return_token_ids", message)
    return body.return_token_ids is True


def _truncated(
    prompt: tuple[int, ...], body: GenerationBody, context: Context, max_tokens: int | None
) -> tuple[int, ...]:
    """Returns as many tokens of the prompt as the body asks for: of -1, as many as leave room for the answer."""
    most = body.truncate_prompt_tokens
    if most is None:
        return prompt
    if most == 0:
        message = "truncate_prompt_tokens must be at least 1, or -1"
        raise invalid("truncate_prompt_tokens", message, code="integer_below_min_value")
    if most < 0:
        most = max(context.max_tokens - (max_tokens or 1), 1)
    return prompt[:most] if body.truncation_side == "right" else prompt[-most:]


def _scores(
    body: GenerationBody, prompts: Sequence[tuple[int, ...]], logprobs: int | None, context: Context
) -> tuple[Request | None, ...]:
    """Requests for the log-probabilities of the prompts' tokens, if they are wanted."""
    if logprobs is None:
        return ()
    if body.prompt_logprobs is not None:
        _check_prompt_logprobs(prompts, body.prompt_logprobs, body.n or 1, "prompt_logprobs")
    return tuple(_score(prompt, index, logprobs, context) for index, prompt in enumerate(prompts))


def _check_prompt_logprobs(prompts: Sequence[Sequence[int]], logprobs: int, n: int, param: str) -> None:
    """Raises ApiError if the prompts have more log-probabilities than an answer may hold."""
    asked = sum(map(len, prompts)) * (1 + logprobs) * n
    if asked > MAX_ECHOED_LOGPROBS:
        message = (
            f"prompts may have {MAX_ECHOED_LOGPROBS} log-probabilities in all, each token with its alternatives "
            f"counted n times, and these have {asked}: ask for fewer alternatives, or send fewer prompts at a time"
        )
        raise invalid(param, message)


def _echoes(body: CompletionBody, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Returns the prompts' texts. Raises ApiError if they are too long for an answer that holds each `n` times."""
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    texts = given if len(given) == len(prompts) else prompts
    echoes, num_chars = list[str](), 0
    for text, prompt in zip(texts, prompts, strict=True):
        echoes.append(text if isinstance(text, str) else tokenizer.decode(prompt, skip_special_tokens=False))
        num_chars += len(echoes[-1]) * (body.n or 1)
        if num_chars > MAX_ECHOED_CHARS:
            raise invalid("echo", f"echoed prompts may have {MAX_ECHOED_CHARS} characters in all, each counted n times")
    return tuple(echoes)


def encode_chat(body: ChatBody, toolbox: Toolbox, tokenizer: Tokenizer, *, max_tokens: int) -> list[int]:
    """Encodes the prompt of a chat.

    Raises:
        ApiError, RequestError: the messages are malformed, far too long, or the template refuses them.
    """
    knows_tools = "tools" in tokenizer.chat.source
    messages, tools = to_messages(body.messages, toolbox, knows_tools=knows_tools)
    check_chars(sum(map(_num_chars, messages)), max_tokens=max_tokens, param="messages")
    if tools:
        num_chars = sum(len(tool["function"].get("description", "")) for tool in tools)
        check_chars(num_chars, max_tokens=max_tokens, param="tools")
    return tokenizer.encode_chat(
        messages,
        max_chars=MAX_TOKEN_CHARS * max_tokens,
        tools=tools,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=body.continue_final_message is True,
        template_kwargs=template_kwargs(body, tokenizer.chat.source),
        **_documents(body, tokenizer.chat.source, max_tokens=max_tokens),
    )


def _with_open_message(body: ChatBody) -> ChatBody:
    """Returns the body with what a message says of itself, that the answer continues it, said of the last.

    Raises:
        ApiError: it is another one.
    """
    for index, message in enumerate(body.messages):
        name = "prefix" if message.prefix else "partial" if message.partial else None
        if name is None:
            continue
        if index != len(body.messages) - 1 or message.role != "assistant":
            raise invalid(f"messages[{index}].{name}", f"only the last message can have {name}, and as the assistant's")
        return msgspec.structs.replace(body, continue_final_message=True)
    return body


class _Documents(TypedDict, total=False):
    documents: Sequence[Mapping[str, str]]


def _documents(body: ChatBody, template: str, *, max_tokens: int) -> _Documents:
    """Returns the documents for the template. Raises ApiError: it does not show them, or they are far too long."""
    if not body.documents:
        return {}
    if "documents" not in template:
        message = "the chat template of this model does not show documents"
        raise invalid("documents", message, code="unsupported_parameter")
    num_chars = sum(len(text) for document in body.documents for text in document.values())
    check_chars(num_chars, max_tokens=max_tokens, param="documents")
    return {"documents": body.documents}


def _num_chars(message: Mapping[str, Any]) -> int:
    """Counts what a message says: its content, its reasoning, and the arguments of its calls."""
    calls = message.get("tool_calls") or ()
    said = len(message.get("content") or "") + len(message.get("reasoning_content") or "")
    return said + sum(len(call["function"]["arguments"]) for call in calls)


def check_chars(num_chars: int, *, max_tokens: int, param: str) -> None:
    """Refuses a text that hardly fits whatever its tokens are: tokenising it would take long."""
    if num_chars > MAX_TOKEN_CHARS * max_tokens:
        message = f"This model's maximum context length is {max_tokens} tokens, and {param} has {num_chars} characters."
        raise invalid(param, message, code="context_length_exceeded")


def template_kwargs(body: ChatBody, template: str) -> dict[str, Any] | None:
    """Returns the arguments of the template: the body's own, and what it says of reasoning.

    Raises:
        ApiError: a value is not plain, or a name changes how the template is rendered.
    """
    given = body.chat_template_kwargs or {}
    for name, value in given.items():
        param = f"chat_template_kwargs.{name[:64]}"
        if name in _RESERVED or name.startswith("return_") or not name.isidentifier():
            raise invalid(param, f"chat_template_kwargs must not contain {quoted(name)}")
        if not isinstance(value, bool | int | float | str | None):
            raise invalid(param, "the value must be a string, number, boolean or null", code="invalid_type")
    effort: dict[str, Any] = {}
    if body.reasoning_effort is not None:
        effort = {"reasoning_effort": body.reasoning_effort, "enable_thinking": body.reasoning_effort != "none"}
    return {**{name: value for name, value in effort.items() if name in template}, **given} or None


_RESERVED = frozenset({
    "add_generation_prompt", "bos_token", "chat_template", "continue_final_message", "conversation", "documents",
    "eos_token", "max_length", "messages", "padding", "tokenize", "tokenizer_kwargs", "tools", "truncation",
})  # fmt: skip


def _check_shared(body: GenerationBody) -> None:
    """Raises ApiError: fields that both routes have do not go together, or are not supported."""
    if body.best_of not in (None, body.n or 1):
        raise invalid("best_of", "best_of other than n is not supported", code="unsupported_parameter")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "stream_options needs stream to be true")
    if body.stream_options is not None and body.stream_options.continuous_usage_stats:
        param = "stream_options.continuous_usage_stats"
        raise invalid(param, "usage is told at the end only: use include_usage", code="unsupported_parameter")
    if body.prompt_logprobs is not None and body.stream:
        raise invalid("prompt_logprobs", "prompt_logprobs cannot be combined with stream")
    if body.prompt_logprobs is not None and body.token_healing:
        raise invalid("prompt_logprobs", "prompt_logprobs cannot be combined with token_healing: tokens change")
    if body.truncation_side is not None and body.truncate_prompt_tokens is None:
        raise invalid("truncation_side", "truncation_side needs truncate_prompt_tokens")


def _check_min_tokens(body: GenerationBody, constraint: Constraint) -> None:
    """Raises ApiError: a constraint says where an answer may end, however short it is then."""
    if body.min_tokens and constraint.grammar is not None:
        field = constraint.param.partition(".")[0]
        raise invalid("min_tokens", f"min_tokens cannot be combined with {field}, which says where the answer may end")


def _check_length(length: int, wanted: int | None, context: Context, *, prompt_name: str, limit_name: str) -> None:
    limit = context.max_tokens
    if length + (1 if wanted is None else wanted) <= limit:
        return
    blamed = prompt_name if length >= limit or wanted is None else limit_name
    completion = "" if wanted is None else f" and {wanted} in the completion"
    message = (
        f"This model's maximum context length is {limit} tokens. However, you requested {length + (wanted or 0)} "
        f"tokens ({length} in the {prompt_name}{completion})."
    )
    raise invalid(blamed, message, code="context_length_exceeded")


def _sampling(
    body: GenerationBody, context: Context, *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    vocab_size = context.info.vocab_size
    for index, token in enumerate(body.stop_token_ids or ()):
        _check_token(token, vocab_size, f"stop_token_ids[{index}]")
    if body.seed is not None and not _SEEDS[0] <= body.seed <= _SEEDS[1]:
        code = "integer_below_min_value" if body.seed < 0 else "integer_above_max_value"
        raise invalid("seed", f"seed must be in {_SEEDS[0]} .. {_SEEDS[1]}", code=code)
    given: dict[str, Any] = {name: value for name in _SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    stop = body.stop or ()
    return SamplingParams(
        **given,
        max_tokens=max_tokens or None,
        logprobs=logprobs,
        stop=stop if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logit_bias=_logit_bias(body.logit_bias, vocab_size),
        include_stop=bool(body.include_stop_str_in_output or body.no_stop_trim),
    )


_SAMPLING_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "seed",
    "stop_regex", "min_tokens", "ignore_eos", "skip_special_tokens", "token_healing",
)  # fmt: skip


def _logit_bias(given: dict[str, float] | None, vocab_size: int) -> dict[int, float] | None:
    if not given:
        return None
    if len(given) > MAX_LOGIT_BIAS:
        raise invalid("logit_bias", f"logit_bias has more than {MAX_LOGIT_BIAS} entries", code="array_above_max_length")
    bias = {}
    for key, value in given.items():
        if not key.isascii() or not key.isdecimal() or len(key) > 10:
            raise invalid("logit_bias", "the keys of logit_bias must be token ids", code="invalid_token_id")
        bias[_check_token(int(key), vocab_size, "logit_bias")] = value
    return bias


def _check_token(token: int, vocab_size: int, param: str) -> int:
    if not 0 <= token < vocab_size:
        got = token if abs(token) < 2**63 else "a number far beyond"
        raise invalid(param, f"token ids are in 0 .. {vocab_size - 1}, got {got}", code="invalid_token_id")
    return token


def encode_prompts(body: CompletionBody, context: Context, prompts: list[list[int]]) -> bool:
    """Appends the token ids of prompts that follow on those in `prompts`, as many as are encoded in a moment; returns
    whether that is all of them.

    A body has one text or list of ids, or a list of either. Raises ApiError as `completion_job`.
    """
    prompt = body.prompt
    if prompt == []:
        raise invalid("prompt", "prompt is an empty list", code="empty_array")
    many: Sequence[int | str | list[int]] = [prompt] if isinstance(prompt, str) else prompt
    for index, item in enumerate(many):
        if type(item) is not type(many[0]):
            raise invalid(f"prompt[{index}]", "all entries of prompt must be of one type", code="invalid_type")
    _check_count(1 if isinstance(many[0], int) else len(many), body, context)
    infill = _infill(body, many, context) if body.suffix else None
    if isinstance(many[0], int):
        prompts.append(_checked_ids(many, context, "prompt"))
        return True
    tokenizer, left = context.tokenizer, MAX_ENCODED_AT_ONCE
    encode = tokenizer.encode if body.add_special_tokens is False else tokenizer.encode_prompt
    for index in range(len(prompts), len(many)):
        if left <= 0:
            return False
        item, param = many[index], "prompt" if isinstance(prompt, str) else f"prompt[{index}]"
        if isinstance(item, str):
            item = item if infill is None else infill.prompt(item, body.suffix or "")
            check_chars(len(item), max_tokens=context.max_tokens, param=param)
            ids, left = encode(item, special=True), left - len(item)
        else:
            ids = _checked_ids(item if isinstance(item, list) else [], context, param)
            left -= len(ids)
        if not ids:
            raise invalid(param, "the prompt is empty", code="empty_prompt")
        prompts.append(ids)
    return True


def _infill(body: CompletionBody, prompts: Sequence[int | str | list[int]], context: Context) -> Infill:
    """Returns how the model is told what follows. Raises ApiError: it cannot be, or a prompt is no text."""
    infill = find_infill(context.tokenizer)
    if infill is None:
        message = "this model has no tokens for filling a gap, so a suffix is not supported"
        raise invalid("suffix", message, code="unsupported_parameter")
    if not isinstance(prompts[0], str):
        raise invalid("suffix", "a suffix needs a prompt that is a text", code="unsupported_parameter")
    return infill


def _all_prompts(body: CompletionBody, context: Context) -> list[list[int]]:
    prompts: list[list[int]] = []
    while not encode_prompts(body, context, prompts):
        pass
    return prompts


def _check_count(num_prompts: int, body: GenerationBody, context: Context) -> None:
    """Raises ApiError: it asks for more generations than there may ever be."""
    n = body.n or 1
    if num_prompts * n > context.max_sequences:
        asked = f"n = {n} is" if num_prompts == 1 else f"{num_prompts} prompts times n = {n} are"
        message = f"{asked} more than {context.max_sequences} sequences"
        raise ApiError(400, "too_many_sequences", message, param="n" if n > 1 else "prompt")


def _checked_ids(ids: Sequence[object], context: Context, param: str) -> list[int]:
    tokens = [token for token in ids if isinstance(token, int)]
    if tokens and (min(tokens) < 0 or max(tokens) >= context.info.vocab_size):
        for index, token in enumerate(tokens):
            _check_token(token, context.info.vocab_size, f"{param}[{index}]")
    return tokens


def _children(
    body: GenerationBody,
    prompts: Sequence[tuple[int, ...]],
    sampling: SamplingParams,
    constraint: Constraint,
    context: Context,
) -> tuple[Request, ...]:
    """`n` requests for each prompt. With a seed, child i of each has seed + i."""
    n = body.n or 1
    if (body.priority or 0) < 0 and not context.urgent:
        message = "A priority below 0 needs a key with the right `urgent` or `admin`."
        raise ApiError(403, "urgent_key_required", message, param="priority")
    if spec_chars(constraint.grammar) * n * len(prompts) > MAX_SENT_GRAMMAR_CHARS:
        message = f"a constraint may have {MAX_SENT_GRAMMAR_CHARS} characters, counted once for each sequence"
        raise invalid(constraint.param, message, code="grammar_too_complex")
    return tuple(
        Request(
            id=f"{context.id}-{index * n + child}",
            prompt=prompt,
            sampling=_seeded(sampling, child),
            grammar=constraint.grammar,
            namespace=context.namespace,
            priority=body.priority or 0,
            timeout_s=context.timeout_s,
            stream=body.stream is True,
        )
        for index, prompt in enumerate(prompts)
        for child in range(n)
    )


def _seeded(sampling: SamplingParams, child: int) -> SamplingParams:
    if sampling.seed is None or child == 0:
        return sampling
    seed = sampling.seed + child
    fields = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return SamplingParams(**{**fields, "seed": seed if seed <= _SEEDS[1] else seed - 2**64})


def _score(prompt: tuple[int, ...], index: int, logprobs: int, context: Context) -> Request | None:
    if len(prompt) < 2:
        return None
    return Request(
        id=f"{context.id}-score-{index}",
        prompt=prompt,
        sampling=SamplingParams(max_tokens=0, logprobs=logprobs),
        namespace=context.namespace,
        score_from=1,
        timeout_s=context.timeout_s,
    )


# The messages of a chat as its template expects them

_MISSING = "missing_required_parameter"


def to_messages(
    given: Sequence[Message], toolbox: Toolbox, *, knows_tools: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages and tools for the template. One that does not know tools gets them as text, in the system message.

    Raises:
        ApiError: a message is malformed; `param` is its path.
    """
    if any(message.function_call is not None or message.role == "function" for message in given):
        given = with_calls(given)
    arguments = (call.function.arguments.encode() for message in given for call in message.tool_calls or ())
    check_parts(*arguments, param="messages")
    messages = [_to_message(message, f"messages[{index}]") for index, message in enumerate(given)]
    tools = to_template(toolbox) if toolbox.mode != "none" else None
    if knows_tools:
        return messages, tools
    messages = _without_tools(messages)
    if tools:
        text = describe_tools(tools)
        if messages[0]["role"] == "system":
            messages[0]["content"] = f"{messages[0]['content']}\n\n{text}"
        else:
            messages.insert(0, {"role": "system", "content": text})
    return messages, None


def _to_message(message: Message, param: str) -> dict[str, Any]:
    calls = message.tool_calls if message.role == "assistant" else None
    result: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    if message.content is None:
        if message.role != "assistant" or not (calls or message.refusal):
            raise invalid(f"{param}.content", f"a message of role {message.role} needs content", code=_MISSING)
        result["content"] = ""
    else:
        result["content"] = _to_text(message.content, f"{param}.content")
    if message.name is not None:
        result["name"] = message.name
    reasoning = message.reasoning_content or message.reasoning
    if reasoning and message.role == "assistant":
        result["reasoning_content"] = reasoning
    if message.role == "tool":
        if message.tool_call_id is None:
            raise invalid(f"{param}.tool_call_id", "a tool message needs the id of its call", code=_MISSING)
        result["tool_call_id"] = message.tool_call_id
    if calls:
        result["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _checked_arguments(call.function.arguments, f"{param}.tool_calls[{index}]"),
                },
            }
            for index, call in enumerate(calls)
        ]
    return result


def _to_text(content: str | Sequence[ContentPart], param: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if part.type in _OTHER_PARTS:
            message = f"this model accepts only text, not {part.type}"
            raise invalid(f"{param}[{index}].type", message, code="unsupported_content")
        if part.type not in ("text", "refusal"):
            raise invalid(f"{param}[{index}].type", f"there are no content parts of type {part.type[:64]!r}")
        text = part.text if part.type == "text" else part.refusal
        if text is None:
            raise invalid(f"{param}[{index}].{part.type}", "the part has no text", code=_MISSING)
        texts.append(text)
    return "\n".join(texts)


_OTHER_PARTS = frozenset({"image_url", "input_audio", "audio_url", "video_url", "file", "input_image", "input_file"})


def _checked_arguments(text: str, param: str) -> str:
    """The arguments of an earlier call: JSON text of an object, or nothing."""
    try:
        msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"{param}.function.arguments", "the arguments are not the JSON text of an object") from error
    return text or "{}"


def _without_tools(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same chat for a template that prints role and content only: calls and results become text."""
    names: dict[str, str] = {}
    plain = []
    for message in messages:
        role, content = message["role"], message["content"]
        if message.get("tool_calls"):
            calls = [call["function"] for call in message["tool_calls"]]
            names |= {call["id"]: call["function"]["name"] for call in message["tool_calls"]}
            texts = [f'{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}' for call in calls]
            if len(texts) > 1:
                texts = [f"{OPEN_TAG}{text}{CLOSE_TAG}" for text in texts]
            content = "\n".join([content, *texts] if content else texts)
        elif role == "tool":
            role, content = "user", f"Result of {names.get(message['tool_call_id'], 'the call')}: {content}"
        thought = {"reasoning_content": message["reasoning_content"]} if "reasoning_content" in message else {}
        plain.append({"role": role, "content": content, **thought})
    return plain
