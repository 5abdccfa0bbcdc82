"""Progress bars for downloads and for loading models."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm


class LoadingBar:
    """Shows what is being loaded: pass it as `progress(what, done, total)`.

    A download counts bytes, loading counts tensors. Nothing is shown unless standard error is a terminal.
    """

    def __init__(self) -> None:
        self._bar: tqdm[object] | None = None
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bar is None or what != self._what:
            self.close()
            self._what = what
            unit = "B" if what == "download" else " tensors"
            options = {"desc": what, "unit": unit, "unit_scale": True, "leave": False, "disable": None}
            self._bar = tqdm(total=total, file=sys.stderr, **options)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> LoadingBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
