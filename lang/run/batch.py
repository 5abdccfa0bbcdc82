"""Batches: many concurrent runs of one function, on one event loop or each on a thread."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from tqdm import tqdm

from ..diagnostics.errors import ProgramError
from ..diagnostics.source_lines import caller
from ..session.loops import LoopThread, result_of
from ..session.session import Session
from ..state.notebook import batch_view
from ..state.state import State
from .run import PullDriver, Run, TaskDriver

logger = logging.getLogger("bough.lang")

MAX_AT_ONCE = 256
"""Programs at once for "auto": as many as the largest engines run side by side, few enough that none is refused."""

_AHEAD = 4
"""So many times the programs that run at once are begun before the first of them is taken, in a generator."""

_SLOW_S = 0.5

_SHOWN = 8
"""States that the text of a batch shows."""

Result = TypeVar("Result")


class States(list[State[Result]]):
    """The states of a batch, in order. A notebook shows them as a table."""

    @property
    def failed(self) -> list[tuple[int, BaseException]]:
        """The index of each failed run, and its error."""
        errors = ((index, state.error()) for index, state in enumerate(self))
        return [(index, error) for index, error in errors if error is not None]

    def __repr__(self) -> str:
        failed = self.failed
        first = f" (the first is [{failed[0][0]}]: {failed[0][1]})" if failed else ""
        shown = [f"  {state!r}" for state in self[:_SHOWN]]
        more = [f"  and {len(self) - _SHOWN} more"] if len(self) > _SHOWN else []
        return "\n".join([f"<{len(self)} states, {len(failed)} failed{first}>", *shown, *more])

    def _repr_html_(self) -> str:
        return batch_view([(state._branch, state._returned) for state in self])


Maker = Callable[[int, PullDriver | TaskDriver], Run]
"""The run of the item with that index."""


async def alist(make: Maker, num_items: int, at_once: int, *, progress_bar: bool) -> States[Any]:
    """The states of all runs, in order. A run that fails keeps its error for those who read it."""
    states = [state async for state in _astates(make, num_items, at_once, num_items, progress_bar=progress_bar)]
    return States(states)


def on_loop(make: Maker, num_items: int, at_once: int, *, progress_bar: bool) -> Generator[State[Any], None, None]:
    """The same one by one, while a loop thread goes on with others: only so many that a long batch need not be held
    in memory. Leaving early stops those that are running."""
    thread = LoopThread("bough-batch")
    states = _astates(make, num_items, at_once, at_once * 2, progress_bar=progress_bar)
    try:
        while (state := result_of(thread.submit(_next(states)))) is not None:
            yield state
    finally:
        result_of(thread.submit(states.aclose()))
        thread.close()


async def _next(states: AsyncGenerator[State[Any], None]) -> State[Any] | None:
    return await anext(states, None)


async def _astates(
    make: Maker, num_items: int, at_once: int, num_ahead: int, *, progress_bar: bool
) -> AsyncGenerator[State[Any], None]:
    permits = asyncio.Semaphore(at_once)
    watch = _Watch() if num_items > 1 else None
    pending: deque[asyncio.Task[State[Any]]] = deque()
    with BatchBar(num_items, shown=progress_bar) as bar:

        async def work(index: int) -> State[Any]:
            async with permits:
                run = make(index, TaskDriver())
                try:
                    return await run.aexecute(watch)
                except Exception:  # noqa: BLE001  one item's failure is that item's: it is left in the state
                    return run.state
                finally:
                    bar.done(run.session)

        try:
            for index in range(num_items):
                pending.append(asyncio.create_task(work(index)))
                if len(pending) == num_ahead:
                    yield await pending[0]
                    pending.popleft()
            while pending:
                yield await pending[0]
                pending.popleft()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)


class _Watch:
    """Tells once of bodies that block: the others of their batch stand still meanwhile."""

    def __init__(self) -> None:
        self._told = False

    def __call__(self, elapsed_s: float) -> None:
        if elapsed_s > _SLOW_S and not self._told:
            self._told = True
            logger.warning(
                "a program of the batch held up all others for %.1f s. If its body waits for anything but its state "
                "(time.sleep, requests, files), run_batch(num_threads=N) gives each a thread of its own.",
                elapsed_s,
            )


def on_threads(make: Maker, num_items: int, at_once: int, *, progress_bar: bool) -> Generator[State[Any], None, None]:
    """The states of all runs, in order; each runs on one of `at_once` threads. Otherwise as `on_loop`."""
    running: set[Run] = set()
    lock = threading.Lock()
    left = False

    def work(index: int, bar: BatchBar) -> State[Any]:
        run = make(index, PullDriver())
        with lock:
            running.add(run)
        try:
            if left:
                run.session.abort(ProgramError("the batch was left", code="aborted"))
            return run.execute()
        except Exception:  # noqa: BLE001  as above
            return run.state
        finally:
            bar.done(run.session)
            with lock:
                running.discard(run)

    pool = ThreadPoolExecutor(min(at_once, max(1, num_items)), thread_name_prefix="bough-batch")
    pending: deque[Future[State[Any]]] = deque()
    indices = iter(range(num_items))
    try:
        with BatchBar(num_items, shown=progress_bar) as bar:

            def submit() -> None:
                index = next(indices, None)
                if index is not None:
                    pending.append(pool.submit(contextvars.copy_context().run, work, index, bar))

            for _ in range(min(at_once * _AHEAD, num_items)):
                submit()
            while pending:
                state = result_of(pending.popleft())
                submit()
                yield state
    finally:
        left = True
        with lock:
            unfinished = list(running)
        for run in unfinished:
            run.session.abort(ProgramError("the batch was left", code="aborted"))
        pool.shutdown(cancel_futures=True)


def count_at_once(num_threads: int | str) -> int:
    """Returns how many runs to have at once."""
    if num_threads == "auto":
        return MAX_AT_ONCE
    if not isinstance(num_threads, int) or num_threads < 1:
        raise ProgramError(f'num_threads must be "auto" or at least 1, got {num_threads!r}', param="num_threads")
    return num_threads


def check_batch(batch: object) -> None:
    """Refuses what is one item, and not a list of them.

    Raises:
        ProgramError: it is a dict or a text.
    """
    if isinstance(batch, Mapping | str | bytes):
        kind = type(batch).__name__
        raise ProgramError(
            f"run_batch takes a list of items, got a {kind}: for one run, run_batch([item]) or f.run(...)",
            code="invalid_program",
            param="batch",
            place=caller(),
        )


def split_item(
    item: object, *, takes_one: bool, takes_list: bool = False
) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """An item of a batch as positional and keyword arguments. `takes_one`: the program needs no more than one argument,
    so that what is neither a dict nor a list or tuple is that; `takes_list`: it has only one, which a list is, too.

    Raises:
        ProgramError: it is neither a mapping nor a sequence, and the program needs more.
    """
    if isinstance(item, Mapping):
        return (), item
    is_value = takes_list and not isinstance(item, tuple)
    if isinstance(item, Sequence) and not isinstance(item, str | bytes) and not is_value:
        return tuple(item), {}
    if takes_one:
        return (item,), {}
    raise ProgramError(
        f"each item of a batch must be a dict of arguments or a tuple of them, got {type(item).__name__}: plain values "
        "are for programs with one parameter",
        code="invalid_program",
        param="batch",
    )


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
            self.num_tokens += session.tally.usage.completion_tokens
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
