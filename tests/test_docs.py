"""The documents: every relative link leads to a file, and the commands that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
MAKE = re.compile(r"\bmake ((?:[A-Z_]+=\S+ )*)([a-z]+)")


def documents(repository: Path) -> list[Path]:
    return sorted([*repository.glob("*.md"), *(repository / "docs").rglob("*.md")])


def dead_links(document: Path) -> list[str]:
    return [link for link in LINK.findall(document.read_text()) if not (document.parent / link).exists()]


def test_relative_links_lead_somewhere(repository: Path) -> None:
    paths = documents(repository)
    assert len(paths) > 5
    assert {path.name: dead for path in paths if (dead := dead_links(path))} == {}


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("[here](page.md) [part](page.md#part) [web](https://example.org) [gone](gone.md)")
    assert dead_links(document) == ["gone.md"]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_commands_shown_are_targets_of_the_makefile(repository: Path, name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (repository / "Makefile").read_text(), flags=re.MULTILINE))
    code = re.findall(r"^\$ (make .*?)(?:  .*)?$|`(make [^`]+)`", (repository / name).read_text(), flags=re.MULTILINE)
    shown = {match[2] for first, second in code for match in MAKE.finditer(first or second)}
    assert shown
    assert shown <= targets
