"""An HTTP API whose answers the test decides, in OpenAI's and Anthropic's forms."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Exchange"], None]


class Exchange(BaseHTTPRequestHandler):
    """One request, with ways to answer it."""

    protocol_version = "HTTP/1.1"
    server: Api
    body: dict[str, Any]

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        with self.server.lock:
            self.number = len(self.server.bodies)
            self.server.bodies.append(self.body)
            self.server.heads.append((self.path, dict(self.headers)))
        try:
            self.server.answer(self)
        except OSError:
            self.server.left.set()
            self.close_connection = True

    # Parts of answers

    def refuse(self, status: int, message: str = "no", **headers: str) -> None:
        data = json.dumps({"error": {"message": message, "type": "some_error"}}).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def json(self, answer: object) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin(self, *, last: bool = False) -> None:
        self.send_response(200)
        if last:
            self.send_header("Connection", "close")
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, data: object, name: str | None = None) -> None:
        head = f"event: {name}\n" if name else ""
        text = data if isinstance(data, str) else json.dumps(data)
        self.chunk(f"{head}data: {text}\n\n".encode())

    def end(self) -> None:
        self.chunk(b"")

    # Whole answers

    def say(self, *texts: str, ended: str = "stop", **fields: Any) -> None:
        """One sample each, in OpenAI's form; its stop strings end it, as they would there."""
        chat = self.path.endswith("/chat/completions")
        self.begin()
        for index, text in enumerate(texts):
            kept, reason = self.stopped(text), ended
            for piece in (kept[: len(kept) // 2], kept[len(kept) // 2 :]):
                self.event(
                    {"choices": [{"index": index, **({"delta": {"content": piece}} if chat else {"text": piece})}]}
                )
            self.event({"choices": [{"index": index, "delta": {}, "finish_reason": reason, **fields}]})
        usage = {
            "prompt_tokens": 7,
            "completion_tokens": len("".join(texts).split()),
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        self.event({"choices": [], "usage": usage})
        self.event("[DONE]")
        self.end()

    def stopped(self, text: str) -> str:
        kept = self.body.get("include_stop_str_in_output", False)
        found = [text.index(stop) + kept * len(stop) for stop in self.body.get("stop", []) if stop in text]
        return text[: min(found)] if found else text

    def message(self, text: str, reason: str = "end_turn", sequence: str | None = None) -> None:
        """Anthropic's form."""
        self.begin()
        start = {"usage": {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 2}}
        self.event({"type": "message_start", "message": start}, "message_start")
        self.event({"type": "ping"}, "ping")
        for piece in (text[: len(text) // 2], text[len(text) // 2 :]):
            delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
            self.event(delta, "content_block_delta")
        end = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": sequence}}
        self.event(end | {"usage": {"output_tokens": len(text.split())}}, "message_delta")
        self.event({"type": "message_stop"}, "message_stop")
        self.end()

    def log_message(self, *arguments: object) -> None:
        """Silent."""


class Api(ThreadingHTTPServer):
    """A server on this machine. `bodies` and `heads` are what was asked of it."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.answer = answer
        self.lock = threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[tuple[str, dict[str, str]]] = []
        self.left = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Silent: some tests break connections."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.heads]


@contextmanager
def serving(answer: Answer) -> Iterator[Api]:
    server = Api(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def saying(*texts: str) -> Answer:
    """The texts, one after the other; the last one again and again."""

    def answer(exchange: Exchange) -> None:
        exchange.say(texts[min(exchange.number, len(texts) - 1)])

    return answer
