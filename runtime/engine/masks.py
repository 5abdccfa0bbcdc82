"""Grammar masks of a step, filled on threads while the forward pass runs.

A sequence is deferred, and sits steps out, if its mask is late (`MaskStage.finish`, or `abandon` after a failed pass),
or if only a search can tell if its drawn token still leads to an end (`defer_undecided`). Where a tenant has too many
late masks, slower threads fill its others (`start`). The docstring of `runtime.engine` lists all that may delay a
constrained sequence.

Where no thread can be started, the threads that exist fill all masks; where there is none, jobs that have not begun end
their generations with a `BusyMachineError`: the engine's own thread has no time for what may take long.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from ...constrain import Matcher, MatcherError
from ...constrain.errors import BusyMachineError
from ...constrain.workers.turns import FairThreads
from ..scheduler.scheduler import Scheduler, Work
from .generation import Foresee, Generation

logger = logging.getLogger("bough.engine")

Rows = npt.NDArray[np.int32]

MAX_STUCK = 16
"""Additional threads that may be busy with late masks."""
NUM_SLOW = 2
"""Threads for masks that are known to be slow; tenants take turns, and none holds them all."""
LATE_MASK_SLEEP_S = 0.0005
"""Pause between polls for deferred masks while the engine has nothing else to do."""


@dataclass(eq=False, slots=True)
class MaskJob:
    """One sequence's masks: for the next position, and for the one after each of its drafts.

    first    index of its first row among those of the step
    rows     destination of its masks, int32 [1 + drafts, W]
    right    number of rows filled, None until the job has ended: fewer than all if the grammar rejects a draft, 0 if it
             allows no further token
    error    the reason, if `right` is 0
    before   work to do before the masks are filled
    tenant   tenant that the job belongs to
    slow     set once the job is queued for the slow threads; if it is cancelled before it begins, it never runs
    """

    matcher: Matcher
    drafts: Sequence[int] = ()
    rows: Rows | None = None
    right: int | None = None
    first: int = 0
    before: Callable[[], None] | None = None
    tenant: str = ""
    slow: Future[None] | None = None
    error: MatcherError = field(default_factory=partial(MatcherError, "the grammar allows no further token"))

    def run(self) -> None:
        """Fills the rows and sets `right`. Raises nothing."""
        assert self.rows is not None
        right = 0
        try:
            if self.before is not None:
                self.before()
            right = self.matcher.fill_along(self.drafts, self.rows)
        except MatcherError as error:
            self.error = error
        except BaseException:  # a panic of native code is no Exception, and the engine waits for this job too
            logger.exception("a grammar mask could not be filled")
        self.right = right

    def cancel(self) -> None:
        """Cancels the job on the slow threads, unless it has begun: then it runs to its end and its rows are unused."""
        if self.slow is not None:
            self.slow.cancel()


@dataclass(eq=False)
class Filling:
    """The masks of one step while they are being filled.

    rows    of all jobs, one after the other, int32 [sum(1 + drafts), W]
    most    most jobs of one tenant that run at a time; None: no limit
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
        """Runs jobs until none is left that may begin."""
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
        """Removes and returns the jobs that no thread has begun, so that other threads can run them."""
        with self._changed:
            waiting = list(self._queue)
            self._queue.clear()
            return waiting

    def wait(self, timeout_s: float) -> bool:
        """Waits for all jobs to end; returns False if they take longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._num_left == 0, timeout_s)

    def settle(self) -> list[MaskJob]:
        """Copies rows that were filled elsewhere into `rows`; returns the jobs that have not ended.

        Afterwards it has no jobs: a thread that is stuck in one keeps no matchers of the others.
        """
        late = [job for job in self.jobs if job.right is None]
        for job in self._elsewhere:
            if job not in late:  # not `job.right is None`: a job may end at any time, but stays late for this step
                assert job.rows is not None and job.right is not None
                job.right = min(job.right, 1 + len(job.drafts))
                self.rows[job.first : job.first + job.right] = job.rows[: job.right]
        self.jobs, self._elsewhere = [], []
        return late

    @property
    def num_waiting(self) -> int:
        """Jobs that no thread has begun."""
        return len(self._queue)


class MaskFiller:
    """Threads that fill masks, and two buffers in turn, so that one step's masks survive the start of the next."""

    def __init__(self, vocab_size: int, num_threads: int | None = None) -> None:
        self.num_threads = num_threads or max(1, min(8, (os.cpu_count() or 2) // 2))
        self._words = -(-vocab_size // 32)
        self._buffers = [np.zeros((0, self._words), dtype=np.int32) for _ in range(2)]
        self._turn = 0
        self._pool = self._new_pool()
        self._has_threads = False
        self._room = threading.Semaphore(self.num_threads + MAX_STUCK)  # bounds the work submitted to the pool
        self._slow_threads = FairThreads("slow-masks", NUM_SLOW, most_running=NUM_SLOW - 1)

    def start(self, jobs: list[MaskJob]) -> Filling | None:
        """Begins to fill the masks of `jobs`; returns None if there are none."""
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
        """Waits for `filling`, for at most twice `patience_s`; returns the jobs that are late.

        If some jobs have not begun after `patience_s`, since others keep the threads busy, they get additional threads
        and as much time again. Each tenant may keep at most `most_stuck` threads busy; jobs that have still not begun
        are left to the slow threads.
        """
        if self._has_threads and not filling.wait(patience_s) and filling.num_waiting:
            filling.most = self.most_stuck(len({job.tenant for job in filling.jobs}))
            self._add_threads(filling, MAX_STUCK)
            filling.wait(patience_s)
        for job in filling.take_waiting():
            self._run_slowly(job)
        late = filling.settle()
        if late:  # their threads go on writing to this buffer
            self._buffers[self._turn] = np.zeros((0, self._words), dtype=np.int32)
        return late

    def most_stuck(self, num_tenants: int) -> int:
        """Returns how many threads one of `num_tenants` tenants may keep busy with late masks."""
        num_threads = self.num_threads + MAX_STUCK
        return num_threads if num_tenants <= 1 else max(num_threads // (2 * num_tenants), 1)

    def begin_slow(self, matcher: Matcher, tenant: str, before: Callable[[], None] | None = None) -> MaskJob:
        """Starts a job on the slow threads, with rows of its own: its mask, or the work before it, takes long."""
        job = MaskJob(matcher, rows=np.zeros((1, self._words), dtype=np.int32), before=before, tenant=tenant)
        self._run_slowly(job)
        return job

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._slow_threads.close()

    def _run_slowly(self, job: MaskJob) -> None:
        """Runs a job on the slow threads. Without any, the job ends at once with an error and no valid row."""
        try:
            job.slow = self._slow_threads.submit(job.tenant, job.run)
        except RuntimeError as error:
            job.error = BusyMachineError(f"the machine has no thread left to follow the constraint: {error}")
            job.right = 0

    def _work(self, filling: Filling) -> None:
        self._room.release()
        filling.work()

    def _new_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.num_threads + MAX_STUCK, thread_name_prefix="bough-masks")

    def _add_threads(self, filling: Filling, num_threads: int) -> None:
        """Lets up to `num_threads` more threads fill masks, as far as they are available."""
        for _ in range(min(num_threads, filling.num_waiting)):
            if not self._room.acquire(blocking=False):  # all threads are stuck
                return
            try:
                self._pool.submit(self._work, filling)
            except RuntimeError:
                if not self._has_threads:  # a pool keeps work for which it could start no thread
                    self._pool = self._new_pool()
                    self._room.release()
                return
            self._has_threads = True


@dataclass(eq=False)
class StepMasks:
    """The masks of one step.

    jobs    by index into `work`; `MaskStage.finish` removes the late ones, and sets:

    right       for each job left, how many of its rows have a mask
    dead_ends   for those with none, the reason why the grammar allows no further token
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
        """Returns the index of a work's first row; None if it has no mask."""
        return self.jobs[index].first if index in self.jobs else None


class MaskStage:
    """The masks of an engine's steps, and the generations that sit steps out because theirs are late.

    After the launch of a pass, masks get a patience of `least_patience_s`, or of 80 % of the pass's time if that is
    longer; as much again if some have not begun, since others keep the threads busy. A generation whose mask is late by
    then is deferred: its token is drawn in a later step, and the others go on.

    pass_s    seconds of the last step on a device that computes asynchronously, where the time of the launch says
              little; the next one takes about as long
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
        """Begins to fill the masks of a step, those of different tenants in turn."""
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
        in_turn = [jobs[index] for _, index in sorted(places)]  # many jobs of one tenant do not delay another's
        filling = self._filler.start(in_turn)
        for index in jobs:  # not before: if there is no memory for the step, the late jobs go on
            self._deferred.pop(generations[index], None)
        return StepMasks(work, generations, jobs, filling)

    def finish(self, masks: StepMasks, forward_s: float) -> None:
        """Waits for the masks of a pass whose launch took `forward_s`; defers the generations whose masks are late."""
        if masks.filling is None:
            return
        late = self._filler.finish(masks.filling, max(0.8 * max(forward_s, self.pass_s), self._least_patience_s))
        for index in [index for index, job in masks.jobs.items() if job in late]:
            self._defer(masks.generations[index], masks.jobs.pop(index))
        for index, job in masks.jobs.items():
            if job.right is not None:  # a job that was late may have been begun with drafts, which are void by now
                masks.right[index] = min(job.right, 1 + len(masks.work[index].drafts))
            if job.right == 0:
                masks.dead_ends[index] = job.error

    def abandon(self, masks: StepMasks) -> None:
        """Waits for the masks of a failed pass, since their jobs use the matchers.

        Generations whose masks are late sit steps out until they are there, unless the failure ends them.
        """
        if masks.filling is None:
            return
        late = self._filler.finish(masks.filling, self._least_patience_s)
        for index, job in masks.jobs.items():
            if job in late:
                self._scheduler.repeat_later(masks.work[index])
                self._deferred[masks.generations[index]] = job

    def defer_undecided(self, generation: Generation, foresee: Foresee) -> None:
        """Defers a generation until a search has found what accepting its token leads to; then it is drawn again."""
        drawn, generation.undecided = generation.undecided, None
        assert generation.matcher is not None and drawn is not None
        matcher, tenant = generation.matcher, generation.sequence.tenant
        job = self._filler.begin_slow(matcher, tenant, lambda: generation.foresee(drawn, foresee))
        self._defer(generation, job)

    def resume_ready(self) -> None:
        """Resumes the deferred generations whose masks are ready, and drops those that have ended."""
        for generation, job in list(self._deferred.items()):
            if generation.finish is not None:
                self.drop(generation)
            elif job.right is not None:
                self._scheduler.resume(generation.sequence)

    def drop(self, generation: Generation) -> None:
        """Gives up the late mask of a generation that has ended, if there is one."""
        job = self._deferred.pop(generation, None)
        if job is not None:
            job.cancel()

    def close(self) -> None:
        self._filler.close()

    def _defer(self, generation: Generation, job: MaskJob) -> None:
        """Defers a generation whose pass is done but whose mask is late: its token is not drawn in this step."""
        self._scheduler.defer(generation.sequence)
        self._deferred[generation] = job

    def _resume(self, generation: Generation, matcher: Matcher, drafts: Sequence[int], *, slow: bool) -> MaskJob:
        """Returns the job of a generation in this step: the one that was late, or a new one (`slow`: begun as late)."""
        late, tenant = self._deferred.get(generation), generation.sequence.tenant
        if late is None and slow:
            begun = self._deferred[generation] = self._filler.begin_slow(matcher, tenant)
            return begun
        if late is None:
            return MaskJob(matcher, drafts, tenant=tenant)
        # The job is still running if the sequence was put back to wait and has been admitted again.
        if late.right is None:
            return late
        return MaskJob(matcher, drafts, late.rows, late.right, error=late.error, tenant=tenant)
