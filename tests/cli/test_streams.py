"""Standard streams that are closed, full, or read by nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCHEMA = '{"type": "integer"}'


def bough(arguments: str, *, redirect: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command in a shell that redirects its streams."""
    line = f"{sys.executable} -P -m bough.cli {arguments} {redirect}"
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(SCHEMA)
    return path


def test_what_cannot_be_printed_is_a_failure_in_one_line(schema: Path) -> None:
    ended = bough(f"schema check {schema}", redirect=">/dev/full")
    assert ended.returncode == 1
    assert ended.stderr == "bough: No space left on device\n"


def test_a_reader_who_leaves_is_no_failure_to_tell_of(schema: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-P", "-m", "bough.cli", "schema", "check", str(schema)]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize("redirect", ["2>/dev/full", "2>&-", "<&-"])
def test_other_streams_do_not_matter(schema: Path, redirect: str) -> None:
    ended = bough(f"schema check {schema}", redirect=redirect)
    assert ended.returncode == 0 and ended.stdout
    assert bough("schema check /no/such/file", redirect=redirect).returncode == 2


def test_no_file_takes_the_place_of_a_closed_stream(schema: Path) -> None:
    assert bough(f"schema check {schema}", redirect="<&- >&- 2>&-").returncode == 0
