"""The bar of a batch: how many programs are done and have failed, how fast it goes, how long it will take."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from tqdm import tqdm

from ..session.session import Session


class BatchBar:
    """Shown on standard error, if at all. May be updated from any thread.

    >>> with BatchBar(100, shown=True) as bar:
    ...     bar.done(session)
    """

    def __init__(self, total: int, *, shown: bool) -> None:
        self._bar = tqdm(total=total, unit="program", disable=not shown, dynamic_ncols=True)
        self._lock = threading.Lock()
        self.num_failed = 0
        self.num_tokens = 0

    def done(self, session: Session) -> None:
        """One more has ended."""
        with self._lock:
            self.num_failed += session.error is not None
            self.num_tokens += session.usage.completion_tokens
            elapsed_s = self._bar.format_dict["elapsed"] if not self._bar.disable else 0.0
            if elapsed_s:
                rate = f"{self.num_tokens / elapsed_s:,.0f} tokens/s"
                failed = f"{self.num_failed} failed, " if self.num_failed else ""
                self._bar.set_postfix_str(failed + rate, refresh=False)
            self._bar.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()
