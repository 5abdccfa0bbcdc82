"""Promise: a wrong request is refused as stated, before any stream begins, and concerns nobody else."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from ...server.test_errors import BAD_REQUESTS, wire
from ...support.tiny_model import write_tiny_model
from ..server_process import ServerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BAD_REQUESTS.exists(), reason="the list of bad requests is not there"),
]

KEY = "test-key"
CONTROL = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}
ENFORCED: dict[str, tuple[int, str | None]] = {
    "F11": (400, "invalid_json_schema"),
    "F17": (200, None),
    "F19": (200, None),
}
"""Rows that ask for something that may be refused and is enforced here: a look-ahead that nothing satisfies, unique
items, and `not`."""

MAX_ERROR_BYTES = 2000
EACH = 10
"""Requests after which a control request is sent."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096)
    keys = folder / "keys"
    keys.write_text(f"test {KEY}\n")
    keys.chmod(0o600)
    options = ["--model", str(folder), "--served-model-name", "m", "--num-pages", "8192", "--no-request-log"]
    with ServerProcess(*options, "--api-key-file", str(keys)) as process:
        yield process


def rows() -> list[dict[str, Any]]:
    """The rows of the list, and each once more as a request for a stream."""
    listed = [json.loads(line) for line in BAD_REQUESTS.read_text().splitlines()]
    served = [row for row in listed if row["path"] != "/v1/responses"]
    streamed = [
        {**row, "id": f"{row['id']} streamed", "body": {**row["body"], "stream": True}}
        for row in served
        if isinstance(row.get("body"), dict) and "stream" not in json.dumps(row["body"])
    ]
    for row in (*served, *streamed):
        if (enforced := ENFORCED.get(row["id"].partition(" ")[0])) is not None:
            row["status"], row["code"] = enforced
    return [*served, *streamed]


def ask(server: ServerProcess, row: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """Sends a row on a socket of its own; returns status, headers and body of the answer."""
    headers = {"host": "localhost", "authorization": f"Bearer {KEY}", "content-type": "application/json"}
    data = wire(row)
    headers |= {"content-length": str(len(data)), "connection": "close", **row.get("headers", {})}
    lines = [f"{row['method']} {row['path']} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
    port = int(re.findall(r"\d+$", server.url)[0])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        answer = bytearray()
        while part := connection.recv(1 << 16):
            answer += part
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    found = (field.partition(": ") for field in fields)
    return int(status.split()[1]), {name.lower(): value for name, _, value in found}, body


def fault(server: ServerProcess, row: dict[str, Any]) -> str | None:
    """Returns a fault of the answer to a row, if it has any."""
    status, headers, body = ask(server, row)
    if status != row["status"]:
        return f"{row['id']}: status {status}, not {row['status']}: {body[:200]!r}"
    if status == 200:
        return None
    if headers["content-type"] != "application/json" or "x-request-id" not in headers or len(body) > MAX_ERROR_BYTES:
        return f"{row['id']}: no plain error: {headers}"
    error = json.loads(body)["error"]
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        return f"{row['id']}: {error}"
    wrong = [name for name in ("code", "param") if name in row and error[name] != row[name]]
    return ", ".join(f"{row['id']}: {name} {error[name]!r}, not {row[name]!r}" for name in wrong) or None


def test_each_row_is_answered_as_stated(server: ServerProcess, figures: Callable[[str], None]) -> None:
    def control() -> str:
        answer = httpx.post(
            f"{server.url}/v1/chat/completions", json=CONTROL, headers={"authorization": f"Bearer {KEY}"}, timeout=60
        )
        return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])

    before, all_rows = control(), rows()
    faults = []
    for number, row in enumerate(all_rows):
        faults.append(fault(server, row))
        assert number % EACH or control() == before, row["id"]
    wrong = [each for each in faults if each is not None]
    figures(f"{len(all_rows)} requests, a control request equal after each tenth; {len(wrong)} not as stated")
    assert len(all_rows) > 180
    assert wrong == [], "\n".join(wrong)
