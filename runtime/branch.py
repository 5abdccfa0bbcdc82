"""One branch of a running program: the token ids that the model really ran, and what is still to be done."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from .errors import RequestError
from .program import Op, Ref
from .request import CACHED, PREFILLED
from .tokenizer import Tokenizer


@dataclass(eq=False, slots=True)
class Barrier:
    """Stands in a child's queue for a Join of its parent: passed means that everything before it is done."""

    passed: bool = False


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
    start: int
    origins: tuple[int, ...] | None = None

    def resolve(self, num_cached: int) -> None:
        stop = self.start + len(self.tokens)
        self.origins = tuple(CACHED if position < num_cached else PREFILLED for position in range(self.start, stop))


@dataclass(eq=False, slots=True)
class Branch:
    """State of one branch. `tokens` only ever grows. It is `started` once its parent has forked it.

    roles       of the messages so far, the open one included
    suffix      what closes the open message; None if none is open
    running     ids of the requests it waits for
    appended    tokens put in as text that no request has covered yet; shared with the branches forked from here
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
    appended: list[Appended] = field(default_factory=list)
    num_ops: int = 0
    forked_tokens: int = 0
    forked_texts: int = 0

    @property
    def settled(self) -> bool:
        return not self.queue and not self.running

    @property
    def ready(self) -> bool:
        return bool(self.started and self.queue and not self.running)

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
        )

    def append_text(self, text: str, tokenizer: Tokenizer, *, template: bool = False, role: str = "") -> None:
        """Appends `text`; only a template's may hold control tokens."""
        if not text:
            return
        tokens = tokenizer.encode(text, special=template)
        if not self.tokens and not template and tokenizer.adds_bos and tokenizer.bos_id is not None:
            tokens = [tokenizer.bos_id, *tokens]
        kind: Literal["text", "role"] = "role" if template else "text"
        self.appended.append(Appended(self.id, self.num_ops, kind, role, tokens, len(self.tokens)))
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

    def resolve(self, parts: tuple[str | Ref, ...], branches: dict[int, Branch]) -> str | None:
        """The text of `parts`; None while a value in it is still to come.

        Raises:
            RequestError: a value that will never come.
        """
        texts = []
        for part in parts:
            if isinstance(part, str):
                texts.append(part)
                continue
            source = branches.get(part.branch)
            if source is not None and part.name in source.values:
                texts.append(source.values[part.name])
            elif source is None or source.settled or source is self:
                raise RequestError(f"there is no value named {part.name!r} in branch {part.branch}", param="ops")
            else:
                return None
        return "".join(texts)


def keep_text(tokens: list[int], text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens whose text is `text`, given that `text` is a leading part of what `tokens` say.

    A stop string may end within a token: the whole tokens before it are kept as the model ran them, the rest of the
    text is encoded anew. A control token that ended the generation is left out: what follows may write its own.
    """
    wanted = text.encode()
    kept, length = 0, 0
    for token in tokens:
        piece = tokenizer.token_bytes[token] if token < len(tokenizer.token_bytes) else None
        piece = piece or b""
        if length + len(piece) > len(wanted) or wanted[length : length + len(piece)] != piece:
            break
        length += len(piece)
        kept += 1
    while kept and tokens[kept - 1] in tokenizer.special_ids:
        kept -= 1
    rest = wanted[length:].decode(errors="ignore")
    return tokens[:kept] + (tokenizer.encode(rest) if rest else [])
