"""What a program will cost at most: calls, tokens, what the cache gives, the longest chain; before anything runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from ...runtime.condition import Ref
from ...runtime.program import Assign, Fork, Gen, Join, Op, Part, Repeat, RoleBegin, RoleEnd, Select, Text, Use, When


class Encoder(Protocol):
    """What counts tokens: any `Tokenizer`. With its `chat` template, messages are counted exactly, too."""

    def encode(self, text: str) -> Sequence[int]: ...


_ROLE_TOKENS = 4
"""What a chat template writes before and after a message, if no tokenizer is there to say."""
_BYTES_PER_TOKEN = 4.0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """An upper bound: generations as long as they may be, loops as often, of two ways the dearer one.

    calls             generations and selections
    tool_calls        calls of tools
    prompt_tokens     in the prompts of all calls together, as an API that keeps no state would bill them
    computed_tokens   of these, the ones that are computed: each token of the tree once
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
            )
        )


@dataclass(kw_only=True)
class Item:
    """What one generation, select or use of a tool costs at most, all its turns together. Fields as in `Cost`."""

    kind: str
    branch: int
    name: str
    times: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0


class Share(NamedTuple):
    """So many tokens are before a fork, and computed once for all its branches."""

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
    """How far the longest chain is when something is there."""

    tokens: int = 0
    calls: int = 0
    last: _Link | None = None

    def later(self, other: _Moment) -> _Moment:
        return max(self, other, key=lambda moment: (moment.tokens, moment.calls))

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


@dataclass(eq=False)
class _Debt:
    """Tokens before a fork that no call has covered yet."""

    tokens: int


@dataclass
class _Line:
    """A branch: its tokens, how many of the last ones no call has covered yet, when it has come so far, and the roles
    of its messages. `owed` are those of branches around it: the first call in any of them pays."""

    length: int = 0
    forked_at: int = 0
    uncovered: int = 0
    owed: tuple[_Debt, ...] = ()
    moment: _Moment = field(default_factory=_Moment)
    roles: tuple[str, ...] = ()

    def append(self, count: int) -> None:
        self.length += count
        self.uncovered += count

    def pay(self) -> int:
        """A call covers all that is uncovered: how much."""
        total = self.uncovered + sum(debt.tokens for debt in self.owed)
        for debt in self.owed:
            debt.tokens = 0
        self.uncovered, self.owed = 0, ()
        return total


def estimate(ops: Iterable[Op], tokenizer: Encoder | None = None) -> Cost:
    """The cost of instructions; holes that are left in them count nothing."""
    return itemise(ops, tokenizer).cost


def itemise(ops: Iterable[Op], tokenizer: Encoder | None = None) -> Bill:
    """The same, part by part."""
    return _Estimate(tokenizer).run(tuple(ops))


def _count(text: str) -> int:
    return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)


class _Estimate:
    """Walks the instructions in the order in which they were recorded, which is one that respects all waiting."""

    def __init__(self, tokenizer: Encoder | None) -> None:
        self._count = _count if tokenizer is None else lambda text: len(tokenizer.encode(text))
        self._tokenizer: Any = tokenizer
        self._items: dict[Ref, Item] = {}
        self._shares: list[Share] = []
        self._lines: dict[int, _Line] = {0: _Line()}
        self._values: dict[Ref, tuple[int, _Moment]] = {}
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
            uncovered_tokens=self._lines[0].uncovered,
        )

    def _all(self, ops: Iterable[Op]) -> None:
        for op in ops:
            self._one(op, self._lines.setdefault(op.branch, _Line()))

    def _one(self, op: Op, line: _Line) -> None:
        match op:
            case Text(parts=parts):
                self._append(line, parts)
            case RoleBegin(role=role):
                line.append(self._role_tokens(line, role, opens=True))
                line.roles = (*line.roles, role)
            case RoleEnd():
                line.append(self._role_tokens(line, line.roles[-1] if line.roles else "", opens=False))
            case Assign(name=name, parts=parts):
                aside = replace(line, length=0)
                self._append(aside, parts)
                self._values[Ref(op.branch, name)] = (aside.length, aside.moment)
            case Gen(name=name, sampling=sampling):
                tokens = sampling.max_tokens or 0
                item = self._call(op, line, sampling.n, 0)
                item.generated_tokens += tokens * sampling.n
                self._generated += tokens * sampling.n
                self._made(line, name, tokens, op.branch)
            case Select(name=name, choices=choices):
                lengths = [self._count(choice) for choice in choices]
                self._call(op, line, 1, sum(lengths))
                self._made(line, name, 0, op.branch)
                line.length += max(lengths, default=0)
            case Use(name=name, arguments=arguments):
                self._tool_calls += 1
                self._item(op, name).times += 1
                for _, parts in arguments:
                    line.moment = self._append(replace(line), parts)
                self._values[Ref(op.branch, name)] = (0, line.moment)
            case _:
                self._structure(op, line)

    def _structure(self, op: Op, line: _Line) -> None:
        match op:
            case Fork(children=children):
                self._shares += [Share(op.branch, children, line.length)] if len(children) > 1 else []
                if line.uncovered:
                    line.owed = (*line.owed, _Debt(line.uncovered))
                    line.uncovered = 0
                self._lines |= {child: replace(line, forked_at=line.length) for child in children}
            case Join(children=children, mode=mode):
                for child in (self._lines[child] for child in children):
                    line.moment = line.moment.later(child.moment)
                    if mode == "append":
                        line.append(child.length - child.forked_at)
            case When(then=then, otherwise=otherwise):
                self._dearer(then, otherwise)
            case Repeat(body=body, at_most=at_most):
                for _ in range(at_most):
                    self._all(body)

    def _append(self, line: _Line, parts: Iterable[Part]) -> _Moment:
        """Text waits for the values in it."""
        text: list[str] = []
        for part in parts:
            if isinstance(part, Ref):
                length, moment = self._values.get(part, (0, _Moment()))
                line.append(length)
                line.moment = line.moment.later(moment)
            elif isinstance(part, str):
                text.append(part)
        line.append(self._count("".join(text)) if text else 0)
        return line.moment

    def _call(self, op: Gen | Select, line: _Line, count: int, extra: int) -> Item:
        item = self._item(op, op.name)
        prompt, computed = line.length * count + extra, line.pay() + extra
        item.times += 1
        item.prompt_tokens += prompt
        item.computed_tokens += computed
        self._calls += 1
        self._prompt += prompt
        self._computed += computed
        return item

    def _item(self, op: Op, name: str) -> Item:
        new = Item(kind=type(op).__name__.lower(), branch=op.branch, name=name)
        return self._items.setdefault(Ref(op.branch, name), new)

    def _role_tokens(self, line: _Line, role: str, *, opens: bool) -> int:
        """Tokens of the chat template before a message, or after it."""
        chat = getattr(self._tokenizer, "chat", None)
        if chat is None:
            return _ROLE_TOKENS
        before = line.roles if opens else line.roles[:-1]
        pieces = chat.role_pieces(before, role)
        return len(self._tokenizer.encode(pieces.prefix if opens else pieces.suffix, special=True))

    def _made(self, line: _Line, name: str, tokens: int, branch: int) -> None:
        line.length += tokens
        line.moment = line.moment.after(max(tokens, 1), name)
        self._values[Ref(branch, name)] = (tokens, line.moment)

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
