"""Content of branches on the engine: the token ids that the model ran, their origins, and texts to encode."""

from __future__ import annotations

import codecs
import contextlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from ...constrain.workers.turns import FairQueue
from ...radix import tenant_of
from ..protocol.errors import EngineStoppedError, OverloadedError, RequestError
from ..protocol.request import CACHED, PREFILLED, TokenLogprob
from ..tokenizer.chat_template import ChatTemplate, Turn
from ..tokenizer.tokenizer import Tokenizer
from .costs import WAITING_CHARS_PER_TOKEN
from .shared import Shared
from .state import Branch, CallId, Frame

CHARS_OF_TOKEN = 8
"""Characters per token above which a branch counts as having more tokens, since its text is copied too."""

MAX_CHARS = 1 << 20
"""Most characters of all cached texts: about 2 MiB with their tokens."""

ENTRY_CHARS = 64
"""Overhead of a cached text, in characters."""


T = TypeVar("T")

Lengths = tuple[int, int, int]
"""Numbers of tokens, texts, and characters of these."""


class Snapshot(NamedTuple):
    """Lengths of a branch at one point."""

    num_tokens: int = 0
    num_texts: int = 0
    num_roles: int = 0
    suffix: str | None = None
    num_chars: int = 0
    num_edges: int = 0
    inserted: Lengths = (0, 0, 0)

    def shifted(self, inserted: Lengths) -> Snapshot:
        """Returns the same point after an insertion of `inserted` in all before it."""
        tokens, texts, chars = (now - before for now, before in zip(inserted, self.inserted, strict=True))
        return self._replace(
            num_tokens=self.num_tokens + tokens,
            num_texts=self.num_texts + texts,
            num_chars=self.num_chars + chars,
            inserted=inserted,
        )


START = Snapshot()


@dataclass(eq=False, slots=True)
class Appended:
    """Tokens appended as text, whose origins are known once a request has covered them."""

    branch: int
    op: int
    kind: Literal["text", "role"]
    role: str
    tokens: array[int]
    origins: tuple[int, ...] | None = None

    def resolve(self, start: int, num_cached: int) -> None:
        """Sets the origins by a request that has covered these tokens, the first of which is at position `start`."""
        stop = start + len(self.tokens)
        self.origins = tuple(CACHED if position < num_cached else PREFILLED for position in range(start, stop))


def _no_tokens() -> Shared[int]:
    return Shared(compact=True)


@dataclass(eq=False, slots=True)
class TokenContent:
    """Tokens, texts and messages of a branch. It shares what it had at its fork with its parent.

    roles       roles of the messages so far, the open one included; `turn`: the template's pieces for the first ones
    suffix      text that closes the open message; None if none is open
    appended    tokens appended as text that no request has covered yet, and the position of the first of them; shared
                with the branches forked from here
    forked      lengths at the fork
    num_chars   characters of all texts
    edges       for each message, the numbers of tokens and texts at its beginning, its content's beginning and end, and
                its end
    offered     tools that have been shown to the model; `inserted`: lengths that this has added
    """

    tokens: Shared[int] = field(default_factory=_no_tokens)
    texts: Shared[str] = field(default_factory=Shared)
    roles: Shared[str] = field(default_factory=Shared)
    turn: Turn | None = None
    suffix: str | None = None
    appended: Shared[tuple[int, Appended]] = field(default_factory=Shared)
    forked: Snapshot = START
    num_chars: int = 0
    edges: Shared[tuple[int, int]] = field(default_factory=Shared)
    offered: tuple[str, ...] = ()
    inserted: Lengths = (0, 0, 0)

    @property
    def size(self) -> int:
        return max(len(self.tokens), self.num_chars // CHARS_OF_TOKEN) + len(self.texts) + len(self.appended)

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def num_pieces(self) -> int:
        return len(self.appended)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def start(self) -> Turn | None:
        """The turn of no message that its chat began with; None if none has begun."""
        return None if self.turn is None else self.turn.start

    def append_text(self, text: str) -> None:
        self.texts.append(text)
        self.num_chars += len(text)

    def append_generated(self, tokens: list[int], text: str, num_taken_back: int) -> None:
        """Appends the result of a call in place of the last `num_taken_back` tokens, whose text it begins with."""
        self.tokens.cut(len(self.tokens) - num_taken_back)
        self.tokens.extend(tokens)
        self.append_text(text)

    def place(self) -> Snapshot:
        lengths = len(self.tokens), len(self.texts), len(self.roles)
        return Snapshot(*lengths, self.suffix, self.num_chars, len(self.edges), self.inserted)

    def fork(self) -> TokenContent:
        return TokenContent(
            self.tokens.fork(),
            self.texts.fork(),
            self.roles.fork(),
            self.turn,
            self.suffix,
            self.appended.fork(),
            self.place(),
            self.num_chars,
            self.edges.fork(),
            self.offered,
            self.inserted,
        )

    def restart(self) -> None:
        forked = self.forked
        self.tokens.cut(forked.num_tokens)
        self.texts.cut(forked.num_texts)
        self.num_chars = forked.num_chars
        self.roles.cut(forked.num_roles)
        self.suffix = forked.suffix
        self.edges.cut(forked.num_edges)
        if not forked.num_roles:
            self.turn = None  # a new chat, perhaps on another day
        while self.turn is not None and self.turn.depth > forked.num_roles:
            self.turn = self.turn.before
        self.appended = Shared((start, piece) for start, piece in self.appended if start < forked.num_tokens)

    def adopt(self, child: TokenContent, place: Snapshot) -> None:
        place = place.shifted(child.inserted)
        forked, shift = child.forked, len(self.tokens) - child.forked.num_tokens
        shift_texts = len(self.texts) - forked.num_texts
        edges = child.edges[forked.num_edges : place.num_edges]
        self.edges.extend((at + shift, at_text + shift_texts) for at, at_text in edges)
        for start, piece in child.appended:
            if forked.num_tokens <= start < place.num_tokens:
                self.appended.append((start + shift, piece))
        self.tokens.extend(child.tokens[forked.num_tokens : place.num_tokens])
        self.texts.extend(child.texts[forked.num_texts : place.num_texts])
        self.num_chars += place.num_chars - forked.num_chars
        if place.num_roles > forked.num_roles or place.suffix != forked.suffix:
            self.turn = self.turn or child.start  # its date is in the child's text
            self.roles.extend(child.roles[forked.num_roles : place.num_roles])
            self.suffix = place.suffix

    def untold(self) -> TokenContent | None:
        start_of_own = self.forked.num_tokens
        pieces = [(at, piece) for at, piece in self.appended if at >= start_of_own and piece.origins is None]
        if not pieces:
            return None
        tokens = (token for _, piece in pieces for token in piece.tokens)
        return TokenContent(Shared(tokens, compact=True), appended=Shared(pieces))

    @property
    def edge(self) -> tuple[int, int]:
        """Current numbers of tokens and texts."""
        return len(self.tokens), len(self.texts)

    def replace(
        self, start: tuple[int, int], stop: tuple[int, int], tokens: list[int], text: str, told: Appended
    ) -> None:
        """Replaces the tokens between two edges. What the branch has appended since its fork is kept.

        Raises:
            RequestError: the fork lies between the edges, and what follows it there would change.
        """
        forked = self.forked.num_tokens, self.forked.num_texts
        if start[0] < forked[0] < stop[0]:
            own, own_text = self.tokens[forked[0] : stop[0]], "".join(self.texts[forked[1] : stop[1]])
            if tokens[len(tokens) - len(own) :] != own or not text.endswith(own_text):
                message = "the tools cannot be shown: the branch was forked where its chat template puts them"
                raise RequestError(message, param="tools")
            tokens, text, stop = tokens[: len(tokens) - len(own)], text[: len(text) - len(own_text)], forked
        told.tokens = array("i", tokens)
        more = len(tokens) - (stop[0] - start[0]), 1 - (stop[1] - start[1])
        more_chars = len(text) - sum(map(len, self.texts[start[1] : stop[1]]))
        self.tokens.replace(start[0], stop[0], tokens)
        self.texts.replace(start[1], stop[1], [text])
        self.num_chars += more_chars
        before = [(at, piece) for at, piece in self.appended if at < start[0]]
        after = [(at + more[0], piece) for at, piece in self.appended if at >= stop[0]]
        self.appended = Shared([*before, (start[0], told), *after])
        self.edges = Shared((at + more[0], n + more[1]) if (at, n) >= stop else (at, n) for at, n in self.edges)
        self.inserted = self.inserted[0] + more[0], self.inserted[1] + more[1], self.inserted[2] + more_chars
        if self.forked is not START and stop <= forked:
            self.forked = self.forked.shifted(self.inserted)

    @property
    def num_own_text_tokens(self) -> int:
        """Number of trailing tokens appended as text since the fork."""
        start, piece = self.appended[-1] if self.appended else (0, None)
        if piece is None or piece.kind != "text" or start + len(piece.tokens) != len(self.tokens):
            return 0
        return min(len(piece.tokens), len(self.tokens) - self.forked.num_tokens)

    def shorten_own_text(self, num_tokens: int) -> None:
        """Takes trailing tokens off the record of appended text: they are generated again, and count as generated."""
        if num_tokens:
            _, piece = self.appended[-1]
            del piece.tokens[len(piece.tokens) - num_tokens :]


def content_of(branch: Branch) -> TokenContent:
    """Returns the content of a branch on the engine."""
    assert isinstance(branch.content, TokenContent)
    return branch.content


def append_text(branch: Branch, text: str, tokenizer: Tokenizer, *, template: bool = False, role: str = "") -> None:
    """Appends `text`, in which control tokens count only if it comes from a template."""
    if text:
        append_tokens(branch, text, tokenizer.encode(text, special=template), tokenizer, template=template, role=role)


def append_tokens(
    branch: Branch, text: str, tokens: list[int], tokenizer: Tokenizer, *, template: bool = False, role: str = ""
) -> None:
    """Appends a text with known tokens."""
    content = content_of(branch)
    if not content.tokens and not template and tokenizer.adds_bos and tokenizer.bos_id is not None:
        tokens = [tokenizer.bos_id, *tokens]
    kind: Literal["text", "role"] = "role" if template else "text"
    piece = Appended(branch.id, branch.num_ops, kind, role, array("i", tokens))
    content.appended.append((len(content.tokens), piece))
    content.tokens.extend(tokens)
    content.append_text(text)


def append_later(frame: Frame, append: Callable[[], None], check_length: Callable[[Branch], None]) -> None:
    """Appends by `append` after the instruction was tried, and counts the tokens. Raises BoughError: too long."""
    num_tokens = frame.branch.content.length
    append()
    frame.state.add_tokens(frame.branch.content.length - num_tokens, frame.branch)
    check_length(frame.branch)


def next_turn(content: TokenContent, role: str, chat: ChatTemplate) -> tuple[Turn, str] | None:
    """Returns the message that the template must still render before one of `role` can be opened, as the turn before it
    and its role; None if there is none.

    Raises:
        RequestError: a message is open.
    """
    if content.suffix is not None:
        raise RequestError(f"a {role} message cannot be opened inside a {content.roles[-1]} message", param="role")
    turn = content.turn or chat.start
    unknown = role
    for each in content.roles[turn.depth :]:
        following = turn.following.get(each)
        if following is None:
            unknown = each
            break
        turn = following
    content.turn = turn
    return None if unknown in turn.following else (turn, unknown)


def open_message(branch: Branch, role: str, tokenizer: Tokenizer) -> None:
    """Opens a message.

    Raises:
        RequestError: a message is open, or the template refuses the order of roles.
    """
    content, chat = content_of(branch), tokenizer.chat
    while (asked := next_turn(content, role, chat)) is not None:
        chat.after(*asked)
    assert content.turn is not None
    turn = content.turn.following[role]
    content.edges.append(content.edge)
    append_text(branch, turn.pieces.prefix, tokenizer, template=True, role=role)
    content.edges.append(content.edge)
    content.turn, content.suffix = turn, turn.pieces.suffix
    content.roles.append(role)


def close_message(branch: Branch, tokenizer: Tokenizer) -> None:
    """Closes the open message. Raises RequestError: there is none."""
    content = content_of(branch)
    if content.suffix is None:
        raise RequestError("there is no open message to close", param="role")
    content.edges.append(content.edge)
    append_text(branch, content.suffix, tokenizer, template=True, role=content.roles[-1])
    content.edges.append(content.edge)
    content.suffix = None


def keep_text(tokens: list[int], text: str, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> list[int]:
    """Returns tokens whose text is `text`, which must be a prefix of the text of `tokens`.

    A stop string may begin within a token: the whole tokens before it are kept as the model ran them, and the rest of
    the text is encoded anew.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    kept, kept_length, length = 0, 0, 0
    for count, piece in enumerate(tokenizer.pieces(tokens, skip_special_tokens=skip_special_tokens), start=1):
        said = decoder.decode(piece)
        if not text.startswith(said, length):
            break
        length += len(said)
        if not decoder.getstate()[0]:  # not inside a character
            kept, kept_length = count, length
    rest = text[kept_length:]
    return tokens[:kept] + (tokenizer.encode(rest) if rest else [])


def texts_of(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> dict[int, str]:
    """Returns the text of each token, and of its alternatives."""
    tokens = list({token for entry in entries for token in (entry.token, *(other for other, _ in entry.top))})
    pieces = tokenizer.pieces(tokens, skip_special_tokens=False)
    return {token: piece.decode(errors="replace") for token, piece in zip(tokens, pieces, strict=True)}


# Texts to encode


class KnownTexts:
    """Cache of the tokens of recent texts, such as the instructions before each question. Used on the engine's thread.

    Entries are visible only in their namespace, so that no timing reveals the texts of others.
    """

    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = max_chars
        self._num_chars = 0
        self._tokens: OrderedDict[tuple[str, str], array[int]] = OrderedDict()

    def find(self, namespace: str, text: str) -> list[int] | None:
        """Returns a copy of the text's tokens; None if they are not cached."""
        tokens = self._tokens.get((namespace, text))
        if tokens is None:
            return None
        self._tokens.move_to_end((namespace, text))
        return tokens.tolist()

    def keep(self, namespace: str, text: str, tokens: Sequence[int]) -> None:
        """Caches the tokens of a text, in place of the least recently used ones."""
        if (namespace, text) in self._tokens or _size(text) > self._max_chars:
            return
        self._tokens[namespace, text] = array("i", tokens)
        self._num_chars += _size(text)
        while self._num_chars > self._max_chars:
            (_, oldest), _ = self._tokens.popitem(last=False)
            self._num_chars -= _size(oldest)


def _size(text: str) -> int:
    return len(text) + ENTRY_CHARS


@dataclass(eq=False, slots=True)
class _Writing:
    """A text that is being written and encoded, or waits for it. `num_held`: tokens counted for it meanwhile."""

    id: CallId
    frame: Frame
    num_chars: int
    num_held: int
    write: Callable[[], Any]
    take: Callable[[Any], None]

    @property
    def tenant(self) -> str:
        return tenant_of(self.frame.state.namespace)


class Encodings:
    """Encodes long texts on another thread. Used on the engine's thread.

    One text is encoded at a time. Tenants take turns, and so do the programs of each.
    """

    def __init__(self, tokenizer: Tokenizer, post: Callable[[Callable[[], None]], None]) -> None:
        self._tokenizer = tokenizer
        self._post = post
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: dict[CallId, _Writing] = {}
        self._waiting: dict[str, OrderedDict[CallId, _Writing]] = {}  # by the id of the program's state
        self._programs: FairQueue[str] = FairQueue()  # the keys of `_waiting`
        self._busy = False

    def begin(self, frame: Frame, text: str, take: Callable[[list[int]], None]) -> None:
        """Starts to encode a text of an instruction. `take` gets its tokens, on the engine's thread, and continues the
        instruction; if it fails, so does the instruction.

        Raises:
            OverloadedError: there is no room for the text.
        """
        self.begin_writing(frame, len(text), partial(self._tokenizer.encode, text), take)

    def begin_writing(self, frame: Frame, num_chars: int, write: Callable[[], T], take: Callable[[T], None]) -> None:
        """Starts to write and encode a text of an instruction by `write`, whose inputs must not change meanwhile.

        Raises:
            OverloadedError: there is no room for the text.
        """
        state, num_held = frame.state, 1 + num_chars // WAITING_CHARS_PER_TOKEN
        state.account.take(num_held)
        writing = _Writing(state.new_call("text"), frame, num_chars, num_held, write, take)
        frame.branch.running.add(writing.id)
        self._under_way[writing.id] = writing
        waiting = self._waiting.setdefault(state.id, OrderedDict())
        if not waiting:
            self._programs.push(writing.tenant, state.id)
        waiting[writing.id] = writing
        self._start_next()

    def stop(self, call_id: CallId) -> None:
        """Abandons a text; one that waits is not encoded."""
        writing = self._leave(call_id)
        if writing is None:
            return
        state_id = writing.frame.state.id
        waiting = self._waiting.get(state_id)
        if waiting is not None and waiting.pop(call_id, None) is not None and not waiting:
            del self._waiting[state_id]
            self._programs.remove(writing.tenant, state_id)

    def close(self) -> None:
        """Closes without waiting for texts in progress."""
        self._under_way.clear()
        self._waiting.clear()
        self._programs = FairQueue()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _leave(self, call_id: CallId) -> _Writing | None:
        """Removes and returns a text; None if it is not known."""
        writing = self._under_way.pop(call_id, None)
        if writing is not None:
            writing.frame.state.account.add(-writing.num_held)
        return writing

    def _start_next(self) -> None:
        while not self._busy and (taken := self._programs.pop()) is not None:
            tenant, state_id = taken
            _, writing = self._waiting[state_id].popitem(last=False)
            if self._waiting[state_id]:
                self._programs.push(tenant, state_id)  # behind the tenant's other programs
            else:
                del self._waiting[state_id]
            self._start(tenant, writing)

    def _start(self, tenant: str, writing: _Writing) -> None:
        self._busy = True
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bough-encode")

        def done(future: Future[Any]) -> None:
            with contextlib.suppress(EngineStoppedError):
                self._post(lambda: self._take(tenant, writing, future))

        try:
            future = self._pool.submit(writing.write)
        except RuntimeError as error:  # no thread can be started now: the next text may start one
            self._pool, future = None, Future()
            future.set_exception(OverloadedError(f"a text cannot be encoded now: {error}"))
        future.add_done_callback(done)

    def _take(self, tenant: str, writing: _Writing, future: Future[Any]) -> None:
        self._busy = False
        self._programs.end(tenant, writing.num_chars)
        self._start_next()
        if self._leave(writing.id) is None:  # it has been abandoned
            return
        writing.frame.branch.running.discard(writing.id)
        try:
            writing.take(future.result())
        except Exception as error:  # noqa: BLE001  the instruction fails with it
            writing.frame.fail(error)
