"""Pages with programs, on the default model as it is by default: what they show is what their blocks print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bough
from bough.cli.main import main
from bough.server.config import ServerConfig

from ..server.conftest import running
from ..support.pages import MARK, blocks, outputs, run_page

ADDRESS = "127.0.0.1:8000"
PAGES = (
    "README.md",
    "docs/backends.md",
    "docs/constraints.md",
    "docs/cookbook.md",
    "docs/language.md",
    "docs/migrating-from-sglang.md",
    "docs/offline.md",
    "docs/seeing.md",
    "docs/server.md",
    "docs/tutorial.md",
)

pytestmark = pytest.mark.usefixtures("native_library")  # another backend rounds otherwise


@pytest.fixture(scope="module")
def engine() -> Iterator[bough.LocalBackend]:
    with bough.LocalBackend() as backend:
        yield backend


@pytest.fixture
def address(engine: bough.LocalBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Address of a server before the engine that pages find as theirs; its cache is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bough, "LocalBackend", lambda: engine)
    assert engine.flush_cache()
    client: Any = engine.client
    monkeypatch.setattr(client, "close", lambda **_: None)  # by its server; this one serves the next page
    with running(client, ServerConfig(port=0, served_model_name="smollm2-135m")) as server:
        yield f"127.0.0.1:{server.port}"
    bough.set_default_backend(None)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PAGES)
def test_blocks_print_what_the_page_shows(
    name: str, repository: Path, tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / Path(name).name
    page.write_text((repository / name).read_text().replace(ADDRESS, address))
    run_page(page, tmp_path, marked=True)
    printed = capsys.readouterr().out.split(MARK)
    shown = outputs(page.read_text())
    assert len(printed) == len(shown) + 1
    for text, expected in zip(printed, shown, strict=False):
        if expected is not None:
            assert lasting(text) == lasting(expected)
            assert counts(text) == pytest.approx(counts(expected), rel=0.05)


@pytest.mark.model
@pytest.mark.slow
def test_the_first_command_prints_what_the_page_shows(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (repository / "README.md").read_text()
    program, command = blocks(text, "python")[0], blocks(text, "console")[1]
    line, _, expected = command.partition("\n")
    assert line.startswith("$ .venv/bin/bough run brief.py ")
    (tmp_path / "brief.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(line)[2:]) == 0
    assert capsys.readouterr().out.rstrip() == expected.rstrip()


CACHED = re.compile(r"(\d+(?= of \d+ (?:prompt tokens were )?cached| from the cache)|(?<=from the cache \()\d+)")
"""Tokens that a program's branches read of each other: a few more or less, by which of them come first."""
TIMES = re.compile(r"[·▒█ ]*[·▒█]+ *|\d+\.\d+ s\b|(?<=  )\d+\.\d\d(?=  )|\d+(?:\.\d+)? ms\b|\d+ tokens/s")
"""Times, as numbers and as bars."""


def counts(text: str) -> list[int]:
    return [int(found) for found in CACHED.findall(text)]


def lasting(text: str) -> list[str]:
    """The lines of an output without what differs from run to run: also how often a value was looked at as it grew."""
    lines = [TIMES.sub("?", CACHED.sub("?", line)).rstrip() for line in text.rstrip("\n").splitlines()]
    return [line for line in lines if not line.endswith(", ...)")]


def test_a_block_is_compared_with_the_text_after_it() -> None:
    compared = "```python\nprint(1)\n```\n\nThen\n\n```text\n1\n```\n"
    commands = "```console\n$ ls\n```\n\n```text\nnot compared\n```\n"
    silent = "```python\n```\n"
    assert outputs(compared + commands + silent) == ["1\n", None, ""]
