"""Grammar masks of a step, filled on threads while the forward pass runs; who is late holds nobody up."""

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

logger = logging.getLogger("bough.engine")

Rows = npt.NDArray[np.int32]

MAX_STUCK = 16
"""Threads beside the usual ones that may be busy with masks that are late."""
NUM_SLOW = 2
"""Threads for what is known to be slow."""


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
        """Whether all jobs have ended, within that time."""
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
    """Some threads and two buffers: a buffer is reused only after the step that read it has ended."""

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
