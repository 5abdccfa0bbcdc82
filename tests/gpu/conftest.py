"""Models for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .place import Place


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Place], Path]:
    """The folder of a place's model, written once."""
    written: dict[str, Path] = {}

    def find(place: Place) -> Path:
        key = repr(sorted(place.changes.items()))
        if key not in written:
            written[key] = place.write_model(tmp_path_factory.mktemp("model"))
        return written[key]

    return find
