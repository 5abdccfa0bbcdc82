"""A scripted API and a backend before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from bough.lang.backends.apis.openai import OpenAI

from .apis.fake_api import Answer, Api, serving


@pytest.fixture
def api() -> Iterator[Any]:
    """Starts a server and a backend before it."""
    with ExitStack() as stack:

        def start(answer: Answer, **options: Any) -> tuple[Api, OpenAI]:
            server = stack.enter_context(serving(answer))
            fields = {"api_key": "k", "max_retries": 2, **options}
            backend = stack.enter_context(OpenAI("m", base_url=server.url + "/v1", **fields))
            backend._client._pause_s = 0.001
            return server, backend

        yield start
