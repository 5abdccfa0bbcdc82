"""Refusals at the door, of what the engine has no place for: in no time, and with a time to come again."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from bough.runtime.protocol.errors import EngineStartingError, EngineStoppedError, OverloadedError, RequestError
from bough.runtime.protocol.request import Request
from bough.server.errors import ApiError
from bough.server.http.door import ASK_AGAIN_S, LONGEST_WAIT_S, Door

from ...runtime.listening import Clock
from ..conftest import Running, Start
from ..fake_client import INFO, FakeClient, Script

HI: Any = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
FULL = OverloadedError("it is full")


def busy_door(clock: Clock, *, num_running: int, an_end_each_s: float | None, draw: float = 0.5) -> Door:
    """One in which so many run, and to which the engine has just refused another."""
    door = Door(num_running, clock=clock, draw=lambda: draw)
    for _ in range(100 if an_end_each_s is not None else 0):
        clock.now += an_end_each_s or 0.0
        with door.together("a", 1).running():
            pass
    for _ in range(num_running):
        door._places.take("a")
    door.refused(FULL)
    return door


@pytest.mark.parametrize(
    ("num_running", "an_end_each_s", "wait_s"),
    [(20, 0.5, "10"), (20, 0.01, "1"), (300, 1.0, "50"), (7, None, "1"), (3, 0.5, "2")],
)
def test_who_is_refused_waits_as_long_as_all_before_him(num_running: int, an_end_each_s: float, wait_s: str) -> None:
    door = busy_door(Clock(), num_running=num_running, an_end_each_s=an_end_each_s)
    with pytest.raises(ApiError) as refused:
        door.check("a")
    assert (refused.value.status, refused.value.code) == (503, "engine_overloaded")
    assert refused.value.headers["retry-after"] == wait_s


def test_those_who_are_refused_together_do_not_come_again_together() -> None:
    waits = []
    for draw in (0.0, 0.25, 0.5, 0.999):
        answer = busy_door(Clock(), num_running=40, an_end_each_s=0.5, draw=draw).refused(FULL)
        waits.append(int(answer.headers["retry-after"]))
    assert waits == [16, 18, 20, 24]
    longest = busy_door(Clock(), num_running=10_000, an_end_each_s=1.0, draw=0.999).refused(FULL)
    assert int(longest.headers["retry-after"]) == LONGEST_WAIT_S


@pytest.mark.parametrize(
    "error",
    [FULL, EngineStartingError("no"), EngineStoppedError("no"), RequestError("no"), ApiError(503, "engine_dead", "no")],
)
def test_what_was_refused_or_lost_is_no_measure_of_the_pace(error: Exception) -> None:
    clock = Clock()
    door = busy_door(clock, num_running=20, an_end_each_s=0.5)
    clock.now += 0.5
    for _ in range(200):
        with pytest.raises(type(error)), door.together("a", 1).running():
            raise error
    assert 9 <= int(door.refused(FULL).headers["retry-after"]) <= 11


def test_the_engine_is_asked_when_there_is_room_and_once_in_a_while() -> None:
    clock = Clock()
    door = Door(2, clock=clock)
    with door.together("a", 1).running(), door.together("b", 1).running():
        door.check("a")  # it has refused nothing yet
        door.refused(FULL)
        with pytest.raises(ApiError):
            door.check("a")
        clock.now += ASK_AGAIN_S
        door.check("a")
        door.refused(FULL)
    door.check("a")
    with door.prepared("a"), door.prepared("a"), pytest.raises(ApiError), door.prepared("a"):
        pass
    door.check("a")


def test_the_places_of_one_request_are_taken_together_and_given_back_one_by_one() -> None:
    door = Door(6, clock=Clock(), draw=lambda: 0.5)
    party = door.together("", 4)
    with pytest.raises(ApiError) as refused:
        door.together("", 3)
    assert (refused.value.code, refused.value.headers["retry-after"]) == ("engine_overloaded", "1")
    with party.running():
        pass
    door.together("", 3).close()
    party.close()
    party.close()
    door.together("", 6).close()
    assert door._places.num_taken == 0


def test_without_a_known_limit_it_is_open() -> None:
    door = busy_door(Clock(), num_running=0, an_end_each_s=None)
    open_door = Door(None)
    open_door.refused(FULL)
    with open_door.together("a", 9).running():
        open_door.check("a")
    with pytest.raises(ApiError):
        door.check("a")


class FullClient(FakeClient):
    """Takes four generations, and says so after 0.2 s, in which an engine may be in a step; `gate` lets them end."""

    def __init__(self) -> None:
        super().__init__(self.outcome, info=msgspec.structs.replace(INFO, max_requests=4))
        self.gate = threading.Event()

    def outcome(self, request: Request) -> Script:
        if len(self.open_ids) >= 4:
            time.sleep(0.2)
            return Script(refuse=FULL)
        return Script(["x"] * 10_000, delay_s=0.01) if not self.gate.is_set() else Script()


def chat(server: Running, **more: Any) -> Any:
    return server.http().post(CHAT, json={"model": "m", "messages": HI, **more})


def test_a_full_engine_is_not_asked_for_each(start: Start) -> None:
    server = start(FullClient())
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(chat, server, stream=True) for _ in range(4)]
        assert server.wait_for(lambda: len(server.engine.open_ids) == 4, 5.0)
        began = time.monotonic()
        refused = [chat(server) for _ in range(40)]
        seconds = time.monotonic() - began
        assert {answer.status_code for answer in refused} == {503}
        assert {answer.json()["error"]["code"] for answer in refused} == {"engine_overloaded"}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        num_asked = len(server.engine.asked) - 4
        assert 1 <= num_asked <= 1 + seconds / ASK_AGAIN_S
        assert len(server.engine.tokenizer.rendered) == 4 + num_asked
        server.server.force_exit = server.server.should_exit = True
        for each in running:
            each.exception()


def test_one_that_ends_makes_room_at_once(start: Start) -> None:
    server = start(FullClient())
    connections = [server.http() for _ in range(4)]
    body = {"model": "m", "messages": HI, "stream": True}
    streams = [http.stream("POST", CHAT, json=body) for http in connections]
    opened = [stream.__enter__() for stream in streams]
    assert chat(server).status_code == chat(server).status_code == 503
    opened[0].close()
    server.engine.gate.set()  # type: ignore[attr-defined]
    assert server.wait_for(lambda: len(server.engine.open_ids) == 3, 5.0)
    assert chat(server).status_code == 200
    for stream in streams[1:]:
        stream.__exit__(None, None, None)
