"""Room for connections is shared: who has the most gives way, and what is under way stays."""

from __future__ import annotations

import socket
from http.client import HTTPResponse

from bough.server.http.keys import parse_keys
from bough.server.http.table import KEEP_ALIVE_S, KEEP_ALIVE_SHORT_S, ConnectionTable

from ..conftest import Running, Start
from ..fake_client import FakeClient, Script
from .test_protocol import BODY, HEAD, connect, is_closed

KEYS = parse_keys(["flood flood-key-0123456789", "quiet quiet-key-0123456789", "third third-key-0123456789"])


def table_of(most: int, connections: dict[str, str]) -> ConnectionTable[str]:
    """Returns a table whose connections, by name, belong to keys and rest, in this order."""
    table: ConnectionTable[str] = ConnectionTable(most)
    for name, key in connections.items():
        table.enter(name)
        table.begin(name)
        table.claim(name, key)
        table.rest(name)
    return table


def test_who_has_the_most_gives_the_one_that_rested_longest() -> None:
    table = table_of(5, {"q": "quiet", "f1": "flood", "f2": "flood", "s1": "", "s2": ""})
    table.begin("f1")
    table.rest("f1")
    gone = [table.give_way(lambda _: True) for _ in range(6)]
    assert gone[:4] in (
        ["f2", "s1", "q", "f1"],
        ["f2", "s1", "f1", "q"],
        ["f2", "s1", "f1", "s2"],
        ["f2", "s1", "q", "s2"],
    )
    assert gone[5] is None and len(table) == 0
    assert (table._keys, table._counts, table._resting) == ({}, {}, {})


def test_what_is_under_way_or_unsent_stays() -> None:
    table = table_of(3, {"a": "k", "b": "k", "c": "k"})
    table.begin("a")
    assert table.give_way(lambda name: name != "b") == "c"
    assert table.give_way(lambda name: name != "b") is None
    table.leave("a")
    table.leave("a")
    table.rest("a")  # it has left
    assert len(table) == 1


def claim(table: ConnectionTable[str], key: str, most: int) -> int:
    """Returns how many new connections a key gets that tries for so many."""
    num_given = 0
    for number in range(most):
        name = f"{key}{number}"
        table.enter(name)
        table.begin(name)
        num_given += table.claim(name, key)
    return num_given


def test_there_is_room_for_another_key_however_many_want_all() -> None:
    table = table_of(100, {})
    assert claim(table, "a", 100) == 75
    assert claim(table, "b", 100) == 18
    assert all(claim(table, key, 100) for key in "cd")
    table = table_of(100, {})
    assert [claim(table, key, 50) for key in "ab"] == [50, 37]
    assert claim(table, "c", 50) == 9


def test_a_key_has_three_quarters_alone() -> None:
    table = table_of(16, {})
    allowed = []
    for number in range(16):
        table.enter(str(number))
        table.begin(str(number))
        allowed.append(table.claim(str(number), "k"))
    assert allowed == [True] * 12 + [False] * 4
    table.enter("other")
    table.begin("other")
    assert table.claim("other", "another")


def test_a_fuller_table_keeps_connections_for_less_long() -> None:
    assert table_of(4, {"a": "", "b": ""}).keep_alive_s == KEEP_ALIVE_S
    assert table_of(4, {"a": "", "b": "", "c": ""}).keep_alive_s == KEEP_ALIVE_SHORT_S


# In the server


def ask(server: Running, key: str, *, stream: bool = False) -> socket.socket:
    connection = connect(server)
    body = BODY[:-1] + b', "stream": true}' if stream else BODY
    authorization = f"authorization: Bearer {key}-key-0123456789\r\n".encode()
    connection.sendall(HEAD + authorization + b"content-length: %d\r\n\r\n" % len(body) + body)
    return connection


def answer(connection: socket.socket) -> HTTPResponse:
    """Returns the answer, of which the body is yet to be read."""
    response = HTTPResponse(connection)
    response.begin()
    return response


def is_served(connection: socket.socket) -> bool:
    response = answer(connection)
    return response.status == 200 and bool(response.read())


def still_serves(connection: socket.socket) -> bool:
    connection.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
    return is_served(connection)


def test_idle_connections_of_one_key_make_room_for_another(start: Start) -> None:
    server = start(keys=KEYS, max_connections=8)
    quiet = ask(server, "quiet")
    assert is_served(quiet)
    idle = []
    for _ in range(7):
        idle.append(ask(server, "flood"))
        assert is_served(idle[-1])
    assert all(is_served(ask(server, "quiet")) for _ in range(3))
    assert sum(is_closed(each) for each in idle[:3]) == 3
    assert still_serves(quiet)


def test_silent_connections_make_room(start: Start) -> None:
    server = start(keys=KEYS, max_connections=8)
    quiet = ask(server, "quiet")
    assert is_served(quiet)
    silent = [connect(server) for _ in range(20)]
    silent[-1].sendall(b"GET /livez HT")
    assert is_served(ask(server, "quiet"))
    assert all(is_closed(each) for each in silent[:12])
    assert still_serves(quiet)


def test_what_runs_is_not_closed_and_one_key_does_not_take_all(start: Start) -> None:
    server = start(FakeClient(lambda _: Script(["x"] * 60, delay_s=0.05)), keys=KEYS, max_connections=8)
    streams = [answer(ask(server, "flood", stream=True)) for _ in range(6)]
    refused = ask(server, "flood", stream=True)
    response = answer(refused)
    assert response.status == 503 and b"too_many_connections" in response.read() and is_closed(refused)
    others = [ask(server, key) for key in ("quiet", "third")]
    assert server.wait_for(lambda: len(server.engine.open_ids) == 8)
    assert is_closed(connect(server))  # all are busy
    assert all(response.status == 200 and b"[DONE]" in response.read() for response in streams)
    assert all(is_served(each) for each in others)
    assert is_served(ask(server, "quiet"))
