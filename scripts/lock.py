"""Writes requirements.lock: one version of each dependency, with the SHA-256 of each of its files.

    python scripts/lock.py [--uv PATH]

The versions are resolved for all systems and Pythons that pyproject.toml allows, extras included. torch is left to
`scripts/install_torch.py`: which build is right depends on the machine, and brings what it needs. `uv` comes from PATH,
or from where `--uv` says; the lock names no index, so that it is good for any mirror.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
OLDEST_PYTHON = "3.11"
HEAD = """\
# Dependencies of a release with their hashes, written by `make lock`; do not edit.
# Install torch first (scripts/install_torch.py), then: pip install --no-deps --require-hashes -r requirements.lock
"""


def requirements(project: dict[str, Any]) -> list[str]:
    """Returns what the project and its extras require, without torch and the project itself."""
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return sorted({line for group in groups for line in group if not _is_left_out(line)})


def _is_left_out(line: str) -> bool:
    return line.startswith(("bough[", "torch>", "torch="))


def compile_lock(uv: str, lines: Iterable[str]) -> str:
    """Returns the lock's text. Raises CalledProcessError if there are no versions that go together."""
    command = [
        uv, "pip", "compile", "-", "--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes",
        "--no-emit-package", "torch", "--no-emit-index-url", "--no-emit-find-links", "--no-annotate", "--no-header",
        "--no-sources", "--quiet",
    ]  # fmt: skip
    result = subprocess.run(command, input="\n".join(lines), cwd="/", stdout=subprocess.PIPE, text=True, check=True)
    return HEAD + result.stdout


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--uv", default="uv", help="default: %(default)s, from PATH")
    arguments = parser.parse_args()
    uv = shutil.which(arguments.uv)
    if uv is None:
        parser.error(f"there is no {arguments.uv}: install uv, or say where it is with --uv")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    LOCK.write_text(compile_lock(os.path.abspath(uv), requirements(project)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
