"""Wheels and editable installs hold `bough` and nothing else, with a C compiler or without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)  # compiling takes half a minute, on a busy machine more

LIBRARY = f"bough/kernels/native/_cpu{sysconfig.get_config_var('EXT_SUFFIX')}"
NOT_PACKAGES = {"build", "dist", "docs", "examples", "scripts", "tests"}


def package_folders(root: Path) -> list[Path]:
    """Folders of the package's code, relative to `root`; the root itself comes first."""
    tops = [
        path
        for path in root.iterdir()
        if path.is_dir() and path.name[0] not in "._" and path.name not in NOT_PACKAGES and path.suffix != ".egg-info"
    ]
    found = {path.parent.relative_to(root) for top in tops for path in top.rglob("*.py")}
    return [Path(), *sorted(found)]


def dotted(folder: Path) -> str:
    return ".".join(("bough", *folder.parts))


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    env = os.environ | environment
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def settings(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["setuptools"]


@pytest.fixture(scope="module")
def checkout(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources in a folder whose name is no identifier, so that building leaves the real one alone."""
    copy = tmp_path_factory.mktemp("sources") / "some-checkout"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "__init__.py", "__main__.py", "py.typed"):
        shutil.copy(repository / name, copy)
    for top in {folder.parts[0] for folder in package_folders(repository)[1:]} | {"tests"}:
        shutil.copytree(repository / top, copy / top, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return copy


def build(kind: str, checkout: Path, folder: Path, **environment: str) -> Path:
    """Builds with the build backend: a "wheel", an "editable" one, or an "sdist"."""
    program = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    run(sys.executable, "-c", program, folder, cwd=checkout, **environment)
    (built,) = folder.iterdir()
    return built


_COMPILER = """#!/bin/sh
source= made= last=
for word do
  shift
  [ "$word" = -O3 ] || set -- "$@" "$word"
  case "$last" in -c) source=$(basename "$word");; -o) made=$word;; esac
  last=$word
done
[ -z "$source" ] || ! cp "{folder}/$source.o" "$made" 2>/dev/null || exit 0
{compiler} "$@" && {{ [ -z "$source" ] || cp "$made" "{folder}/$source.o"; }}
"""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The C compiler without -O3, which is most of its time, and each file once: nothing runs what it compiles here."""
    folder = tmp_path_factory.mktemp("compiler")
    script = folder / "cc"
    script.write_text(_COMPILER.format(folder=folder, compiler=shutil.which("cc") or "gcc"))
    script.chmod(0o755)
    return str(script)


@pytest.fixture(scope="module")
def wheel(checkout: Path, compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", checkout, tmp_path_factory.mktemp("wheel"), CC=compiler)


@pytest.fixture(scope="module")
def plain_wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a machine without a C compiler."""
    shutil.rmtree(checkout / "build", ignore_errors=True)
    return build("wheel", checkout, tmp_path_factory.mktemp("plain"), CC="/bin/false")


@pytest.fixture(scope="module")
def editable_wheel(checkout: Path, compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip install --editable` builds and installs."""
    return build("editable", checkout, tmp_path_factory.mktemp("editable"), CC=compiler)


def test_packages_are_the_folders_of_the_tree(repository: Path, settings: dict[str, Any]) -> None:
    assert settings["packages"] == [dotted(folder) for folder in package_folders(repository)]


def test_every_folder_with_code_is_a_package(repository: Path) -> None:
    without = [
        str(folder) for folder in package_folders(repository) if not (repository / folder / "__init__.py").exists()
    ]
    assert without == []


def test_the_root_holds_no_other_module(repository: Path) -> None:
    assert sorted(path.name for path in repository.glob("*.py")) == ["__init__.py", "__main__.py"]


def test_type_checkers_find_every_folder(repository: Path) -> None:
    links = {path.name: path.resolve() for path in (repository / ".typings" / "bough").iterdir()}
    tops = {folder.parts[0] for folder in package_folders(repository)[1:]}
    assert links == {name: repository / name for name in tops | {"__init__.py", "__main__.py", "py.typed"}}


@pytest.mark.parametrize("kind", ["wheel", "plain_wheel"])
def test_a_wheel_holds_the_package_and_nothing_else(kind: str, request: pytest.FixtureRequest, checkout: Path) -> None:
    with zipfile.ZipFile(request.getfixturevalue(kind)) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {"bough/__init__.py", "bough/__main__.py", "bough/py.typed"}
    for folder in package_folders(checkout)[1:]:
        files = (path for path in (checkout / folder).iterdir() if path.is_file() and path.suffix not in (".md", ".so"))
        expected |= {f"bough/{path.relative_to(checkout).as_posix()}" for path in files}
    has_library = kind == "wheel" and (shutil.which("cc") or shutil.which("gcc"))
    assert names == expected | ({LIBRARY} if has_library else set())


def test_sources_hold_all_that_is_compiled(
    repository: Path, settings: dict[str, Any], checkout: Path, tmp_path: Path
) -> None:
    (module,) = settings["ext-modules"]
    source = repository / "kernels" / "native" / "source"
    files = {path.relative_to(repository).as_posix() for path in source.rglob("*") if path.is_file()}
    assert {*module["sources"], *module["depends"]} == files
    with tarfile.open(build("sdist", checkout, tmp_path)) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert files <= names and not any(name.endswith(".so") for name in names)


def test_an_edit_of_the_c_sources_makes_the_environment_anew(checkout: Path, repository: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkout, copy)
    shutil.copy(repository / "Makefile", copy)

    def stamp() -> str:
        printed = run("make", "--dry-run", "dev", f"VENV={tmp_path / 'venv'}", cwd=copy)
        return next(word for word in printed.split() if ".stamp-dev-" in word and "*" not in word)

    before = stamp()
    assert stamp() == before
    with (copy / "kernels" / "native" / "source" / "linear" / "tiles.h").open("a") as file:
        file.write("\n")
    assert stamp() != before


@pytest.mark.parametrize("kind", ["wheel", "plain_wheel", "editable_wheel"])
def test_an_installation_has_one_top_level_name(
    kind: str, request: pytest.FixtureRequest, repository: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "environment", with_pip=False)
    python = tmp_path / "environment" / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", request.getfixturevalue(kind), cwd=tmp_path)
    tops = sorted({folder.parts[0] for folder in package_folders(repository)[1:]})
    program = f"""
import importlib.metadata, importlib.util
import bough
print([name for name in {[*tops, "tests"]!r} if importlib.util.find_spec(name)])
print([name for name in {tops!r} if importlib.util.find_spec("bough." + name) is None])
print(bough.__version__ == importlib.metadata.version("bough"))
"""
    assert run(python, "-c", program, cwd=tmp_path).splitlines() == ["[]", "[]", "True"]


@pytest.mark.usefixtures("native_library")
def test_the_check_of_wheels_runs_the_library(repository: Path, tmp_path: Path) -> None:
    script = repository / "scripts" / "check_wheel.py"
    printed = run(sys.executable, "-P", script, cwd=tmp_path)
    assert "value.json: accepted" in printed and "the CPU library computes with" in printed
    without = "import runpy, sys; from bough.kernels.native import library; library.load_library = lambda: None\n"
    program = without + "sys.exit(runpy.run_path(sys.argv[1])['main']())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "was not compiled" in done.stderr
