"""Size of the next step: prompt tokens computed beside decoding rows, by measured times; decode steps per launch.

Pass times are learned here for the whole engine: the cost of drafts follows from them too (`speculation`). A
`Patience` bounds the work that the engine's thread does between passes although other threads could do it.
"""

from __future__ import annotations

import math
import time

from ..protocol.config import EngineConfig, SchedulerLimits
from ..scheduler.scheduler import Plan, Scheduler

MIN_TOKENS = 16
"""Minimum of prompt tokens per step, however long they take, so that every prompt completes."""
FIRST_TOKENS = 64
"""Prompt tokens beside decoding rows until a chunk of half that size has been measured."""
STEP_S = 0.1
"""Time limit of a step while a client waits for its next token, unless decoding alone takes a quarter of it."""
DECODE_STEPS = 4
"""Length that a step may always have, in multiples of a step that only decodes."""
ALONE_S = 1.0
"""Time limit of a step with prompts while no client waits for a token, so that it can be told from a hang."""
SHARED_S = 60.0
"""Time after tenants last competed during which another tenant's first token is expected to wait for a step."""
ALONE_TOKENS = 512
"""Prompt tokens in such a step until a chunk of half that size has been measured."""
_AIM = 0.9
"""Fraction of the limit to aim for, since pass times vary."""
_GROWTH = 2
"""Most growth of a chunk over the largest one measured: a line is not extrapolated far beyond its data."""
_DECAY = 0.9
"""Weight of a measurement relative to the next one: machines and their load change."""
_ROW_DECAY = 0.995
"""The same for the cost of a row, which shows only where passes of different sizes follow each other."""
_ROW_PRIOR = 50.0
"""Weight of the prior for the cost of a row, in passes that differ by one row."""
_OUTLIER = 3.0
"""Factor of the expected time, up or down, at which measurements are clipped."""
FIXED_ROWS = 16.0
"""Prior for the fixed cost of a pass, in rows."""
_CONTEXT = 4096.0
"""Prior for the length of context at which attention costs a token as much as everything else."""
_PASS_S = 1.0
"""Expected time of a pass before one has been measured: on a slow machine, the first is the slowest."""
_TOKEN_S = 0.02
"""Expected time of a prompt token before a chunk of half the size has been measured."""


class Patience:
    """Time budget shared by several pieces of work."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left, at least 0."""
        return max(self._end - time.monotonic(), 0.0)


class Decoding:
    """Time in seconds of passes that only decode, as a linear function of their rows.

    The level follows the last few passes. The slope, the cost of a row, is fitted to the differences between successive
    passes, over many more of them.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._rows = self._seconds = 0.0  # means
        self._spread = self._slope_seen = 0.0  # sums of deviations: rows squared, rows times seconds

    def observe(self, num_rows: int, seconds: float) -> None:
        self.weight = self.weight * _DECAY + 1.0
        away, late = num_rows - self._rows, seconds - self._seconds
        self._rows += away / self.weight
        self._seconds += late / self.weight
        self._spread = self._spread * _ROW_DECAY + away * (num_rows - self._rows)
        self._slope_seen = self._slope_seen * _ROW_DECAY + away * (seconds - self._seconds)

    @property
    def row_s(self) -> float:
        """Cost of a row in seconds; 0 before the first pass."""
        if not self.weight:
            return 0.0
        expected = self._seconds / (FIXED_ROWS + self._rows)
        slope = (self._slope_seen + _ROW_PRIOR * expected) / (self._spread + _ROW_PRIOR)
        return min(max(slope, expected / 4), self._seconds / self._rows)

    def at(self, num_rows: int) -> float:
        """Returns the expected seconds; 0 before the first pass."""
        row_s = self.row_s
        return max(self._seconds + row_s * (num_rows - self._rows), row_s * num_rows)


class Line:
    """Model of a time in seconds as u * a + v * b, with u and v not negative, fitted to recent measurements.

    Where these do not separate u from v, u is `prior` times v.
    """

    def __init__(self, prior: float) -> None:
        self.u = self.v = self.weight = 0.0
        self._prior = prior
        self._aa = self._ab = self._bb = self._a = self._b = 0.0  # sums of products, _a and _b with seconds

    def at(self, a: float, b: float) -> float:
        """Returns the expected seconds."""
        return self.u * a + self.v * b

    def observe(self, a: float, b: float, seconds: float, error_s: float) -> None:
        """Records that `a` and `b` took `seconds`, with an error whose variance grows with `error_s`."""
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
        determinant = aa * bb - ab * ab  # positive: the prior's direction is never parallel to a measured one
        self.u = (self._a * bb - self._b * ab) / determinant
        self.v = (self._b * aa - self._a * ab) / determinant
        if self.u < 0.0:
            self.u, self.v = 0.0, self._b / self._bb
        elif self.v < 0.0:
            self.u, self.v = self._a / self._aa, 0.0


class PassTimes:
    """Model of pass times by decoding rows, prompt tokens and their contexts, learned from previous passes.

    A pass of r rows, drafts included, and n prompt tokens after c others takes f + r * d seconds for decoding plus
    n * t + n * (c + n / 2) * p for the prompt. No coefficient is negative. The decoding part is learned from passes
    that only decode, the rest from the additional time of others. Measurements are clipped to a factor of the expected
    time.
    """

    def __init__(self) -> None:
        self._decoding = Decoding()
        self._chunks = Line(_CONTEXT)
        self._largest = FIRST_TOKENS // _GROWTH

    def observe(self, num_rows: int, num_tokens: int, num_pairs: float, seconds: float) -> None:
        """Records a pass of `num_rows` decoding rows and `num_tokens` prompt tokens, which attend to `num_pairs`."""
        decode_s = self.decode_s(num_rows)
        if (self._chunks if num_tokens else self._decoding).weight > 3.0:  # before, the measurement knows more
            expected = decode_s + (self._chunks.at(num_tokens, num_pairs) if num_tokens else 0.0)
            seconds = min(max(seconds, expected / _OUTLIER), expected * _OUTLIER)
        if num_tokens:
            self._chunks.observe(num_tokens, num_pairs, max(seconds - decode_s, 0.02 * seconds), seconds)
            self._largest = max(self._largest, num_tokens)
        else:
            self._decoding.observe(num_rows, seconds)

    def decode_s(self, num_rows: int) -> float:
        """Returns the expected seconds of a pass that only decodes; 0 before the first one."""
        return self._decoding.at(num_rows)

    @property
    def row_s(self) -> float:
        """Cost of another decoding row in seconds; 0 before the first pass that only decodes."""
        return self._decoding.row_s

    def seconds(self, num_rows: int, num_tokens: int, num_pairs: float) -> float:
        """Returns the expected seconds of a pass; a cautious guess if no similar one has been measured."""
        seconds = self.decode_s(num_rows) if self._decoding.weight else _PASS_S
        if num_tokens > _GROWTH * self._largest or not self._chunks.weight:
            seconds += _TOKEN_S * num_tokens
        return seconds + self._chunks.at(num_tokens, num_pairs)

    def tokens_within(self, seconds: float, num_rows: int, context: int, first: int = FIRST_TOKENS) -> int:
        """Returns how many prompt tokens after `context` others fit into `seconds` beside the rows, at least 0.

        Before the first measured chunk a token is taken to cost as much as a row. Returns at most `first` until a chunk
        of half that size has been measured.
        """
        room = max(seconds - self.decode_s(num_rows), 0.0)
        token_s = (self._chunks.u if self._chunks.weight else self._decoding.row_s) + self._chunks.v * context
        pair_s = self._chunks.v / 2
        most = max(_GROWTH * self._largest, first)
        if most * (token_s + pair_s * most) <= room:
            return most
        # The positive root of pair_s * n^2 + token_s * n = room, in the form that never divides by a small number.
        return int(2 * room / (token_s + math.sqrt(token_s * token_s + 4 * pair_s * room)))


class StepSize:
    """Decides the size of an engine's next step. Reads no clock: times are arguments.

    While a client waits for its next token, or another tenant may come to wait for its first, prompts get as many
    tokens as keep the step within max_step_ms; otherwise within ALONE_S if that is longer. After a pass ran out of
    memory, the limit is half its size at first and then grows again.
    """

    def __init__(self, config: EngineConfig, limits: SchedulerLimits) -> None:
        self._step_s = None if config.max_step_ms is None else config.max_step_ms / 1000
        self._limits = limits
        self.times = PassTimes()
        self.under_way_s = 0.0
        self._with_memory = limits.max_batch_tokens
        self._num_steps = 1
        self._read_at = -math.inf  # time at which the previous plans were read
        self._shared_until = -math.inf

    def prompt_tokens(self, scheduler: Scheduler, now: float) -> int:
        """Returns the most prompt tokens for the next step of `scheduler`."""
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
        """Returns how many decode steps to launch at once: one while requests wait, more while the device is idle."""
        if anybody_waits:
            self._num_steps = 1
        elif found_idle:
            self._num_steps = min(2 * self._num_steps, most)
        return self._num_steps

    def expected_s(self, plans: list[Plan]) -> float:
        """Returns the expected seconds of plans of the same sequences that run one after another."""
        return len(plans) * self.times.seconds(*_size(plans[0]))

    def observe(self, plans: list[Plan], launched_at: float, read_at: float) -> None:
        """Learns from plans of the same sequences that were launched at once and ran one after another."""
        seconds = (read_at - max(launched_at, self._read_at)) / len(plans)
        self._read_at = read_at
        self.times.observe(*_size(plans[0]), seconds)
        if self._with_memory < self._limits.max_batch_tokens:
            self._with_memory = min(self._with_memory + self._with_memory // 8 + 1, self._limits.max_batch_tokens)

    def shrink(self, num_tokens: int) -> None:
        """Lowers the limit after a pass of `num_tokens` ran out of memory."""
        self._with_memory = max(min(self._with_memory, num_tokens // 2), MIN_TOKENS)


def _size(plan: Plan) -> tuple[int, int, float]:
    """Returns the decoding rows, the prompt tokens, and the sum of the tokens that those attend to."""
    num_tokens = num_rows = plan.num_tokens
    num_pairs = 0.0
    if num_tokens != len(plan.work):
        chunks = [work for work in plan.work if work.num_prompt_tokens]
        num_rows -= sum(work.num_tokens for work in chunks)
        num_pairs = sum(work.num_tokens * (work.start + work.stop) / 2 for work in chunks)
    return num_rows, num_tokens - num_rows, num_pairs
