"""One branch of a running program: the token ids that the model really ran, and what is still to be done."""

from __future__ import annotations

import codecs
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..protocol.condition import Ref, Times
from ..protocol.errors import ErrorInfo, RequestError
from ..protocol.patterns import Matching
from ..protocol.request import CACHED, PREFILLED
from ..tokenizer.chat_template import ChatTemplate, Turn
from ..tokenizer.tokenizer import Tokenizer
from .validate import Item
from .values import Values

CHARS_OF_TOKEN = 8
"""A branch whose text has more characters a token counts as one that has more tokens: its text is copied, too."""


@dataclass(eq=False, slots=True)
class Barrier:
    """Stands in a child's queue for a Join: passed means that everything before it is done, or never will be.

    It keeps where the child stood then, since a child may go on while who joins it is busy. `joiner` is the branch of
    the Join; `failed`: the child ended before it came here.
    """

    joiner: int = 0
    child: Branch | None = None
    passed: bool = False
    failed: bool = False
    num_tokens: int = 0
    num_texts: int = 0
    num_roles: int = 0
    num_values: int = 0
    suffix: str | None = None

    def reach(self, branch: Branch) -> None:
        self.passed, self.child = True, branch
        self.num_tokens, self.num_texts = len(branch.tokens), len(branch.texts)
        self.num_roles, self.suffix = len(branch.roles), branch.suffix
        self.num_values = branch.values.mark


@dataclass(eq=False, slots=True)
class Stretch:
    """One recorded stretch of a program in flight: how many of its instructions are still to be done."""

    num_left: int


Barriers = Mapping[tuple[int, int], Barrier]
"""By the index of the Join, and the child."""


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction in a branch's queue, with its place in the stretch that brought it.

    barriers    of a Join, and of the joins in the blocks of a When or Repeat whose children are older than the block
    turns       how often the body of a Repeat has been done
    known       the stretch's place is one that its sender can name (False: an earlier stretch brought it)
    """

    stretch: Stretch
    item: Item
    barriers: Barriers = field(default_factory=dict)
    turns: int = 0
    known: bool = True

    @property
    def index(self) -> int | None:
        return self.item.index if self.known else None


@dataclass(eq=False, slots=True)
class Pending:
    """What is known of an instruction that was tried and has to be tried again.

    lacks       values that it waits for: until all of them have come, nothing else is looked at
    num_done    children that it has forked, or found at their join
    matches     of patterns with texts, under way or done
    """

    step: Step
    lacks: list[Ref | Times] = field(default_factory=list)
    num_done: int = 0
    matches: dict[tuple[str, str], Matching] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Failure:
    """Why the branch `branch`, and with it those forked from it, has ended early."""

    branch: int
    error: ErrorInfo


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
    """State of one branch. `tokens` only ever grows, but for a branch that begins anew. It is `started` once its
    parent has forked it.

    roles       of the messages so far, the open one included; `turn`: of the first of them what the template writes
    suffix      what closes the open message; None if none is open
    pending     what is known of the next instruction, if it was tried
    running     ids of the requests and tool calls it waits for
    appended    tokens put in as text that no request has covered yet, and the position of the first of them; shared
                with the branches forked from here
    made        how many values of each name it has made
    turns       the same, with what it made before a loop forked it anew
    inside      the loops that it is in, outermost first
    looping     of each name the loops, not over yet, that make values of it: the last one is still to come
    forked_*    how far it was when it was forked (`forked_turns`: and those that it forks)
    parent, children    who forked it, and whom it forks
    scope       the block that it belongs to: instructions elsewhere cannot be for it
    isolated, retries, attempts     as its Fork says; `attempts` are of all that it descends from, itself last
    given       everything that was put into its queue, kept if it may have to be done again
    failure     it has ended early
    counted     tokens of it that the program's bound counts
    """

    id: int
    started: bool = True
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    values: Values = field(default_factory=Values)
    roles: tuple[str, ...] = ()
    turn: Turn | None = None
    suffix: str | None = None
    queue: deque[Step | Barrier] = field(default_factory=deque)
    pending: Pending | None = None
    running: set[str] = field(default_factory=set)
    appended: list[tuple[int, Appended]] = field(default_factory=list)
    made: Counter[str] = field(default_factory=Counter)
    turns: Counter[str] = field(default_factory=Counter)
    inside: list[Item] = field(default_factory=list)
    looping: dict[str, list[Item]] = field(default_factory=dict)
    num_ops: int = 0
    forked_inside: int = 0
    forked_tokens: int = 0
    forked_texts: int = 0
    forked_roles: int = 0
    forked_suffix: str | None = None
    forked_turns: dict[int, Counter[str]] = field(default_factory=dict)
    parent: int | None = None
    children: dict[int, None] = field(default_factory=dict)
    scope: int = 0
    isolated: bool = False
    retries: int = 0
    attempts: tuple[int, ...] = ()
    given: list[Step | Barrier] | None = None
    failure: Failure | None = None
    counted: int = 0

    @property
    def settled(self) -> bool:
        """Nothing more comes from what it was given."""
        return self.failure is not None or (self.started and not self.queue and not self.running)

    @property
    def ready(self) -> bool:
        return bool(self.started and self.queue and not self.running)

    @property
    def size(self) -> int:
        """What a copy of it holds."""
        num_chars = sum(map(len, self.texts))
        return max(len(self.tokens), num_chars // CHARS_OF_TOKEN) + len(self.texts) + len(self.appended)

    def keep(self, name: str, text: str) -> None:
        """Has made a value."""
        self.values.keep(name, text)
        self.made[name] += 1
        self.turns[name] += 1

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

    def check_length(self, limit: int) -> None:
        """Raises RequestError: it has more tokens than fit into a request."""
        if len(self.tokens) > limit:
            message = f"the branch has {len(self.tokens)} tokens, but {limit} in all is the limit"
            raise RequestError(message, code="context_length_exceeded", param="ops")

    def start_from(self, parent: Branch) -> None:
        """Begins as a copy of `parent`."""
        self.started = True
        self.tokens, self.texts = list(parent.tokens), list(parent.texts)
        self.values, self.roles, self.suffix = parent.values.fork(), parent.roles, parent.suffix
        self.turn, self.pending = parent.turn, None
        self.appended = list(parent.appended)
        self.made = Counter()
        self.inside, self.forked_inside = list(parent.inside), len(parent.inside)
        self.forked_tokens, self.forked_texts = len(self.tokens), len(self.texts)
        self.forked_roles, self.forked_suffix = len(self.roles), self.suffix
        self.attempts = (*parent.attempts, self.attempts[-1] if self.attempts else 0)

    def start_anew(self) -> None:
        """Goes back to where it was forked."""
        self.tokens, self.texts = self.tokens[: self.forked_tokens], self.texts[: self.forked_texts]
        self.values, self.made, self.pending = self.values.anew(), Counter(), None
        self.inside = self.inside[: self.forked_inside]
        self.roles, self.suffix = self.roles[: self.forked_roles], self.forked_suffix
        while self.turn is not None and self.turn.depth > self.forked_roles:
            self.turn = self.turn.before
        self.appended = [(start, piece) for start, piece in self.appended if start < self.forked_tokens]
        self.attempts = (*self.attempts[:-1], self.attempts[-1] + 1)

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
        self.values.adopt(child.values, barrier.num_values)

    def append_text(self, text: str, tokenizer: Tokenizer, *, template: bool = False, role: str = "") -> None:
        """Appends `text`; only a template's may hold control tokens."""
        if text:
            self.append_tokens(text, tokenizer.encode(text, special=template), tokenizer, template=template, role=role)

    def append_tokens(
        self, text: str, tokens: list[int], tokenizer: Tokenizer, *, template: bool = False, role: str = ""
    ) -> None:
        """The same for a text whose tokens are known."""
        if not self.tokens and not template and tokenizer.adds_bos and tokenizer.bos_id is not None:
            tokens = [tokenizer.bos_id, *tokens]
        kind: Literal["text", "role"] = "role" if template else "text"
        self.appended.append((len(self.tokens), Appended(self.id, self.num_ops, kind, role, tokens)))
        self.tokens += tokens
        self.texts.append(text)

    def knows_turns(self, chat: ChatTemplate) -> bool:
        """Whether the template's pieces of all messages so far are known; if not, finds those of one more.

        Raises:
            RequestError: the template refuses the order of roles.
        """
        known = self.turn or chat.start
        if known.depth == len(self.roles):
            return True
        self.turn = chat.after(known, self.roles[known.depth])
        return False

    def open_message(self, role: str, tokenizer: Tokenizer) -> None:
        if self.suffix is not None:
            raise RequestError(f"a {role} message cannot be opened inside a {self.roles[-1]} message", param="role")
        while not self.knows_turns(tokenizer.chat):
            pass
        turn = tokenizer.chat.after(self.turn or tokenizer.chat.start, role)
        self.append_text(turn.pieces.prefix, tokenizer, template=True, role=role)
        self.turn, self.roles, self.suffix = turn, (*self.roles, role), turn.pieces.suffix

    def close_message(self, tokenizer: Tokenizer) -> None:
        if self.suffix is None:
            raise RequestError("there is no open message to close", param="role")
        self.append_text(self.suffix, tokenizer, template=True, role=self.roles[-1])
        self.suffix = None


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
