"""requirements.lock has a version with hashes for all that pyproject.toml and what it installs require, and no more."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LEFT_OUT = {"bough", "torch"}


@pytest.fixture(scope="module")
def script(repository: Path) -> Any:
    spec = importlib.util.spec_from_file_location("lock_script", repository / "scripts/lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def locked(repository: Path) -> dict[str, list[Requirement]]:
    """The lock's entries by name; several where the version depends on the system. Each has hashes."""
    entries: dict[str, list[Requirement]] = {}
    text = (repository / "requirements.lock").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        requirement, *hashes = line.split(" --hash=")
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", each) for each in hashes), requirement
        entry = Requirement(requirement.strip())
        assert re.fullmatch(r"==[^*=,]+", str(entry.specifier)), requirement
        entries.setdefault(canonicalize_name(entry.name), []).append(entry)
    return entries


def test_versions_lie_in_the_ranges(project: dict[str, Any], script: Any, locked: dict[str, list[Requirement]]) -> None:
    wanted = [Requirement(line) for line in script.requirements(project)]
    assert len(wanted) > 25
    for requirement in wanted:
        found = locked[canonicalize_name(requirement.name)]
        for entry in found:
            (version,) = entry.specifier
            assert requirement.specifier.contains(version.version), f"{requirement}: the lock has {version}"


def test_what_the_packages_need_is_there(locked: dict[str, list[Requirement]]) -> None:
    """By the metadata of those that are installed in the locked version, as most are after `make dev`."""
    compared = 0
    for name, entries in locked.items():
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed.version not in {next(iter(entry.specifier)).version for entry in entries}:
            continue
        compared += 1
        for line in installed.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert canonicalize_name(needed.name) in {*locked, *LEFT_OUT}, f"{name} needs {needed}"
    assert compared > 20


def test_nothing_says_where_it_was_resolved(repository: Path) -> None:
    text = (repository / "requirements.lock").read_text()
    assert "://" not in text and "--index" not in text and "--find-links" not in text and " @ " not in text


def test_torch_is_left_to_the_machine(
    project: dict[str, Any], script: Any, locked: dict[str, list[Requirement]]
) -> None:
    assert not any(line.startswith("torch") for line in project["dependencies"])  # the CPU library needs none
    assert any(line.startswith("torch") for line in project["optional-dependencies"]["torch"])
    assert not any(line.startswith(("torch", "bough")) for line in script.requirements(project))
    assert not {name for name in locked if name in LEFT_OUT or name.startswith("nvidia")}


def test_the_resolver_gets_all_and_adds_hashes(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(command: list[str], **options: Any) -> Any:
        asked.append((command, options))
        return subprocess.CompletedProcess(command, 0, stdout="x==1 --hash=sha256:0\n")

    monkeypatch.setattr(script.subprocess, "run", run)
    assert script.compile_lock("uv", ["x>=1", "y"]) == script.HEAD + "x==1 --hash=sha256:0\n"
    ((command, options),) = asked
    assert options["input"] == "x>=1\ny" and options["check"]
    assert {"--generate-hashes", "--universal", "--no-emit-index-url"} < set(command)
