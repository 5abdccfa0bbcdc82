"""Compiles a regular expression, or words, to the minimal automaton over bytes. Pure: for a worker process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher
from outlines_core import Index, Vocabulary

from ..errors import GrammarError, GrammarTooComplexError, cut

MAX_RAW_STATES = 65_536
MAX_PRODUCT_STATES = 16_384
MAX_STATES = 4_096

Int32 = npt.NDArray[np.int32]

_END = 0
"""The byte that the compiler's expression ends with: see `_read`."""


class Automaton(msgspec.Struct, frozen=True):
    """A deterministic automaton over bytes, trim and minimal: each state lies on a way from state 0 to an end.

    classes     256 bytes, the class of each byte: no state tells bytes of one class apart
    following   int32, little-endian, [S, C], row major: the state after a byte of the class, -1: no way to an end
    ends        S bytes, 1 where the text may end
    """

    classes: bytes
    following: bytes
    ends: bytes

    @property
    def num_states(self) -> int:
        return len(self.ends)

    def tables(self) -> tuple[npt.NDArray[np.uint8], Int32, npt.NDArray[np.bool_]]:
        """`classes`, `following` and `ends` as arrays."""
        following = np.frombuffer(self.following, "<i4").astype(np.int32).reshape(self.num_states, -1)
        return np.frombuffer(self.classes, np.uint8), following, np.frombuffer(self.ends, np.bool_)


def compile_regular(pattern: str) -> Automaton:
    """The automaton of the texts that `pattern` (the syntax of Rust's regex crate) matches as a whole.

    A NUL character is allowed in no text, whatever the pattern says.

    Raises:
        GrammarError: the pattern is not one, or matches nothing.
        GrammarTooComplexError: it takes too many states.
    """
    # By itself it must be a pattern: `a)|(b` is none, but would be once it stands in parentheses.
    problem = LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern))
    if problem:
        raise GrammarError(f"the regular expression cannot be compiled: {cut(' '.join(problem.split()))}")
    try:
        index = Index(f"(?:{pattern})\\x00", Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)}))
    except (ValueError, RuntimeError) as error:
        raise GrammarError(f"the regular expression cannot be compiled: {cut(' '.join(str(error).split()))}") from None
    transitions = index.get_transitions()
    if len(transitions) > MAX_RAW_STATES:
        raise GrammarTooComplexError(f"the regular expression has {len(transitions)} states, too many for a table")
    return _minimal(*_read(transitions, index.get_initial_state(), set(index.get_final_states())))


class Conjunction(msgspec.Struct, frozen=True):
    """The texts that match all of the regular expressions `all` as a whole, and none of `none`."""

    all: tuple[str, ...]
    none: tuple[str, ...] = ()


def compile_parts(parts: Sequence[Conjunction]) -> Automaton:
    """The automaton of the texts of any of `parts`: what it says of each expression, side by side.

    Raises:
        GrammarError: an expression is not one, or there is no text.
        GrammarTooComplexError: they take too many states.
    """
    if len(parts) == 1 and len(parts[0].all) == 1 and not parts[0].none:
        return compile_regular(parts[0].all[0])
    patterns = list(dict.fromkeys(pattern for part in parts for pattern in (*part.all, *part.none)))
    tables = [compile_regular(pattern).tables() for pattern in patterns]
    place = {pattern: index for index, pattern in enumerate(patterns)}
    terms = [([place[one] for one in part.all], [place[one] for one in part.none]) for part in parts]
    letters, letter_of = np.unique(np.stack([classes for classes, _, _ in tables]), axis=1, return_inverse=True)
    rows = [np.pad(following, ((0, 1), (0, 0)), constant_values=-1).tolist() for _, following, _ in tables]
    ended = [[*ends.tolist(), False] for _, _, ends in tables]
    start = (0,) * len(tables)
    number, order, moves = {start: 0}, [start], []
    for state in order:
        out = []
        for letter in letters.T.tolist():
            reached = tuple(rows[index][at][kind] for index, (at, kind) in enumerate(zip(state, letter, strict=True)))
            alive = any(all(reached[index] >= 0 for index in needed) for needed, _ in terms)
            if alive and reached not in number:
                number[reached] = len(order)
                order.append(reached)
            out.append(number[reached] if alive else -1)
        moves.append(out)
        if len(order) > MAX_PRODUCT_STATES:
            raise GrammarTooComplexError("the constraint's expressions have too many states together for a table")
    ends = [
        any(
            all(ended[index][state[index]] for index in needed)
            and not any(ended[index][state[index]] for index in never)
            for needed, never in terms
        )
        for state in order
    ]
    return _minimal(np.array(moves, np.int32)[:, letter_of.reshape(256)], np.array(ends), 0)


def compile_words(words: Iterable[bytes]) -> Automaton:
    """The automaton of `words`.

    Raises:
        GrammarError: there are none.
        GrammarTooComplexError: they take too many states.
    """
    children: list[dict[int, int]] = [{}]
    ends: set[int] = set()
    for word in words:
        node = 0
        for byte in word:
            if byte not in children[node]:
                children[node][byte] = len(children)
                children.append({})
            node = children[node][byte]
        ends.add(node)
        if len(children) > MAX_RAW_STATES:
            raise GrammarTooComplexError("there are too many words for a table")
    following = np.full((len(children), 256), -1, np.int32)
    for node, branches in enumerate(children):
        for byte, child in branches.items():
            following[node, byte] = child
    return _minimal(following, np.array([node in ends for node in range(len(children))]), 0)


def _read(
    transitions: dict[int, dict[int, int]], start: int, matches: set[int]
) -> tuple[Int32, npt.NDArray[np.bool_], int]:
    """The compiler's index as [S, 256] next states, ends, and the start state.

    The compiler loses ways that lead through a match, and stops at the first alternative that matches. Nothing matches
    before the end byte here, so that neither happens: a text may end where that byte leads to a match.
    """
    number = {state: index for index, state in enumerate(transitions)}
    following = np.full((len(number), 256), -1, np.int32)
    ends = np.zeros(len(number), np.bool_)
    for state, edges in transitions.items():
        row = number[state]
        ends[row] = edges.get(_END) in matches
        reached = [(byte, number.get(target, -1)) for byte, target in edges.items() if byte < 256]
        following[row, [byte for byte, _ in reached]] = [target for _, target in reached]
    following[:, _END] = -1
    return following, ends, number[start]


def _minimal(following: Int32, ends: npt.NDArray[np.bool_], start: int) -> Automaton:
    """The trim minimal automaton of [S, 256] next states, its states in the order in which they are reached."""
    kept = _useful(following, ends, start)
    if not kept[start]:
        raise GrammarError("nothing matches the regular expression")
    place = np.full(len(kept) + 1, -1, np.int32)  # the last: of no state
    place[:-1][kept] = np.arange(kept.sum())
    following, ends = place[following[kept]], ends[kept]
    columns, classes = _columns(following)
    block = _blocks(columns, ends)
    member = np.zeros(int(block.max()) + 1, np.int64)
    member[block] = np.arange(len(block))
    merged = np.where(columns[member] >= 0, block[columns[member]], -1)
    order = _reached(merged, int(block[place[start]]))
    if len(order) > MAX_STATES:
        raise GrammarTooComplexError(f"the constraint has {len(order)} states, at most {MAX_STATES} fit a table")
    renamed = np.full(len(member) + 1, -1, np.int32)
    renamed[order] = np.arange(len(order))
    columns, classes = _columns(renamed[merged[order]][:, classes])
    return Automaton(classes.tobytes(), columns.astype("<i4").tobytes(), ends[member][order].tobytes())


def _columns(following: Int32) -> tuple[Int32, npt.NDArray[np.uint8]]:
    """The distinct columns of [S, 256], in order of the first byte of each, and which one each byte has."""
    _, first, kind = np.unique(following, axis=1, return_index=True, return_inverse=True)
    place = np.empty(len(first), np.uint8)
    order = np.argsort(first)
    place[order] = np.arange(len(first))
    return following[:, first[order]], place[kind.reshape(256)]


def _useful(following: Int32, ends: npt.NDArray[np.bool_], start: int) -> npt.NDArray[np.bool_]:
    """The states that lie on a way from `start` to an end."""
    forward = np.zeros(len(ends), np.bool_)
    forward[_reached(following, start)] = True
    sources, _ = np.nonzero(following >= 0)
    targets = following[following >= 0]
    order = np.argsort(targets, kind="stable")
    sources, bounds = sources[order], np.searchsorted(targets[order], np.arange(len(ends) + 1))
    backward = ends.copy()
    fresh = np.flatnonzero(ends)
    while fresh.size:
        before = np.concatenate([sources[bounds[state] : bounds[state + 1]] for state in fresh])
        fresh = np.unique(before[~backward[before]])
        backward[fresh] = True
    return forward & backward


def _reached(following: Int32, start: int) -> list[int]:
    """The states that can be reached from `start`, nearest first."""
    order, seen = [start], {start}
    for state in order:
        for target in dict.fromkeys(following[state].tolist()):
            if target >= 0 and target not in seen:
                seen.add(target)
                order.append(target)
    return order


def _blocks(following: Int32, ends: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The block of states that no text tells apart, of each state (Hopcroft, An n log n algorithm, 1971).

    `following` may be partial: at first all blocks are to be looked at, which together are all that has a next state.
    """
    num_classes = following.shape[1]
    sources: list[defaultdict[int, list[int]]] = [defaultdict(list) for _ in range(num_classes)]
    for kind in range(num_classes):
        for source, target in enumerate(following[:, kind].tolist()):
            if target >= 0:
                sources[kind][target].append(source)
    halves: list[set[int]] = [set(np.flatnonzero(ends).tolist()), set(np.flatnonzero(~ends).tolist())]
    blocks = [states for states in halves if states]
    block = np.zeros(len(ends), np.int64)
    for number, states in enumerate(blocks):
        block[list(states)] = number
    block_of = block.tolist()
    pending = {(number, kind) for number in range(len(blocks)) for kind in range(num_classes)}
    while pending:
        splitter, kind = pending.pop()
        parts: defaultdict[int, set[int]] = defaultdict(set)
        for target in blocks[splitter]:
            for source in sources[kind].get(target, ()):
                parts[block_of[source]].add(source)
        for number, part in parts.items():
            if len(part) == len(blocks[number]):
                continue
            blocks[number] -= part
            fresh = len(blocks)
            blocks.append(part)
            for state in part:
                block_of[state] = fresh
            smaller = fresh if len(part) <= len(blocks[number]) else number
            for other in range(num_classes):
                pending.add((fresh if (number, other) in pending else smaller, other))
    return np.array(block_of)
