"""Requests that the tests of clients make of an engine, and checks of what has to be true afterwards."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough.runtime.client.client import EngineClient
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import EngineStoppedError
from bough.runtime.protocol.program import Gen, Program, Text
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams

NUMBERS = itertools.count()


def request(max_tokens: int = 8, prompt: str = "hello", **fields: Any) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Request(id=f"r{next(NUMBERS)}", prompt=tuple(prompt.encode()), **{"sampling": sampling} | fields)


def program(*ops: Any, **fields: Any) -> Program:
    return Program(id=f"p{next(NUMBERS)}", ops=ops or (Text(0, ("hello",)), Gen(0, "g", request().sampling)), **fields)


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.002)


def assert_nothing_left(client: EngineClient) -> None:
    def free() -> bool:
        stats = client.stats()
        return (stats.running, stats.waiting, stats.states) == (0, 0, 0)

    wait_until(free)
    assert client.flush_cache()
    stats = client.stats()
    assert stats.free_pages == stats.num_pages


def config(folder: Path) -> EngineConfig:
    return EngineConfig(model=str(folder), num_pages=4096)


def assert_stopped(client: EngineClient) -> None:
    for call in (
        lambda: next(client.stream(request())),
        lambda: next(client.run(program())),
        client.stats,
        client.flush_cache,
    ):
        with pytest.raises(EngineStoppedError):
            call()
    client.drop("anything")
