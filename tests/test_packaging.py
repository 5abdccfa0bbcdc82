"""What is installed is `bough` and nothing else: as a wheel, and as an editable install."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

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


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def settings(repository: Path) -> dict[str, object]:
    return tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["setuptools"]


@pytest.fixture(scope="module")
def checkout(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources in a folder whose name is no identifier, so that building leaves the real one alone."""
    copy = tmp_path_factory.mktemp("sources") / "some-checkout"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "__init__.py", "py.typed"):
        shutil.copy(repository / name, copy)
    for top in {folder.parts[0] for folder in package_folders(repository)[1:]} | {"tests"}:
        shutil.copytree(repository / top, copy / top, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    run(*pip, "--wheel-dir", folder, ".", cwd=checkout)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def editable_wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install --editable` builds and installs."""
    folder = tmp_path_factory.mktemp("editable")
    build = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    run(sys.executable, "-c", build, folder, cwd=checkout)
    (built,) = folder.glob("*.whl")
    return built


def test_packages_are_the_folders_of_the_tree(repository: Path, settings: dict[str, object]) -> None:
    assert settings["packages"] == [dotted(folder) for folder in package_folders(repository)]


def test_every_folder_with_code_is_a_package(repository: Path) -> None:
    without = [
        str(folder) for folder in package_folders(repository) if not (repository / folder / "__init__.py").exists()
    ]
    assert without == []


def test_the_root_holds_no_other_module(repository: Path) -> None:
    assert [path.name for path in repository.glob("*.py")] == ["__init__.py"]


def test_type_checkers_find_every_folder(repository: Path) -> None:
    links = {path.name: path.resolve() for path in (repository / ".typings" / "bough").iterdir()}
    tops = {folder.parts[0] for folder in package_folders(repository)[1:]}
    assert links == {name: repository / name for name in tops | {"__init__.py", "py.typed"}}


def test_a_wheel_holds_the_package_and_nothing_else(repository: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {"bough/__init__.py", "bough/py.typed"}
    for folder in package_folders(repository)[1:]:
        files = (path for path in (repository / folder).iterdir() if path.is_file() and path.suffix != ".md")
        expected |= {f"bough/{path.relative_to(repository).as_posix()}" for path in files}
    assert names == expected


@pytest.mark.parametrize("kind", ["wheel", "editable_wheel"])
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
