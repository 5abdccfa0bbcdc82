"""The tutorial and the cookbook, on the default model: what they show is what their blocks print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.server.config import ServerConfig

from ..server.conftest import running
from ..support.pages import MARK, outputs, run_page

ADDRESS = "127.0.0.1:8000"


@pytest.fixture(scope="module")
def engine(default_model: Path) -> Iterator[bough.LocalBackend]:
    with bough.LocalBackend(str(default_model), dtype="float32", num_pages=8192) as backend:
        yield backend


@pytest.fixture
def address(engine: bough.LocalBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Address of a server before the engine that pages find as theirs; its cache is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bough, "LocalBackend", lambda: engine)
    assert engine.flush_cache()
    client: Any = engine.client
    monkeypatch.setattr(client, "close", lambda: None)  # a server ends its client; this one serves the next page, too
    with running(client, ServerConfig(port=0, served_model_name="smollm2-135m")) as server:
        yield f"127.0.0.1:{server.port}"
    bough.set_default_backend(None)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["cookbook", "tutorial"])
def test_blocks_print_what_the_page_shows(
    name: str, repository: Path, tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / f"{name}.md"
    page.write_text((repository / f"docs/{name}.md").read_text().replace(ADDRESS, address))
    run_page(page, tmp_path, marked=True)
    printed = capsys.readouterr().out.split(MARK)
    shown = outputs(page.read_text())
    assert len(printed) == len(shown) + 1
    for text, expected in zip(printed, shown, strict=False):
        if expected is not None:
            assert without_counts(text.rstrip("\n")) == without_counts(expected.rstrip("\n"))
            assert counts(text) == pytest.approx(counts(expected), rel=0.05)


CACHED = re.compile(r"(\d+)(?= of \d+ prompt tokens were cached)")
"""Tokens that a program's branches read of each other: a few more or less, by which of them come first."""


def counts(text: str) -> list[int]:
    return [int(found) for found in CACHED.findall(text)]


def without_counts(text: str) -> str:
    return CACHED.sub("?", text)


def test_a_block_is_compared_with_the_text_after_it() -> None:
    compared = "```python\nprint(1)\n```\n\nThen\n\n```text\n1\n```\n"
    commands = "```console\n$ ls\n```\n\n```text\nnot compared\n```\n"
    silent = "```python\n```\n"
    assert outputs(compared + commands + silent) == ["1\n", None, ""]
