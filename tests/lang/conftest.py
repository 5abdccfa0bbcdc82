"""Fixture of every test of the language: a default backend that one sets is not the next one's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bough.lang import backend


@pytest.fixture(autouse=True)
def _own_default_backend() -> Iterator[None]:
    before = backend._default.backend
    yield
    backend.set_default_backend(before)
