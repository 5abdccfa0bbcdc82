"""Pages of the documentation as scripts: the blocks of Python of a page, one after the other."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEPLOY = re.compile(r"^\$ \.venv/bin/bough (deploy .*)$", re.MULTILINE)
MARK = "\x1e"
"""Output of a marked script after each of its blocks."""


def blocks(text: str, language: str) -> list[str]:
    return [code for name, code in BLOCK.findall(text) if name == language]


def prose(text: str) -> str:
    return BLOCK.sub("", text)


def run_page(page: Path, folder: Path, *, marked: bool = False) -> dict[str, Any]:
    """Runs a page's blocks of Python as one script, whose line numbers are the page's.

    A marked script prints MARK after each block of Python and of commands, and does the commands `bough deploy`.
    """
    text = page.read_text()
    kept = ["\n"] * (text.count("\n") + 1)
    for match in BLOCK.finditer(text):
        start = text.count("\n", 0, match.start(2))
        lines = match[2].splitlines(keepends=True)
        if match[1] == "python":
            kept[start : start + len(lines)] = lines
        elif marked and match[1] == "console":
            kept[start : start + len(lines)] = [_command(line) for line in lines]
        if marked and match[1] in ("python", "console"):
            kept[start + len(lines)] = f"print({MARK!r}, end='')\n"
    script = folder / f"{page.stem}.py"
    script.write_text("".join(kept))
    return runpy.run_path(str(script), run_name="__main__")


def _command(line: str) -> str:
    """Python that does what a line of a console shows, if it is a command that the page's script goes on from."""
    found = DEPLOY.match(line)
    if found is None:
        return "\n"
    return f"import bough.cli.main; assert bough.cli.main.main({shlex.split(found[1], comments=True)}) == 0\n"


def outputs(text: str) -> list[str | None]:
    """Pairs each block of Python with what it prints, the block of text after it; None for blocks of commands."""
    found: list[str | None] = []
    for language, content in BLOCK.findall(text):
        if language in ("python", "console"):
            found.append("" if language == "python" else None)
        elif language == "text" and found and found[-1] == "":
            found[-1] = content
    return found
