"""Translation of the engine's outputs to OpenAI's replies: one path for chunks and whole replies, so that they agree.

The generated text of a chat is split into reasoning, ordinary text and tool calls, piece by piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from ...constrain.receipt import Receipt
from ...constrain.workers.decoders import json_decoder
from ...runtime.protocol import request as engine
from ...runtime.protocol.request import RequestOutput, TokenLogprob
from ...runtime.tokenizer.reasoning import THINK
from ...runtime.tokenizer.tokenizer import Tokenizer
from ...runtime.tools.forms import CLOSE_TAG, OPEN_TAG
from ...runtime.tools.tag_reader import Called, Said, TagReader, ValueEnd, find_mark
from ..errors import ApiError
from .objects import (
    AnswerMessage,
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChoiceLogprobs,
    ChoiceViolation,
    ChunkChoice,
    Completion,
    CompletionBody,
    CompletionChoice,
    CompletionLogprobs,
    ConstraintReport,
    ContentLogprob,
    Delta,
    FunctionOutput,
    GenerationBody,
    PromptLogprob,
    PromptLogprobs,
    ToolCall,
    TopLogprob,
    Usage,
)
from .requests import Job
from .tools import Toolbox


class Reply(Protocol):
    """Takes outputs as they come; `begin`, `add` and `end` return the chunks of a stream, `result` the whole.

    `begin` makes each chunk when it is asked for it, with None in between where others should have their turn; it must
    be asked for all before anything is added.
    """

    def begin(self) -> Iterator[msgspec.Struct | None]: ...

    def add(self, index: int, output: RequestOutput) -> Sequence[msgspec.Struct]: ...

    def end(self) -> Sequence[msgspec.Struct]: ...

    def result(self) -> msgspec.Struct: ...


@dataclass(frozen=True, kw_only=True)
class Header:
    """Fields that every object of one answer repeats."""

    id: str
    model: str
    created: int


class UsageCount:
    """The tokens of an answer. A prompt counts once, however many choices it has, with what the first found cached."""

    def __init__(self, job: Job) -> None:
        self._prompt_tokens = sum(len(prompt) for prompt in job.prompts)
        self._children = max(len(job.requests) // len(job.prompts), 1)
        self._cached_tokens = self._completion_tokens = self._forced_tokens = self._reasoning_tokens = 0

    def add(self, index: int, usage: engine.Usage, *, reasoning_tokens: int = 0) -> None:
        self._reasoning_tokens += reasoning_tokens
        self._completion_tokens += usage.completion_tokens
        self._forced_tokens += usage.forced_tokens
        if index % self._children == 0:
            self._cached_tokens += usage.cached_tokens

    def total(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details={"cached_tokens": self._cached_tokens},
            completion_tokens_details={
                "reasoning_tokens": self._reasoning_tokens,
                "forced_tokens": self._forced_tokens,
            },
        )


class ConstraintCount:
    """The constraint report of an answer, put together from its choices."""

    def __init__(self) -> None:
        self._receipt: Receipt | None = None
        self._violations: list[ChoiceViolation] = []

    def add(self, index: int, receipt: Receipt | None) -> ConstraintReport | UnsetType:
        """Counts choice `index`; returns the report of it alone."""
        if receipt is None:
            return UNSET
        found = [ChoiceViolation(index, each.pointer, each.message) for each in receipt.violations]
        self._receipt = receipt
        self._violations += found
        return _report(receipt, found)

    def total(self) -> ConstraintReport | UnsetType:
        return UNSET if self._receipt is None else _report(self._receipt, self._violations)


def _report(receipt: Receipt, violations: list[ChoiceViolation]) -> ConstraintReport:
    shown = violations if receipt.mode == "best_effort" else UNSET
    narrowed = list(receipt.narrowed) or UNSET
    closed = list(receipt.closed) or UNSET
    return ConstraintReport(receipt.mode, list(receipt.enforced), list(receipt.checked), shown, narrowed, closed)


# Log-probabilities in OpenAI's two forms: of chats, and of completions


LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


ECHOED_TOKENS_AT_ONCE = 1024
"""Tokens of a prompt whose log-probabilities are written before others have their turn."""

T = TypeVar("T")

SENT_TOGETHER = 256
"""Tokens whose log-probabilities a stream sends without text, if there is none meanwhile."""

MAX_KEPT_LOGPROBS = 1 << 19
"""Log-probabilities of a whole answer, alternatives included; a stream may have any number."""


class ShownToken(NamedTuple):
    """A token in log-probabilities. Part of a character has a text as OpenAI's: `bytes:\\xe2\\x82`."""

    text: str
    bytes: list[int]


class ShownTokens(dict[int, ShownToken]):
    """Tokens of a model as log-probabilities show them: each is spelt out once, when it is first looked up."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def __missing__(self, token: int) -> ShownToken:
        piece = b"".join(self.tokenizer.pieces([token], skip_special_tokens=False))
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
        shown = self[token] = ShownToken(text, list(piece))
        return shown


def chat_logprobs(entries: Iterable[TokenLogprob], shown: ShownTokens) -> list[ContentLogprob]:
    result = []
    for entry in entries:
        top = [TopLogprob(shown[token].text, max(value, LOWEST), shown[token].bytes) for token, value in entry.top]
        text, piece = shown[entry.token]
        result.append(ContentLogprob(text, max(entry.logprob, LOWEST), piece, top))
    return result


def prompt_logprobs(
    body: GenerationBody, prompt: Sequence[int], scores: Sequence[TokenLogprob], shown: ShownTokens
) -> PromptLogprobs | UnsetType:
    """The log-probabilities of a prompt as vLLM has them, if the body asks for them."""
    if body.prompt_logprobs is None:
        return UNSET
    entries: PromptLogprobs = [None] * min(len(prompt), 1)
    for entry in scores:
        found = {}
        for rank, (token, value) in enumerate(entry.top, start=1):
            if rank <= body.prompt_logprobs or token == entry.token:
                found[token] = PromptLogprob(max(value, LOWEST), rank, shown[token].text)
        if entry.token not in found:
            found[entry.token] = PromptLogprob(max(entry.logprob, LOWEST), None, shown[entry.token].text)
        entries.append(found)
    return in_slices(entries)


class KeptLogprobs:
    """Counts the log-probabilities of an answer that is sent when it is whole. Without `whole`, nothing is counted."""

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole
        self._num_left = MAX_KEPT_LOGPROBS

    def add(self, entries: Iterable[TokenLogprob]) -> None:
        """Raises ApiError if they are too many."""
        if not self.whole:
            return
        self._num_left -= sum(1 + len(entry.top) for entry in entries)
        if self._num_left < 0:
            message = f"The answer has more than {MAX_KEPT_LOGPROBS} log-probabilities: ask for a stream."
            raise ApiError(422, "result_too_long", message, param="logprobs")


class LogprobLists:
    """The parallel lists of a completion's choice, which grow with its tokens; offsets count characters."""

    def __init__(self, shown: ShownTokens) -> None:
        self._shown = shown
        self._offset = 0

    def unknown(self, token: int) -> CompletionLogprobs:
        """The first token of a prompt: it follows nothing."""
        text = self._shown[token].text
        return CompletionLogprobs([text], [None], [None], [self._advance(text)])

    def known(self, entries: Iterable[TokenLogprob]) -> CompletionLogprobs:
        lists = CompletionLogprobs([], [], [], [])
        for entry in entries:
            text = self._shown[entry.token].text
            logprob = max(entry.logprob, LOWEST)
            top = {self._shown[token].text: max(value, LOWEST) for token, value in entry.top}
            lists.tokens.append(text)
            lists.token_logprobs.append(logprob)
            lists.top_logprobs.append({**top, text: logprob})
            lists.text_offset.append(self._advance(text))
        return lists

    def follow(self, other: LogprobLists) -> None:
        """Goes on where `other` is."""
        self._offset = other._offset

    def _advance(self, text: str) -> int:
        start = self._offset
        self._offset += len(text)
        return start


ENCODED_AT_ONCE = 1_000
"""Entries of a list that are encoded in one go. Nothing else runs meanwhile: 0.3 ms, with 20 alternatives each."""


def in_slices(entries: list[T]) -> list[T]:
    """Returns entries that are only to be encoded: where there are many, as JSON, so that others run in between."""
    if len(entries) <= ENCODED_AT_ONCE:
        return entries
    starts = range(0, len(entries), ENCODED_AT_ONCE)
    encoded = [msgspec.json.encode(entries[start : start + ENCODED_AT_ONCE])[1:-1] for start in starts]
    return cast("list[T]", msgspec.Raw(b"[" + b",".join(encoded) + b"]"))


def joined(parts: Iterable[CompletionLogprobs]) -> CompletionLogprobs:
    lists = CompletionLogprobs([], [], [], [])
    for part in parts:
        lists.tokens += part.tokens
        lists.token_logprobs += part.token_logprobs
        lists.top_logprobs += part.top_logprobs
        lists.text_offset += part.text_offset
    return lists


# Chats: the pieces of what was generated


_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"arguments"\s*:\s*')
_BLOCK = re.compile(rf"{OPEN_TAG}(.*?)(?:{CLOSE_TAG}|$)", re.DOTALL)


class Thought(NamedTuple):
    """A piece of the reasoning before the answer."""

    text: str


Piece = Thought | Said | Called


class Reader(Protocol):
    """Splits generated text into what is said and what is called, piece by piece."""

    def push(self, text: str) -> Sequence[Piece]: ...

    def finish(self) -> Sequence[Piece]:
        """Returns what was held back until now."""


def reader(job: Job) -> Reader:
    """The reader for an answer to a chat, with its tools, which may begin with reasoning."""
    result = _call_reader(job.toolbox)
    if job.reasoning_end is None:
        return result
    return ReasoningReader(job.reasoning_end, THINK.begin, result, optional=job.reasoning_optional)


def _call_reader(toolbox: Toolbox) -> Reader:
    if toolbox.mode == "none":
        return TextReader()
    if toolbox.form is not None:
        return TagReader(toolbox.form, toolbox.functions)
    return CallReader() if toolbox.mode == "required" else AutoReader(toolbox)


class TextReader:
    """Everything is ordinary text."""

    def push(self, text: str) -> list[Piece]:
        return [Said(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


class CallReader:
    """The text is one call, by its grammar; its arguments are passed on as they come."""

    def __init__(self) -> None:
        self._head = ""
        self._started = False
        self._value = ValueEnd()

    def push(self, text: str) -> list[Piece]:
        if self._started:
            return self._arguments(text)
        self._head += text
        header = _HEADER.match(self._head)
        if header is None or header.end() == len(self._head):  # more blanks may follow the colon
            return []
        self._started = True
        name = json.loads(f'"{header[1]}"')
        return [Called(0, name=name), *self._arguments(self._head[header.end() :])]

    def finish(self) -> list[Piece]:
        """Returns a text that ended before a call's arguments as ordinary text."""
        return [Said(self._head)] if self._head and not self._started else []

    def _arguments(self, text: str) -> list[Piece]:
        text = text[: self._value.feed(text)]
        return [Called(0, arguments=text)] if text else []


class ReasoningReader:
    """Reasoning comes first, up to a text that closes it; what follows is for another reader.

    optional   there is none if the text does not start with `begin`
    """

    def __init__(self, end: str, begin: str, then: Reader, *, optional: bool = False) -> None:
        self._end = end
        self._begin = begin
        self._then = then
        self._optional = optional
        self._held = ""
        self._any = self._closed = self._blank = False

    def push(self, text: str) -> Sequence[Piece]:
        if self._closed:
            return self._after(text)
        self._held += text
        if not self._any:
            if self._begin.startswith(self._held):
                return []
            if self._optional and not self._held.startswith(self._begin):
                self._closed = True
                rest, self._held = self._held, ""
                return self._after(rest)
            self._optional = False
            self._held = self._held.removeprefix(self._begin).lstrip("\n")
            self._any = bool(self._held)
        start = find_mark(self._held, self._end)
        thought, self._held = self._held[:start], self._held[start:]
        pieces: list[Piece] = [Thought(thought)] if thought else []
        if self._held.startswith(self._end):
            self._closed = self._blank = True
            rest, self._held = self._held[len(self._end) :], ""
            pieces += self._after(rest)
        return pieces

    def finish(self) -> list[Piece]:
        held: Sequence[Piece] = []
        if self._held:
            held = self._then.push(self._held) if self._optional else [Thought(self._held)]
        return [*held, *self._then.finish()]

    def _after(self, text: str) -> Sequence[Piece]:
        """Passes the answer on without the empty lines between the reasoning and it."""
        text = text.lstrip("\n") if self._blank else text
        self._blank = self._blank and not text
        return self._then.push(text) if text else []


_MAX_HEAD_BYTES = 64


class ReasoningCount:
    """Counts the tokens of the reasoning that an answer begins with, the text that closes it included.

    It may be cut off: then all tokens count, if they are known to be reasoning.
    """

    def __init__(self, tokenizer: Tokenizer, end: str, *, begun: bool) -> None:
        self._tokenizer = tokenizer
        self._end = end.encode()
        self._begun = begun
        self._head = self._tail = b""
        self._closed = False
        self._num_tokens = 0

    def add(self, tokens: Iterable[int]) -> None:
        for token in () if self._closed else tokens:
            self._num_tokens += 1
            piece = b"".join(self._tokenizer.pieces([token], skip_special_tokens=False))
            if not self._begun:
                self._head = (self._head + piece).lstrip()[:_MAX_HEAD_BYTES]
                self._begun = self._head.startswith(THINK[0].encode())
            self._tail += piece
            if self._end in self._tail:
                self._closed = True
                return
            self._tail = self._tail[-len(self._end) :]

    @property
    def num_tokens(self) -> int:
        return self._num_tokens if self._begun or self._closed else 0


class AutoReader:
    """The text may be calls, as plain JSON or between tags, or anything else; only what may be a call is held back.

    What is held is looked at once: it may be all of an answer.
    """

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._held: list[str] = []
        self._blank = True  # nothing but white space has come
        self._calls = False  # what is held begins like calls, so that all of the rest is held
        self._any_said = False

    def push(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._calls or (self._blank and not text.strip()):
            self._held.append(text)
            return []
        held, self._blank = "".join(self._held) + text, False
        start = find_mark(held, OPEN_TAG)
        said = held[:start]
        self._calls = held.startswith(OPEN_TAG, start)
        if not self._any_said and (not said.strip() or said.lstrip()[0] in "{["):
            self._calls = self._calls or bool(said.strip())
            self._held = [held]
            return []
        self._held = [held[start:]]
        self._any_said = self._any_said or bool(said)
        return [Said(said)] if said else []

    def finish(self) -> list[Piece]:
        held = "".join(self._held)
        calls = parse_calls(held, self._toolbox.functions)
        if not calls:
            return [Said(held)] if held else []
        if not self._toolbox.parallel:
            calls = calls[:1]
        return [
            piece
            for position, (name, arguments) in enumerate(calls)
            for piece in (Called(position, name=name), Called(position, arguments=arguments))
        ]


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


_CALL, _CALLS = json_decoder(_Call), json_decoder(list[_Call])


def parse_calls(text: str, names: Mapping[str, object]) -> list[tuple[str, str]]:
    """Reads the calls that make up the text, as (name, arguments as JSON text); none if it is not calls of `names`."""
    text = text.strip()
    blocks = [match[1] for match in _BLOCK.finditer(text)] if OPEN_TAG in text else [text]
    calls: list[tuple[str, str]] = []
    try:
        for block in blocks:
            decoder = _CALLS if block.lstrip().startswith("[") else _CALL
            decoded: Any = decoder.decode(block.encode())
            for call in decoded if isinstance(decoded, list) else [decoded]:
                calls.append((call.name, _arguments_text(call)))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    return calls if all(name in names for name, _ in calls) else []


def _arguments_text(call: _Call) -> str:
    """Returns the arguments as JSON text; some models write them as JSON inside a string.

    Raises:
        msgspec.DecodeError: the arguments are no JSON object.
    """
    text = bytes(call.arguments or call.parameters)
    if text.startswith(b'"'):
        text = msgspec.json.decode(text, type=str).encode()
    msgspec.json.decode(text, type=dict[str, Any])
    return text.decode()


# Chats: their answers


class _Waiting(Generic[T]):
    """Parts of an answer that wait for its next chunk; all of them are kept if it is sent `whole`."""

    def __init__(self, *, whole: bool) -> None:
        self.kept: list[T] = []
        self.parts: list[T] = []
        self._whole = whole

    def take(self) -> list[T]:
        """Returns those that wait, which wait no longer."""
        taken, self.parts = self.parts, []
        if self._whole:
            self.kept += taken
        return taken


class _ChatAnswer:
    """One choice of a chat while it grows."""

    def __init__(self, index: int, header: Header, job: Job, shown: ShownTokens, kept: KeptLogprobs) -> None:
        self._index = index
        self._header = header
        self._shown = shown
        self._kept = kept
        self._toolbox = job.toolbox
        self._with_tokens = job.shows_tokens
        self._reasoning: ReasoningCount | None = None
        if job.thinking is not None:
            begun = job.thinking.opened or (job.reasoning_end is not None and not job.reasoning_optional)
            self._reasoning = ReasoningCount(shown.tokenizer, job.thinking.end, begun=begun)
        self._reader = reader(job)
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[ToolCall] = []
        self._arguments: list[list[str]] = []
        self._logprobs: _Waiting[ContentLogprob] = _Waiting(whole=kept.whole)
        self._tokens: _Waiting[int] = _Waiting(whole=kept.whole)
        self._finish_reason = "stop"

    @property
    def reasoning_tokens(self) -> int:
        return 0 if self._reasoning is None else self._reasoning.num_tokens

    def add(self, output: RequestOutput) -> list[ChunkChoice]:
        if output.logprobs:
            self._kept.add(output.logprobs)
            self._logprobs.parts += chat_logprobs(output.logprobs, self._shown)
        if self._with_tokens:
            self._tokens.parts += output.tokens
        if self._reasoning is not None:
            self._reasoning.add(output.tokens)
        pieces = [*self._reader.push(output.text)]
        if output.finish is not None:
            pieces += self._reader.finish()
        chunks = [self._chunk(self._delta(piece)) for piece in pieces]
        if len(self._logprobs.parts) >= SENT_TOGETHER:
            chunks.append(self._chunk(Delta()))
        if output.finish is not None:
            called = "function_call" if self._toolbox.legacy else "tool_calls"
            called = called if self._calls and not self._toolbox.forced else "stop"
            self._finish_reason = "length" if output.finish.reason == "length" else called
            chunks.append(self._chunk(Delta(), self._finish_reason))
        return chunks

    def _chunk(self, delta: Delta, finish_reason: str | None = None) -> ChunkChoice:
        """Log-probabilities wait for the next chunk, some time: text is held back while it could become a stop string
        or a call."""
        entries, tokens = self._logprobs.take(), self._tokens.take()
        logprobs = ChoiceLogprobs(entries) if entries else None
        shown = tokens if self._with_tokens else UNSET
        return ChunkChoice(self._index, delta, logprobs=logprobs, finish_reason=finish_reason, token_ids=shown)

    def _delta(self, piece: Piece) -> Delta:
        if isinstance(piece, Thought):
            self._thoughts.append(piece.text)
            return Delta(reasoning_content=piece.text)
        if isinstance(piece, Said):
            self._texts.append(piece.text)
            return Delta(content=piece.text)
        if piece.name is None:
            self._arguments[piece.position].append(piece.arguments)
            if self._toolbox.legacy:
                return Delta(function_call=FunctionOutput(arguments=piece.arguments))
            return Delta(
                tool_calls=[ToolCall(index=piece.position, function=FunctionOutput(arguments=piece.arguments))]
            )
        call_id = f"call_{self._header.id.rpartition('-')[2]}_{self._index}_{piece.position}"
        self._calls.append(ToolCall(id=call_id, type="function", function=FunctionOutput(name=piece.name)))
        self._arguments.append([])
        function = FunctionOutput(name=piece.name)
        if self._toolbox.legacy:
            return Delta(function_call=function)
        return Delta(tool_calls=[ToolCall(index=piece.position, id=call_id, type="function", function=function)])

    def result(self, *, with_logprobs: bool) -> ChatChoice:
        for call, arguments in zip(self._calls, self._arguments, strict=True):
            call.function.arguments = "".join(arguments)
        text = "".join(self._texts)
        message = AnswerMessage(None if self._calls and not text else text)
        if self._toolbox.legacy and self._calls:
            message.function_call = self._calls[0].function
        else:
            message.tool_calls = self._calls or UNSET
        message.reasoning_content = "".join(self._thoughts) if self._thoughts else UNSET
        logprobs = ChoiceLogprobs(in_slices(self._logprobs.kept)) if with_logprobs else None
        tokens = self._tokens.kept if self._with_tokens else UNSET
        return ChatChoice(self._index, message, logprobs, self._finish_reason, tokens)


class ChatReply:
    """The answer to a chat. `scores` are those of the prompt, if they are wanted."""

    def __init__(
        self, body: ChatBody, job: Job, header: Header, shown: ShownTokens, *, scores: Scores | None = None
    ) -> None:
        self._header = header
        self._body, self._prompt, self._shown = body, job.prompts[0], shown
        self._with_tokens = job.shows_tokens
        self._scores = scores[0] if scores else []
        self._with_logprobs = bool(body.logprobs)
        self._with_usage = _wants_usage(body)
        self._usage = UsageCount(job)
        self._constraint = ConstraintCount()
        kept = KeptLogprobs(whole=not body.stream)
        self._answers = [_ChatAnswer(index, header, job, shown, kept) for index in range(len(job.requests))]

    def begin(self) -> Iterator[ChatChunk]:
        for index in range(len(self._answers)):
            chunk = self._chunk([ChunkChoice(index, Delta(role="assistant", content=""))])
            chunk.prompt_token_ids = self._prompt_tokens() if index == 0 else UNSET
            yield chunk

    def add(self, index: int, output: RequestOutput) -> list[ChatChunk]:
        chunks = [self._chunk([choice]) for choice in self._answers[index].add(output)]
        if output.finish is not None:
            reasoning_tokens = self._answers[index].reasoning_tokens
            self._usage.add(index, output.finish.usage, reasoning_tokens=reasoning_tokens)
            chunks[-1].constraint = self._constraint.add(index, output.finish.constraint)
        return chunks

    def end(self) -> list[ChatChunk]:
        return [self._chunk([], self._usage.total())] if self._with_usage else []

    def result(self) -> ChatCompletion:
        header = self._header
        choices = [answer.result(with_logprobs=self._with_logprobs) for answer in self._answers]
        return ChatCompletion(
            header.id,
            header.created,
            header.model,
            choices,
            self._usage.total(),
            constraint=self._constraint.total(),
            prompt_logprobs=prompt_logprobs(self._body, self._prompt, self._scores, self._shown),
            prompt_token_ids=self._prompt_tokens(),
        )

    def _prompt_tokens(self) -> list[int] | UnsetType:
        return list(self._prompt) if self._with_tokens else UNSET

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | UnsetType = UNSET) -> ChatChunk:
        return ChatChunk(self._header.id, self._header.created, self._header.model, choices, usage=usage)


# Completions


@dataclass
class _CompletionAnswer:
    """One choice of a completion while it grows."""

    lists: LogprobLists
    texts: list[str] = field(default_factory=list)
    logprobs: list[CompletionLogprobs] = field(default_factory=list)
    pending: list[CompletionLogprobs] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    pending_tokens: list[int] = field(default_factory=list)
    begun: bool = False
    finish_reason: str = "length"


Scores = list[list[TokenLogprob]]
"""For each prompt, the log-probabilities of its tokens from the second on; empty if they are not wanted."""


class CompletionReply:
    """The answer to /v1/completions. With `echo`, each choice begins with its prompt: `begin` empties `scores`, prompt
    by prompt as it writes them."""

    def __init__(self, body: CompletionBody, job: Job, header: Header, shown: ShownTokens, *, scores: Scores) -> None:
        self._header = header
        self._with_usage = _wants_usage(body)
        self._usage = UsageCount(job)
        self._constraint = ConstraintCount()
        self._children = body.n or 1
        num_answers = len(job.prompts) * self._children
        self._answers = [_CompletionAnswer(LogprobLists(shown)) for _ in range(num_answers)]
        self._kept = KeptLogprobs(whole=not body.stream)
        self._generates = bool(job.requests)
        self._echoes = job.echoes
        self._prompts, self._scores = job.prompts, scores
        self._body, self._shown = body, shown
        self._with_tokens = job.shows_tokens
        self._prompt_scores = [*scores] if body.prompt_logprobs is not None else []

    def begin(self) -> Iterator[Completion | None]:
        with_logprobs = self._body.logprobs is not None
        for prompt, echo in enumerate(self._echoes):
            children = range(prompt * self._children, (prompt + 1) * self._children)
            lists = self._answers[children[0]].lists
            logprobs: list[CompletionLogprobs] = []
            for part in self._echo_logprobs(prompt, lists) if with_logprobs else ():
                logprobs.append(part)
                yield None
            for index in children:
                answer = self._answers[index]
                answer.texts.append(echo)
                answer.lists.follow(lists)
                text = echo
                for part in logprobs[:-1]:  # each in a chunk of its own: none holds up others for long
                    answer.pending.append(part)
                    yield self._chunk(index, text, None)
                    text = ""
                answer.pending += logprobs[-1:]
                yield self._chunk(index, text, None if self._generates else answer.finish_reason)

    def _echo_logprobs(self, prompt: int, lists: LogprobLists) -> Iterator[CompletionLogprobs]:
        """Yields those of a prompt in parts, which are the same in all its answers; its scores are dropped."""
        scores, self._scores[prompt] = self._scores[prompt], []
        if self._prompt_scores:  # of which there may be more
            most = self._body.logprobs or 0
            scores = [msgspec.structs.replace(entry, top=entry.top[:most]) for entry in scores]
        for _ in range(self._children):
            self._kept.add(scores)
        first = lists.unknown(self._prompts[prompt][0])
        yield joined((first, lists.known(scores[:ECHOED_TOKENS_AT_ONCE])))
        for start in range(ECHOED_TOKENS_AT_ONCE, len(scores), ECHOED_TOKENS_AT_ONCE):
            yield lists.known(scores[start : start + ECHOED_TOKENS_AT_ONCE])

    def add(self, index: int, output: RequestOutput) -> list[Completion]:
        answer = self._answers[index]
        if self._kept.whole:
            answer.texts.append(output.text)
        if output.logprobs:
            self._kept.add(output.logprobs)
            answer.pending.append(answer.lists.known(output.logprobs))
        if self._with_tokens:
            answer.pending_tokens += output.tokens
        if output.finish is None:
            sends = output.text or len(answer.pending) >= SENT_TOGETHER
            return [self._chunk(index, output.text, None)] if sends else []
        self._usage.add(index, output.finish.usage)
        answer.finish_reason = "length" if output.finish.reason == "length" else "stop"
        chunk = self._chunk(index, output.text, answer.finish_reason)
        chunk.constraint = self._constraint.add(index, output.finish.constraint)
        return [chunk]

    def end(self) -> list[Completion]:
        header = self._header
        usage = Completion(header.id, header.created, header.model, [], usage=self._usage.total())
        return [usage] if self._with_usage else []

    def result(self) -> Completion:
        header = self._header
        choices = []
        for index, answer in enumerate(self._answers):
            logprobs = joined([*answer.logprobs, *answer.pending]) if self._body.logprobs is not None else None
            if logprobs is not None:
                logprobs.top_logprobs = in_slices(logprobs.top_logprobs)
            choice = CompletionChoice(index, "".join(answer.texts), logprobs, answer.finish_reason)
            prompt = index // self._children
            scores = self._prompt_scores[prompt] if self._prompt_scores else []
            choice.prompt_logprobs = prompt_logprobs(self._body, self._prompts[prompt], scores, self._shown)
            if self._with_tokens:
                choice.prompt_token_ids, choice.token_ids = list(self._prompts[prompt]), answer.tokens
            choices.append(choice)
        return Completion(
            header.id,
            header.created,
            header.model,
            choices,
            usage=self._usage.total(),
            constraint=self._constraint.total(),
        )

    def _chunk(self, index: int, text: str, finish_reason: str | None) -> Completion:
        answer, header = self._answers[index], self._header
        logprobs = joined(answer.pending) if answer.pending else None
        if self._kept.whole:
            answer.logprobs += answer.pending
        answer.pending = []
        choice = CompletionChoice(index, text, logprobs, finish_reason)
        if self._with_tokens:
            choice.token_ids, answer.pending_tokens = answer.pending_tokens, []
            if self._kept.whole:
                answer.tokens += choice.token_ids
            if not answer.begun:
                choice.prompt_token_ids = list(self._prompts[index // self._children])
            answer.begun = True
        return Completion(header.id, header.created, header.model, [choice])


def _wants_usage(body: ChatBody | CompletionBody) -> bool:
    return body.stream_options is not None and body.stream_options.include_usage is True
