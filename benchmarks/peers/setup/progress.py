"""The bar of a long measurement: how far it is, how much time is left, what is being done just now."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm

_WIDTH = 48  # of what is being done


class Progress:
    """Counts steps of a known number. Where nobody looks (not a terminal) only what begins is printed, a line each."""

    def __init__(self, total: int) -> None:
        self._bar = tqdm(total=total, unit="step", disable=None, file=sys.stderr, dynamic_ncols=True)

    def say(self, what: str) -> None:
        """What is being done."""
        if self._bar.disable:
            print(what, file=sys.stderr, flush=True)
        else:
            self._bar.set_description(what[:_WIDTH].ljust(_WIDTH))

    def detail(self, line: str) -> None:
        """A line of what a tool prints meanwhile; on a terminal only."""
        if not self._bar.disable:
            self._bar.set_postfix_str(line[:_WIDTH])

    def step(self) -> None:
        self._bar.set_postfix_str("", refresh=False)
        self._bar.update()

    def finish_part(self, total_done: int) -> None:
        """Goes to where a part ends, also if it ended early."""
        self._bar.update(max(0, total_done - self._bar.n))

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()
