"""Shared by the tests of clients: a folder with a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...support.engine_thread import engine_threads
from ...support.tiny_model import write_tiny_model

__all__ = ["engine_threads"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))
