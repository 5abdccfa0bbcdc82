"""Conversations at the end of programs, which can be continued, counted, saved and loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self

import msgspec

from ...constrain.workers.decoders import json_decoder
from ...runtime.checkpoints.pins import write_whole
from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.request import Usage
from ..backend import Backend, resolve_backend
from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import Place, caller, located, no_attribute, users_lines
from ..record.expression import RoleClose, RoleOpen
from ..session.branch import Branch
from ..types.annotations import as_json
from . import streaming, values
from .messages import ChatMessage, beside_the_loop, count_tokens

MAX_FILE_BYTES = 64 << 20


class Trimming(NamedTuple):
    """Result of a policy: the messages that are gone, and the tokens that are left.

    dropped         the messages that it no longer has
    num_tokens      of what is left; None if the backend cannot count
    cached_tokens   of these, how many at the beginning are as before: the prefix cache has them while it keeps what
                    the conversation was; None as above
    usage           what a summary took
    """

    dropped: tuple[ChatMessage, ...] = ()
    num_tokens: int | None = None
    cached_tokens: int | None = None
    usage: Usage = Usage()


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    """A conversation in a file."""

    format: Literal["bough-chat-1"]
    model: str
    messages: tuple[ChatMessage, ...]
    values: dict[str, Any] = {}
    is_open: bool = False


_SAVED = json_decoder(_Saved)


_MEANT = {
    **dict.fromkeys(
        ("append", "add", "extend", "push", "add_message"),
        "it never changes: f.after(conversation).run(...).conversation() is a longer one, and so is "
        'bough.Conversation([*conversation.messages, {"role": "user", "content": ...}])',
    ),
    **dict.fromkeys(("num_tokens", "tokens", "n_tokens"), "conversation.count_tokens() counts"),
    **dict.fromkeys(("trim", "truncate", "keep_last"), "bough.KeepLast(turns=8).trim(conversation) shortens it"),
    **dict.fromkeys(("run", "send", "ask"), "f.after(conversation).run(...) continues it"),
    "history": "that is conversation.messages",
}
"""Likely meanings of attributes that do not exist."""


class Conversation:
    """The messages and variables that a program has ended with, as plain data. Immutable.

    messages    with role and content; text outside of messages has the role "text"
    values      the program's variables, which a program that continues has from its beginning
    is_open     the last message has not been ended
    model       the model's name, where it is known
    backend     the one that the program ran on, and `namespace` its namespace: a continuation runs there, too
    trimming    what a policy (`KeepLast`, `Summarise`) has done to it

    >>> talk = state.conversation()
    >>> talk.save("talk.json")
    >>> follow_up.after(bough.Conversation.load("talk.json")).run("And then?")
    """

    @located
    def __init__(
        self,
        messages: Iterable[ChatMessage | Mapping[str, str]] = (),
        values: Mapping[str, Any] | None = None,
        *,
        is_open: bool = False,
        model: str = "",
        backend: Backend | None = None,
        namespace: str = "",
        trimming: Trimming | None = None,
    ) -> None:
        self.messages = _messages(messages)
        refuse_policy(values)
        self.values: Mapping[str, Any] = dict(values or {})
        self.is_open = is_open
        self.model = model
        self.backend = backend
        self.namespace = namespace
        self.trimming = trimming

    if not TYPE_CHECKING:  # type checkers say it themselves

        @users_lines
        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute("a Conversation", name, _MEANT, (*dir(type(self)), *vars(self)))

    def __repr__(self) -> str:
        return f"<Conversation of {len(self.messages)} messages>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Conversation):
            return NotImplemented
        return (self.messages, self.values, self.is_open) == (other.messages, other.values, other.is_open)

    __hash__ = None  # type: ignore[assignment]

    def replace(self, messages: Iterable[ChatMessage | Mapping[str, str]], trimming: Trimming | None = None) -> Self:
        """The same conversation with other messages."""
        other = copy(self)
        other.messages, other.trimming = _messages(messages), trimming
        return other

    @users_lines
    def count_tokens(self, backend: Backend | None = None) -> int:
        """Counts the tokens, as the backend's model and chat template make them of the messages. Nothing is computed.

        Raises:
            UnsupportedError: the backend has no tokenizer.
            ProgramError: they are more than the model's context holds, code "context_length_exceeded".
        """
        chosen = resolve_backend(backend or self.backend)
        _, total = beside_the_loop(
            lambda: count_tokens(chosen, self.namespace, self.messages),
            "await asyncio.to_thread(conversation.count_tokens)",
        )
        if math.isinf(total):
            raise ProgramError(
                "the conversation has more tokens than the model's context holds: trim it, KeepLast(max_tokens=...)",
                code="context_length_exceeded",
                place=caller(),
            )
        return int(total)

    # Files

    @located
    def save(self, path: str | Path) -> None:
        """Writes a file of JSON, whole or not at all, that only its owner can read (mode 600).

        Variables are saved as JSON: an object of a dataclass is a dict when it is loaded.

        Raises:
            RequestError: a variable has no form in JSON, the file would be too large, or another file is there.
            OSError: it cannot be written.
        """
        path = Path(path)
        if path.exists():
            _read(path)
        plain = {name: _plain(name, value) for name, value in self.values.items()}
        try:
            content = msgspec.json.encode(_Saved("bough-chat-1", self.model, self.messages, plain, self.is_open))
        except UnicodeEncodeError as error:
            raise RequestError(f"a text of the conversation is no Unicode: {error.reason}") from error
        if len(content) > MAX_FILE_BYTES:
            raise RequestError(f"the conversation is too large for a file ({len(content) >> 20} MiB): trim it")
        write_whole(path, msgspec.json.format(content, indent=2) + b"\n")

    @classmethod
    @located
    def load(cls, path: str | Path) -> Self:
        """Reads a file that `save` or `bough chat` wrote.

        Raises:
            RequestError: it is no such file, or too large.
            OSError: it cannot be read.
        """
        saved = _read(Path(path))
        return cls(saved.messages, saved.values, is_open=saved.is_open, model=saved.model)


def conversation_of(branch: Branch) -> Conversation:
    """The conversation that a branch holds. Waits for all of it.

    Raises:
        ProgramError: the program has failed.
    """
    passages = streaming.passages(branch)
    branch.session.raise_error()
    return Conversation(
        ({"role": role or "text", "content": content} for role, content in passages),
        values.values(branch),
        is_open=branch.open_role is not None,
        backend=branch.session.backend,
        namespace=branch.session.settings.namespace,
    )


def begin_with(past: Conversation, branch: Branch, here: Place) -> None:
    """Begins a branch with what was said, and with the variables; `here` is the line to blame."""
    last = len(past.messages) - 1
    for index, message in enumerate(past.messages):
        if message.role != "text":
            branch.record_held(RoleOpen(message.role), here)
        if message.content:
            branch.record_held(message.content, here)
        if message.role != "text" and not (past.is_open and index == last):
            branch.record_held(RoleClose(message.role), here)
    for name, value in past.values.items():
        branch.assign(name, value)


def policy_advice(given: object) -> str:
    """Returns what to write instead of handing over a policy, which is applied to a state or conversation; "" for what
    is no policy."""
    if not hasattr(type(given), "atrim"):
        return ""
    return f"{type(given).__name__} shortens a history before it is continued: write bough.{given!r}.trim(state)"


def refuse_policy(given: object) -> None:
    """Raises RequestError, with what to write instead, if it is a policy."""
    if advice := policy_advice(given):
        raise RequestError(advice)


def _messages(given: Iterable[ChatMessage | Mapping[str, str]]) -> tuple[ChatMessage, ...]:
    refuse_policy(given)
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise RequestError(f"messages must be a list of messages, got {type(given).__name__}", param="messages")
    return tuple(map(_message, given))


def _message(given: ChatMessage | Mapping[str, str]) -> ChatMessage:
    if isinstance(given, ChatMessage):
        return given
    try:
        return msgspec.convert(given, ChatMessage)
    except msgspec.ValidationError as error:
        raise RequestError(
            f"a message has a role (system, user, assistant or text) and a content, both text: {error}",
            param="messages",
        ) from error


def _plain(name: str, value: object) -> Any:
    try:
        return as_json(value)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"the variable {name!r} cannot be saved ({error}): save Conversation(state.messages()), which has none",
            param="values",
        ) from error


def _read(path: Path) -> _Saved:
    if path.exists() and not path.is_file():
        raise RequestError(f"{path} is not a file: choose another one")
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise RequestError(f"{path} is too large for a conversation: choose another file")
    try:
        saved: _Saved = _SAVED.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not a saved conversation ({error}): choose another file") from None
    return saved
