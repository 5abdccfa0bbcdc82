"""Programs over Anthropic's Messages API."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ....constrain.spec import GrammarSpec
from ....constrain.workers.decoders import json_decoder
from ....runtime.protocol.program import Gen, Select
from ....runtime.protocol.request import Usage
from ....runtime.protocol.sampling_params import SamplingParams
from ....runtime.tools.calls import WrittenCall, read_object
from ...diagnostics.errors import BackendError
from ..messages.transcript import Message
from .answers import Policy
from .api_backend import ApiBackend
from .http_client import ApiClient
from .openai_wire import object_of, odd_options
from .stops import Cutter
from .wire import Ask, Sample, Written

_KNOWN = ("max_tokens", "temperature", "top_p", "top_k", "stop", "stop_regex", "include_stop", "n")


class AnthropicWire:
    """One model. Constraints are not enforced, texts not scored; an answer can be begun for the model."""

    continues = True
    scores = False

    def __init__(self, client: ApiClient, model: str, *, max_tokens: int) -> None:
        self.client = client
        self._model = model
        self._max_tokens = max_tokens

    def refusal(self, op: Gen | Select) -> tuple[str, str] | None:
        if isinstance(op, Select):
            return None
        odd = odd_options(op.sampling, _KNOWN)
        if odd:
            return f"the API has no option {odd[0]}", odd[0]
        if op.sampling.temperature > 1:
            return "the API takes temperatures up to 1", "temperature"
        return None

    def enforces(self, grammar: GrammarSpec) -> bool:
        return False

    def gives_up(self, grammar: GrammarSpec, error: Exception) -> bool:
        return False

    async def score(self, text: str, choices: Sequence[str]) -> tuple[list[list[float]], Usage] | None:
        return None

    async def write(self, ask: Ask, emit: Callable[[str], None] | None) -> Written:
        samples: list[Sample] = []
        usage = Usage()
        one = msgspec.structs.replace(ask.sampling, n=1)
        # What is begun may not end in white space: it is left out, and taken off what comes.
        begun = ask.prefix.rstrip()
        lead = ask.prefix[len(begun) :]
        for index in range(ask.sampling.n):
            told = emit if index == 0 else None
            body = self._body(ask, begun)
            reader = await self.client.stream("/v1/messages", body, lambda told=told: MessageReader(one, lead, told))  # type: ignore[misc]
            samples.append(reader.sample)
            usage += reader.usage
        return Written(tuple(samples), usage)

    async def aclose(self) -> None:
        await self.client.aclose()

    def _body(self, ask: Ask, begun: str) -> dict[str, Any]:
        sampling = ask.sampling
        system = "\n\n".join(message.content for message in ask.messages if message.role == "system")
        messages = _merged([message for message in ask.messages if message.role != "system"])
        offered = _offer(ask)
        if begun:
            messages.append({"role": "assistant", "content": begun})
        body: dict[str, Any] = {"model": self._model, "stream": True, "messages": messages}
        body["max_tokens"] = sampling.max_tokens if sampling.max_tokens is not None else self._max_tokens
        body["temperature"] = sampling.temperature
        default = SamplingParams()
        for name in ("top_p", "top_k"):
            if getattr(sampling, name) != getattr(default, name):
                body[name] = getattr(sampling, name)
        if system:
            body["system"] = system
        # The API takes no stop string of white space alone; that is looked for here.
        stops = [stop for stop in sampling.stop_strings if stop.strip()]
        if stops and not sampling.include_stop:
            body["stop_sequences"] = stops
        return body | offered


def _offer(ask: Ask) -> dict[str, Any]:
    """Returns the tools of a request, and what the model may do with them."""
    offer = ask.offer
    if offer is None:
        return {}
    functions = [tool["function"] for tool in ask.tools]
    tools = [
        {"name": f["name"], "description": f.get("description", ""), "input_schema": f["parameters"]} for f in functions
    ]
    choice: dict[str, Any] = {"type": {"auto": "auto", "required": "any", "none": "none"}[offer.choice]}
    if offer.only:
        choice = {"type": "tool", "name": offer.only}
    if not offer.parallel and offer.choice != "none":
        choice["disable_parallel_tool_use"] = True
    return {"tools": tools, "tool_choice": choice}


def _merged(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as the API takes them: none is empty, and what one role says in a row is one message. Results of tools
    are said by the user."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        role = "user" if message.role == "tool" else message.role
        content = _content(message)
        if not content:
            continue
        if not merged or merged[-1]["role"] != role:
            merged.append({"role": role, "content": content})
        elif isinstance(content, str) and isinstance(merged[-1]["content"], str):
            merged[-1]["content"] += f"\n\n{content}"
        else:
            merged[-1]["content"] = [*_blocks(merged[-1]["content"]), *_blocks(content)]
    return merged


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Returns what a message says: text, or blocks if it holds calls or a result."""
    if message.call_id:
        block = {"type": "tool_result", "tool_use_id": message.call_id, "content": message.content}
        return [{**block, "is_error": True} if message.failed else block]
    calls = [
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": object_of(call.arguments),
        }
        for call in message.calls
    ]
    return [*_blocks(message.content), *calls] if calls else message.content


def _blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not isinstance(content, str):
        return content
    return [{"type": "text", "text": content}] if content else []


class _ClaudeUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Start(msgspec.Struct):
    usage: _ClaudeUsage | None = None


class _Block(msgspec.Struct):
    type: str = ""
    name: str = ""


class _ClaudeDelta(msgspec.Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Error(msgspec.Struct):
    type: str = "api_error"
    message: str = ""


class _Event(msgspec.Struct):
    type: str
    message: _Start | None = None
    delta: _ClaudeDelta | None = None
    usage: _ClaudeUsage | None = None
    error: _Error | None = None
    content_block: _Block | None = None


_EVENT = json_decoder(_Event)


class MessageReader:
    """Reads one message. `lead` is white space with which it may begin, and which is not part of it."""

    def __init__(self, sampling: SamplingParams, lead: str, emit: Callable[[str], None] | None) -> None:
        self.fresh = True
        self.done = False
        self._emit = emit
        self._cutter = Cutter(sampling, self._pass_on)
        self._lead = lead
        self._reason: str | None = None
        self._matched: str | None = None
        self._input: _ClaudeUsage = _ClaudeUsage()
        self._output = 0
        self._calls: list[list[str]] = []

    @property
    def whole(self) -> bool:
        return self._reason is not None

    def feed(self, data: str) -> None:
        try:
            event = _EVENT.decode(data)
        except msgspec.MsgspecError as error:
            raise BackendError(f"the API sent an event that is not one: {error}", code="broken_stream") from error
        match event.type:
            case "message_start" if event.message is not None:
                self._input = event.message.usage or self._input
            case "content_block_start" if event.content_block is not None and event.content_block.type == "tool_use":
                self._calls.append([event.content_block.name])
            case "content_block_delta" if event.delta is not None and event.delta.type == "input_json_delta":
                if self._calls:
                    self._calls[-1].append(event.delta.partial_json)
            case "content_block_delta" if event.delta is not None:
                self._take(event.delta.text)
            case "message_delta" if event.delta is not None:
                self._end(event.delta)
                self._output = (event.usage.output_tokens if event.usage is not None else None) or self._output
            case "message_stop":
                if not self.whole:
                    raise BackendError("the message did not end", code="invalid_answer", retryable=True)
                self.done = True
            case "error":
                found = event.error or _Error()
                overloaded = found.type in ("overloaded_error", "api_error", "rate_limit_error")
                raise BackendError(f"the API broke off: {found.message}", code=found.type, retryable=overloaded)

    def _take(self, text: str) -> None:
        while self._lead and text and text[0].isspace():
            text = text[1:]
            self._lead = self._lead[1:]
        if text:
            self._lead = ""
        self._cutter.feed(text)
        if self._cutter.matched is not None:  # found here: the API would go on
            self._reason = "stop_sequence"
            self.done = True

    def _end(self, delta: _ClaudeDelta) -> None:
        if delta.stop_reason == "refusal":
            raise BackendError("the model refused to answer", code="refused")
        if delta.stop_reason is not None and self._reason is None:
            self._reason, self._matched = delta.stop_reason, delta.stop_sequence
            self._cutter.end()

    def _pass_on(self, text: str) -> None:
        if self._emit is not None:
            self.fresh = False
            self._emit(text)

    @property
    def sample(self) -> Sample:
        matched = self._cutter.matched if self._cutter.matched is not None else self._matched
        ended = "length" if self._reason == "max_tokens" and self._cutter.matched is None else "stop"
        calls = tuple(WrittenCall(parts[0], read_object("".join(parts[1:]))) for parts in self._calls)
        return Sample(self._cutter.text, ended, matched, calls=calls)

    @property
    def usage(self) -> Usage:
        found = self._input
        cached = found.cache_read_input_tokens or 0
        prompt = (found.input_tokens or 0) + cached + (found.cache_creation_input_tokens or 0)
        return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=self._output)


API_VERSION = "2023-06-01"


class Anthropic(ApiBackend):
    """Runs programs by requests to the Messages API: one for each generation. Safe to use from many threads.

    A system message is sent with every request. Text before a generation in an assistant message is what the answer
    begins with. Constraints and choices are not enforced by the API: with `emulate` they are asked for in words,
    checked, and asked for again up to `max_tries` times; else they are refused.

    api_key     or the environment's ANTHROPIC_API_KEY
    max_tokens  of generations that set no limit; the API wants one

    The other arguments are those of `OpenAI`.

    >>> backend = bough.Anthropic("claude-sonnet-4-5")
    """

    def __init__(  # noqa: PLR0913  one word has to say it all
        self,
        model_name: str,
        *,
        base_url: str = "https://api.anthropic.com",
        api_key: str | None = None,
        emulate: bool = True,
        max_tries: int = 3,
        max_tokens: int = 4096,
        timeout_s: float = 600.0,
        max_concurrency: int = 64,
        max_retries: int = 4,
        extra_headers: Mapping[str, str] | None = None,
        max_states: int = 1024,
    ) -> None:
        key = api_key if api_key is not None else os.environ.get("ANTHROPIC_API_KEY")
        headers = {"anthropic-version": API_VERSION, **({"x-api-key": key} if key else {}), **(extra_headers or {})}
        client = ApiClient(
            base_url.rstrip("/").removesuffix("/v1"),
            headers,
            timeout_s=timeout_s,
            max_concurrency=max_concurrency,
            max_retries=max_retries,
        )
        wire = AnthropicWire(client, model_name, max_tokens=max_tokens)
        policy = Policy(emulate=emulate, max_tries=max_tries, assistant_prefix="continue", completions=False)
        super().__init__(model_name, client, wire, policy, max_states=max_states)
