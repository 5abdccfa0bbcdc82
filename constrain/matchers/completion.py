"""Search for short completions of the word that a matcher is in; those that take long to find are cached."""

from __future__ import annotations

import json as jsonlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..errors import BusyMachineError, SearchLateError, StepTooComplexError
from ..vocabulary.token_table import TokenTable
from .interface import GrammarState
from .lexer import is_broken

BEAM_WIDTH = 12
MAX_CHILDREN = 64
MAX_WORDS = 24
MAX_NAMES = 64
"""Most names tried for a key, of those that objects need."""
SEARCH_TIME_S = 1.0
"""Processor time of one search: where items must differ, each state costs a millisecond."""
MOST_SEARCH_S = 30.0
"""Time that it may take on a machine that has other things to do; then it is late, and nothing is said of the word."""
MAX_EXPANSIONS = 1_500
MAX_AIMLESS_STEPS = 4
"""Steps of mere content after which the greedy search tries a breadth-first way out."""

Mask = npt.NDArray[np.uint32]


MAX_KNOWN, MAX_KNOWN_TOKENS = 256, 1 << 16
"""Ways that are kept, and tokens that led to where they begin."""
SLOW_S = 0.002


@dataclass(slots=True)
class _Known:
    """A completion from one state, or a budget within which none was found. A search holds `lock`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    way: list[int] | None = None
    in_vain: int = -1

    def knows(self, max_tokens: int) -> bool:
        return (self.way is not None and len(self.way) <= max_tokens) or max_tokens <= self.in_vain


class Completer:
    """Searches for completions. Thread-safe; holds no state of a generation.

    The search is greedy and prefers tokens that bring a JSON text nearer to its end. Where that fails (a string with a
    pattern, a regular expression), a beam search looks for the end or for a state from which it succeeds. `names` are
    keys that objects are likely to need, `words` texts that strings are likely to need.
    """

    def __init__(self, tokens: TokenTable, *, json: bool, names: Iterable[str] = (), words: Iterable[str] = ()) -> None:
        self._tokens = tokens
        self._json = json
        self._names = tuple(dict.fromkeys(names))[:MAX_NAMES] if json else ()
        self._words = tuple(words)
        self._all_names = tuple(names)
        self._spelled: dict[str, list[list[int]]] = {}
        self._slow = False
        self._lock = threading.Lock()
        self._ways: OrderedDict[tuple[int, ...], _Known] = OrderedDict()
        self._num_way_tokens = 0

    # Computed on demand: most completions are never needed.

    @cached_property
    def _keys(self) -> list[int]:
        return self._tokens.prefixes(self._all_names)

    @cached_property
    def _in_string(self) -> _Preference:
        return _Preference([*self._tokens.in_string, *self._keys, *self._any_content])

    @cached_property
    def _between(self) -> _Preference:
        brackets, others = self._around_quote
        return _Preference([*brackets, *self._keys, *others, *self._any_content])

    @cached_property
    def _content(self) -> _Preference:
        words = self._tokens.prefixes(self._words)[:MAX_WORDS]
        return _Preference([*words, *self._tokens.fillers[:2], *self._tokens.single_bytes])

    @cached_property
    def _brackets(self) -> _Preference:
        return _Preference(self._tokens.brackets)

    @cached_property
    def _ends(self) -> _Preference:
        return _Preference(self._tokens.value_ends)

    @cached_property
    def _text(self) -> _Preference:
        return _Preference(self._tokens.known("adgz_/:;@ "))  # never in a number

    @cached_property
    def _quotes(self) -> _Preference:
        return _Preference(self._tokens.string_ends)

    @cached_property
    def _openings(self) -> frozenset[int]:
        return frozenset(self._tokens.known(('"', ' "', '""', ' ""', ",")))

    @cached_property
    def _aimless(self) -> frozenset[int]:
        return frozenset((*self._any_content, *self._keys, *self._around_quote[1]))

    @property
    def _any_content(self) -> list[int]:
        return [*self._tokens.fillers, *self._tokens.single_bytes]

    @property
    def _around_quote(self) -> tuple[list[int], list[int]]:
        """Returns the tokens that end values, up to the quotation mark, and the other ones between values."""
        between, in_string = self._tokens.between, self._tokens.in_string
        quote = between.index(in_string[-1]) + 1 if in_string else 0
        return between[:quote], between[quote:]

    def _spellings(self, name: str) -> list[list[int]]:
        """Returns the tokenisations of a key with its colon, by what may stand before it."""
        if name not in self._spelled:
            key = jsonlib.dumps(name, ensure_ascii=False) + ":"
            self._spelled[name] = [self._tokens.encode((lead + key).encode()) for lead in (", ", " ", "")]
        return self._spelled[name]

    def search(self, matcher: GrammarState, max_tokens: int, patience_s: float | None = None) -> list[int] | None:
        """Returns at most `max_tokens` tokens that complete the word; None if none were found. Leaves `matcher` as is.

        Raises:
            SearchLateError: it takes longer than `patience_s`.
            BusyMachineError: without a `patience_s`, the machine has no time for it.
            StepTooComplexError: a step of it does, and `matcher` has lost its lexer.
        """
        trial = matcher.deep_copy()
        path: list[int] = []
        num_aimless = 0
        used: Counter[str] = Counter()
        time_left = _TimeLeft(patience_s)
        while not trial.is_accepting() and time_left:
            step: list[int] | None = trial.compute_ff_tokens() or self._step(trial, used)
            aimless = step is not None and len(step) == 1 and (step[0] in self._aimless or step == path[-1:])
            num_aimless = num_aimless + 1 if aimless else 0
            if not self._json or num_aimless > MAX_AIMLESS_STEPS:
                step = self._way_out(trial, max_tokens - len(path), time_left)
                num_aimless = 0
            if not step or len(path) + len(step) > max_tokens or not _takes(trial, step):
                return None
            path += step
        return path if trial.is_accepting() else None

    def find(
        self, taken: Sequence[int], state: GrammarState, max_tokens: int, patience_s: float | None
    ) -> list[int] | None:
        """Finds at most `max_tokens` tokens that complete the word from `state`, to which the tokens `taken` led.

        Raises:
            SearchLateError: that takes, or is likely to take, longer than `patience_s`.
            BusyMachineError: without a `patience_s`, the machine has no time for it.
            StepTooComplexError: a step of it does, and `state` has lost its lexer.
        """
        if patience_s is None:
            return self._find(taken, state, max_tokens)
        if self._slow:
            raise SearchLateError("the search for a way to the end takes longer")
        try:
            return self.search(state, max_tokens, patience_s)
        except (SearchLateError, StepTooComplexError):
            self._slow = True
            raise

    def _find(self, taken: Sequence[int], state: GrammarState, max_tokens: int) -> list[int] | None:
        known = self._of(tuple(taken))
        with known.lock:
            if not known.knows(max_tokens):
                started = time.thread_time()
                way: list[int] | None = None
                try:
                    way = self.search(state, max_tokens)
                except BusyMachineError:
                    raise  # there may be a way
                except BaseException:  # what a lexer did not stand would break the next one, too
                    known.in_vain = max_tokens
                    raise
                finally:
                    self._slow = time.thread_time() - started > SLOW_S
                known.way, known.in_vain = (known.way, max_tokens) if way is None else (way, known.in_vain)
            return list(known.way) if known.way is not None and len(known.way) <= max_tokens else None

    def _of(self, key: tuple[int, ...]) -> _Known:
        with self._lock:
            known = self._ways.get(key)
            if known is None:
                known = self._ways[key] = _Known()
                self._num_way_tokens += len(key)
            self._ways.move_to_end(key)
            while len(self._ways) > MAX_KNOWN or self._num_way_tokens > MAX_KNOWN_TOKENS:
                self._num_way_tokens -= len(self._ways.popitem(last=False)[0])
            return known

    def witness(self, start: GrammarState, known: str | None, max_tokens: int) -> list[int] | None:
        """Returns the tokens of a short word from `start`: those of `known` if it is one."""
        tokens = self._tokens.encode(known.encode()) if known is not None else []
        return tokens if tokens and self.completes(start, tokens) else self.search(start, max_tokens)

    def completes(self, matcher: GrammarState, tokens: list[int]) -> bool:
        """Returns True if `tokens` complete the word."""
        trial = matcher.deep_copy()
        return _takes(trial, tokens) and trial.is_accepting()

    def _step(self, trial: GrammarState, used: Counter[str]) -> list[int]:
        """Returns the tokens that seem to lead to the end soonest; empty if there are none."""
        step = self._next(trial)
        if len(step) == 1 and step[0] in self._openings:
            return self._name(trial, used) or step
        return step

    def _name(self, trial: GrammarState, used: Counter[str]) -> list[int]:
        """Returns a key that objects need, where a key may begin; the least used ones come first.

        Otherwise the shortest key would be written again and again, and required ones never.
        """
        for name in sorted(self._names, key=used.__getitem__):
            for step in self._spellings(name):
                if _takes(trial.deep_copy(), step):
                    used[name] += 1
                    return step
        return []

    def _next(self, trial: GrammarState) -> list[int]:
        """Returns the token that seems to lead to the end soonest; empty if there is none."""
        forced = trial.compute_ff_bytes()
        if forced:  # so few that the model's tokens for them depend on what follows
            token = self._tokens.prefix(forced)
            return [] if token is None else [token]
        mask = self._mask(trial)
        # Both brackets are allowed only within strings: elsewhere just one can close what is open.
        preference = self._in_string if self._brackets.allowed(mask).size == 2 else self._between
        return [int(token) for token in preference.allowed(mask)[:1]] or self._any(mask)

    def _mask(self, state: GrammarState) -> Mask:
        mask = np.zeros(self._tokens.num_words, dtype=np.uint32)
        state.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        _check(state)
        return mask

    def _any(self, mask: Mask) -> list[int]:
        """Returns the lowest allowed token that is not the end of sequence."""
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        return [int(token) for token in bits if int(token) not in self._tokens.eos_ids][:1]

    def _way_out(self, start: GrammarState, max_tokens: int, time_left: _TimeLeft) -> list[int] | None:
        """Finds tokens after which the word, or a string of a JSON text, may end, by a bounded breadth-first search."""
        beam: list[tuple[GrammarState, list[int], Mask]] = [(start.deep_copy(), [], self._mask(start))]
        num_expansions = 0
        seen: set[int] = set()
        while beam and num_expansions < MAX_EXPANSIONS:
            following: list[tuple[GrammarState, list[int], Mask]] = []
            again: list[tuple[GrammarState, list[int], Mask]] = []
            seen_now: set[int] = set()  # states of one length with the same mask count as one
            for state, path, mask in beam:
                for step in self._steps(state, mask):
                    if not time_left:
                        return None
                    num_expansions += 1
                    child = state.deep_copy()
                    if len(path) + len(step) > max_tokens or not _takes(child, step):
                        continue
                    if child.is_accepting():
                        return path + step
                    allowed = self._mask(child)
                    if self._json and self._leads_on(allowed):
                        return path + step
                    key = hash(allowed.tobytes())
                    if key not in seen_now:
                        seen_now.add(key)
                        (again if key in seen else following).append((child, path + step, allowed))
            seen |= seen_now
            beam = [*following, *again][:BEAM_WIDTH]
        return None

    def _leads_on(self, mask: Mask) -> bool:
        """Returns True if a string or a number of a JSON text can end where `mask` holds the allowed tokens."""
        if self._quotes.allowed(mask).size:
            return True
        return bool(self._ends.allowed(mask).size) and not self._text.allowed(mask).size

    def _steps(self, state: GrammarState, mask: Mask) -> list[list[int]]:
        forced = state.compute_ff_tokens()
        if forced:
            return [forced]
        tokens = [int(token) for token in self._content.allowed(mask)[:MAX_CHILDREN]] or self._any(mask)
        return [[token] for token in tokens]


def _takes(state: GrammarState, tokens: list[int]) -> bool:
    """Advances `state`; returns True if all `tokens` could be consumed."""
    if state.try_consume_tokens(tokens) == len(tokens):
        return True
    _check(state)
    return False


def _check(state: GrammarState) -> None:
    if is_broken(state):
        raise StepTooComplexError("finding a way to the end takes more work than one step may use")


class _TimeLeft:
    """True while a search may go on. Asking raises SearchLateError when `patience_s` is over.

    Without one, the search has a budget of this thread's processor time; where the machine does not give it that much
    in many times as long, asking raises BusyMachineError.
    """

    def __init__(self, patience_s: float | None) -> None:
        self._patient = patience_s is None
        self._end = time.monotonic() + (MOST_SEARCH_S if patience_s is None else patience_s)
        self._budget_end = time.thread_time() + SEARCH_TIME_S

    def __bool__(self) -> bool:
        if self._patient and time.thread_time() >= self._budget_end:
            return False
        if time.monotonic() < self._end:
            return True
        if self._patient:
            raise BusyMachineError("the machine is too busy to find a way to the end of the constraint")
        raise SearchLateError("the search for a way to the end takes longer")


class _Preference:
    """Tokens in order of preference, tested against a mask all at once."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens = np.array(list(dict.fromkeys(tokens)), dtype=np.int64)
        self._words = self._tokens >> 5
        self._bits = np.left_shift(np.uint32(1), (self._tokens & 31).astype(np.uint32))

    def allowed(self, mask: Mask) -> npt.NDArray[np.int64]:
        """Returns the tokens that `mask` allows, in order."""
        allowed: npt.NDArray[np.int64] = self._tokens[(mask[self._words] & self._bits) != 0]
        return allowed
