"""A real server on a loopback port, in a thread, before a scripted engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import openai
import pytest

from bough.server.app import DrainingServer
from bough.server.config import ServerConfig
from bough.server.http.connection import Lifecycle
from bough.server.serve import bind

from .fake_client import FakeClient


@dataclass
class Running:
    """A server, and clients for it, which are closed with it."""

    port: int
    engine: FakeClient
    server: DrainingServer
    lifecycle: Lifecycle
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def http(self, **settings: Any) -> httpx.Client:
        settings.setdefault("timeout", 20)
        return self.stack.enter_context(httpx.Client(base_url=self.url, trust_env=False, **settings))

    def openai(self, *, key: str = "none", **settings: Any) -> openai.OpenAI:
        settings.setdefault("max_retries", 0)
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, timeout=20, **settings)
        return self.stack.enter_context(client)

    def anthropic(self, *, key: str = "none", **settings: Any) -> anthropic.Anthropic:
        settings.setdefault("max_retries", 0)
        client = anthropic.Anthropic(base_url=self.url, api_key=key, timeout=20, **settings)
        return self.stack.enter_context(client)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 1.0) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.005)
        return condition()


Start = Callable[..., Running]


@contextmanager
def running(engine: FakeClient, config: ServerConfig) -> Iterator[Running]:
    listener = bind(config.host, config.port)
    lifecycle = Lifecycle()
    server = DrainingServer(config, engine, lifecycle)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    result = Running(listener.getsockname()[1], engine, server, lifecycle)
    try:
        assert result.wait_for(lambda: server.started, 10.0)
        yield result
    finally:
        result.stack.close()
        server.should_exit = server.force_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def _shared() -> Iterator[Running]:
    with running(FakeClient(), ServerConfig(port=0, served_model_name="m", request_log=False)) as server:
        yield server


@pytest.fixture
def server(_shared: Running) -> Iterator[Running]:
    """A server with the default script, which answers "Hello". Its engine remembers nothing of earlier tests."""
    _shared.engine.asked.clear()
    yield _shared
    _shared.stack.close()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers that end with the test: `start(engine, **settings of ServerConfig)`."""
    with ExitStack() as stack:

        def begin(engine: FakeClient | None = None, **settings: Any) -> Running:
            settings.setdefault("served_model_name", "m")
            settings.setdefault("request_log", False)
            config = ServerConfig(port=0, **settings)
            return stack.enter_context(running(engine or FakeClient(), config))

        yield begin
