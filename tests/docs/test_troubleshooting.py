"""Messages that the page on troubleshooting quotes are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

QUOTED = re.compile(r"^\| (?:\d{3} )?((?:`[^`]+`(?:, )?)+) \|", re.MULTILINE)
FOLDERS = ("cli", "constrain", "lang", "runtime", "server")


def quotes(page: str) -> list[str]:
    """Returns the messages and codes in the first column of the page's tables."""
    return [quote for cell in QUOTED.findall(page) for quote in re.findall(r"`([^`]+)`", cell)]


@pytest.fixture(scope="module")
def source(repository: Path) -> str:
    return "".join(path.read_text() for folder in FOLDERS for path in sorted((repository / folder).rglob("*.py")))


def test_messages_are_those_of_the_code(repository: Path, source: str) -> None:
    found = quotes((repository / "docs/troubleshooting.md").read_text())
    assert len(found) >= 20
    assert [quote for quote in found if quote not in source] == []


def test_first_columns_are_read() -> None:
    page = "| you see | why |\n|---|---|\n| `a b` | `no` |\n| 503 `c`, `d` | x |\n| words | y |\n"
    assert quotes(page) == ["a b", "c", "d"]
