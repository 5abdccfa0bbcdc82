"""Drafts of each step: tokens that grammars force, and speculation where its chance to be right outweighs a row's cost.

Speculation proposes what followed earlier occurrences of a sequence's last tokens (prompt lookup), and what answers
under the same JSON constraint have in common, their skeleton.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...constrain import Matcher, MatcherError
from ...constrain.spec import JsonSchema
from ..protocol.config import EngineConfig
from ..protocol.counters import Counters
from ..protocol.request import Request
from ..runner.runner import PassRunner
from ..scheduler.scheduler import Advance, Plan, Scheduler, Work
from .generation import Generation
from .step_size import FIXED_ROWS, PassTimes, Patience

logger = logging.getLogger("bough.engine")

MIN_DEVICE_DRAFTS = 8
"""Fewest forced tokens that are worth a pass which the device cannot draw by itself."""
SIZES = (6, 3)
"""Lengths of the runs of tokens that are looked up, the longest first."""
DRAFT_PATIENCE_S = 0.002
"""Time per step to wait for lexers that other threads use; sequences whose lexer is late get no drafts."""
MAX_DRAFTS = 32
"""Most drafts of a sequence in one pass, forced and speculated."""
MAX_TOKENS = 16_384
"""Most tokens of a sequence that are indexed. An entry takes some 150 bytes per size, little beside keys and values."""
MAX_SPECULATED = 16
"""Most speculated drafts of a sequence in one pass."""
_MARGIN = 1.3
"""Factor by which a draft's expected gain must exceed its row's cost: lookups and wrong estimates cost as well."""
_CHANCES = dict(zip(SIZES, (0.8, 0.3), strict=True))
"""Initial chances by length of the matching run. A sequence begins with at least half of these."""
_BEST_CHANCE = 0.97
_SHARED = 0
"""Stands for a run's length where a draft comes from the skeleton of answers under the same constraint."""
_LOOKUPS = 64
"""Most tokens indexed per token still to be generated: indexing a long prompt does not pay for a short answer."""

TAIL = 16
"""Bytes of the skeleton that identify a place: a key and its surroundings."""
MAX_CONTENT = 16
"""Bytes of a value that identify a place within it; longer values are not tracked."""
MAX_DEPTH = 16
"""Number of open containers, the innermost ones, that identify a place."""
MAX_LINKS = 8192
"""Most links of one constraint. A link and its target take some 700 bytes."""
MAX_CONSTRAINTS = 16
MAX_STREAK = 31
STREAK_CHANCES = (0.0, 0.4, 0.65, 0.8, 0.9, 0.96)
"""Initial chances by the streak's number of bits."""

_VALUE, _AFTER_VALUE, _KEY, _SCALAR, _IN_STRING, _IN_KEY, _ESCAPE, _KEY_ESCAPE = range(8)
_ESCAPED: Final = {_IN_STRING: _ESCAPE, _IN_KEY: _KEY_ESCAPE}
_UNESCAPED: Final = {escape: string for string, escape in _ESCAPED.items()}
_DECAY = 0.02
_BITS = tuple(streak.bit_length() for streak in range(MAX_STREAK + 1))

Shape = tuple[int, int, bytes, bytes | None]
"""State of a JSON text: lexical mode, open containers (after a leading 1 a bit each, 1 for an object), last bytes of
the skeleton, and the bytes of the current value so far (None: too many). The skeleton is the text without the contents
of values: keys, quotation marks, brackets, commas, colons and whitespace. All digits of a value count as the same."""


class DraftStage:
    """Proposes drafts for the sequences of a scheduler. `times` gives the cost of a row; `texts` are the tokens' bytes.

    Drafts change how many tokens a pass yields, never which ones.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: PassRunner,
        scheduler: Scheduler,
        counters: Counters,
        times: PassTimes,
        texts: Sequence[bytes | None],
    ) -> None:
        self.skeletons = Skeletons(texts)
        self._scheduler = scheduler
        self._jumps = config.jump_forward
        self._speculates = config.speculation == "auto" and runner.exact and not runner.overlaps
        self._draws_ahead = runner.max_steps > 1
        self._worth, self._experience = Worth(times), Experience(counters)
        self._speculations: dict[Generation, Speculation] = {}

    def begin(self, generation: Generation) -> None:
        """Starts speculation for `generation`, if it is enabled; until `drop`."""
        if self._speculates:
            place = self.skeletons.start(generation.request)
            self._speculations[generation] = Speculation(self._experience, place)

    def drop(self, generation: Generation) -> None:
        """Forgets a generation that has ended."""
        self._speculations.pop(generation, None)

    def settle(self, generation: Generation, work: Work, num_right: int | None, tokens: Sequence[int]) -> None:
        """Records that `work` yielded `tokens`; `num_right` of its rows had a valid mask (None: no grammar)."""
        speculation = self._speculations.get(generation)
        if speculation is not None and tokens:
            speculation.settle(work.drafts if num_right is None else work.drafts[: num_right - 1], tokens)
            generation.speculated = ()

    def observe(self, plan: Plan, advances: Sequence[Advance], seconds: float) -> None:
        """Learns the yield of passes from one that was read `seconds` after its launch began."""
        if self._speculates and all(work.samples and work.num_tokens == 1 + len(work.drafts) for work in plan.work):
            self._worth.observe(sum(len(advance.tokens) for advance in advances), seconds)

    def propose(self, plan: Plan, generations: Sequence[Generation]) -> None:
        """Proposes drafts of the next step for the sequences of `plan`, which has been read."""
        price = self._worth.price(len(self._scheduler.running)) if self._speculates else 1.0
        patience = Patience(DRAFT_PATIENCE_S)
        for work, generation in zip(plan.work, generations, strict=True):
            if work.samples and work.live and not work.sequence.blocked:
                self._scheduler.propose(work.sequence, self._drafts(generation, price, patience))

    def _drafts(self, generation: Generation, price: float, patience: Patience) -> list[int]:
        """Returns forced tokens, then speculative drafts whose chance of being right is at least `price`."""
        sequence, matcher = generation.sequence, generation.matcher
        num_pending = sequence.num_pending
        room = generation.num_left - num_pending - 1
        if room <= num_pending or not generation.takes_drafts:
            return []
        try:
            drafts = self._forced(generation, min(room, MAX_DRAFTS), patience) if self._jumps else []
            speculation = self._speculations.get(generation)
            if speculation is not None and num_pending == 0:
                ends, jumps = generation.terms.ends, self._jumps
                speculation.extend(
                    drafts, sequence.tokens, matcher, price=price, room=room, ends=ends, jumps=jumps, patience=patience
                )
                generation.speculated = speculation.speculated
            return drafts
        except Exception:  # drafts are optional
            logger.exception("what may follow in request %s is not known", generation.request.id)
            return []

    def _forced(self, generation: Generation, room: int, patience: Patience) -> list[int]:
        """Returns at most `room` tokens that the grammar forces next; none if they are too few to gain anything.

        If a token is in flight, the forced tokens begin with it and the drafts follow it. As the step after one with
        drafts cannot be planned ahead, a single draft then gains nothing.
        """
        if generation.matcher is None:
            return []
        num_pending = generation.sequence.num_pending
        at_least = MIN_DEVICE_DRAFTS if self._draws_ahead and generation.table_matcher is not None else 1
        forced = generation.matcher.forced_tokens(patience.left_s)[num_pending:][:room]
        return forced if len(forced) > num_pending and len(forced) >= at_least else []


@dataclass(slots=True)
class Repeats:
    """Index of the last occurrence of each run of `SIZES` tokens in one sequence, which only grows.

    The amortised cost per token is constant: one entry per size, and when there are more than `max_tokens` entries, the
    later half is indexed again. `num_known` tokens are indexed.
    """

    max_tokens: int = MAX_TOKENS
    _after: tuple[dict[int, int], ...] = field(default_factory=lambda: tuple({} for _ in SIZES))
    _first: int = 0
    num_known: int = 0

    def find(self, tokens: Sequence[int], more: Sequence[int] = ()) -> tuple[int, int] | None:
        """Finds the latest earlier occurrence of the last tokens of `tokens` + `more`.

        Returns the position in `tokens` that follows it, and the length of the run; None if there is no occurrence.
        `tokens` must begin with those of the last call.
        """
        self._learn(tokens)
        last = [*tokens[-SIZES[0] :], *more]
        for size, after in zip(SIZES, self._after, strict=True):
            run = last[-size:]
            position = after.get(hash(tuple(run)))
            if position is not None and list(tokens[position - size : position]) == run:
                return position, size
        return None

    def _learn(self, tokens: Sequence[int]) -> None:
        """Indexes the runs that are followed by a token by now."""
        count = len(tokens)
        if count - self._first > self.max_tokens:
            self._first = self.num_known = count - self.max_tokens // 2
            for after in self._after:
                after.clear()
        for size, after in zip(SIZES, self._after, strict=True):
            # Runs that end before position `stop` and had no following token at the last call.
            start = max(self.num_known, self._first + size)
            if count - start == 1:
                after[hash(tuple(tokens[start - size : start]))] = start
            elif count > start:
                known = tokens[start - size : count - 1]
                runs = zip(*(known[offset:] for offset in range(size)), strict=False)
                after.update(zip(map(hash, runs), range(start, count), strict=True))
        self.num_known = max(count, self.num_known)


class Worth:
    """Computes the chance at which a draft is worth its row: what the row's time, by `times`, yields otherwise.

    It affects only how many rows are computed, never what is drawn.
    """

    def __init__(self, times: PassTimes) -> None:
        self._times = times
        self._tokens = self._seconds = 0.0  # of the last passes

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Records a pass that only decoded and yielded `num_tokens`."""
        self._tokens = 0.8 * self._tokens + num_tokens
        self._seconds = 0.8 * self._seconds + seconds

    def price(self, num_sequences: int) -> float:
        """Returns the least worthwhile chance for a pass of `num_sequences`."""
        rows, row_s = max(num_sequences, 1), self._times.row_s
        if row_s <= 0.0:
            return _MARGIN * rows / (FIXED_ROWS + rows)
        rate = self._tokens / self._seconds if self._seconds > 0.0 else 0.0
        return _MARGIN * row_s * max(rows / self._times.decode_s(rows), rate)


class Experience:
    """Recent hit rate of speculative drafts over all sequences, and counters of drafts and hits."""

    def __init__(self, counters: Counters) -> None:
        self.chances = dict(_CHANCES)
        self._counters = counters

    def add(self, size: int, right: bool, tried: bool) -> None:
        """Counts a draft. It was not `tried` if one before it was wrong."""
        self._counters.guessed_tokens += 1
        self._counters.right_guesses += right
        if tried and size != _SHARED:  # skeletons track their own hit rate
            self.chances[size] = max(0.98 * self.chances[size] + 0.02 * right, _CHANCES[size] / 2)


class Speculation:
    """Speculative drafts of one sequence.

    They are the continuations of other answers under its constraint at its `place` in their skeleton, and what followed
    the latest earlier occurrence of its last tokens (prompt lookup).
    """

    def __init__(self, experience: Experience, place: Place | None = None) -> None:
        self.speculated: dict[int, int] = {}
        """Offsets of the speculative drafts among those in flight, each with the length of the run that matched."""
        self._experience = experience
        self._place = place
        self._repeats = Repeats()
        self._right = dict.fromkeys(SIZES, 0.0)
        self._tried = dict.fromkeys(SIZES, 0.0)

    def extend(
        self,
        drafts: list[int],
        tokens: Sequence[int],
        matcher: Matcher | None,
        *,
        price: float,
        room: int,
        ends: Collection[int],
        jumps: bool,
        patience: Patience,
    ) -> None:
        """Extends `drafts`, which follow `tokens`, to at most `room`: one more token may be drawn. Adds none of `ends`.

        `matcher` must allow each one and is not changed; with `jumps`, the tokens that it forces after a draft are
        appended too. All must be right with a chance of at least `price`. Drafts that would have to wait longer than
        `patience` are left out.
        """
        self.speculated = {}
        looks = price <= max(map(self._chance, SIZES)) and len(tokens) - self._repeats.num_known <= _LOOKUPS * room
        if not looks:
            self._forget(0.99)
        place, found = _follow(self._place, drafts), None
        chance, trial = 1.0, None
        room = min(room, MAX_DRAFTS)
        while len(drafts) < room and len(self.speculated) < MAX_SPECULATED:
            if place is not None and chance * place.chance >= price:
                token, size, found = place.token, _SHARED, None
                chance *= place.chance
            else:
                found = (found or self._repeats.find(tokens, drafts)) if looks else None
                if found is None:
                    return
                position, size = found
                chance *= self._chance(size)
                if chance < price:
                    if not self.speculated:
                        self._forget(0.99)
                    return
                token = tokens[position] if position < len(tokens) else drafts[position - len(tokens)]
                found = position + 1, size
            if token in ends:
                return
            try:
                if matcher is not None:
                    trial = _after(matcher, drafts, patience) if trial is None else trial
                    trial.accept(token, patience_s=patience.left_s)
                    if matcher.free and not trial.free:
                        return  # no masks are computed for this pass
                self.speculated[len(drafts)] = size
                drafts.append(token)
                place = _follow(place, (token,))
                if trial is not None and jumps:
                    forced = trial.forced_tokens(patience.left_s)[: room - len(drafts)]
                    if forced:
                        trial, found = None, None
                        drafts += forced
                        place = _follow(place, forced)
            except MatcherError:
                return

    def settle(self, drafts: Sequence[int], tokens: Sequence[int]) -> None:
        """Records the outcome of verifying `drafts`: `tokens` are those that were right, and at most one more."""
        for offset, size in self.speculated.items():
            if offset < len(drafts):
                tried = offset < len(tokens)
                right = tried and tokens[offset] == drafts[offset]
                self._experience.add(size, right, tried)
                if tried and size != _SHARED:
                    self._right[size] = 0.9 * self._right[size] + right
                    self._tried[size] = 0.9 * self._tried[size] + 1.0
        self.speculated = {}
        if self._place is not None:
            self._place = self._place.teach(tokens)

    def _chance(self, size: int) -> float:
        return min((self._right[size] + self._experience.chances[size]) / (self._tried[size] + 1.0), _BEST_CHANCE)

    def _forget(self, share: float) -> None:
        """Decays the record of past drafts, so that those that failed are tried again in time."""
        for size in SIZES:
            self._right[size] *= share
            self._tried[size] *= share


def _follow(place: Place | None, tokens: Sequence[int]) -> Place | None:
    for token in tokens:
        place = place and place.follow(token)
    return place


def _after(matcher: Matcher, drafts: Sequence[int], patience: Patience) -> Matcher:
    """Returns a matcher after `drafts`. Raises MatcherError if they are not allowed or `patience` does not suffice."""
    trial = matcher.copy()
    for draft in drafts:
        trial.accept(draft, patience_s=patience.left_s)
    return trial


class Place:
    """Node of a skeleton: the token that last followed texts of one shape, its streak, and the node after a token."""

    __slots__ = ("_after", "_known", "_shape", "_skeleton", "streak", "token")

    def __init__(self, shape: Shape, skeleton: Skeleton) -> None:
        self.token = -1
        self.streak = 0
        self._shape = shape
        self._skeleton = skeleton
        self._known = shape[3] is not None
        self._after: dict[int, Place] = {}

    @property
    def chance(self) -> float:
        """Chance that `token` comes next, by its frequency after such a streak; 0.0 if none has been seen."""
        return self._skeleton.chances[_BITS[self.streak]]

    def follow(self, token: int) -> Place:
        """Returns the place after `token`."""
        return self._after.get(token) or self._link(token)

    def teach(self, tokens: Iterable[int]) -> Place:
        """Learns that an answer continued from here with `tokens`; returns the place after them.

        Any tokens are accepted, since they affect only drafts.
        """
        place, chances = self, self._skeleton.chances
        for token in tokens:
            if place._known:
                bits, right = _BITS[place.streak], token == place.token
                if bits:
                    chances[bits] += _DECAY * (right - chances[bits])
                if right:
                    place.streak = min(place.streak + 1, MAX_STREAK)
                else:
                    place.streak >>= 2  # a long streak is not forgotten at once
                    if not place.streak:
                        place.token, place.streak = token, 1
            place = place._after.get(token) or place._link(token)
        return place

    def forget(self) -> None:
        """Drops the links to the places after this one."""
        self._after.clear()

    def _link(self, token: int) -> Place:
        skeleton = self._skeleton
        text = skeleton.texts[token] if 0 <= token < len(skeleton.texts) else None
        shape = _advance(self._shape, text) if text else self._shape
        if shape == self._shape:  # no link: this is most of a long value
            return self
        following = self._after[token] = skeleton.linked(shape)
        return following


class Skeleton:
    """All places that answers under one constraint have passed. `texts` are the bytes of the tokens."""

    def __init__(self, texts: Sequence[bytes | None], max_links: int = MAX_LINKS) -> None:
        self.texts = texts
        self.chances = list(STREAK_CHANCES)
        """Frequencies with which the last token came again, by the number of bits of its streak."""
        self._max_links = max_links
        self._num_links = 0
        self._places: dict[Shape, Place] = {}

    @property
    def start(self) -> Place:
        """The place at which an answer begins."""
        return self.linked((_VALUE, 1, b"", b""))

    def linked(self, shape: Shape) -> Place:
        """Returns the place of this shape and counts another link to it."""
        if self._num_links >= self._max_links:
            self._sweep()
        self._num_links += 1
        place = self._places.get(shape)
        if place is None:
            place = self._places[shape] = Place(shape, self)
        return place

    def _sweep(self) -> None:
        """Drops all links, and the places where no token has come twice in a row; all places if too many are left."""
        for place in self._places.values():
            place.forget()
        often = {shape: place for shape, place in self._places.items() if place.streak > 1}
        self._places = often if 2 * len(often) <= self._max_links else {}
        self._num_links = len(self._places)


class Skeletons:
    """Skeletons of the most recently used constraints. Like prefixes, they are shared within a namespace."""

    def __init__(self, texts: Sequence[bytes | None]) -> None:
        self._texts = texts
        self._of: OrderedDict[tuple[str, JsonSchema], Skeleton] = OrderedDict()

    def start(self, request: Request) -> Place | None:
        """Returns the place at which the answer to `request` begins; None if it has no JSON schema."""
        if not isinstance(request.grammar, JsonSchema):
            return None
        key = request.namespace, request.grammar
        skeleton = self._of.pop(key, None) or Skeleton(self._texts)
        self._of[key] = skeleton
        if len(self._of) > MAX_CONSTRAINTS:
            self._of.popitem(last=False)
        return skeleton.start


def _advance(shape: Shape, text: bytes) -> Shape:
    """Returns the shape after `text`, which may be any bytes."""
    mode, stack, tail_before, content = shape
    if mode == _IN_STRING and content is None and b'"' not in text and b"\\" not in text:
        return shape
    tail, value, lost = bytearray(tail_before), bytearray(content or b""), content is None
    for byte in text:
        sign = chr(byte)
        if mode in _UNESCAPED or (mode in _ESCAPED and sign != '"'):
            (tail if mode in (_IN_KEY, _KEY_ESCAPE) else value).append(byte)
            mode = _UNESCAPED[mode] if mode in _UNESCAPED else _ESCAPED[mode] if sign == "\\" else mode
            continue
        if sign not in '"{}[],: \t\r\n':
            mode = _SCALAR
            value.append(0x30 if sign.isdecimal() else byte)
            continue
        tail.append(byte)
        if sign == '"':
            mode = _AFTER_VALUE if mode in _ESCAPED else _IN_KEY if mode == _KEY else _IN_STRING
        elif sign in "{[":
            stack = (stack << 1 | (sign == "{")) & ((2 << MAX_DEPTH) - 1) | 1 << min(stack.bit_length(), MAX_DEPTH)
            mode = _KEY if sign == "{" else _VALUE
        elif sign in "}]":
            stack, mode = max(stack >> 1, 1), _AFTER_VALUE
        elif sign in ",:":
            mode = _KEY if sign == "," and stack > 1 and stack & 1 else _VALUE
        else:
            continue
        value.clear()
        lost = False
    return mode, stack, bytes(tail[-TAIL:]), None if lost or len(value) > MAX_CONTENT else bytes(value)
