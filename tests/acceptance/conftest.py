"""Shared by the checks of the promises: the size of the run, a tiny model, and the list of figures at its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support.tiny_model import write_tiny_model
from .server_process import ServerProcess

_TIMEOUT_S, _FULL_TIMEOUT_S = 600, 3 * 3600
_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def full() -> bool:
    """True if the promises are checked at full size (`make accept`), not at one that fits into `make test`."""
    return _is_full()


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Keeps a line with what was measured; all lines are printed after the tests."""
    lines = request.config.stash.setdefault(_FIGURES, [])
    return lambda line: lines.append(f"{request.node.name}: {line}")


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A server with the default model in float32, for all tests that only use it."""
    with ServerProcess("--dtype", "float32", "--num-pages", "16384") as process:
        yield process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A promise takes as long as it takes, most of all at full size."""
    for item in items:
        if "acceptance" in item.path.parts:
            item.add_marker(pytest.mark.timeout(_FULL_TIMEOUT_S if _is_full() else _TIMEOUT_S))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    lines = config.stash.get(_FIGURES, [])
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)


def _is_full() -> bool:
    return os.environ.get("BOUGH_ACCEPTANCE") == "full"
