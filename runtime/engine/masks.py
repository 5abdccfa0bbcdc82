"""Grammar masks of a step, filled on threads while the forward pass runs; those that are late are deferred."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...constrain import Matcher
from ..scheduler.scheduler import Scheduler, Work
from .generation import Foresee, Generation

logger = logging.getLogger("bough.engine")

Rows = npt.NDArray[np.int32]

MAX_STUCK = 16
"""Threads beside the usual ones that may be busy with masks that are late."""
NUM_SLOW = 2
"""Threads for what is known to be slow."""
LATE_MASK_SLEEP_S = 0.0005
"""Between two looks at deferred masks, while there is nothing else to do."""


@dataclass(eq=False, slots=True)
class MaskJob:
    """One sequence's masks: the next position, and one more after each of its drafts.

    first    the first of its rows among those of the step
    rows     where they are written, int32 [1 + drafts, W]
    right    how many of them are right, once it is known: fewer if the grammar does not allow a draft, none if it has
             come to a dead end
    before   what is to be done first
    """

    matcher: Matcher
    drafts: Sequence[int] = ()
    rows: Rows | None = None
    right: int | None = None
    first: int = 0
    before: Callable[[], None] | None = None

    def run(self) -> None:
        """Fills the rows."""
        assert self.rows is not None
        right = 0
        try:
            if self.before is not None:
                self.before()
            right = self.matcher.fill_along(self.drafts, self.rows)
        except BaseException:  # a panic of native code is no Exception, and somebody waits here too
            logger.exception("a grammar mask could not be filled")
        self.right = right


@dataclass(eq=False)
class Filling:
    """The masks of one step, under way.

    rows    of all jobs, one after the other, int32 [sum(1 + drafts), W]
    """

    jobs: list[MaskJob]
    rows: Rows
    _queue: deque[MaskJob] = field(default_factory=deque)
    _elsewhere: list[MaskJob] = field(default_factory=list)  # begun in another step, in which they were late
    _changed: threading.Condition = field(default_factory=threading.Condition)
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
        """Does jobs until none is left to begin."""
        while True:
            try:
                job = self._queue.popleft()
            except IndexError:
                return
            job.run()
            with self._changed:
                self._num_left -= 1
                self._changed.notify_all()

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
        self._pool = ThreadPoolExecutor(self.num_threads + MAX_STUCK, thread_name_prefix="bough-masks")
        self._slow_pool = ThreadPoolExecutor(NUM_SLOW, thread_name_prefix="bough-slow-masks")

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
        further threads and as long again.
        """
        if not filling.wait(patience_s) and filling.num_waiting:
            self._add_threads(filling, MAX_STUCK)
            filling.wait(patience_s)
        late = filling.settle()
        if late:  # they go on writing
            self._buffers[self._turn] = np.zeros((0, self._words), dtype=np.int32)
        return late

    def begin_slow(self, matcher: Matcher, before: Callable[[], None]) -> MaskJob:
        """A job that is late from the beginning: its mask is filled after `before`, which takes long."""
        job = MaskJob(matcher, rows=np.zeros((1, self._words), dtype=np.int32), before=before)
        self._slow_pool.submit(job.run)
        return job

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._slow_pool.shutdown(wait=False, cancel_futures=True)

    def _add_threads(self, filling: Filling, num_threads: int) -> None:
        for _ in range(min(num_threads, filling.num_waiting)):
            self._pool.submit(filling.work)


@dataclass(eq=False)
class StepMasks:
    """The masks of one step. Those of a work whose mask was late are not among them.

    jobs    by index into `work`
    right   of each work with a grammar, how many of its rows have a right mask; once `MaskStage.finish` has run
    """

    work: Sequence[Work]
    generations: Sequence[Generation]
    jobs: dict[int, MaskJob]
    filling: Filling | None
    right: dict[int, int] = field(default_factory=dict)

    @property
    def rows(self) -> Rows | None:
        return self.filling.rows if self.filling is not None else None

    def first(self, index: int) -> int | None:
        """The first of a work's rows; None if it has no mask."""
        return self.jobs[index].first if index in self.jobs else None


class MaskStage:
    """The masks of an engine's steps, and the generations that sit steps out since theirs are late.

    A mask is waited for as long as most of a pass takes after the pass, but at least `patience_s`. What is late is
    deferred: its generation is drawn from in a later step, and holds nobody up.

    pass_s    seconds of the last pass, on a device that is asked ahead: the next one takes about as long
    """

    def __init__(self, vocab_size: int, scheduler: Scheduler, patience_s: float) -> None:
        self.pass_s = 0.0
        self._filler = MaskFiller(vocab_size)
        self._scheduler = scheduler
        self._patience_s = patience_s
        self._deferred: dict[Generation, MaskJob] = {}

    @property
    def any_deferred(self) -> bool:
        return bool(self._deferred)

    def start(self, work: Sequence[Work], generations: Sequence[Generation]) -> StepMasks:
        """Begins to fill the masks of a step."""
        jobs: dict[int, MaskJob] = {}
        for index, (item, generation) in enumerate(zip(work, generations, strict=True)):
            matcher = generation.matcher
            if matcher is not None and item.samples and item.live and not matcher.free:
                jobs[index] = self._resume(generation, matcher, item.drafts)
        return StepMasks(work, generations, jobs, self._filler.start(list(jobs.values())))

    def finish(self, masks: StepMasks, forward_s: float) -> None:
        """Waits for `masks` of a pass whose launch took `forward_s`; defers the generations whose masks are late."""
        if masks.filling is None:
            return
        late = self._filler.finish(masks.filling, max(0.8 * max(forward_s, self.pass_s), self._patience_s))
        for index in [index for index, job in masks.jobs.items() if job in late]:
            self._defer(masks.generations[index], masks.jobs.pop(index))
        for index, job in masks.jobs.items():
            if job.right is not None:  # one that was late may have been begun with drafts, which are void by now
                masks.right[index] = min(job.right, 1 + len(masks.work[index].drafts))

    def foresee(self, generation: Generation, foresee: Foresee) -> None:
        """Defers a generation until it is known what accepting the token that was drawn comes to: it is drawn again."""
        drawn, generation.undecided = generation.undecided, None
        assert generation.matcher is not None and drawn is not None
        self._defer(generation, self._filler.begin_slow(generation.matcher, lambda: generation.foresee(drawn, foresee)))

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

    def _resume(self, generation: Generation, matcher: Matcher, drafts: Sequence[int]) -> MaskJob:
        """The job of a generation that is to be drawn from."""
        late = self._deferred.pop(generation, None)
        if late is None:
            return MaskJob(matcher, drafts)
        # Still under way, if it was put back to wait and has come again.
        return late if late.right is None else MaskJob(matcher, drafts, late.rows, late.right)
