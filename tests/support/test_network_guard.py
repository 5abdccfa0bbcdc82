"""Tests reach this machine and no other."""

from __future__ import annotations

import socket

import pytest


def test_a_connection_elsewhere_fails_by_name() -> None:
    with socket.socket() as client, pytest.raises(RuntimeError, match=r"tried to reach \('192\.0\.2\.1', 80\)"):
        client.connect(("192.0.2.1", 80))  # an address reserved for documentation: no such host anywhere
    with socket.socket() as client, pytest.raises(RuntimeError, match="this machine only"):
        client.connect_ex(("192.0.2.1", 80))


def test_a_connection_to_this_machine_is_let_through() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
        assert client.getpeername() == server.getsockname()
