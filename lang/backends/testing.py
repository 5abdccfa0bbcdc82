"""A pytest plugin: programs under test run from recordings, or against scripted answers.

Fixtures: `bough_replay`, a backend that plays back `cassettes/<module>/<test>.jsonl` beside the test's file, and
`bough_mock`, a MockBackend; programs of the test that name no backend run on it. Options: `--bough-record` and
`--bough-backend`. Nothing else of bough is imported before a test requests one of the fixtures.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..backend import Backend
    from .cassette import Cassette
    from .mock import MockBackend

_MODES = {"none": "replay", "missing": "auto", "all": "record"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's options."""
    group = parser.getgroup("bough", "recordings of programs")
    group.addoption(
        "--bough-record",
        choices=tuple(_MODES),
        default="none",
        help="what bough_replay records: nothing (the default), programs that are missing, or all anew",
    )
    group.addoption(
        "--bough-backend",
        metavar="URL|local",
        default="local",
        help="where bough_replay records: a server's URL, or the default model in this process",
    )


@pytest.fixture(scope="session")
def bough_backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Backend that recordings are made on. Override it to record on another backend."""
    from .http import HttpBackend
    from .local import LocalBackend

    where: str = request.config.getoption("--bough-backend")
    backend = LocalBackend() if where == "local" else HttpBackend(where)
    yield backend
    backend.close()


@pytest.fixture
def bough_replay(request: pytest.FixtureRequest) -> Iterator[Cassette]:
    """A backend that plays back the recording of this test; the default one while the test runs."""
    from ..backend import use_backend
    from .cassette import Cassette

    mode = _MODES[request.config.getoption("--bough-record")]
    backend: Backend | None = None if mode == "replay" else request.getfixturevalue("bough_backend")
    path = request.path.parent / "cassettes" / request.path.stem / f"{_file_name(request.node.nodeid)}.jsonl"
    with Cassette(path, backend, mode) as cassette, use_backend(cassette):  # type: ignore[arg-type]
        yield cassette


def _file_name(node_id: str) -> str:
    """A test's name, with those of its classes, as a file's. Where characters were replaced, a digest says which."""
    name = ".".join(node_id.split("::")[1:])
    plain = re.sub(r"[^\w.-]+", "_", name).strip("_")
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@pytest.fixture
def bough_mock() -> Iterator[MockBackend]:
    """A backend with made-up answers; the default one while the test runs."""
    from ..backend import use_backend
    from .mock import MockBackend

    with use_backend(MockBackend()) as backend:
        yield backend  # type: ignore[misc]
