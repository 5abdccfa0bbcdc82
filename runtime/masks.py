"""Grammar masks of a step, filled on a thread while the forward pass runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..constrain import Matcher, MatcherError

logger = logging.getLogger("bough.engine")


@dataclass(frozen=True, slots=True)
class MaskJob:
    """One sequence's masks: the next position, and one more after each of its drafts."""

    matcher: Matcher
    drafts: Sequence[int]


class MaskFiller:
    """One thread and two buffers: a buffer is reused only after the step that read it has ended."""

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._buffers = [np.zeros((0, self._words), dtype=np.int32) for _ in range(2)]
        self._turn = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="bough-masks")

    def start(self, jobs: Sequence[MaskJob]) -> Future[tuple[npt.NDArray[np.int32], list[int]]] | None:
        """Begins filling; the result is int32 [sum(1 + drafts), W] and how many rows of each job are right.

        A job has fewer right rows than 1 + drafts if the grammar does not allow a draft (the rest is unwritten), and
        none if it has come to a dead end.
        """
        if not jobs:
            return None
        self._turn ^= 1
        rows = sum(1 + len(job.drafts) for job in jobs)
        if rows > len(self._buffers[self._turn]):
            self._buffers[self._turn] = np.zeros((max(rows, 64), self._words), dtype=np.int32)
        return self._pool.submit(_fill, jobs, self._buffers[self._turn][:rows])

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _fill(jobs: Sequence[MaskJob], out: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], list[int]]:
    row = 0
    right = []
    for job in jobs:
        right.append(_fill_one(job, out[row : row + 1 + len(job.drafts)]))
        row += 1 + len(job.drafts)
    return out, right


def _fill_one(job: MaskJob, out: npt.NDArray[np.int32]) -> int:
    """Masks along the drafts; the matcher ends where it began. Returns how many rows are right."""
    right = accepted = 0
    try:
        job.matcher.fill_mask(out[0])
        right = 1
        for draft in job.drafts:
            job.matcher.accept(draft)
            accepted += 1
            job.matcher.fill_mask(out[accepted])
            right += 1
    except MatcherError:
        pass  # the caller sees it in the count
    except Exception:
        logger.exception("a grammar mask could not be filled")
    try:
        if accepted:
            job.matcher.rollback(accepted)
    except Exception:
        logger.exception("a grammar could not take its drafts back")
        return 0  # nobody knows where it stands
    return right
