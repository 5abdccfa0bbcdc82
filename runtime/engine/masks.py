"""Grammar masks of a step, filled on threads while the forward pass runs.

A sequence is deferred, and sits steps out, if its mask is late (`MaskStage.finish`, or `abandon` after a pass that
failed), or if only a search tells whether its drawn token still leads to an end (`defer_undecided`). Where a tenant has
too many late masks, slower threads fill its others (`start`). All that may delay a constrained sequence is listed in
the package's docstring, `runtime/engine/__init__.py`.

Where no thread can be started, those that there are fill all masks; where there is none, what has not begun ends its
generation by a `NoThreadError`: the engine's own thread has no time for what may take long.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from ...constrain import Matcher, MatcherError
from ...constrain.errors import NoThreadError
from ...constrain.workers.turns import FairThreads
from ..scheduler.scheduler import Scheduler, Work
from .generation import Foresee, Generation

logger = logging.getLogger("bough.engine")

Rows = npt.NDArray[np.int32]

MAX_STUCK = 16
"""Threads beside the usual ones that may be busy with masks that are late."""
NUM_SLOW = 2
"""Threads for what is known to be slow; tenants take turns."""
LATE_MASK_SLEEP_S = 0.0005
"""Between two looks at deferred masks, while there is nothing else to do."""


@dataclass(eq=False, slots=True)
class MaskJob:
    """One sequence's masks: the next position, and one more after each of its drafts.

    first    the first of its rows among those of the step
    rows     where they are written, int32 [1 + drafts, W]
    right    how many of them are right, once it is known: fewer if the grammar does not allow a draft, none if it
             cannot go on
    error    why it cannot, in that case
    before   what is to be done first
    tenant   on whose behalf
    """

    matcher: Matcher
    drafts: Sequence[int] = ()
    rows: Rows | None = None
    right: int | None = None
    first: int = 0
    before: Callable[[], None] | None = None
    tenant: str = ""
    error: MatcherError = field(default_factory=partial(MatcherError, "the grammar allows no further token"))

    def run(self) -> None:
        """Fills the rows."""
        assert self.rows is not None
        right = 0
        try:
            if self.before is not None:
                self.before()
            right = self.matcher.fill_along(self.drafts, self.rows)
        except MatcherError as error:
            self.error = error
        except BaseException:  # a panic of native code is no Exception, and somebody waits here too
            logger.exception("a grammar mask could not be filled")
        self.right = right


@dataclass(eq=False)
class Filling:
    """The masks of one step, under way.

    rows    of all jobs, one after the other, int32 [sum(1 + drafts), W]
    most    of a tenant's jobs are begun while as many of them run; None: there is no limit
    """

    jobs: list[MaskJob]
    rows: Rows
    most: int | None = None
    _queue: deque[MaskJob] = field(default_factory=deque)
    _elsewhere: list[MaskJob] = field(default_factory=list)  # begun in another step, in which they were late
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _running: Counter[str] = field(default_factory=Counter)
    _num_left: int = 0

    def __post_init__(self) -> None:
        first = 0
        for job in self.jobs:
            rows = self.rows[first : first + 1 + len(job.drafts)]
            job.first = first
            first += len(rows)
            if job.rows is None:
                job.rows = rows
                self._queue.append(job)
            else:
                self._elsewhere.append(job)
        self._num_left = len(self._queue)

    def work(self) -> None:
        """Does jobs until none is left that may be begun."""
        while (job := self._next()) is not None:
            job.run()
            with self._changed:
                self._num_left -= 1
                self._running[job.tenant] -= 1
                self._changed.notify_all()

    def _next(self) -> MaskJob | None:
        with self._changed:
            for job in self._queue:
                if self.most is None or self._running[job.tenant] < self.most:
                    self._queue.remove(job)
                    self._running[job.tenant] += 1
                    return job
            return None

    def take_waiting(self) -> list[MaskJob]:
        """Takes the jobs that no thread has begun, to have them done elsewhere."""
        with self._changed:
            waiting = list(self._queue)
            self._queue.clear()
            return waiting

    def wait(self, timeout_s: float) -> bool:
        """Waits for all jobs to end; False if they take longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._num_left == 0, timeout_s)

    def settle(self) -> list[MaskJob]:
        """Brings here what was filled elsewhere; returns the jobs that have not ended."""
        late = [job for job in self.jobs if job.right is None]
        for job in self._elsewhere:
            if job not in late:  # one may end at any time: what is not late is here
                assert job.rows is not None and job.right is not None
                job.right = min(job.right, 1 + len(job.drafts))
                self.rows[job.first : job.first + job.right] = job.rows[: job.right]
        return late

    @property
    def num_waiting(self) -> int:
        """Jobs that no thread has begun."""
        return len(self._queue)


class MaskFiller:
    """Threads and two buffers for masks: a buffer is reused only after the step that read it has ended."""

    def __init__(self, vocab_size: int, num_threads: int | None = None) -> None:
        self.num_threads = num_threads or max(1, min(8, (os.cpu_count() or 2) // 2))
        self._words = -(-vocab_size // 32)
        self._buffers = [np.zeros((0, self._words), dtype=np.int32) for _ in range(2)]
        self._turn = 0
        self._pool = self._new_pool()
        self._has_threads = False
        self._slow_threads = FairThreads("slow-masks", NUM_SLOW)

    def start(self, jobs: list[MaskJob]) -> Filling | None:
        """Begins filling."""
        if not jobs:
            return None
        self._turn ^= 1
        rows = sum(1 + len(job.drafts) for job in jobs)
        if rows > len(self._buffers[self._turn]):
            self._buffers[self._turn] = np.zeros((max(rows, 64), self._words), dtype=np.int32)
        filling = Filling(jobs, self._buffers[self._turn][:rows])
        self._add_threads(filling, self.num_threads)
        return filling

    def finish(self, filling: Filling, patience_s: float) -> list[MaskJob]:
        """Waits for `filling`, but not for ever; returns the jobs that are late.

        Each job is waited for `patience_s`: what has not begun by then, since others keep the threads busy, gets
        further threads and as long again. Those of one tenant get no more than `most_stuck`; its other jobs are left to
        the threads for what is slow.
        """
        if self._has_threads and not filling.wait(patience_s) and filling.num_waiting:
            filling.most = self.most_stuck(len({job.tenant for job in filling.jobs}))
            self._add_threads(filling, MAX_STUCK)
            filling.wait(patience_s)
        for job in filling.take_waiting():
            self._run_slowly(job)
        late = filling.settle()
        if late:  # they go on writing
            self._buffers[self._turn] = np.zeros((0, self._words), dtype=np.int32)
        return late

    def most_stuck(self, num_tenants: int) -> int:
        """The threads that one of so many tenants may keep busy with masks that are late."""
        num_threads = self.num_threads + MAX_STUCK
        return num_threads if num_tenants <= 1 else max(num_threads // (2 * num_tenants), 1)

    def begin_slow(self, matcher: Matcher, tenant: str, before: Callable[[], None] | None = None) -> MaskJob:
        """A job that is late from the beginning: its mask takes long, or what is done before it does."""
        job = MaskJob(matcher, rows=np.zeros((1, self._words), dtype=np.int32), before=before, tenant=tenant)
        self._run_slowly(job)
        return job

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._slow_threads.close()

    def _run_slowly(self, job: MaskJob) -> None:
        """Has a job done by the threads for what is slow. Without any it has ended, and no row of it is right."""
        try:
            self._slow_threads.submit(job.tenant, job.run)
        except RuntimeError as error:
            job.error = NoThreadError(f"the machine has no thread left to follow the constraint: {error}")
            job.right = 0

    def _new_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.num_threads + MAX_STUCK, thread_name_prefix="bough-masks")

    def _add_threads(self, filling: Filling, num_threads: int) -> None:
        """Has so many more threads fill masks, as far as there are any to be had."""
        for _ in range(min(num_threads, filling.num_waiting)):
            try:
                self._pool.submit(filling.work)
            except RuntimeError:
                if not self._has_threads:  # a pool keeps what it has no thread for
                    self._pool = self._new_pool()
                return
            self._has_threads = True


@dataclass(eq=False)
class StepMasks:
    """The masks of one step. Those of a work whose mask was late are not among them.

    jobs    by index into `work`

    Once `MaskStage.finish` has run:

    right       of each work with a grammar, how many of its rows have a right mask
    dead_ends   why those that have none cannot go on
    """

    work: Sequence[Work]
    generations: Sequence[Generation]
    jobs: dict[int, MaskJob]
    filling: Filling | None
    right: dict[int, int] = field(default_factory=dict)
    dead_ends: dict[int, MatcherError] = field(default_factory=dict)

    @property
    def rows(self) -> Rows | None:
        return self.filling.rows if self.filling is not None else None

    def first(self, index: int) -> int | None:
        """The first of a work's rows; None if it has no mask."""
        return self.jobs[index].first if index in self.jobs else None


class MaskStage:
    """The masks of an engine's steps, and the generations that sit steps out since theirs are late.

    After the pass a mask has its patience more: `least_patience_s`, or 80 % of the pass's own time if that is longer;
    as long again if other masks have kept the threads busy. What is late is deferred: its generation is drawn from in a
    later step, and holds nobody up.

    pass_s    seconds of the last pass, on a device that is asked ahead: the next one takes about as long
    """

    def __init__(self, vocab_size: int, scheduler: Scheduler, least_patience_s: float) -> None:
        self.pass_s = 0.0
        self._filler = MaskFiller(vocab_size)
        self._scheduler = scheduler
        self._least_patience_s = least_patience_s
        self._deferred: dict[Generation, MaskJob] = {}

    @property
    def any_deferred(self) -> bool:
        return bool(self._deferred)

    def start(self, work: Sequence[Work], generations: Sequence[Generation]) -> StepMasks:
        """Begins to fill the masks of a step."""
        jobs: dict[int, MaskJob] = {}
        num_of: Counter[str] = Counter()
        places: list[tuple[int, int]] = []  # number of a job among its tenant's, and its index
        num_stuck = Counter(each.sequence.tenant for each, job in self._deferred.items() if job.right is None)
        most_stuck = self._filler.most_stuck(len({generation.sequence.tenant for generation in generations}))
        for index, (item, generation) in enumerate(zip(work, generations, strict=True)):
            matcher, tenant = generation.matcher, generation.sequence.tenant
            if matcher is not None and item.samples and item.live and not matcher.free:
                slow = num_stuck[tenant] >= most_stuck
                jobs[index] = self._resume(generation, matcher, item.drafts, slow=slow)
                places.append((num_of[tenant], index))
                num_of[tenant] += 1
        in_turn = [jobs[index] for _, index in sorted(places)]  # many of one tenant make no other one's late
        return StepMasks(work, generations, jobs, self._filler.start(in_turn))

    def finish(self, masks: StepMasks, forward_s: float) -> None:
        """Waits for `masks` of a pass whose launch took `forward_s`; defers the generations whose masks are late."""
        if masks.filling is None:
            return
        late = self._filler.finish(masks.filling, max(0.8 * max(forward_s, self.pass_s), self._least_patience_s))
        for index in [index for index, job in masks.jobs.items() if job in late]:
            self._defer(masks.generations[index], masks.jobs.pop(index))
        for index, job in masks.jobs.items():
            if job.right is not None:  # one that was late may have been begun with drafts, which are void by now
                masks.right[index] = min(job.right, 1 + len(masks.work[index].drafts))
            if job.right == 0:
                masks.dead_ends[index] = job.error

    def abandon(self, masks: StepMasks) -> None:
        """Waits for masks of a pass that failed, so that nobody uses their matchers meanwhile. Generations whose masks
        are late sit steps out."""
        if masks.filling is None:
            return
        late = self._filler.finish(masks.filling, self._least_patience_s)
        for index, job in masks.jobs.items():
            if job in late:
                self._scheduler.repeat_later(masks.work[index])
                self._deferred[masks.generations[index]] = job

    def defer_undecided(self, generation: Generation, foresee: Foresee) -> None:
        """Defers a generation until it is known what accepting the token that was drawn comes to: it is drawn again."""
        drawn, generation.undecided = generation.undecided, None
        assert generation.matcher is not None and drawn is not None
        matcher, tenant = generation.matcher, generation.sequence.tenant
        job = self._filler.begin_slow(matcher, tenant, lambda: generation.foresee(drawn, foresee))
        self._defer(generation, job)

    def resume_ready(self) -> None:
        """Lets those go on whose masks are there now."""
        for generation, job in list(self._deferred.items()):
            if generation.finish is not None:
                del self._deferred[generation]
            elif job.right is not None:
                self._scheduler.resume(generation.sequence)

    def close(self) -> None:
        self._filler.close()

    def _defer(self, generation: Generation, job: MaskJob) -> None:
        """The pass has computed all of the sequence that is known, but nobody may draw from it: `job` is late."""
        self._scheduler.defer(generation.sequence)
        self._deferred[generation] = job

    def _resume(self, generation: Generation, matcher: Matcher, drafts: Sequence[int], *, slow: bool) -> MaskJob:
        """The job of a generation that is to be drawn from; `slow` if it is to be begun as one that is late."""
        late, tenant = self._deferred.pop(generation, None), generation.sequence.tenant
        if late is None:
            return self._filler.begin_slow(matcher, tenant) if slow else MaskJob(matcher, drafts, tenant=tenant)
        # Still under way, if it was put back to wait and has come again.
        if late.right is None:
            return late
        return MaskJob(matcher, drafts, late.rows, late.right, error=late.error, tenant=tenant)
