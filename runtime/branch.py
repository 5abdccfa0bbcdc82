"""One branch of a running program: the token ids that the model really ran, and what is still to be done."""

from __future__ import annotations

import codecs
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from .errors import RequestError
from .program import Op, Ref
from .request import CACHED, PREFILLED
from .tokenizer import Tokenizer


@dataclass(eq=False, slots=True)
class Barrier:
    """Stands in a child's queue for a Join of its parent: passed means that everything before it is done.

    It keeps where the child stood then, since a child may go on while its parent is busy.
    """

    passed: bool = False
    num_tokens: int = 0
    num_texts: int = 0
    num_roles: int = 0
    suffix: str | None = None
    values: dict[str, str] = field(default_factory=dict)

    def reach(self, branch: Branch) -> None:
        self.passed = True
        self.num_tokens, self.num_texts = len(branch.tokens), len(branch.texts)
        self.num_roles, self.suffix = len(branch.roles), branch.suffix
        self.values = dict(branch.values)


@dataclass(eq=False, slots=True)
class Stretch:
    """One recorded stretch of a program in flight: how many of its instructions are still to be done."""

    num_left: int


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction in a branch's queue, with its place in the stretch that brought it."""

    stretch: Stretch
    index: int
    op: Op
    barriers: tuple[Barrier, ...] = ()


@dataclass(eq=False, slots=True)
class Appended:
    """Tokens put in as text: where they came from is known once a request has covered them."""

    branch: int
    op: int
    kind: Literal["text", "role"]
    role: str
    tokens: list[int]
    origins: tuple[int, ...] | None = None

    def resolve(self, start: int, num_cached: int) -> None:
        """A request has covered these tokens, of which the first is at position `start`."""
        stop = start + len(self.tokens)
        self.origins = tuple(CACHED if position < num_cached else PREFILLED for position in range(start, stop))


@dataclass(eq=False, slots=True)
class Branch:
    """State of one branch. `tokens` only ever grows. It is `started` once its parent has forked it.

    roles       of the messages so far, the open one included
    suffix      what closes the open message; None if none is open
    running     ids of the requests it waits for
    appended    tokens put in as text that no request has covered yet, and the position of the first of them; shared
                with the branches forked from here
    forked_*    how far it was when it was forked
    """

    id: int
    started: bool = True
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    suffix: str | None = None
    queue: deque[Step | Barrier] = field(default_factory=deque)
    running: set[str] = field(default_factory=set)
    appended: list[tuple[int, Appended]] = field(default_factory=list)
    num_ops: int = 0
    forked_tokens: int = 0
    forked_texts: int = 0
    forked_roles: int = 0
    forked_suffix: str | None = None

    @property
    def settled(self) -> bool:
        return self.started and not self.queue and not self.running

    @property
    def ready(self) -> bool:
        return bool(self.started and self.queue and not self.running)

    @property
    def num_own_text_tokens(self) -> int:
        """Of the last tokens, how many were put in as text since this branch was forked."""
        start, piece = self.appended[-1] if self.appended else (0, None)
        if piece is None or piece.kind != "text" or start + len(piece.tokens) != len(self.tokens):
            return 0
        return min(len(piece.tokens), len(self.tokens) - self.forked_tokens)

    def shorten_own_text(self, num_tokens: int) -> None:
        """The last tokens that were put in as text will be written anew, so that they count as generated."""
        if num_tokens:
            _, piece = self.appended[-1]
            del piece.tokens[len(piece.tokens) - num_tokens :]

    def fork(self, branch_id: int, queue: deque[Step | Barrier]) -> Branch:
        """A branch that goes on from here with the instructions of `queue`."""
        return Branch(
            id=branch_id,
            queue=queue,
            tokens=list(self.tokens),
            texts=list(self.texts),
            values=dict(self.values),
            roles=self.roles,
            suffix=self.suffix,
            appended=list(self.appended),
            forked_tokens=len(self.tokens),
            forked_texts=len(self.texts),
            forked_roles=len(self.roles),
            forked_suffix=self.suffix,
        )

    def adopt(self, child: Branch, barrier: Barrier) -> None:
        """Appends what `child` has appended from its fork up to `barrier`."""
        shift = len(self.tokens) - child.forked_tokens
        for start, piece in child.appended:
            if child.forked_tokens <= start < barrier.num_tokens:
                self.appended.append((start + shift, piece))
        self.tokens += child.tokens[child.forked_tokens : barrier.num_tokens]
        self.texts += child.texts[child.forked_texts : barrier.num_texts]
        if barrier.num_roles > child.forked_roles or barrier.suffix != child.forked_suffix:
            self.roles += child.roles[child.forked_roles : barrier.num_roles]
            self.suffix = barrier.suffix
        for name, value in barrier.values.items():
            self.values.setdefault(name, value)

    def append_text(self, text: str, tokenizer: Tokenizer, *, template: bool = False, role: str = "") -> None:
        """Appends `text`; only a template's may hold control tokens."""
        if not text:
            return
        tokens = tokenizer.encode(text, special=template)
        if not self.tokens and not template and tokenizer.adds_bos and tokenizer.bos_id is not None:
            tokens = [tokenizer.bos_id, *tokens]
        kind: Literal["text", "role"] = "role" if template else "text"
        self.appended.append((len(self.tokens), Appended(self.id, self.num_ops, kind, role, tokens)))
        self.tokens += tokens
        self.texts.append(text)

    def open_message(self, role: str, tokenizer: Tokenizer) -> None:
        if self.suffix is not None:
            raise RequestError(f"a {role} message cannot be opened inside a {self.roles[-1]} message", param="role")
        if tokenizer.chat is None:
            raise RequestError("the model has no chat template, so roles cannot be used", param="role")
        pieces = tokenizer.chat.role_pieces(self.roles, role)
        self.append_text(pieces.prefix, tokenizer, template=True, role=role)
        self.roles = (*self.roles, role)
        self.suffix = pieces.suffix

    def close_message(self, tokenizer: Tokenizer) -> None:
        if self.suffix is None:
            raise RequestError("there is no open message to close", param="role")
        self.append_text(self.suffix, tokenizer, template=True, role=self.roles[-1])
        self.suffix = None

    def resolve(
        self, parts: tuple[str | Ref, ...], branches: dict[int, Branch], *, max_length: float = math.inf
    ) -> str | None:
        """The text of `parts`; None while a value in it is still to come.

        Raises:
            RequestError: a value that will never come, or more than `max_length` characters in all.
        """
        texts: list[str] = []
        room = max_length
        for part in parts:
            if isinstance(part, str):
                text = part
            else:
                source = branches.get(part.branch)
                if source is not None and part.name in source.values:
                    text = source.values[part.name]
                elif source is None or source.settled or source is self:
                    raise RequestError(f"there is no value named {part.name!r} in branch {part.branch}", param="ops")
                else:
                    return None
            room -= len(text)
            if room < 0:  # references can name a long value many times
                message = f"the text has more than {max_length:g} characters, which no context holds"
                raise RequestError(message, code="context_length_exceeded", param="ops")
            texts.append(text)
        return "".join(texts)


def keep_text(tokens: list[int], text: str, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> list[int]:
    """The tokens whose text is `text`, given that `text` is a leading part of what `tokens` say.

    A stop string may end within a token: the whole tokens before it are kept as the model ran them, the rest of the
    text is encoded anew.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    kept, kept_length, length = 0, 0, 0
    for count, piece in enumerate(tokenizer.pieces(tokens, skip_special_tokens=skip_special_tokens), start=1):
        said = decoder.decode(piece)
        if not text.startswith(said, length):
            break
        length += len(said)
        if not decoder.getstate()[0]:  # no character is cut in two here
            kept, kept_length = count, length
    rest = text[kept_length:]
    return tokens[:kept] + (tokenizer.encode(rest) if rest else [])
