"""Events from the engine's thread to tasks: in order, woken once for many, refused, left early, loops that are gone."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterable

import pytest

from bough.runtime.client import streams
from bough.runtime.client.streams import aiterate
from bough.runtime.protocol.errors import BoughError, ErrorInfo, RequestError, to_info
from bough.runtime.protocol.program import Delta, Done, Failed, ProgramEvent

Listen = Callable[[ProgramEvent], None]


def nothing() -> None:
    """Stops nothing."""


def send(listen: Listen, events: Iterable[ProgramEvent]) -> None:
    for event in events:
        listen(event)


def from_thread(*events: ProgramEvent) -> Callable[[Listen], None]:
    def start(listen: Listen) -> None:
        threading.Thread(target=send, args=(listen, events)).start()

    return start


def test_events_come_in_order_to_each_of_many_tasks() -> None:
    texts = [str(number) for number in range(200)]

    async def read(start: Callable[[Listen], None]) -> list[str]:
        return [event.text async for event in aiterate(start, nothing) if isinstance(event, Delta)]

    async def main() -> list[list[str]]:
        starts = [from_thread(*(Delta(0, "x", text) for text in texts), Done()) for _ in range(20)]
        return list(await asyncio.gather(*map(read, starts)))

    assert asyncio.run(main()) == [texts] * 20


def test_a_loop_is_woken_once_for_all_that_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    num_woken = 0

    async def main() -> None:
        nonlocal num_woken
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe

        def count(*args: object) -> object:
            nonlocal num_woken
            num_woken += 1
            return call(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)

        def start(listen: Listen) -> None:
            sender = threading.Thread(target=send, args=(listen, (*[Delta(0, "x", "")] * 100, Done())))
            sender.start()
            sender.join()

        streams = [aiterate(start, nothing) for _ in range(3)]
        for events in [await asyncio.gather(*map(_all, streams))]:
            assert [len(some) for some in events] == [101] * 3

    asyncio.run(main())
    assert num_woken <= 3


async def _all(events: object) -> list[ProgramEvent]:
    return [event async for event in events]  # type: ignore[attr-defined]


def test_a_refusal_is_raised_and_leaving_early_stops() -> None:
    refused = Failed(error=ErrorInfo(code="invalid_program", message="no"))
    stopped: list[bool] = []

    async def main() -> None:
        with pytest.raises(RequestError, match="no"):
            await anext(aiterate(from_thread(refused), nothing))
        events = aiterate(from_thread(Delta(0, "x", "a")), lambda: stopped.append(True))
        assert await anext(events) == Delta(0, "x", "a")
        task = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert stopped == [True]


def test_what_comes_for_a_closed_loop_is_dropped_and_the_loop_is_not_held() -> None:
    listeners: list[Listen] = []

    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        task = asyncio.ensure_future(anext(aiterate(listeners.append, nothing)))
        await asyncio.sleep(0)
        task.cancel()
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(main())
    listeners[0](Done())
    listeners.clear()
    gc.collect()
    assert loop() is None


def test_an_error_that_quotes_errors_stays_short() -> None:
    error = BoughError("the beginning", code="c", param="p")
    for _ in range(500):
        info = to_info(error)
        error = BoughError(f"a name of some length: {info.message}", code="c", param="p")
        assert len(info.message) <= 2000
    assert to_info(error).message.endswith("...")


def test_a_flood_of_events_leaves_the_loop_to_others() -> None:
    """An event that comes while others are delivered waits for the loop's next turn."""
    num_delivered = 0

    async def main() -> None:
        post, over = streams._post_of(asyncio.get_running_loop()), False

        def take(_: object) -> None:
            nonlocal num_delivered
            num_delivered += 1
            assert num_delivered < 1_000_000
            if not over:
                post.send(take, None)

        post.send(take, None)
        await asyncio.sleep(0.01)
        over = True

    asyncio.run(main())
    assert num_delivered > 1


@pytest.mark.parametrize("num_others", [0, 3])
def test_an_end_that_cannot_be_settled_is_an_end_all_the_same(num_others: int) -> None:
    """Its own consumer's, and those that come with it."""

    async def read(settle: Callable[[object], None] | None) -> list[ProgramEvent]:
        def start(listen: Listen) -> None:
            events: list[ProgramEvent] = [Delta(0, "g", "a"), Done()]
            asyncio.get_running_loop().call_soon(send, listen, events)

        return [event async for event in aiterate(start, nothing, settle)]

    def fail(event: object) -> None:
        raise ZeroDivisionError

    async def main() -> list[list[ProgramEvent]]:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        return await asyncio.wait_for(asyncio.gather(read(fail), *(read(None) for _ in range(num_others))), 10.0)

    assert asyncio.run(main()) == [[Delta(0, "g", "a"), Done()]] * (1 + num_others)
