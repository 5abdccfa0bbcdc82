"""Wire format of OpenAI's chat completions and completions: requests and answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import msgspec

from ....constrain.spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex
from ....constrain.workers.decoders import json_decoder
from ....runtime.protocol.program import Gen, Select
from ....runtime.protocol.request import TokenLogprob, Usage
from ....runtime.protocol.sampling_params import SamplingParams
from ....runtime.tools.calls import WrittenCall, read_object
from ...diagnostics.errors import BackendError
from ..messages.transcript import Message
from .http_client import ApiClient
from .stops import Cutter
from .wire import Ask, Sample, Written

MAX_STOPS = 4
"""Stop strings that the API takes; more are looked for here."""

_SHARED = ("max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "n", "logprobs")
_EXTENSIONS = (
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "stop_token_ids",
)
_HERE = ("stop", "stop_regex", "include_stop")
"""Parameters that are looked for here, in the text as it comes."""


def odd_options(sampling: SamplingParams, known: Collection[str]) -> list[str]:
    """Options that are set, and are not among `known`."""
    default = SamplingParams()
    return [
        name
        for name in SamplingParams.__struct_fields__
        if name not in known and getattr(sampling, name) != getattr(default, name)
    ]


class OpenAIWire:
    """One model of an endpoint.

    extensions           the endpoint takes the fields that vLLM, SGLang and bough have added
    structured_outputs   it enforces JSON Schemas; "auto": until it refuses one
    """

    def __init__(
        self,
        client: ApiClient,
        model: str,
        *,
        extensions: bool,
        structured_outputs: bool | Literal["auto"],
        scores: bool | Literal["auto"],
        limit_field: str,
    ) -> None:
        self.client = client
        self._model = model
        self._extensions = extensions
        self._schemas = structured_outputs
        self._scores = scores
        self._limit_field = limit_field

    @property
    def continues(self) -> bool:
        return self._extensions

    @property
    def scores(self) -> bool:
        return bool(self._scores)

    def refusal(self, op: Gen | Select) -> tuple[str, str] | None:
        if isinstance(op, Select):
            return None
        known = {*_SHARED, *_HERE, "logit_bias", *(_EXTENSIONS if self._extensions else ())}
        odd = odd_options(op.sampling, known)
        if odd:
            hint = "" if self._extensions else " (extensions=True if the endpoint takes vLLM's fields)"
            return f"the API has no option {odd[0]}{hint}", odd[0]
        if op.sampling.temperature > 2:
            return "the API takes temperatures up to 2", "temperature"
        return None

    def enforces(self, grammar: GrammarSpec) -> bool:
        if isinstance(grammar, JsonSchema):
            return bool(self._schemas)
        return self._extensions and isinstance(grammar, Regex | Choice | Lark | Gbnf)

    def gives_up(self, grammar: GrammarSpec, error: Exception) -> bool:
        said = str(error)
        known = any(word in said for word in ("response_format", "json_schema", "structured", "schema"))
        if not (isinstance(error, BackendError) and error.status in (400, 404, 422) and known):
            return False
        if self._schemas != "auto" or not isinstance(grammar, JsonSchema):
            return False
        if "response_format" in said:  # it knows no schemas at all; else this one only
            self._schemas = False
        return True

    async def write(self, ask: Ask, emit: Callable[[str], None] | None) -> Written:
        chat = bool(ask.messages)
        body = self._body(ask)
        path = "/chat/completions" if chat else "/completions"
        reader = await self.client.stream(path, body, lambda: AnswerReader(ask.sampling, emit))
        return reader.written

    async def score(self, text: str, choices: Sequence[str]) -> tuple[list[list[float]], Usage] | None:
        prompts = [text + choice for choice in choices]
        body = {"model": self._model, "prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}
        try:
            answer = _SCORED.decode(await self.client.post("/completions", body))
            by_index = {choice.index: choice for choice in answer.choices}
            found = [_scores_after(by_index.get(index), len(text)) for index in range(len(choices))]
        except (BackendError, msgspec.MsgspecError, ValueError) as error:
            if self._scores == "auto" and not (isinstance(error, BackendError) and error.retryable):
                self._scores = False
                return None
            raise _unscored(error) from error
        return found, _usage(answer.usage)

    async def aclose(self) -> None:
        await self.client.aclose()

    def _body(self, ask: Ask) -> dict[str, Any]:
        sampling, chat = ask.sampling, bool(ask.messages)
        body: dict[str, Any] = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}}
        if chat:
            body["messages"] = [_message(message) for message in ask.messages]
            body |= _offer(ask)
            if ask.prefix:
                body["messages"].append({"role": "assistant", "content": ask.prefix})
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        else:
            body["prompt"] = ask.prefix
        if sampling.max_tokens is not None:
            body[self._limit_field if chat else "max_tokens"] = sampling.max_tokens
        body |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        default = SamplingParams()
        optional = ("frequency_penalty", "presence_penalty", "seed", "n", *(_EXTENSIONS if self._extensions else ()))
        for name in optional:
            if getattr(sampling, name) != getattr(default, name):
                body[name] = getattr(sampling, name)
        if sampling.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
        body |= self._stops(sampling)
        if sampling.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": sampling.logprobs} if chat else {"logprobs": sampling.logprobs}
        return body | _constraint(ask.grammar)

    def _stops(self, sampling: SamplingParams) -> dict[str, Any]:
        """Returns what the endpoint can look for; all of it is looked for here again."""
        body: dict[str, Any] = {}
        if sampling.stop_strings and (self._extensions or not sampling.include_stop):
            body["stop"] = list(sampling.stop_strings[:MAX_STOPS])
        if self._extensions and sampling.include_stop:
            body["include_stop_str_in_output"] = True
        if self._extensions and sampling.stop_regex is not None:
            body["stop_regex"] = sampling.stop_regex
        return body


def _message(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        written["content"] = message.content or None
        written["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _json(call.arguments)}}
            for call in message.calls
        ]
    if message.call_id:
        written["tool_call_id"] = message.call_id
    return written


def _json(arguments: dict[str, Any] | str) -> str:
    return json.dumps(object_of(arguments), ensure_ascii=False)


def _offer(ask: Ask) -> dict[str, Any]:
    """Returns the tools of a request, and what the model may do with them."""
    offer = ask.offer
    if offer is None:
        return {}
    only = {"type": "function", "function": {"name": offer.only}} if offer.only else None
    return {"tools": list(ask.tools), "tool_choice": only or offer.choice, "parallel_tool_calls": offer.parallel}


def object_of(arguments: dict[str, Any] | str) -> dict[str, Any]:
    """Returns the arguments of a call; an empty object for a text that is none, since APIs refuse it."""
    return {} if isinstance(arguments, str) else arguments


def _constraint(grammar: GrammarSpec | None) -> dict[str, Any]:
    match grammar:
        case JsonSchema(schema=schema):
            named = {"name": "value", "schema": json.loads(schema), "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        case Regex(pattern=pattern):
            return {"structured_outputs": {"regex": pattern}}
        case Choice(options=options):
            return {"structured_outputs": {"choice": list(options)}}
        case Lark(grammar=text) | Gbnf(grammar=text):
            return {"structured_outputs": {"grammar": text}}
    return {}


# Answers


class _FunctionDelta(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(msgspec.Struct):
    index: int = 0
    function: _FunctionDelta | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _TokenEntry(msgspec.Struct):
    logprob: float
    token: str = ""
    token_id: int | None = None
    top_logprobs: list[_TokenEntry] = []


class _Logprobs(msgspec.Struct):
    """Log-probabilities of a chat (`content`), or of a completion."""

    content: list[_TokenEntry] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Scored(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


_CHUNK, _SCORED = json_decoder(_Chunk), json_decoder(_Scored)


class AnswerReader:
    """Reads one answer, of `n` samples. What follows a stop string is dropped; usage comes at the end."""

    def __init__(self, sampling: SamplingParams, emit: Callable[[str], None] | None) -> None:
        self.fresh = True
        self.done = False
        self._emit = emit
        self._cutters = [Cutter(sampling, self._pass_on if index == 0 else None) for index in range(sampling.n)]
        self._reasons: list[str | None] = [None] * sampling.n
        self._matched: list[str | int | None] = [None] * sampling.n
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in range(sampling.n)]
        self._tokens = _Tokens()
        self._usage: _Usage | None = None
        self._wants_logprobs = sampling.logprobs is not None
        self._calls: dict[int, list[str]] = {}

    def feed(self, data: str) -> None:
        if data.strip() == "[DONE]":
            if not self.whole:
                raise BackendError("the answer holds no text", code="invalid_answer", retryable=True)
            self.done = True
            return
        try:
            chunk = _CHUNK.decode(data)
        except msgspec.MsgspecError as error:
            raise BackendError(f"the API sent an event that is not one: {error}", code="broken_stream") from error
        if chunk.error:
            said = chunk.error.get("message", "") if isinstance(chunk.error, dict) else chunk.error
            raise BackendError(f"the API broke off: {said}", code="broken_stream", retryable=True)
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            if not 0 <= choice.index < len(self._cutters):
                raise BackendError(f"the API sent a sample {choice.index} that nobody asked for", code="invalid_answer")
            self._take(choice)
        if all(cutter.over and cutter.matched is not None for cutter in self._cutters):
            self.done = True  # what still comes is nobody's

    def _take(self, choice: _Choice) -> None:
        cutter, index = self._cutters[choice.index], choice.index
        if choice.delta is not None and choice.delta.refusal:
            raise BackendError(f"the model refused: {choice.delta.refusal}", code="refused")
        for call in (choice.delta.tool_calls or ()) if choice.delta is not None and index == 0 else ():
            self._take_call(call)
        if self._wants_logprobs and choice.logprobs is not None and not cutter.over:
            self._logprobs[index] += self._tokens.logprobs(choice.logprobs)
        cutter.feed((choice.delta.content if choice.delta is not None else choice.text) or "")
        if choice.finish_reason is not None:
            if choice.finish_reason == "content_filter":
                raise BackendError("the API's content filter ended the answer", code="content_filter")
            self._reasons[index] = choice.finish_reason
            self._matched[index] = choice.stop_reason
            cutter.end()
        elif cutter.matched is not None:
            self._reasons[index] = "stop"

    def _take_call(self, call: _CallDelta) -> None:
        parts = self._calls.setdefault(call.index, [""])
        if call.function is not None:
            parts[0] = parts[0] or call.function.name or ""
            parts.append(call.function.arguments or "")

    @property
    def whole(self) -> bool:
        return None not in self._reasons

    def _pass_on(self, text: str) -> None:
        if self._emit is not None:
            self.fresh = False
            self._emit(text)

    @property
    def written(self) -> Written:
        samples = tuple(
            Sample(
                cutter.text,
                "length" if self._reasons[index] == "length" and cutter.matched is None else "stop",
                cutter.matched if cutter.matched is not None else self._matched[index],
                tuple(self._logprobs[index]) if self._wants_logprobs else None,
                self._tokens.texts,
                tuple(WrittenCall(parts[0], read_object("".join(parts[1:]))) for parts in self._calls.values()),
            )
            for index, cutter in enumerate(self._cutters)
        )
        return Written(samples, _usage(self._usage))


def _usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage()
    details = usage.prompt_tokens_details
    return Usage(
        prompt_tokens=usage.prompt_tokens or 0,
        cached_tokens=(details.cached_tokens if details is not None else None) or 0,
        completion_tokens=usage.completion_tokens or 0,
    )


class _Tokens:
    """Numbers for tokens: the API's own, or numbers below zero where it tells only their texts."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def logprobs(self, found: _Logprobs) -> list[TokenLogprob]:
        if found.content is not None:
            return [self._entry(entry, entry.top_logprobs) for entry in found.content]
        tokens, logprobs = found.tokens or [], found.token_logprobs or []
        tops = found.top_logprobs or [None] * len(tokens)
        return [
            self._entry(_TokenEntry(logprob, token), [_TokenEntry(p, text) for text, p in (top or {}).items()])
            for token, logprob, top in zip(tokens, logprobs, tops, strict=False)
            if logprob is not None
        ]

    def _entry(self, entry: _TokenEntry, top: Sequence[_TokenEntry]) -> TokenLogprob:
        return TokenLogprob(self._number(entry), entry.logprob, tuple((self._number(t), t.logprob) for t in top))

    def _number(self, entry: _TokenEntry) -> int:
        own = self._numbers.setdefault(entry.token, -1 - len(self._numbers))
        number = own if entry.token_id is None else entry.token_id
        self.texts[number] = entry.token
        return number


def _scores_after(choice: _Choice | None, start: int) -> list[float]:
    """The log-probabilities of the tokens that reach beyond `start` characters.

    Raises:
        ValueError: they were not sent.
    """
    found = None if choice is None else choice.logprobs
    if found is None or found.token_logprobs is None or found.tokens is None or found.text_offset is None:
        raise ValueError("the API sent no log-probabilities of the prompt")
    entries = zip(found.text_offset, found.tokens, found.token_logprobs, strict=True)
    scores = [logprob for offset, token, logprob in entries if offset + len(token) > start and logprob is not None]
    if not scores:
        raise ValueError("the API sent no log-probabilities of the choice")
    return scores


def _unscored(error: Exception) -> BackendError:
    if isinstance(error, BackendError):
        return error
    return BackendError(f"the choices cannot be scored: {error}", code="invalid_answer")
