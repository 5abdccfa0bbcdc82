"""The local backend hands everything to its engine client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from bough.lang.api import function, gen
from bough.lang.backends.local import LocalBackend
from bough.lang.backends.mock import MockBackend


class Client(MockBackend):
    """Engine client as a LocalBackend needs it."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_programs_go_to_the_client():
    client: Any = Client({"x": "hi"})
    body = function(lambda s: s.__iadd__(gen("x")))
    with LocalBackend(client=client) as backend:
        assert body.run(backend=backend)["x"] == "hi"
        assert asyncio.run(body.arun(backend=backend))["x"] == "hi"
        backend.drop("p")
        assert backend.flush_cache()
    assert len(client.requests) == 2
    assert client.dropped == ["p"]
    assert not client.closed


def test_the_options_become_the_engine_s_config(monkeypatch: pytest.MonkeyPatch):
    from bough.runtime.client import local

    seen = []

    def load(config):
        seen.append(config)
        return Client()

    monkeypatch.setattr(local.LocalClient, "load", load)
    backend = LocalBackend("some-model", max_num_seqs=3)
    assert (seen[0].model, seen[0].max_num_seqs) == ("some-model", 3)
    backend.close()
    client: Any = backend.client
    assert client.closed
    LocalBackend()
    assert seen[1].model == "smollm2-135m"


def test_a_model_and_a_client_contradict_each_other():
    client: Any = Client()
    with pytest.raises(TypeError, match="not both"):
        LocalBackend("m", client=client)
    with pytest.raises(TypeError, match="not both"):
        LocalBackend(client=client, max_num_seqs=1)


def test_the_language_never_imports_torch_before_an_engine_is_made():
    program = (
        "import sys, bough; bough.function, bough.LocalBackend, bough.HttpBackend, bough.MockBackend, bough.Cassette; "
        "bough.OpenAI('m'), bough.Anthropic('m'); "
        "print('torch' in sys.modules, 'transformers' in sys.modules, 'pydantic' in sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["False", "False", "False"]
