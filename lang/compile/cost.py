"""Upper bounds on the cost of a program before it runs: calls, tokens, cache hits, the longest chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from ...runtime.protocol.condition import Ref
from ...runtime.protocol.program import (
    Assign,
    CallTools,
    Fork,
    Gen,
    Join,
    Op,
    Part,
    Repeat,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    Use,
    When,
)
from .prefix_tree import HOLD_BACK, ROOT, TokenTree


class Encoder(Protocol):
    """Counts tokens: any `Tokenizer`. With its `chat` template, messages are counted exactly, too."""

    def encode(self, text: str) -> Sequence[int]: ...


_ROLE_TOKENS = 4
"""Assumed texts of a chat template before and after a message, if there is no tokenizer."""
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, kw_only=True)
class Cost:
    """An upper bound: generations as long as they may be, loops as often, of two ways the dearer one. What tools return
    is not counted.

    calls             generations and selections
    tool_calls        calls of tools
    prompt_tokens     in the prompts of all calls together, as an API that keeps no state would bill them
    computed_tokens   of these, the ones that the cache does not have
    generated_tokens  at most
    critical_calls    in the longest chain of calls that wait for each other
    critical_tokens   generated in that chain
    counted           tokens were counted by the model's tokenizer, not estimated from the length of the text
    """

    calls: int
    tool_calls: int
    prompt_tokens: int
    computed_tokens: int
    generated_tokens: int
    critical_calls: int
    critical_tokens: int
    counted: bool

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens that come from the cache."""
        return self.prompt_tokens - self.computed_tokens

    def __str__(self) -> str:
        about = "" if self.counted else "about "
        share = self.reused_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        return "\n".join(
            (
                f"calls             {self.calls}" + (f", and {self.tool_calls} of tools" if self.tool_calls else ""),
                f"prompt tokens     {about}{self.prompt_tokens:,}, of which {share:.0%} come from the cache",
                f"generated tokens  {self.generated_tokens:,} at most",
                f"longest chain     {self.critical_calls} calls, {self.critical_tokens:,} tokens",
                *(["not counted       what tools return"] if self.tool_calls else []),
            )
        )


@dataclass(kw_only=True)
class Item:
    """Cost at most of one generation, select or use of a tool, all its turns together. Fields as in `Cost`."""

    kind: str
    branch: int
    name: str
    times: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0


class Share(NamedTuple):
    """Tokens before a fork, which are computed once for all its branches."""

    branch: int
    children: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class Bill:
    """A cost, part by part.

    items    in the order in which they are recorded
    chain    the names of the calls in the longest chain, with how often each is made there
    shares   of the forks
    uncovered_tokens    at the end of the first branch, after its last call
    """

    cost: Cost
    items: tuple[Item, ...]
    chain: tuple[tuple[str, int], ...]
    shares: tuple[Share, ...]
    uncovered_tokens: int


class _Link(NamedTuple):
    """The last call of a chain, and what was before it."""

    name: str
    before: _Link | None


@dataclass(frozen=True)
class _Moment:
    """Length of the longest chain at the time when something is there."""

    tokens: int = 0
    calls: int = 0
    last: _Link | None = None

    @property
    def time(self) -> tuple[float, float]:
        return self.tokens, self.calls

    def later(self, other: _Moment) -> _Moment:
        return max(self, other, key=lambda moment: moment.time)

    def after(self, tokens: int, name: str) -> _Moment:
        return _Moment(self.tokens + tokens, self.calls + 1, _Link(name, self.last))

    def chain(self) -> tuple[tuple[str, int], ...]:
        """The names of its calls, with how often each is made."""
        names: list[str] = []
        link = self.last
        while link is not None:
            names.append(link.name)
            link = link.before
        return tuple(Counter(reversed(names)).items())


@dataclass
class _Line:
    """A branch: how long it is and was when it was forked, its place in the tree, when it has come so far, and the
    roles of its messages."""

    length: int = 0
    node: int = ROOT
    forked_at: int = ROOT
    moment: _Moment = field(default_factory=_Moment)
    roles: tuple[str, ...] = ()


class _Made(NamedTuple):
    """The tokens of a value, and when it is there."""

    tokens: tuple[Hashable, ...]
    moment: _Moment


def estimate(ops: Iterable[Op], tokenizer: Encoder | None = None) -> Cost:
    """The cost of instructions; holes that are left in them count nothing."""
    return itemise(ops, tokenizer).cost


def itemise(ops: Iterable[Op], tokenizer: Encoder | None = None) -> Bill:
    """The same, part by part."""
    return _Estimate(tokenizer).run(tuple(ops))


def _chunks(text: str) -> list[Hashable]:
    """A text cut into pieces of the length of a token."""
    data = text.encode(errors="replace")
    return [data[start : start + _BYTES_PER_TOKEN] for start in range(0, len(data), _BYTES_PER_TOKEN)]


class _Estimate:
    """Walks the instructions in the order in which they were recorded, which is one that respects all waiting."""

    def __init__(self, tokenizer: Encoder | None) -> None:
        self._encode: Callable[[str], Sequence[Hashable]] = _chunks if tokenizer is None else tokenizer.encode
        self._tokenizer: Any = tokenizer
        self._tree = TokenTree()
        self._items: dict[Ref, Item] = {}
        self._shares: list[Share] = []
        self._lines: dict[int, _Line] = {0: _Line()}
        self._values: dict[Ref, _Made] = {}
        self._calls = self._tool_calls = self._prompt = self._computed = self._generated = 0

    def run(self, ops: tuple[Op, ...]) -> Bill:
        self._all(ops)
        last = _Moment()
        for line in self._lines.values():
            last = last.later(line.moment)
        cost = Cost(
            calls=self._calls,
            tool_calls=self._tool_calls,
            prompt_tokens=self._prompt,
            computed_tokens=self._computed,
            generated_tokens=self._generated,
            critical_calls=last.calls,
            critical_tokens=last.tokens,
            counted=self._tokenizer is not None,
        )
        return Bill(
            cost=cost,
            items=tuple(self._items.values()),
            chain=last.chain(),
            shares=tuple(dict.fromkeys(self._shares)),
            uncovered_tokens=self._tree.missing(self._lines[0].node),
        )

    def _all(self, ops: Iterable[Op]) -> None:
        for op in ops:
            self._one(op, self._lines.setdefault(op.branch, _Line()))

    def _one(self, op: Op, line: _Line) -> None:
        match op:
            case Text(parts=parts):
                self._append(line, parts)
            case RoleBegin(role=role):
                self._extend(line, self._role_tokens(line, role, opens=True))
                line.roles = (*line.roles, role)
            case RoleEnd():
                self._extend(line, self._role_tokens(line, line.roles[-1] if line.roles else "", opens=False))
            case Assign(name=name, parts=parts):
                aside = _Line(moment=line.moment)
                self._append(aside, parts)
                self._values[Ref(op.branch, name)] = _Made(self._text(parts), aside.moment)
            case Gen():
                self._gen(op, line)
            case Select():
                self._select(op, line)
            case CallTools(name=name):
                self._tool_calls += 1
                self._item(op, name).times += 1
                self._values[Ref(op.branch, name)] = _Made((), line.moment)
            case Use(name=name, arguments=arguments):
                self._tool_calls += 1
                self._item(op, name).times += 1
                for _, parts in arguments:
                    line.moment = self._append(replace(line), parts)
                self._values[Ref(op.branch, name)] = _Made((), line.moment)
            case _:
                self._structure(op, line)

    def _structure(self, op: Op, line: _Line) -> None:
        match op:
            case Fork(children=children):
                self._shares += [Share(op.branch, children, line.length)] if len(children) > 1 else []
                self._lines |= {child: replace(line, forked_at=line.node) for child in children}
            case Join(children=children, mode=mode):
                for child in (self._lines[child] for child in children):
                    line.moment = line.moment.later(child.moment)
                    if mode == "append":
                        self._extend(line, self._tree.between(child.forked_at, child.node))
            case When(then=then, otherwise=otherwise):
                self._dearer(then, otherwise)
            case Repeat(body=body, at_most=at_most):
                for _ in range(at_most):
                    self._all(body)

    def _gen(self, op: Gen, line: _Line) -> None:
        """Counts a generation: it is computed as it comes, but for its last token."""
        count, samples = op.sampling.max_tokens or 0, op.sampling.n
        now = line.moment.time
        first = max(1, self._tree.compute(line.node, now)) if line.length else 0
        computed = first + (samples - 1) * (first if first < HOLD_BACK else 1)
        item = self._call(op, line.length * samples, computed)
        item.generated_tokens += count * samples
        self._generated += count * samples
        made = tuple((op.branch, op.name, item.times, index) for index in range(count))
        self._tree.compute(self._tree.after(line.node, made[:-1]), now)
        self._made(op, line, made, count)

    def _select(self, op: Select, line: _Line) -> None:
        """The choices are computed as one tree, but for the last token of each."""
        choices = [tuple(self._encode(choice)) for choice in op.choices]
        computed = max(1, self._tree.compute_all(line.node, choices, line.moment.time)) if line.length else 0
        prompt = line.length + _num_inner(choices)
        if op.method == "unconditional_likelihood_normalized":
            computed, prompt = computed + _num_inner(choices), prompt + _num_inner(choices)
        self._call(op, prompt, computed)
        self._made(op, line, max(choices, key=len, default=()), 0)

    def _made(self, op: Gen | Select, line: _Line, tokens: tuple[Hashable, ...], num_steps: int) -> None:
        self._extend(line, tokens)
        line.moment = line.moment.after(max(num_steps, 1), op.name)
        self._values[Ref(op.branch, op.name)] = _Made(tokens, line.moment)

    def _append(self, line: _Line, parts: Iterable[Part]) -> _Moment:
        """Text waits for the values in it."""
        for part in parts:
            if isinstance(part, Ref) and part in self._values:
                line.moment = line.moment.later(self._values[part].moment)
        self._extend(line, self._text(parts))
        return line.moment

    def _text(self, parts: Iterable[Part]) -> tuple[Hashable, ...]:
        tokens: list[Hashable] = []
        for part in parts:
            if isinstance(part, Ref):
                tokens += self._values[part].tokens if part in self._values else ()
            elif isinstance(part, str):
                tokens += self._encode(part)
        return tuple(tokens)

    def _extend(self, line: _Line, tokens: Sequence[Hashable]) -> None:
        line.length += len(tokens)
        line.node = self._tree.after(line.node, tokens)

    def _call(self, op: Gen | Select, prompt: int, computed: int) -> Item:
        item = self._item(op, op.name)
        item.times += 1
        item.prompt_tokens += prompt
        item.computed_tokens += computed
        self._calls += 1
        self._prompt += prompt
        self._computed += computed
        return item

    def _item(self, op: Op, name: str) -> Item:
        kind = "use" if isinstance(op, CallTools) else type(op).__name__.lower()
        new = Item(kind=kind, branch=op.branch, name=name)
        return self._items.setdefault(Ref(op.branch, name), new)

    def _role_tokens(self, line: _Line, role: str, *, opens: bool) -> Sequence[Hashable]:
        """Tokens of the chat template before a message, or after it."""
        chat = getattr(self._tokenizer, "chat", None)
        if chat is None:
            return [(role, opens, index) for index in range(_ROLE_TOKENS)]
        before = line.roles if opens else line.roles[:-1]
        pieces = chat.role_pieces(before, role)
        tokens: Sequence[Hashable] = self._tokenizer.encode(pieces.prefix if opens else pieces.suffix, special=True)
        return tokens

    def _dearer(self, then: tuple[Op, ...], otherwise: tuple[Op, ...]) -> None:
        """Goes on with the side that generates more."""
        self._all(max(then, otherwise, key=_weight))


def _weight(ops: Iterable[Op]) -> int:
    total = 0
    for op in ops:
        match op:
            case Gen(sampling=sampling):
                total += (sampling.max_tokens or 0) * sampling.n + 1
            case Select():
                total += 1
            case When(then=then, otherwise=otherwise):
                total += max(_weight(then), _weight(otherwise))
            case Repeat(body=body, at_most=at_most):
                total += at_most * _weight(body)
    return total


def _num_inner(choices: Sequence[Sequence[Hashable]]) -> int:
    """Tokens of the choices, as a tree, that something follows."""
    return len({tuple(choice[:stop]) for choice in choices for stop in range(1, len(choice))})
