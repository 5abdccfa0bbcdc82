"""Keys, hosts and addresses: who may enter, and that everyone is asked."""

from __future__ import annotations

import ast
import inspect
import socket
from typing import Any

import httpx
import pytest

from bough.server.app import Routes
from bough.server.config import ServerConfig
from bough.server.errors import ApiError
from bough.server.http import access
from bough.server.http.access import PUBLIC_PATHS, Guard, check_bind
from bough.server.http.connection import Lifecycle
from bough.server.http.keys import parse_keys, read_keys
from bough.server.service import Service

from ..conftest import Running, Start
from ..fake_client import FakeClient

HI: Any = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
KEYS = parse_keys(["# people", "", "alice key-a", "bob key-b", "root key-r admin", "key-without-name"])


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def code_of(response: httpx.Response) -> str:
    """The code of an error, in whichever API's form."""
    error = response.json()["error"]
    return error["code"] if "code" in error else error["details"]["error_code"]


def test_keys_are_kept_as_digests_with_names() -> None:
    assert [key.name for key in KEYS[:3]] == ["alice", "bob", "root"]
    assert [key.admin for key in KEYS] == [False, False, True, False]
    assert len(KEYS[3].name) == 12
    assert all(len(key.digest) == 32 for key in KEYS)


@pytest.mark.parametrize(
    "lines",
    [
        ["a secret c"],
        ["a secret admin c"],
        ["a/b secret"],
        ["a secret-x", "a secret-y"],
        ["a sec"],
        ["s"],
        ["a secret", "b secret"],
        ["secret", "a secret"],
    ],
)
def test_a_bad_list_of_keys_is_refused_without_showing_keys(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="API keys") as caught:
        parse_keys(lines)
    assert "secret" not in str(caught.value)


def test_keys_come_from_a_file(tmp_path: Any) -> None:
    path = tmp_path / "keys"
    path.write_text("alice key-a\n")
    assert read_keys(path) == KEYS[:1]


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer wrong", "Bearer KEY-A", "Basic key-a", "key-a", "Bearer \xe9"]
)
def test_without_a_right_key_only_the_public_paths_answer(start: Start, header: str) -> None:
    http = start(keys=KEYS).http(headers={"authorization": header.encode("latin-1")} if header else {})
    for path in PUBLIC_PATHS:
        assert http.get(path).json() == {"status": "ok"}
    service = Service(FakeClient(), ServerConfig(), Lifecycle())
    for method, path, _ in Routes(service).table():
        for variant in (path, f"{path}/", f"/{path}", f"{path}x", path.upper(), f"{path};x", f"{path}/../metrics"):
            if variant in PUBLIC_PATHS:
                continue
            response = http.request(method, variant)
            assert response.status_code == 401, variant
            assert response.headers["www-authenticate"] == "Bearer"
            assert code_of(response) == "invalid_api_key"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "key-a"}, 200),
        ({"x-api-key": "key-a", **bearer("key-a")}, 200),
        ({"x-api-key": "key-x"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "Bearer key-a"}, 401),
        ({"x-api-key": "key-a", **bearer("key-b")}, 401),
        ({"x-api-key": "key-x", **bearer("key-a")}, 401),
        ({"x-api-key": "key-a", "authorization": "Basic key-a"}, 401),
    ],
)
def test_a_key_may_come_in_a_header_of_its_own(start: Start, headers: dict[str, str], status: int) -> None:
    server = start(keys=KEYS)
    response = server.http(headers=headers).post(CHAT, json={"model": "m", "messages": HI})
    assert response.status_code == status
    assert [request.namespace for request in server.engine.asked] == ["alice"] * (status == 200)
    assert status == 200 or code_of(response) == "invalid_api_key"


def test_a_second_header_with_a_key_is_refused(start: Start) -> None:
    headers = [("x-api-key", "key-a"), ("x-api-key", "key-a")]
    assert start(keys=KEYS).http().get("/v1/models", headers=headers).status_code == 400


def test_a_key_opens_and_separates(start: Start) -> None:
    server = start(keys=KEYS)
    for key in ("key-a", "key-b"):
        for salt in ({}, {"cache_salt": "s"}):
            body = {"model": "m", "messages": HI, **salt}
            assert server.http(headers=bearer(key)).post(CHAT, json=body).status_code == 200
    assert [request.namespace for request in server.engine.asked] == ["alice", "alice/s", "bob", "bob/s"]


def test_administration_needs_an_administrator(start: Start) -> None:
    server = start(keys=KEYS)
    for path in ("/flush_cache", "/admin/flush_cache"):
        refused = server.http(headers=bearer("key-a")).post(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_required")
        assert server.http(headers=bearer("key-r")).post(path).json() == {"flushed": True}
        assert server.http(headers=bearer("key-r")).get(path).status_code == 405
    assert server.engine.num_flushes == 2
    assert start().http().post("/flush_cache").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LOCALHOST:8000", 200), ("127.0.0.1", 200), ("[::1]:8000", 200),
        ("evil.example", 403), ("localhost.evil.example", 403), ("10.0.0.1", 403), ("", 403),
    ],
)  # fmt: skip
def test_without_keys_other_hosts_are_not_served(server: Running, host: str, status: int) -> None:
    assert server.http().get("/v1/models", headers={"host": host}).status_code == status


def test_with_keys_any_host_is_served(start: Start) -> None:
    headers = {"host": "api.example", **bearer("key-a")}
    assert start(keys=KEYS).http().get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com"])
def test_open_addresses_need_a_key(host: str) -> None:
    with pytest.raises(ValueError, match="no API key"):
        check_bind(ServerConfig(host=host))
    check_bind(ServerConfig(host=host, keys=KEYS))
    check_bind(ServerConfig(host=host, open_without_key=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2"])
def test_loopback_needs_none(host: str) -> None:
    check_bind(ServerConfig(host=host))


@pytest.mark.parametrize("path", ["/metrics", "/server_info"])
def test_what_all_callers_do_is_shown_to_those_with_the_right(start: Start, path: str) -> None:
    server = start(keys=(*KEYS, *parse_keys(["watch key-w metrics"])))
    refused = server.http(headers=bearer("key-a")).get(path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "metrics_key_required")
    for key in ("key-r", "key-w"):
        assert server.http(headers=bearer(key)).get(path).status_code == 200
    assert server.http(headers=bearer("key-w")).post("/flush_cache").status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-origin", "origin": "http://localhost:80"}, 200),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:81"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_pages_of_other_origins_change_nothing(server: Running, headers: dict[str, str], status: int) -> None:
    http = server.http()
    given = {"host": "localhost:80", **headers}
    assert http.post("/flush_cache", headers=given).status_code == status
    assert http.post(CHAT, headers=given, json={"model": "m", "messages": HI}).status_code == status
    assert http.get("/v1/models", headers=given).status_code == 200


def test_a_body_with_two_lengths_is_refused_and_nothing_after_it_is_read(server: Running) -> None:
    headers = [(b"host", b"localhost"), (b"content-length", b"3"), (b"transfer-encoding", b"chunked")]
    with pytest.raises(ApiError, match="must not have both") as caught:
        Guard(ServerConfig()).admit("/v1/completions", headers, "POST")
    assert (caught.value.status, caught.value.headers["connection"]) == (400, "close")
    for lengths in (
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5.0) as connection:
            head = "\r\n".join(("POST /v1/completions HTTP/1.1", "Host: localhost", *lengths, "", ""))
            connection.sendall(head.encode() + b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1


def test_a_key_file_that_others_may_read_or_change_causes_a_warning(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("alice a-key-that-is-long-enough\n")
    path.chmod(0o600)
    read_keys(path)
    assert not caplog.records
    path.chmod(0o644)
    read_keys(path)
    assert "can be read by other users: chmod 600" in caplog.text and "changed" not in caplog.text
    caplog.clear()
    path.chmod(0o620)
    read_keys(path)
    assert "can be changed by other users" in caplog.text and "be read" not in caplog.text
    parse_keys(["alice short-key"])
    assert "can be guessed" in caplog.text and "short-key" not in caplog.text


def test_headers_are_bounded() -> None:
    guard = Guard(ServerConfig())
    host = (b"host", b"localhost")
    assert guard.admit("/livez", [host, (b"x", b"y" * 30_000)]).name == ""
    for headers in ([host, (b"x", b"y" * 33_000)], [host, *[(b"x", b"y")] * 100]):
        with pytest.raises(ApiError, match="At most"):
            guard.admit("/livez", headers)


def test_key_material_is_never_compared_with_an_operator() -> None:
    for node in ast.walk(ast.parse(inspect.getsource(access))):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq | ast.In) for op in node.ops):
            assert not any(word in ast.unparse(node) for word in ("digest", "given"))
