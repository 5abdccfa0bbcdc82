"""A reader who is slower than his program: deltas grow together, and one who does not read stops his program alone."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from bough.runtime.protocol.errors import EngineError
from bough.runtime.protocol.program import Assign, Delta, Done, Failed, Program, ProgramEvent, Skipped, Value
from bough.runtime.protocol.request import TokenLogprob
from bough.server.http import answers
from bough.server.http.answers import MAX_MERGED_BYTES, MAX_WAITING_BYTES, Backlog, Budget, WaitingEvents, WaitingParts

from ..conftest import Running, Start
from ..fake_client import FakeClient, Script


class Source:
    """Events as fast as they are asked for; `left` if not all of them were."""

    def __init__(self, events: Iterable[ProgramEvent], error: Exception | None = None) -> None:
        self.events, self.error, self.left = events, error, False

    async def __call__(self) -> AsyncIterator[ProgramEvent]:
        try:
            for event in self.events:
                yield event
            if self.error is not None:
                raise self.error
        except GeneratorExit:
            self.left = True
            raise


def value(text: str) -> Value:
    return Value(branch=0, name="v", text=text)


def of_program(
    events: AsyncIterator[ProgramEvent], budget: Budget | None = None, *, max_bytes: int = MAX_WAITING_BYTES
) -> Backlog[ProgramEvent]:
    return Backlog(events, WaitingEvents(), budget or Budget(), max_bytes=max_bytes)


async def settled(backlog: Backlog[ProgramEvent]) -> ProgramEvent:
    """The first event, once all others have come."""
    first = await anext(backlog)
    for _ in range(2000):
        await asyncio.sleep(0)
    return first


def test_a_fast_reader_gets_every_event_as_it_was_sent() -> None:
    events: list[ProgramEvent] = [Delta(0, "x", "a"), value("1"), Skipped(0, "y"), Done()]

    async def read() -> list[ProgramEvent]:
        return [event async for event in of_program(Source(events)())]

    assert asyncio.run(read()) == events


def test_deltas_that_wait_grow_together_and_nothing_passes_what_is_no_delta() -> None:
    events: list[ProgramEvent] = [Delta(0, "x", "0")]
    for number in range(500):
        events += [Delta(0, "x", f"{number} "), Delta(1, "x", f"{number},")]
    events += [value("v"), Delta(0, "x", "after"), Delta(0, "x", "wards"), Done()]

    async def read() -> list[ProgramEvent]:
        backlog = of_program(Source(events)())
        return [await settled(backlog), *[event async for event in backlog]]

    first, *rest = asyncio.run(read())
    whole = ["".join(f"{number}{end}" for number in range(500)) for end in (" ", ",")]
    said = [event.text for event in (first, *rest) if isinstance(event, Delta) and event.branch == 0]
    assert "".join(said) == "0" + whole[0] + "afterwards"
    other = [event.text for event in rest if isinstance(event, Delta) and event.branch == 1]
    assert "".join(other) == whole[1]
    assert rest[-3:] == [value("v"), Delta(0, "x", "afterwards"), Done()]
    assert len(rest) < 10


def test_deltas_that_grow_together_keep_their_log_probabilities() -> None:
    def scored(number: int) -> Delta:
        return Delta(0, "x", f"{number} ", (TokenLogprob(number, -1.0, ((number, -1.0),)),), {number: f"{number} "})

    async def read() -> list[ProgramEvent]:
        backlog = of_program(Source([scored(0), *map(scored, range(1, 200)), Delta(0, "x", "."), Done()])())
        return [await settled(backlog), *[event async for event in backlog]]

    first, *rest = asyncio.run(read())
    deltas = [event for event in (first, *rest) if isinstance(event, Delta)]
    assert len(deltas) < 10
    assert [entry.token for delta in deltas for entry in delta.logprobs] == list(range(200))
    assert {token for delta in deltas for token in delta.token_texts} == set(range(200))
    assert "".join(delta.text for delta in deltas).endswith("198 199 .")


def scored(number: int) -> Delta:
    top = tuple((number + other, -1.0 - other) for other in range(5))
    return Delta(0, "x", "ü", (TokenLogprob(number, -1.0 - number, top),), {number: "ü"})


@pytest.mark.parametrize(
    "make",
    [
        lambda number: Delta(0, "x", "a"),
        lambda number: Delta(0, "x", "\N{SNOWMAN}"),
        lambda number: Delta(number % 100, "x", "a"),
        lambda number: value("short"),
        lambda number: [Delta(0, "x", "a"), Skipped(0, "y")][number % 2],
        scored,
    ],
)
def test_what_waits_takes_the_memory_that_is_counted(make: Callable[[int], ProgramEvent]) -> None:
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(ProgramEvent).decode
    waiting, num_bytes = WaitingEvents(), 0
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(20_000):
            num_bytes += waiting.put(decode(encode(make(number))))  # as it comes from the engine's process
        num_held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert num_held <= 1.1 * num_bytes + 20_000
    assert num_bytes <= 2 * num_held + 20_000
    while waiting:
        num_bytes -= waiting.take()[1]
    assert num_bytes == 0


def test_many_log_probabilities_are_neither_written_nor_read_again_to_wait() -> None:
    """To read those of 32,000 tokens took 130 ms, in which nobody else went on."""
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(ProgramEvent).decode
    waiting, num_bytes, sent = WaitingEvents(), 0, list[ProgramEvent]()
    scores = tuple(scored(number).logprobs[0] for number in range(2000))
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(10):
            made = Value(branch=0, name="x", text="a", logprobs=scores, token_texts=dict.fromkeys(range(2000), "ü"))
            for event in (made, Delta(0, "x", "a", scores, {})):
                sent.append(decode(encode(event)))
                num_bytes += waiting.put(sent[-1])
        num_held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert num_held <= 1.1 * num_bytes + 20_000
    assert num_bytes <= 2 * num_held
    taken = [waiting.take()[0] for _ in range(len(waiting))]
    assert all(one is other for one, other in zip(taken, sent, strict=True))


def test_deltas_that_have_grown_large_grow_no_more() -> None:
    waiting = WaitingEvents()
    for number in range(300):
        waiting.put(Delta(0, "x", f"{number % 10}" * 10_000))
    taken = [waiting.take()[0] for _ in range(len(waiting))]
    texts = [event.text for event in taken if isinstance(event, Delta)]
    assert "".join(texts) == "".join(f"{number % 10}" * 10_000 for number in range(300))
    assert max(map(len, texts)) <= MAX_MERGED_BYTES + 10_000


def test_log_probabilities_that_wait_are_counted() -> None:
    scored = Delta(0, "x", "a", tuple(TokenLogprob(number, -1.0) for number in range(100)), {})
    source = Source(scored for _ in range(10_000))

    async def read() -> ProgramEvent:
        backlog = of_program(source(), max_bytes=100_000)
        await settled(backlog)
        return await anext(backlog)

    failed = asyncio.run(read())
    assert isinstance(failed, Failed) and failed.error.code == "reader_too_slow"


def test_too_much_that_waits_stops_the_program_and_says_so() -> None:
    source = Source(value("x" * 1000) for _ in range(10_000))

    async def read() -> list[ProgramEvent]:
        backlog = of_program(source(), max_bytes=200_000)
        await settled(backlog)
        return [event async for event in backlog]

    (last,) = asyncio.run(read())
    assert isinstance(last, Failed)
    assert last.error.code == "reader_too_slow"
    assert "did not read them" in last.error.message
    assert source.left


def test_an_end_is_heard_and_one_large_event_is_none_too_many() -> None:
    events: list[ProgramEvent] = [value("x" * 1000), value("x" * 90_000), Done(texts={0: "y" * 60_000})]

    async def read() -> list[ProgramEvent]:
        backlog = of_program(Source(events)(), max_bytes=50_000)
        return [await settled(backlog), *[event async for event in backlog]]

    assert asyncio.run(read()) == events


def test_a_large_end_waits_for_nobody_who_has_not_read_what_came_before() -> None:
    events: list[ProgramEvent] = [value("x" * 1000), value("x" * 90_000), Done(texts={0: "y" * 90_000})]

    async def read() -> list[ProgramEvent]:
        backlog = of_program(Source(events)(), max_bytes=50_000)
        return [await settled(backlog), *[event async for event in backlog]]

    (last,) = asyncio.run(read())
    assert isinstance(last, Failed) and last.error.code == "reader_too_slow"


def test_a_large_end_is_not_encoded_to_be_counted() -> None:
    end = Done(texts=dict.fromkeys(range(50), "\n" + " " * 660_000))
    began = time.thread_time()
    assert len(end.texts) * 660_000 <= answers._size(end) <= 2 * len(end.texts) * 660_000
    assert time.thread_time() - began < 0.002


class Parts:
    """Parts of an answer; counts those that were made. `left` if not all of them were."""

    def __init__(self, count: int, size: int, error: Exception | None = None) -> None:
        self.count, self.size, self.error, self.num_made, self.left = count, size, error, 0, False

    async def __call__(self) -> AsyncIterator[bytes]:
        try:
            for number in range(self.count):
                self.num_made += 1
                yield b"%d " % number + b"x" * self.size
        except GeneratorExit:
            self.left = True
            raise
        if self.error is not None:
            raise self.error


def test_parts_are_made_ahead_and_taken_in_order() -> None:
    budget, parts = Budget(), Parts(100, 10)

    async def read() -> list[bytes]:
        ahead = Backlog(parts(), WaitingParts(), budget)
        first = await anext(ahead)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert parts.num_made == 100 and budget.num_bytes > 990
        rest = [part async for part in ahead]
        await ahead.aclose()
        return [first, *rest]

    heard = asyncio.run(read())
    assert [int(part.split()[0]) for part in heard] == list(range(100))
    assert (budget.num_bytes, budget.num_readers) == (0, 0)


def test_parts_that_nobody_takes_stop_what_makes_them() -> None:
    budget, parts = Budget(), Parts(10_000, 1000)
    closed: list[str] = []

    async def close() -> None:
        closed.append("outputs")

    async def read() -> None:
        ahead = Backlog(parts(), WaitingParts(), budget, close=close, max_bytes=100_000)
        await anext(ahead)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert parts.num_made < 200
        assert parts.left and closed == ["outputs"], "the work goes on beside a reader that is stuck"
        assert budget.num_bytes == 0
        with pytest.raises(EngineError, match="did not read them") as caught:
            await anext(ahead)
        assert caught.value.code == "reader_too_slow"
        await ahead.aclose()
        unread = Backlog(Parts(1, 1)(), WaitingParts(), budget, close=close)
        await unread.aclose()
        assert closed == ["outputs"] * 3

    asyncio.run(read())
    assert (budget.num_bytes, budget.num_readers) == (0, 0)


def test_an_error_comes_after_the_parts_before_it() -> None:
    async def read() -> None:
        ahead = Backlog(Parts(2, 1, EngineError("no"))(), WaitingParts(), Budget())
        assert [await anext(ahead), await anext(ahead)] == [b"0 x", b"1 x"]
        with pytest.raises(EngineError, match="no"):
            await anext(ahead)
        await ahead.aclose()

    asyncio.run(read())


def test_errors_come_after_what_was_said_and_leaving_stops_the_program() -> None:
    broken = Source([value("a")], EngineError("no", code="c"))
    endless = Source(iter(lambda: value("a"), None))

    async def read() -> None:
        backlog = of_program(broken())
        assert await settled(backlog) == value("a")
        with pytest.raises(EngineError, match="no"):
            await anext(backlog)
        left = of_program(endless())
        await anext(left)
        await left.aclose()

    asyncio.run(read())
    assert endless.left


def test_all_readers_together_have_a_bound_and_who_reads_goes_on() -> None:
    """Ten that do not read share the bound with one that does."""
    budget = Budget(1_000_000)
    sources = [Source(value("x" * 100) for _ in range(3000)) for _ in range(10)]
    reads = Source([*(value("x" * 100) for _ in range(3000)), Done()])

    async def read() -> list[list[ProgramEvent]]:
        slow = [of_program(source(), budget) for source in sources]
        await asyncio.gather(*map(anext, slow))
        fast = of_program(reads(), budget)
        heard = [event async for event in fast]
        assert budget.num_bytes < 1_500_000 and budget.num_readers == 11
        rest = [[event async for event in each] for each in slow]
        for each in (*slow, fast):
            await each.aclose()
        return [heard, *rest]

    heard, *rest = asyncio.run(read())
    assert heard[-1] == Done() and len(heard) == 3001
    assert all(isinstance(events[-1], Failed) and len(events) == 1 for events in rest)
    assert (budget.num_bytes, budget.num_readers) == (0, 0)


def flood(program: Program) -> Iterator[ProgramEvent]:
    if program.id != "flood":
        yield value("quick")
        yield Done()
        return
    for _ in range(5000):
        yield value("x" * 100_000)
    yield Done()


def post_without_reading(server: Running, path: str, body: object) -> socket.socket:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(f"{head}\r\n\r\n".encode() + data)
    return connection


def test_a_client_that_does_not_read_stops_its_program_and_nobody_elses(start: Start) -> None:
    server = start(FakeClient(play=flood))
    ops = [{"type": "assign", "branch": 0, "name": "x", "parts": ["1"]}]
    with post_without_reading(server, "/v1/programs", {"id": "flood", "ops": ops}) as connection:
        assert server.wait_for(lambda: server.engine.aborted == ["flood"], 20.0)
        quick = server.http().post("/v1/programs", json={"id": "quick", "ops": ops})
        assert '"text":"quick"' in quick.text and '"type":"done"' in quick.text
        connection.settimeout(10)
        heard = b""
        while not heard.endswith(b"0\r\n\r\n"):
            heard = (heard + connection.recv(1 << 20))[-2000:]
    assert b'"code":"reader_too_slow"' in heard


def test_a_generation_stops_when_too_much_of_it_is_not_read(start: Start) -> None:
    """At once, not when its reader goes on; other streams notice nothing, and nothing is counted any more."""
    ends = Script(["y"] * 20)
    server = start(FakeClient(lambda request: ends if request.prompt == (121,) else Script(["x" * 100_000] * 5000)))
    body = {"model": "m", "prompt": "x", "max_tokens": 9, "stream": True}
    with ExitStack() as stack:
        slow = [stack.enter_context(post_without_reading(server, "/v1/completions", body)) for _ in range(4)]
        assert server.wait_for(lambda: len(server.engine.aborted) == 4, 30.0)
        assert not server.engine.open_ids
        assert server.http().post("/v1/completions", json={**body, "prompt": "y"}).text.endswith("[DONE]\n\n")
        slow[0].settimeout(10)
        heard = b""
        while not heard.endswith(b"0\r\n\r\n"):
            heard = (heard + slow[0].recv(1 << 20))[-2000:]
    assert b'"code":"reader_too_slow"' in heard and b"[DONE]" not in heard


def test_a_deployed_program_tells_its_slow_reader_too(start: Start) -> None:
    server = start(FakeClient(play=lambda _: (value("x" * 100_000) for _ in range(5000))))
    made: dict[str, Any] = {"name": "f", "ops": [{"type": "assign", "branch": 0, "name": "x", "parts": ["1"]}]}
    made["result"] = {"type": "constant", "json": "1"}
    assert server.http().put("/v1/programs/f", json=made).status_code == 200
    with post_without_reading(server, "/v1/programs/f?stream=true", {}):
        assert server.wait_for(lambda: len(server.engine.aborted) == 1, 20.0)
    assert MAX_WAITING_BYTES < 5000 * 100_000
    assert Assign(0, "x", ("1",)) == server.engine.programs[0].ops[0]
