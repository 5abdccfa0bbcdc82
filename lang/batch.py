"""Many runs of one function at once."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tqdm import tqdm

from .drivers import PullDriver, TaskDriver
from .errors import ProgramError
from .run import Run
from .state import State

MAX_THREADS = 64


def run_batch(
    make: Callable[[int, PullDriver], Run], num_items: int, *, num_threads: int | str, progress_bar: bool
) -> Generator[State, None, None]:
    """The states of `num_items` runs, in order. A run that fails keeps its error for those who read it.

    A few runs more than there are threads are under way, so that a long batch need not be held in memory.
    Leaving early stops those that are running.
    """
    num_workers = count_threads(num_threads, num_items)
    running: set[Run] = set()
    lock = threading.Lock()
    left = False

    def work(index: int) -> State:
        run = make(index, PullDriver())
        with lock:
            running.add(run)
        try:
            if left:
                run.session.abort(ProgramError("the batch was left", code="aborted"))
            run.execute()
        except Exception:  # noqa: BLE001  one item's failure is that item's: `execute` has left it in the state
            return run.state
        finally:
            with lock:
                running.discard(run)
        return run.state

    pool = ThreadPoolExecutor(num_workers, thread_name_prefix="bough-batch")
    pending: deque[Future[State]] = deque()
    indices = iter(range(num_items))
    try:
        with tqdm(total=num_items, unit="program", disable=not progress_bar) as bar:

            def submit() -> None:
                index = next(indices, None)
                if index is not None:
                    future = pool.submit(contextvars.copy_context().run, work, index)
                    future.add_done_callback(lambda _: bar.update())
                    pending.append(future)

            for _ in range(num_workers * 4):
                submit()
            while pending:
                state = pending.popleft().result()
                submit()
                yield state
    finally:
        left = True
        with lock:
            unfinished = list(running)
        for run in unfinished:
            run.session.abort(ProgramError("the batch was left", code="aborted"))
        pool.shutdown(cancel_futures=True)


async def arun_batch(
    make: Callable[[int, TaskDriver], Run], num_items: int, *, num_threads: int | str, progress_bar: bool
) -> list[State]:
    """The same on an event loop."""
    permits = asyncio.Semaphore(count_threads(num_threads, num_items))
    with tqdm(total=num_items, unit="program", disable=not progress_bar) as bar:

        async def work(index: int) -> State:
            async with permits:
                run = make(index, TaskDriver())
                try:
                    await run.aexecute()
                except Exception:  # noqa: BLE001  as above
                    return run.state
                finally:
                    bar.update()
                return run.state

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(index)) for index in range(num_items)]
    return [task.result() for task in tasks]


def count_threads(num_threads: int | str, num_items: int) -> int:
    """How many runs to have at once."""
    if num_threads == "auto":
        num_threads = MAX_THREADS
    if not isinstance(num_threads, int) or num_threads < 1:
        raise ProgramError(f'num_threads must be "auto" or at least 1, got {num_threads!r}', param="num_threads")
    return max(1, min(num_threads, num_items))


def split_item(item: object) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """An item of a batch as positional and keyword arguments.

    Raises:
        ProgramError: it is neither a mapping nor a sequence.
    """
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, Sequence) and not isinstance(item, str | bytes):
        return tuple(item), {}
    raise ProgramError(
        f"each item of a batch must be a dict of arguments or a tuple of them, got {type(item).__name__}",
        code="invalid_program",
        param="batch",
    )
