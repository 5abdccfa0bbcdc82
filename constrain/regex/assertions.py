"""Regular expressions with assertions (anchors, word boundaries, look-around), and the languages they stand for.

An assertion speaks of what stands around it. The translation therefore goes from the end of a pattern to its start: it
knows what may follow each position up to the end of the text, and it asks for every *context* that may precede it: the
start of the text, or a last character of some class. With `(?=Y)` before a rest Z that is `Z & Y.*`; with `$`, Z & "".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .algebra import (
    ANY,
    EMPTY,
    EPSILON,
    Chars,
    Concat,
    Intersection,
    Node,
    Repeat,
    Union,
    Words,
    chars,
    complement,
    concat,
    intersection,
    repeat,
    union,
    words,
)
from .charsets import ALL, EMPTY_SET, LINE_ENDS, WORD, CharSet, classes


class Tree:
    """An expression that may hold assertions."""

    items: Sequence[Tree] = ()

    depth: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "depth", 1 + max((item.depth for item in self.items), default=0))


@dataclass(frozen=True)
class Leaf(Tree):
    """An expression without assertions."""

    node: Node


@dataclass(frozen=True)
class Sequenced(Tree):
    """One after another."""

    items: tuple[Tree, ...]


@dataclass(frozen=True)
class Alternatives(Tree):
    """One of several."""

    items: tuple[Tree, ...]


@dataclass(frozen=True)
class Repeated(Tree):
    """Repetition from `low` to `high` times (None: without end)."""

    item: Tree
    low: int
    high: int | None

    @property
    def items(self) -> tuple[Tree, ...]:  # type: ignore[override]
        return (self.item,)


@dataclass(frozen=True)
class Edge(Tree):
    """The start or else the end of the text, with `lines` of a line."""

    start: bool
    lines: bool = False


@dataclass(frozen=True)
class Boundary(Tree):
    """Between a word character and another, or not."""

    negated: bool


@dataclass(frozen=True)
class Look(Tree):
    """Asserts what must, or must not, stand here (`ahead`) or before."""

    item: Tree
    ahead: bool
    negated: bool

    @property
    def items(self) -> tuple[Tree, ...]:  # type: ignore[override]
        return (self.item,)


def sequenced(items: Iterable[Tree]) -> Tree:
    """`items` one after another, those without assertions in one."""
    found: list[Tree] = []
    nodes: list[Node] = []
    for item in items:
        for part in item.items if isinstance(item, Sequenced) else (item,):
            if isinstance(part, Leaf):
                nodes.append(part.node)
                continue
            if nodes:
                found.append(Leaf(concat(nodes)))
                nodes = []
            found.append(part)
    if nodes or not found:
        found.append(Leaf(concat(nodes)))
    return found[0] if len(found) == 1 else Sequenced(tuple(found))


def alternatives(items: Sequence[Tree]) -> Tree:
    """One of `items`."""
    leaves = [item.node for item in items if isinstance(item, Leaf)]
    others = [item for item in items if not isinstance(item, Leaf)]
    if leaves:
        others.append(Leaf(union(leaves)))
    return others[0] if len(others) == 1 else Alternatives(tuple(others))


def repeated(item: Tree, low: int, high: int | None) -> Tree:
    """`item` from `low` to `high` times."""
    if isinstance(item, Leaf):
        return Leaf(repeat(item.node, low, high))
    if isinstance(item, Edge | Boundary | Look):  # once is as good as often
        return item if low else Leaf(EPSILON)
    return Repeated(item, low, high)


MAX_UNROLLED = 4
"""Repeats of up to so many times of what holds an assertion are written out."""
MAX_STEPS = 5_000
"""Limit of parts that are translated, with the alternatives that follow: some 0.5 s. Repeats count each time."""
MAX_DEPTH = 60
"""Limit of the depth of a tree with assertions."""
MAX_PARTS = 12
"""Limit of parts of a sequence that are taken apart to find its last character."""

WORD_NEXT = concat((chars(WORD), ANY))
LINE_END_NEXT = concat((chars(LINE_ENDS), ANY))


class NotRegularError(Exception):
    """An assertion stands where it cannot be expressed; the message says which and why."""


def whole(tree: Tree) -> Node:
    """The texts that match from start to end. Raises NotRegularError."""
    return _root((), tree, ())


def anywhere(tree: Tree) -> Node:
    """The texts that match somewhere. Raises NotRegularError."""
    if isinstance(tree, Leaf):
        return concat((ANY, tree.node, ANY))
    return _root((Leaf(ANY),), tree, (Leaf(ANY),))


class Contextual(NamedTuple):
    """Languages by what stands before: nothing (the first), or a character in the set of the same place in `sets`.

    Without sets there is but one.
    """

    sets: tuple[CharSet, ...]
    nodes: tuple[Node, ...]

    def after(self, before: str) -> Node:
        """The language after a character; "": at the start of a text."""
        if not before or not self.sets:
            return self.nodes[0]
        return self.nodes[1 + next(at for at, members in enumerate(self.sets) if before in members)]


class Sought(NamedTuple):
    """Some alternatives of a pattern that is looked for in a text.

    behind   languages that the text before a match must be in or, if negated, must not be in
    match    the texts that match
    follow   the texts that may follow to the end; None: any
    """

    behind: tuple[tuple[Node, bool], ...]
    match: Contextual
    follow: Contextual | None


def sought(tree: Tree, max_steps: int) -> list[Sought]:
    """A pattern's alternatives, those together whose assertions at both ends are the same.

    Raises:
        NotRegularError: an assertion cannot be expressed, or takes more than `max_steps` (see MAX_STEPS).
    """
    if tree.depth > MAX_DEPTH:
        raise NotRegularError("assertions are nested too deeply")
    found: dict[tuple[tuple[tuple[Node, bool], ...], tuple[Tree, ...]], list[Tree]] = {}
    for branch in _branches(tree):
        items = branch.items if isinstance(branch, Sequenced) else (branch,)
        behind: list[tuple[Node, bool]] = []
        while items and isinstance(look := items[0], Look) and _Contexts(look).needs_prefix(look):
            if _looks_on(look.item):
                raise NotRegularError("a look-ahead inside a look-behind of several characters is not supported")
            behind.append((_root((Leaf(ANY),), look.item, ()), look.negated))
            items = items[1:]
        size = len(items)
        while size and _is_ahead(items[size - 1]):
            size -= 1
        if any(_has_end(item) for item in items[:size]):
            raise NotRegularError("the end of the text is supported only at the end of an alternative")
        found.setdefault((tuple(behind), tuple(items[size:])), []).append(sequenced(items[:size]))

    def translated(tree: Tree, then: Node, *, more: bool) -> Contextual:
        contexts = _Contexts(tree, max_steps)
        nodes = contexts.following(tree, (then,) * contexts.count, more=more)
        alike = all(node is nodes[0] for node in nodes)
        return Contextual((), nodes[:1]) if alike else Contextual(contexts.sets, nodes)

    return [
        Sought(
            before,
            translated(alternatives(branches), EPSILON, more=True),
            translated(sequenced(after), ANY, more=False) if after else None,
        )
        for (before, after), branches in found.items()
    ]


def _has_end(tree: Tree) -> bool:
    return (isinstance(tree, Edge) and not tree.start) or any(_has_end(item) for item in tree.items)


def _is_ahead(tree: Tree) -> bool:
    return (
        isinstance(tree, Boundary)
        or (isinstance(tree, Edge) and not tree.start)
        or (isinstance(tree, Look) and tree.ahead)
    )


def _branches(tree: Tree) -> Iterator[Tree]:
    if isinstance(tree, Alternatives):
        for item in tree.items:
            yield from _branches(item)
    else:
        yield tree


def _root(before: tuple[Tree, ...], tree: Tree, behind: tuple[Tree, ...]) -> Node:
    if tree.depth > MAX_DEPTH:
        raise NotRegularError("assertions are nested too deeply")
    contexts = _Contexts(tree)
    found = []
    for item in tree.items if isinstance(tree, Alternatives) else (tree,):
        parts = (*before, *(item.items if isinstance(item, Sequenced) else (item,)), *behind)
        found.append(contexts.from_start(parts))
    return union(found)


Following = tuple[Node, ...]
"""By context: the texts from a position to the end."""


class _Contexts:
    """Translates one tree. Context 0 is the start of the text; context i, a last character in `sets[i - 1]`."""

    def __init__(self, tree: Tree, max_steps: int = MAX_STEPS) -> None:
        self.sets = classes(frozenset(_sets_behind(tree)))
        self.count = 1 + len(self.sets)
        self.steps = 0
        self._max_steps = max_steps

    def from_start(self, parts: tuple[Tree, ...]) -> Node:
        """The texts that `parts` match from start to end."""
        at = next((at for at, part in enumerate(parts) if self.needs_prefix(part)), None)
        if at is not None:
            look = parts[at]
            assert isinstance(look, Look)
            if any(_looks_on(part) for part in parts[:at]) or _looks_on(look.item):
                raise NotRegularError("a look-behind of several characters is supported only after a plain beginning")
            ending = self.from_start((Leaf(ANY), look.item))
            prefix = intersection((self.from_start(parts[:at]), complement(ending) if look.negated else ending))
            return self.from_start((Leaf(prefix), *parts[at + 1 :]))
        return self.following(sequenced(parts), (EPSILON,) * self.count, more=False)[0]

    def following(self, tree: Tree, rest: Following, *, more: bool) -> Following:
        """Returns the language of `tree` followed by `rest`. `more`: some text follows the rest."""
        self.steps += 1 + sum(len(node.items) for node in rest if isinstance(node, Union))
        if self.steps > self._max_steps:
            raise NotRegularError("too many repeats hold assertions")
        match tree:
            case Leaf(node=node):
                return self._leaf([node] * self.count, rest)
            case Sequenced(items=items):
                for item in reversed(items):
                    rest = self.following(item, rest, more=more)
                return rest
            case Alternatives(items=items):
                branches = [self.following(item, rest, more=more) for item in items]
                return tuple(union(nodes) for nodes in zip(*branches, strict=True))
            case Repeated():
                return self._repeated(tree, rest, more=more)
            case Edge():
                return self._edge(tree, rest, more=more)
            case Boundary(negated=negated):
                if more:
                    _within(rest, 1)
                after_word = [context > 0 and self.sets[context - 1] <= WORD for context in self.range()]
                next_word = (WORD_NEXT, complement(WORD_NEXT))
                return tuple(
                    intersection((node, next_word[after != negated]))
                    for node, after in zip(rest, after_word, strict=True)
                )
            case Look(ahead=True, item=item, negated=negated):
                if more:
                    _within(rest, item.node.maximum if isinstance(item, Leaf) else None)
                ahead = self.following(item, (ANY,) * self.count, more=False)
                return tuple(
                    intersection((node, complement(seen) if negated else seen))
                    for node, seen in zip(rest, ahead, strict=True)
                )
            case Look(item=item, negated=negated):
                behind = self._behind(item)
                return self._only([(context in behind) != negated for context in self.range()], rest)
        raise TypeError(f"no such tree: {tree!r}")

    def _edge(self, edge: Edge, rest: Following, *, more: bool) -> Following:
        if edge.start:
            starts = [context == 0 or (edge.lines and self.sets[context - 1] <= LINE_ENDS) for context in self.range()]
            return self._only(starts, rest)
        if more and edge.lines:
            raise NotRegularError("the end of a line inside a repeated group is not supported")
        ends = union((EPSILON, LINE_END_NEXT)) if edge.lines else EMPTY if more else EPSILON
        return tuple(intersection((node, ends)) for node in rest)

    def range(self) -> range:
        """All contexts."""
        return range(self.count)

    def _only(self, here: list[bool], rest: Following) -> Following:
        return tuple(node if true else EMPTY for node, true in zip(rest, here, strict=True))

    def _leaf(self, nodes: list[Node], rest: Following) -> Following:
        """`nodes`, one per context, and then `rest`, by what the last character of the node leads to."""
        if all(node is rest[0] for node in rest):
            return tuple(concat((node, rest[0])) for node in nodes)
        leading: dict[Node, CharSet] = {}
        for members, node in zip(self.sets, rest[1:], strict=True):
            leading[node] = leading.get(node, EMPTY_SET) | members
        found = []
        for node, here in zip(nodes, rest, strict=True):
            after = [concat((ending_in(node, members), then)) for then, members in leading.items() if then is not EMPTY]
            found.append(union([*after, here] if node.nullable else after))
        return tuple(found)

    def _repeated(self, tree: Repeated, rest: Following, *, more: bool) -> Following:
        low, high = tree.low, tree.high
        if not more and all(node is ANY for node in rest):
            high = low  # what further rounds would match is in the rest
        if high is None or high > MAX_UNROLLED:
            return self._tempered(tree, rest, more=more) or self._looped(tree, rest, more=more)
        found = rest
        for _ in range(high - low):
            again = self.following(tree.item, found, more=more)
            found = tuple(union(nodes) for nodes in zip(rest, again, strict=True))
        for _ in range(low):
            found = self.following(tree.item, found, more=more)
        return found

    def _tempered(self, tree: Repeated, rest: Following, *, more: bool) -> Following | None:
        """A repeat such as `((?!Y).)*` up to the end of the text: Y is looked for before each character."""
        match tree.item:
            case Sequenced(items=(Look(ahead=True, item=item, negated=negated), Leaf(node=node))):
                ahead = self.following(item, (ANY,) * self.count, more=False)
                alike = all(seen is ahead[0] for seen in ahead)
                if not more and alike and node.minimum == node.maximum == 1 and all(then is EPSILON for then in rest):
                    wrong = nonempty(ahead[0] if negated else complement(ahead[0]))
                    found = intersection((repeat(node, tree.low, tree.high), complement(concat((ANY, wrong)))))
                    return (found,) * self.count
        return None

    def _looped(self, tree: Repeated, rest: Following, *, more: bool) -> Following:
        """A repeat without end. Between two rounds that consume something, there is text on both sides."""
        nothing = (EPSILON,) * self.count
        inner = self.following(tree.item, nothing, more=True)
        last = self.following(tree.item, nothing, more=more)
        if any(node is not inner[1] for node in inner[1:]) or any(node is not last[1] for node in last[1:]):
            if inner != last or tree.low > 1 or tree.high is not None:
                raise NotRegularError("a look-behind inside a counted group is not supported")
            return self._by_class(tree, inner, rest)
        if inner == last:
            return self._rounds(tree, inner, inner, rest)
        if more:
            raise NotRegularError("the end of the text inside a doubly repeated group is not supported")
        with_text = self._rounds(tree, inner, inner, tuple(nonempty(node) for node in rest))
        without = self._rounds(tree, inner, last, tuple(EPSILON if node.nullable else EMPTY for node in rest))
        return tuple(union(nodes) for nodes in zip(with_text, without, strict=True))

    def _rounds(self, tree: Repeated, inner: Following, last: Following, rest: Following) -> Following:
        """`inner` words, then a `last` one, then the `rest`; how many rounds there are is the repeat's."""
        loops = []
        stays = []
        for context in self.range():
            empty_rounds = inner[context].nullable or inner[1].nullable or last[1].nullable
            low = min(tree.low, 1) if empty_rounds else tree.low
            once = nonempty(last[context]) if low < 2 else EMPTY
            more_rounds = repeat(nonempty(inner[1]), max(low, 2) - 2, None if tree.high is None else tree.high - 2)
            often = concat((nonempty(inner[context]), more_rounds, nonempty(last[1])))
            loops.append(union((once, often)))
            stays.append(tree.low == 0 or last[context].nullable)
        after = self._leaf(loops, rest)
        return tuple(
            union((looped, here)) if stay else looped for looped, here, stay in zip(after, rest, stays, strict=True)
        )

    def _by_class(self, tree: Repeated, inner: Following, rest: Following) -> Following:
        """An endless repeat of `inner`, which depends on the character before: a way through the classes."""
        steps = [[ending_in(node, members) for members in self.sets] for node in inner]
        ways = [list(row) for row in steps[1:]]  # from class to class, by way of those seen so far
        for via in range(len(self.sets)):
            back = repeat(ways[via][via], 0, None)
            ways = [
                [union((way, concat((row[via], back, ways[via][to])))) for to, way in enumerate(row)] for row in ways
            ]
        found = []
        for context, step in enumerate(steps):
            parts = [rest[context]] if tree.low == 0 or inner[context].nullable else []
            for to, then in enumerate(rest[1:]):
                further = [concat((first, ways[via][to])) for via, first in enumerate(step)]
                parts.append(concat((union([step[to], *further]), then)))
            found.append(union(parts))
        return tuple(found)

    def needs_prefix(self, tree: Tree) -> bool:
        """Returns true if `tree` looks back at more than the last character."""
        return isinstance(tree, Look) and not tree.ahead and self._seen_behind(tree.item) is None

    def _behind(self, tree: Tree) -> frozenset[int]:
        found = self._seen_behind(tree)
        if found is None:
            raise NotRegularError("a look-behind of several characters is supported only after a plain beginning")
        return found

    def _seen_behind(self, tree: Tree) -> frozenset[int] | None:
        """The contexts in which `tree` matches just before; None if they do not tell."""
        match tree:
            case Edge(start=True, lines=False):
                return frozenset((0,))
            case Leaf(node=node) if node.nullable:
                return frozenset(self.range())
            case Leaf(node=node) if node.plain and node.maximum == 1:
                members = _single(node)
                return frozenset(context for context in self.range() if context and self.sets[context - 1] <= members)
            case Alternatives(items=items):
                found = [self._seen_behind(item) for item in items]
                known = [contexts for contexts in found if contexts is not None]
                return frozenset().union(*known) if len(known) == len(found) else None
        return None


def _within(rest: Following, length: int | None) -> None:
    """Raises NotRegularError unless `rest` is long enough for what looks `length` characters ahead (None: far)."""
    if length is None or any(node.minimum < length and node is not EMPTY for node in rest):
        raise NotRegularError("a look-ahead beyond the end of a match or of a repeated group is not supported")


def _looks_on(tree: Tree) -> bool:
    """Returns whether it says something of the text that follows it."""
    return _is_ahead(tree) or any(_looks_on(item) for item in tree.items)


def _sets_behind(tree: Tree) -> Iterable[CharSet]:
    """The sets of characters that an assertion in `tree` asks of the one before it."""
    if isinstance(tree, Boundary):
        yield WORD
    if isinstance(tree, Edge) and tree.lines:
        yield LINE_ENDS
    if isinstance(tree, Look) and not tree.ahead:
        yield from _last_sets(tree.item)
    for item in tree.items:
        yield from _sets_behind(item)


def _last_sets(tree: Tree) -> Iterable[CharSet]:
    if isinstance(tree, Leaf) and tree.node.plain and tree.node.maximum == 1:
        yield _single(tree.node)
    if isinstance(tree, Alternatives):
        for item in tree.items:
            yield from _last_sets(item)


def _single(node: Node) -> CharSet:
    """The characters that words of one character have."""
    return CharSet.from_ranges(span for members in node.first for span in members.ranges())


def nonempty(node: Node) -> Node:
    """The words of `node` but the empty one."""
    return ending_in(node, ALL)


def ending_in(node: Node, members: CharSet) -> Node:
    """The words of `node` whose last character is one of `members`."""
    if members == ALL and not node.nullable:
        return node
    if node.depth > MAX_DEPTH:
        return intersection((node, concat((ANY, chars(members)))))
    match node:
        case Words(texts=texts):
            return words(text for text in texts if text and text[-1] in members)
        case Chars(chars=own):
            return chars(own & members)
        case Union(items=items):
            return union(ending_in(item, members) for item in items)
        case Repeat(item=item, low=low, high=high) if not item.nullable:
            rest = repeat(item, max(low - 1, 0), None if high is None else high - 1)
            return concat((rest, ending_in(item, members)))
        case Concat(items=items) if len(items) <= MAX_PARTS:
            found = []
            for at in range(len(items) - 1, -1, -1):
                found.append(concat((*items[:at], ending_in(items[at], members))))
                if not items[at].nullable:
                    break
            return union(found)
        case Intersection(items=items):
            return intersection((ending_in(items[0], members), *items[1:]))
    return intersection((node, concat((ANY, chars(members)))))
