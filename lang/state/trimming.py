"""Policies for shortening conversations: keep the last turns, or replace the others by a summary."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Unpack

from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.program import Gen, RoleBegin, RoleEnd, Text, Value
from ..backend import Backend, resolve_backend
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import caller, located, users_lines
from ..record.options import SamplingOptions, clean_options, merge_options, wrong_kind
from .conversation import Conversation, Trimming
from .messages import ChatMessage, beside_the_loop, count_tokens, events_of, ops_of
from .state import State

Counter = Callable[[Sequence[ChatMessage]], float]
"""Counts the tokens of messages."""

SUMMARY_PROMPT = "Summarise our conversation so far in a few sentences, with every fact that matters."


class _Turns(NamedTuple):
    """A conversation in parts.

    system   messages that it begins with
    turns    each from a message of the user to the next; the first also has what comes before
    """

    system: tuple[ChatMessage, ...]
    turns: tuple[tuple[ChatMessage, ...], ...]

    @classmethod
    def of(cls, messages: Sequence[ChatMessage]) -> _Turns:
        num_system = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
        rest = messages[num_system:]
        starts = [index for index, message in enumerate(rest) if message.role == "user"][1:]
        bounds = zip([0, *starts], [*starts, len(rest)], strict=True)
        return cls(tuple(messages[:num_system]), tuple(tuple(rest[a:b]) for a, b in bounds) if rest else ())

    def kept(self, first: int, last: int) -> tuple[ChatMessage, ...]:
        """Returns the messages without the turns between the `first` ones and the `last` ones."""
        return (*self.system, *chain(*self.turns[:first]), *chain(*self.turns[max(first, len(self.turns) - last) :]))


class _Policy(ABC):
    """Basis of all policies, which take states and conversations, on any thread or event loop."""

    @users_lines
    @located
    def trim(self, conversation: Conversation | State[Any], *, backend: Backend | None = None) -> Conversation:
        """Returns the shortened conversation; its `trimming` says what is gone and what is still cached. One that is
        short enough is returned as it is.

        `backend` counts and generates: by default the one that the conversation comes from.

        Raises:
            UnsupportedError: tokens are to be counted, and the backend has no tokenizer.
        """
        return beside_the_loop(partial(self._trimmed, conversation, backend), "await policy.atrim(conversation)")

    async def atrim(self, conversation: Conversation | State[Any], *, backend: Backend | None = None) -> Conversation:
        """`trim` for async code."""
        with users_lines:
            return await asyncio.to_thread(self._trimmed, conversation, backend)

    def _trimmed(self, given: Conversation | State[Any], backend: Backend | None) -> Conversation:
        conversation = given.conversation() if isinstance(given, State) else given
        if not isinstance(conversation, Conversation):
            raise wrong_kind("conversation", "a state or a Conversation", given)
        return self._apply(conversation, backend or conversation.backend)

    @abstractmethod
    def _apply(self, conversation: Conversation, backend: Backend | None) -> Conversation: ...


@dataclass(frozen=True)
class KeepLast(_Policy):
    """Keeps the system message and the last turns. A turn is a message of the user and what follows it.

    turns         turns at the end that are kept at most
    max_tokens    tokens that the conversation has at most afterwards; needs a backend with a tokenizer
    first         turns at the beginning that are kept, too, such as examples: they stay cached
    above_tokens  a conversation with no more tokens is left as it is; needs a backend with a tokenizer

    >>> short = bough.KeepLast(turns=4).trim(state)
    >>> follow_up.after(short).run("And then?")
    """

    turns: int | None = None
    max_tokens: int | None = None
    first: int = 0
    above_tokens: int | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        shown = ((one.name, getattr(self, one.name)) for one in fields(self))
        return f"KeepLast({', '.join(f'{name}={value}' for name, value in shown if value)})"

    @located
    def __post_init__(self) -> None:
        if self.turns is None and self.max_tokens is None:
            raise RequestError("KeepLast needs turns=..., max_tokens=... or both", param="turns")
        _check("turns", self.turns, 1)
        _check("max_tokens", self.max_tokens, 1)
        _check("first", self.first, 0)
        _check("above_tokens", self.above_tokens, 1)

    def kept(self, messages: Sequence[ChatMessage], count: Counter) -> tuple[ChatMessage, ...]:
        """Returns the messages that are kept of these; `count` counts tokens.

        Raises:
            ProgramError: even with one turn there are more than `max_tokens`, code "context_length_exceeded".
        """
        if self.above_tokens is not None and count(messages) <= self.above_tokens:
            return tuple(messages)
        parts = _Turns.of(messages)
        most = max(len(parts.turns) - self.first, 0)
        most = most if self.turns is None else min(most, self.turns)
        whole = parts.kept(self.first, most)
        limit = self.max_tokens
        if limit is None or count(whole) <= limit:
            return whole
        sizes = range(most - 1, 0, -1)  # fewer turns have fewer tokens
        index = bisect_left(sizes, True, key=lambda size: count(parts.kept(self.first, size)) <= limit)
        if index == len(sizes):
            raise ProgramError(
                f"the last turn, with what comes before all turns, has more than {limit} tokens: shorten it, or raise "
                "max_tokens",
                code="context_length_exceeded",
                param="max_tokens",
                place=caller(),
            )
        return parts.kept(self.first, sizes[index])

    def _apply(self, conversation: Conversation, backend: Backend | None) -> Conversation:
        messages = conversation.messages
        kept = self.kept(messages, lambda some: _count(conversation, backend, some)[1])
        return conversation.replace(kept, _effect(conversation, kept, _dropped(messages, kept), backend))


class Summarise(_Policy):
    """Replaces all but the last turns by a summary that the model writes: a turn with `prompt` and its answer.

    turns         turns at the end that are kept
    above_tokens  a conversation with no more tokens is left as it is; needs a backend with a tokenizer
    prompt        what the model is asked
    options       of the generation: max_tokens, temperature, ...

    The summary is generated from the turns that it replaces, which are cached while the conversation is.

    >>> short = bough.Summarise(turns=2, above_tokens=3000, max_tokens=200).trim(state)
    """

    @located
    def __init__(
        self,
        turns: int = 2,
        *,
        above_tokens: int | None = None,
        prompt: str = SUMMARY_PROMPT,
        **options: Unpack[SamplingOptions],
    ) -> None:
        _check("turns", turns, 0)
        _check("above_tokens", above_tokens, 1)
        self.turns = turns
        self.above_tokens = above_tokens
        self.prompt = prompt
        self._sampling = merge_options({"max_tokens": 256, "temperature": 0.0}, clean_options(options))

    def __repr__(self) -> str:
        return f"Summarise(turns={self.turns})"

    def _apply(self, conversation: Conversation, backend: Backend | None) -> Conversation:
        messages = conversation.messages
        parts = _Turns.of(messages)
        num_replaced = len(parts.turns) - self.turns
        short = self.above_tokens is not None and _count(conversation, backend, messages)[1] <= self.above_tokens
        if num_replaced < 1 or short:
            return conversation.replace(messages, _effect(conversation, messages, (), backend))
        replaced = tuple(chain(*parts.turns[:num_replaced]))
        summary = self._summary(conversation, backend, (*parts.system, *replaced))
        pair = (ChatMessage("user", self.prompt), ChatMessage("assistant", summary.text.strip()))
        kept = (*parts.system, *pair, *chain(*parts.turns[num_replaced:]))
        effect = _effect(conversation, kept, replaced, backend)
        return conversation.replace(kept, effect._replace(usage=summary.usage))

    def _summary(self, conversation: Conversation, backend: Backend | None, messages: Sequence[ChatMessage]) -> Value:
        ask = (RoleBegin(0, "user"), Text(0, (self.prompt,)), RoleEnd(0), RoleBegin(0, "assistant"))
        ops = (*ops_of(messages), *ask, Gen(0, "summary", self._sampling), RoleEnd(0))
        events = events_of(resolve_backend(backend), conversation.namespace, ops)
        found = [event for event in events if isinstance(event, Value)]
        if not found:
            raise ProgramError("the backend sent no summary", code="broken_stream", place=caller())
        return found[0]


def _effect(
    conversation: Conversation,
    kept: tuple[ChatMessage, ...],
    dropped: tuple[ChatMessage, ...],
    backend: Backend | None,
) -> Trimming:
    """Returns what keeping these messages means for the conversation's tokens."""
    pairs = zip(conversation.messages, kept, strict=False)
    num_same = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(conversation.messages), len(kept)))
    try:
        cached, total = _count(conversation, backend, kept, num_same)
    except ProgramError as error:
        if error.code not in ("unsupported", "no_backend"):
            raise
        return Trimming(dropped)
    known = None if math.isinf(total) else int(total)
    return Trimming(dropped, known, None if math.isinf(cached) else int(cached))


def _count(
    conversation: Conversation, backend: Backend | None, messages: Sequence[ChatMessage], num_first: int = 0
) -> tuple[float, float]:
    """Counts the tokens of the first `num_first` messages, and of all. Raises as `count_tokens`."""
    return count_tokens(resolve_backend(backend), conversation.namespace, messages, num_first)


def _dropped(messages: tuple[ChatMessage, ...], kept: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """The messages in the middle that are not kept."""
    num_gone = len(messages) - len(kept)
    start = next((i for i, (a, b) in enumerate(zip(messages, kept, strict=False)) if a is not b), len(kept))
    return messages[start : start + num_gone]


def _check(name: str, value: object, least: int) -> None:
    if value is not None and (type(value) is not int or value < least):
        raise RequestError(f"{name} must be a whole number of at least {least}, got {value!r}", param=name)
