"""Tools of other services: how they are called, and what their answers become."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TypedDict

import pytest

from bough.lang.api import function, gen
from bough.lang.backends.mock import MockBackend
from bough.lang.control import var
from bough.lang.tools.http_tool import http_tool
from bough.lang.tools.tool import use
from bough.runtime.protocol.errors import EngineError, RequestError

from .test_tool import Place, called, run


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/away":
            self._answer(307, "", {"location": "http://localhost:9/x"})
        elif self.path == "/moved":
            self._answer(307, "", {"location": "/echo"})
        elif self.path == "/loop":
            self._answer(307, "", {"location": "/loop"})
        elif self.path == "/broken":
            self._answer(500, "no such thing")
        elif self.path == "/string":
            self._answer(200, json.dumps("one\ntwo"), {"content-type": "application/json"})
        elif self.path == "/long":
            self._answer(200, "x" * 5000)
        else:
            key = self.headers.get("x-key", "")
            self._answer(200, json.dumps({"got": body, "key": key}), {"content-type": "application/json"})

    def _answer(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def service():
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(10)


class Question(TypedDict):
    text: str


def test_a_service_is_a_tool(service):
    ask = http_tool("ask", f"{service}/echo", parameters=Question, description="Asks.", headers={"x-key": "k"})
    assert json.loads(called(ask, text="hi")) == {"got": {"text": "hi"}, "key": "k"}
    assert ask.parameters["properties"] == {"text": {"type": "string"}}
    assert json.loads(ask(text="hi"))["got"] == {"text": "hi"}

    def body(s):
        s += gen("x") + use("found", ask, text=var("x"))

    state, _ = run(body, {"x": "there"})
    assert json.loads(state["found"])["got"] == {"text": "there"}


def test_json_text_is_unwrapped_and_redirects_stay_at_home(service):
    assert http_tool("t", f"{service}/string").call({}) == "one\ntwo"
    assert json.loads(called(http_tool("t", f"{service}/moved"), a=1))["got"] == {"a": 1}


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("away", "redirects with status 307 to localhost"),
        ("loop", "redirects more than 5 times"),
        ("broken", "status 500: no such thing"),
        ("long", "more than 1000 characters"),
    ],
)
def test_what_a_service_does_wrong_is_an_error(service, path, match):
    with pytest.raises(EngineError, match=match):
        http_tool("t", f"{service}/{path}", max_chars=1000).call({})


def test_a_service_that_is_not_there_is_an_error():
    with pytest.raises(EngineError, match="cannot be reached"):
        http_tool("t", "http://127.0.0.1:9/x", timeout_s=2).call({})


@pytest.mark.parametrize("url", ["ftp://x/y", "nothing", "http://"])
def test_a_url_must_be_one(url):
    with pytest.raises(RequestError, match="URL of tool"):
        http_tool("t", url)


def test_parameters_of_a_service_describe_an_object():
    with pytest.raises(RequestError, match="of an object"):
        http_tool("t", "http://x/y", parameters={"type": "string"})
    with pytest.raises(RequestError, match="of an object"):
        http_tool("t", "http://x/y", parameters=int)


def test_a_constant_for_a_service_is_checked_by_its_schema():
    service = http_tool("service", "http://127.0.0.1:9/x", parameters=Place)
    program = function(lambda s, **arguments: s.__iadd__(use("o", service, arguments)))
    assert program.run(backend=MockBackend({"o": "x"}), city="a", zip_code=5)["o"] == "x"
    with pytest.raises(RequestError, match="'city' of tool 'service' cannot be 5: expected a text"):
        program.run(backend=MockBackend({"o": "x"}), city=5)
