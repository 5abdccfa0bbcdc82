"""Adds to the pages in docs/ what else the site shows: root pages that they link to, the decisions, and help texts."""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")
ESCAPED = re.compile(r"^\|.*\\\|.*$", re.MULTILINE)
"""Table rows with an escaped bar in code: GitHub needs the backslash, the site would show it."""
HELP = re.compile(r"^```console\n\$ bough (.*--help)\n```$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the decisions, which are too many for mkdocs.yml, under the last entry of its `nav`."""
    folder = Path(config.docs_dir, "decisions")
    assert config.nav is not None
    config.nav[-1] = {"Decisions": [f"decisions/{path.name}" for path in sorted(folder.glob("*.md"))]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the root."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, abs_src_path=str(_root(config) / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fits links to where pages are in the site, and runs what asks for help."""
    source = page.file.abs_src_path
    assert source is not None
    here = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = _place(Path(source).parent / link[1], config)
        return posixpath.relpath(target, here or ".") if target is not None else link[1]

    rows = ESCAPED.sub(lambda row: row[0].replace(r"\|", "|"), LINK.sub(moved, markdown))
    return HELP.sub(lambda block: _answered(block[1]), rows)


def _place(target: Path, config: MkDocsConfig) -> str | None:
    """Returns the place of a repository file in the site; None if the site lacks it."""
    path = Path(os.path.normpath(target))
    if path.is_relative_to(config.docs_dir):
        return path.relative_to(config.docs_dir).as_posix()
    return path.name if path.parent == _root(config) and path.name in ROOT_PAGES else None


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent


def _answered(command: str) -> str:
    """A block with a command and what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "bough.cli", *command.split()],
        env={**os.environ, "COLUMNS": "80", "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return f"```console\n$ bough {command}\n{done.stdout.rstrip()}\n```"
