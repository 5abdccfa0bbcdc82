"""A hub on this machine: files over HTTP with ranges, and transfers that break off where they are told to."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HubServer:
    """A hub's files, and what it was asked.

    files      contents by path, below `/organisation/name/`
    breaks     bytes after which the next transfers break off, one each
    statuses   answers that come instead of the next ones
    redirects  addresses that paths lead to
    ranges     False: it knows no ranges, and always sends all
    lengths    False: it does not say how long files are
    """

    def __init__(self) -> None:
        self.url = ""
        self.commit = "a" * 40
        self.files: dict[str, bytes] = {}
        self.breaks: list[int] = []
        self.statuses: list[int] = []
        self.etag: str | None = '"one"'
        self.ranges = True
        self.lengths = True
        self.states_hashes = True
        self.asked: list[tuple[str, str | None]] = []
        self.tokens: list[str | None] = []
        self.redirects: dict[str, str] = {}

    def listing(self) -> bytes:
        """The answer about a revision."""
        siblings: list[dict[str, Any]] = [{"rfilename": "README.md"}]
        for path, content in self.files.items():
            lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            siblings.append({"rfilename": path, "size": len(content)} | ({"lfs": lfs} if self.states_hashes else {}))
        return json.dumps({"sha": self.commit, "siblings": siblings, "private": False}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def do_GET(self) -> None:
        hub = self.hub
        hub.asked.append((self.path, self.headers["Range"]))
        hub.tokens.append(self.headers["Authorization"])
        if hub.statuses and (status := hub.statuses.pop(0)):
            self._send(status, b"")
        elif self.path in hub.redirects:
            self.send_response(302)
            self.send_header("Location", hub.redirects[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.startswith("/api/models/some/model/revision/"):
            self._send(200, hub.listing())
        else:
            name = self.path.partition(f"/resolve/{hub.commit}/")[2] or self.path.removeprefix("/")
            content = hub.files.get(name)
            self._send(404, b"") if content is None else self._send_file(content)

    def _send_file(self, content: bytes) -> None:
        hub, begin = self.hub, 0
        asked = self.headers["Range"]
        if asked and hub.ranges and self.headers["If-Range"] in (None, hub.etag):
            begin = int(asked.removeprefix("bytes=").removesuffix("-"))
        if begin > len(content) or (begin == len(content) and begin):
            self._send(416, b"")
            return
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        if hub.etag is not None:
            self.send_header("ETag", hub.etag)
        if hub.lengths:
            self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        stop = min(len(content), begin + hub.breaks.pop(0)) if hub.breaks else len(content)
        with suppress(ConnectionError):  # a client may leave
            self.wfile.write(content[begin:stop])
        self.close_connection = stop < len(content) or not hub.lengths

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Serves a hub at a free port of this machine."""
    hub = HubServer()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield hub
        server.shutdown()
        thread.join()
