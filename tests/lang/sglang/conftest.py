"""The default model for all programs of this folder, in this process and behind a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import bough as sgl


@pytest.fixture(scope="session")
def engine(default_model: Path) -> Iterator[sgl.Engine]:
    """One engine for all tests: loading it takes longer than most of them."""
    with sgl.Engine(model_path=str(default_model), dtype="float32", max_running_requests=32) as engine:
        yield engine


@pytest.fixture
def default_backend(engine: sgl.Engine) -> Iterator[sgl.Engine]:
    """The engine, as programs find it that name no backend. It starts without a cache."""
    sgl.set_default_backend(engine)
    sgl.flush_cache()
    yield engine
    sgl.set_default_backend(None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "engine" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)
