"""Size of the next step: tokens of prompts beside what decodes, by measured times; decode steps launched at once.

What passes take is learned here, once for all: drafts are priced by it, too (`speculation`). What the engine's thread
does beside them, though other threads could, has a `Patience`.
"""

from __future__ import annotations

import math
import time

from ..protocol.config import EngineConfig, SchedulerLimits
from ..scheduler.scheduler import Plan, Scheduler

MIN_TOKENS = 16
"""Tokens of prompts in each step, however long they take: every prompt comes to its end."""
FIRST_TOKENS = 64
"""Tokens of prompts beside what decodes, until a chunk of half the size has been measured."""
STEP_S = 0.1
"""Bound of a step beside which somebody waits for the next token, unless decoding alone takes a quarter of it."""
DECODE_STEPS = 4
"""Times as long as one that only decodes that a step may take in any case."""
ALONE_S = 1.0
"""Bound of a step with prompts beside which nobody waits: it is to be told from one that hangs."""
SHARED_S = 60.0
"""Time after several tenants were there at once in which another one's first token is expected to wait for a step."""
ALONE_TOKENS = 512
"""Tokens of prompts in such a step, until a chunk of half the size has been measured."""
_AIM = 0.9
"""Share of the bound that is aimed at: passes vary."""
_GROWTH = 2
"""Times the largest chunk measured that the next may have: a line is not followed far beyond what it rests on."""
_DECAY = 0.9
"""Part that a measurement has of the weight of the next one: machines change, and what runs beside."""
_ROW_DECAY = 0.995
"""The same for what a row costs, which shows only where passes of different sizes follow each other."""
_ROW_PRIOR = 50.0
"""Weight of what a row is thought to cost before that has shown: of so many passes that are a row apart."""
_OUTLIER = 3.0
"""Times what is expected that a measurement counts for at most; and the part of it that it counts for at least."""
FIXED_ROWS = 16.0
"""Rows that a pass costs beside its own, where that has not shown."""
_CONTEXT = 4096.0
"""Tokens of context that cost a token as much as all the rest, where that has not shown."""
_PASS_S = 1.0
"""Seconds that a pass is expected to take before one has been measured: on a slow machine, the first is the slowest."""
_TOKEN_S = 0.02
"""Seconds that a token of a prompt is expected to take before a chunk of half the size has been measured."""


class Patience:
    """Time for several pieces of work, all together."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 when none are."""
        return max(self._end - time.monotonic(), 0.0)


class Decoding:
    """Seconds of passes that only decode, as a line over their rows.

    Its level is that of the last passes; its slope, what a row costs, is seen in how many passes differed from those
    just before them, and rests on far more.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._rows = self._seconds = 0.0  # means
        self._spread = self._slope_seen = 0.0  # of the rows, and of the seconds along with them: sums

    def observe(self, num_rows: int, seconds: float) -> None:
        self.weight = self.weight * _DECAY + 1.0
        away, late = num_rows - self._rows, seconds - self._seconds
        self._rows += away / self.weight
        self._seconds += late / self.weight
        self._spread = self._spread * _ROW_DECAY + away * (num_rows - self._rows)
        self._slope_seen = self._slope_seen * _ROW_DECAY + away * (seconds - self._seconds)

    @property
    def row_s(self) -> float:
        """Seconds that a row costs; 0 while no pass has been seen."""
        if not self.weight:
            return 0.0
        expected = self._seconds / (FIXED_ROWS + self._rows)
        slope = (self._slope_seen + _ROW_PRIOR * expected) / (self._spread + _ROW_PRIOR)
        return min(max(slope, expected / 4), self._seconds / self._rows)

    def at(self, num_rows: int) -> float:
        """Seconds expected; 0 while no pass has been seen."""
        row_s = self.row_s
        return max(self._seconds + row_s * (num_rows - self._rows), row_s * num_rows)


class Line:
    """Seconds as u * a + v * b, neither u nor v negative, fitted to what was measured lately.

    Where that leaves open which of the two it was, u is `prior` times v.
    """

    def __init__(self, prior: float) -> None:
        self.u = self.v = self.weight = 0.0
        self._prior = prior
        self._aa = self._ab = self._bb = self._a = self._b = 0.0  # sums of products, those of _a and _b with seconds

    def at(self, a: float, b: float) -> float:
        """Seconds expected."""
        return self.u * a + self.v * b

    def observe(self, a: float, b: float, seconds: float, error_s: float) -> None:
        """Takes in that `a` and `b` took so many seconds, with an error whose variance grows with `error_s`."""
        decay, weight = _DECAY, 1.0 / max(error_s, 1e-9)
        self.weight = self.weight * decay + 1.0
        self._aa = self._aa * decay + weight * a * a
        self._ab = self._ab * decay + weight * a * b
        self._bb = self._bb * decay + weight * b * b
        self._a = self._a * decay + weight * a * seconds
        self._b = self._b * decay + weight * b * seconds
        self._solve()

    def _solve(self) -> None:
        pull, prior = 0.01 * self._aa, self._prior
        aa, ab, bb = self._aa + pull, self._ab - pull * prior, self._bb + pull * prior * prior
        determinant = aa * bb - ab * ab  # positive: the prior's direction is no multiple of one that was measured
        self.u = (self._a * bb - self._b * ab) / determinant
        self.v = (self._b * aa - self._a * ab) / determinant
        if self.u < 0.0:
            self.u, self.v = 0.0, self._b / self._bb
        elif self.v < 0.0:
            self.u, self.v = self._a / self._aa, 0.0


class PassTimes:
    """Seconds of a pass by its rows that decode, its tokens of prompts and their contexts, learned from those before.

    A pass of r rows, drafts included, and n tokens of prompts after c others takes f + r * d seconds, and
    n * t + n * (c + n / 2) * p beside. More takes no less. What decodes is learned from passes that do nothing else,
    the rest from how much longer others take. One measurement counts for a bounded factor of what was expected.
    """

    def __init__(self) -> None:
        self._decoding = Decoding()
        self._chunks = Line(_CONTEXT)
        self._largest = FIRST_TOKENS // _GROWTH

    def observe(self, num_rows: int, num_tokens: int, num_pairs: float, seconds: float) -> None:
        """Takes in a pass of `num_tokens` of prompts, which see `num_pairs` tokens in all, beside `num_rows`."""
        decode_s = self.decode_s(num_rows)
        if (self._chunks if num_tokens else self._decoding).weight > 3.0:  # before, it knows less than the measurement
            expected = decode_s + (self._chunks.at(num_tokens, num_pairs) if num_tokens else 0.0)
            seconds = min(max(seconds, expected / _OUTLIER), expected * _OUTLIER)
        if num_tokens:
            self._chunks.observe(num_tokens, num_pairs, max(seconds - decode_s, 0.02 * seconds), seconds)
            self._largest = max(self._largest, num_tokens)
        else:
            self._decoding.observe(num_rows, seconds)

    def decode_s(self, num_rows: int) -> float:
        """Seconds of a pass of rows that decode alone; 0 while none has been seen."""
        return self._decoding.at(num_rows)

    @property
    def row_s(self) -> float:
        """Seconds that a row more costs a pass that decodes; 0 while none has been seen."""
        return self._decoding.row_s

    def seconds(self, num_rows: int, num_tokens: int, num_pairs: float) -> float:
        """Seconds expected of a pass; a cautious guess where none like it has been measured."""
        seconds = self.decode_s(num_rows) if self._decoding.weight else _PASS_S
        if num_tokens > _GROWTH * self._largest or not self._chunks.weight:
            seconds += _TOKEN_S * num_tokens
        return seconds + self._chunks.at(num_tokens, num_pairs)

    def tokens_within(self, seconds: float, num_rows: int, context: int, first: int = FIRST_TOKENS) -> int:
        """Tokens of prompts after `context` others that fit beside the rows into `seconds`; not below 0.

        While no chunk has been measured, a token takes as long as a row; until one of half the size was, they are
        `first` at most.
        """
        room = max(seconds - self.decode_s(num_rows), 0.0)
        token_s = (self._chunks.u if self._chunks.weight else self._decoding.row_s) + self._chunks.v * context
        pair_s = self._chunks.v / 2
        most = max(_GROWTH * self._largest, first)
        if most * (token_s + pair_s * most) <= room:
            return most
        # The positive root of pair_s * n^2 + token_s * n = room, written so that nothing small is divided by.
        return int(2 * room / (token_s + math.sqrt(token_s * token_s + 4 * pair_s * room)))


class StepSize:
    """Rules for the size of an engine's next step. Times come as arguments.

    As long as somebody waits for the next token, or another tenant may come to wait for its first, prompts get as many
    tokens as keep the step within max_step_ms, else within ALONE_S if that is longer; and after memory ran out, for a
    while no more than half of those for which it did not suffice.
    """

    def __init__(self, config: EngineConfig, limits: SchedulerLimits) -> None:
        self._step_s = None if config.max_step_ms is None else config.max_step_ms / 1000
        self._limits = limits
        self.times = PassTimes()
        self.under_way_s = 0.0
        self._with_memory = limits.max_batch_tokens
        self._num_steps = 1
        self._read_at = -math.inf  # when the plans before were
        self._shared_until = -math.inf

    def prompt_tokens(self, scheduler: Scheduler, now: float) -> int:
        """Tokens of prompts at most in the next step of `scheduler`."""
        running = scheduler.running
        decoding = [sequence for sequence in running if sequence.num_uncomputed <= 1]
        contexts = [sequence.num_computed for sequence in running if sequence.num_uncomputed > 1]
        if not (contexts or scheduler.waiting.lines):
            return self._with_memory
        if scheduler.contested:
            self._shared_until = now + SHARED_S
        if now >= self._shared_until and all(sequence.score is not None for sequence in decoding):
            step_s, first = max(ALONE_S, self._step_s or 0.0), ALONE_TOKENS
        else:
            step_s = self._step_s or max(STEP_S, DECODE_STEPS * self.times.decode_s(len(decoding)))
            first = FIRST_TOKENS
        num_rows = sum(1 + len(sequence.drafts) for sequence in decoding)
        fitting = self.times.tokens_within(_AIM * step_s, num_rows, max(contexts, default=0), first)
        return min(max(fitting, MIN_TOKENS), self._with_memory)

    def num_steps(self, most: int, *, anybody_waits: bool, found_idle: bool) -> int:
        """Decode steps to launch at once: more while the device is found idle, one while somebody is to be admitted."""
        if anybody_waits:
            self._num_steps = 1
        elif found_idle:
            self._num_steps = min(2 * self._num_steps, most)
        return self._num_steps

    def expected_s(self, plans: list[Plan]) -> float:
        """Seconds that plans of the same sequences are expected to take, each after the one before."""
        return len(plans) * self.times.seconds(*_size(plans[0]))

    def observe(self, plans: list[Plan], launched_at: float, read_at: float) -> None:
        """Learns from plans of the same sequences that were launched at once, each in the place of the one before."""
        seconds = (read_at - max(launched_at, self._read_at)) / len(plans)
        self._read_at = read_at
        self.times.observe(*_size(plans[0]), seconds)
        if self._with_memory < self._limits.max_batch_tokens:
            self._with_memory = min(self._with_memory + self._with_memory // 8 + 1, self._limits.max_batch_tokens)

    def shrink(self, num_tokens: int) -> None:
        """There was no memory for a pass of so many tokens."""
        self._with_memory = max(min(self._with_memory, num_tokens // 2), MIN_TOKENS)


def _size(plan: Plan) -> tuple[int, int, float]:
    """Rows that decode, tokens of prompts, and the tokens that those see, all of them together."""
    num_tokens = num_rows = plan.num_tokens
    num_pairs = 0.0
    if num_tokens != len(plan.work):
        chunks = [work for work in plan.work if work.num_prompt_tokens]
        num_rows -= sum(work.num_tokens for work in chunks)
        num_pairs = sum(work.num_tokens * (work.start + work.stop) / 2 for work in chunks)
    return num_rows, num_tokens - num_rows, num_pairs
