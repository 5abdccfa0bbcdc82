"""Models of the hub: the commit and the hashes of the first time are what every later time has to find."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bough.cli.main import main
from bough.runtime.checkpoints import hub
from bough.runtime.checkpoints.hub import fetch_from_hub, is_hub_name
from bough.runtime.checkpoints.locate import locate
from bough.runtime.protocol.errors import ModelError

FIRST, SECOND = "a" * 40, "b" * 40


class FakeHub:
    """A hub with one model, whose branch `main` moves; its client has a cache with a folder for each commit."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.branches = {"main": FIRST, "v1": FIRST}
        self.asked: list[str | None] = []
        self.failure: Exception | None = None
        for commit in (FIRST, SECOND):
            folder = cache / "snapshots" / commit
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(f'{{"commit": "{commit}"}}')
            (folder / "model.safetensors").write_bytes(commit.encode() * 1000)

    def snapshot_download(self, name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert name == "some/model"
        assert not any("bin" in pattern or "py" in pattern for pattern in allow_patterns)
        self.asked.append(revision)
        if self.failure is not None:
            raise self.failure
        wanted = revision or "main"
        return str(self.cache / "snapshots" / self.branches.get(wanted, wanted))

    def file(self, commit: str, name: str = "model.safetensors") -> Path:
        return self.cache / "snapshots" / commit / name


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=fake.snapshot_download))
    monkeypatch.setattr(hub, "has_client", lambda: True)
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    return fake


def pins(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "pins").iterdir())


def tamper(path: Path, *, quietly: bool = False) -> None:
    """Changes a file's contents; quietly, so that neither its size nor its time tells."""
    status = path.stat()
    path.write_bytes(b"x" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + (0 if quietly else 1_000_000)))


def test_a_name_stays_at_the_commit_of_the_first_time(served: FakeHub, tmp_path: Path) -> None:
    assert locate("some/model").name == FIRST
    served.branches["main"] = SECOND
    assert locate("some/model").name == FIRST
    assert served.asked == [None, FIRST]
    assert pins(tmp_path) == ["some--model.json"]


def test_a_revision_is_a_name_of_its_own(served: FakeHub, tmp_path: Path) -> None:
    assert locate(f"some/model@{SECOND}").name == SECOND
    assert locate("some/model@v1").name == FIRST
    served.branches["v1"] = SECOND  # a tag that is moved
    assert locate("some/model@v1").name == FIRST
    assert served.asked == [SECOND, "v1", FIRST]
    assert pins(tmp_path) == [f"some--model@{SECOND}.json", "some--model@v1.json"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_another_file_is_refused(name: str, served: FakeHub) -> None:
    locate("some/model")
    tamper(served.file(FIRST, name))
    with pytest.raises(ModelError, match=rf"some/model: {name} does not match its hash in .*some--model.json"):
        locate("some/model")


def test_a_file_with_a_new_time_is_hashed_again(served: FakeHub) -> None:
    locate("some/model")
    os.utime(served.file(FIRST))
    assert locate("some/model").name == FIRST


def test_pulling_looks_behind_size_and_time(served: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "some/model"]) == 0
    assert capsys.readouterr().out.strip().endswith(FIRST)
    tamper(served.file(FIRST), quietly=True)
    assert locate("some/model").name == FIRST
    assert main(["pull", "some/model"]) == 3
    assert "model.safetensors does not match its hash" in capsys.readouterr().err


def test_files_that_come_or_go_are_refused(served: FakeHub) -> None:
    locate("some/model")
    extra = served.file(FIRST, "tokenizer.json")
    extra.write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer.json is not listed"):
        locate("some/model")
    extra.unlink()
    served.file(FIRST, "README.md").write_text("not asked for")
    locate("some/model")
    served.file(FIRST).unlink()
    with pytest.raises(ModelError, match=r"model.safetensors is missing"):
        locate("some/model")


def test_a_client_that_brings_another_commit_is_refused(served: FakeHub) -> None:
    locate("some/model")
    served.branches[FIRST] = SECOND
    with pytest.raises(ModelError, match=rf"has commit {SECOND}, .* says {FIRST}"):
        locate("some/model")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"revision": 1, "files": {}}'])
def test_a_damaged_pin_is_no_licence_to_trust_anew(content: bytes, served: FakeHub, tmp_path: Path) -> None:
    locate("some/model")
    (tmp_path / "cache" / "pins" / "some--model.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"some--model.json: the pinned revision cannot be read"):
        locate("some/model")


def test_a_hub_out_of_reach(served: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.failure = OSError("cannot reach the hub\nwith details")
    with pytest.raises(ModelError, match=r"\(cannot reach the hub\): check the name and the network"):
        locate("some/model")
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(hub, "has_client", lambda: False)
    with pytest.raises(ModelError, match=r"pip install huggingface_hub"):
        fetch_from_hub("some/model")


def test_a_cache_that_cannot_be_written_is_no_reason_to_load_unpinned(
    served: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be (read|pinned)"):
        locate("some/model")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("some/model", True), ("some/model@main", True), (f"some/model@{FIRST}", True), ("some/model@refs/pr/1", True),
        ("model", False), ("a/b/c", False), ("../model", False), ("a/..", False), ("-a/b", False),
        ("a/.b", False), ("./model", False), ("/some/model", False),
        ("some/model@", False), ("some/model@a b", False), ("some/mod\u00e9l", False), ("~/model", False),
    ],
)  # fmt: skip
def test_names(name: Any, expected: bool) -> None:
    assert is_hub_name(name) is expected
