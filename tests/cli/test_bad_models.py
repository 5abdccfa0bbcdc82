"""Models that are damaged: the command ends with status 3 and one line that names the file and what is wrong in it."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from bough.cli.main import main

from ..runtime.checkpoints.search.originals import gguf_image
from ..support.tiny_model import write_tiny_model

PROGRAM = """
import bough

@bough.function
def main(s):
    s += "hello" + bough.gen("text", max_tokens=2)
"""

Damage = Callable[[Path], Any]


def edit(name: str, **changes: Any) -> Damage:
    """Changes values of a file of JSON."""

    def damage(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


def bytes_of(name: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def tensors(change: Callable[[dict[str, Any]], Any]) -> Damage:
    def damage(folder: Path) -> None:
        found = load_file(folder / "model.safetensors")
        change(found)
        save_file(found, folder / "model.safetensors")

    return damage


def shards(folder: Path) -> None:
    """An index that names two files, of which one is there."""
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"weight_map": {name: f"model-{1 + place % 2}.safetensors" for place, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def header(size: int) -> Callable[[bytes], bytes]:
    return lambda data: struct.pack("<Q", size) + data[8:]


FOLDERS: dict[str, tuple[Damage, str]] = {
    "cut weights": (bytes_of("model.safetensors", lambda data: data[:-100]), "model.safetensors: .*outside the file"),
    "cut header": (bytes_of("model.safetensors", lambda data: data[:40]), "model.safetensors: a header of"),
    "flipped header": (bytes_of("model.safetensors", lambda data: data.replace(b'"F32"', b'"G32"')), "no known dtype"),
    "endless header": (bytes_of("model.safetensors", header((1 << 64) - 1)), "model.safetensors: a header of"),
    "missing shard": (shards, "names model-2.safetensors, which is missing"),
    "wrong shape": (
        tensors(lambda found: found.update({"lm_head.weight": found["lm_head.weight"][:-1].clone()})),
        r"tensor lm_head.weight has shape \[257, 32\]",
    ),
    "missing tensor": (tensors(lambda found: found.pop("model.norm.weight")), "no tensor model.norm.weight"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no model.safetensors"),
    "weights as a pickle": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "pickle file",
    ),
    "config cut": (bytes_of("config.json", lambda data: data[:50]), "config.json: not valid JSON"),
    "huge context": (edit("config.json", max_position_embeddings=10**12), "config.json: max_position_embeddings"),
    "no rope": (edit("config.json", rope_theta=float("nan")), "config.json: rope_theta"),
    "code of its own": (
        edit("config.json", model_type="mine", auto_map={"AutoModel": "model.Model"}), "model_type 'mine' is unknown",
    ),
    "id beyond all": (
        edit("tokenizer.json", added_tokens=[{"id": 1 << 31, "content": "x"}]), "tokenizer.json: an id of added_tokens",
    ),
    "tokenizer cut": (bytes_of("tokenizer.json", lambda data: data[:500]), "tokenizer.json"),
    "no template": (edit("tokenizer_config.json", chat_template="{% for %}"), "chat template is not valid"),
}  # fmt: skip


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("name", FOLDERS)
def test_status_and_line(name: str, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, line = FOLDERS[name]
    folder = write_tiny_model(program.parent / "tiny")
    damage(folder)
    assert main(["run", str(program), "--model", str(folder), "--num-pages", "64"]) == 3
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and said[0].startswith("bough run: ")
    assert re.search(line, said[0]), said[0]


def test_a_whole_model_runs(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_model(program.parent / "tiny")
    assert main(["run", str(program), "--model", str(folder), "--num-pages", "64"]) == 0
    assert capsys.readouterr().out.startswith("text: ")


@pytest.mark.parametrize("command", ["serve", "run"])
def test_a_process_ends_with_it(command: str, program: Path) -> None:
    """Also a server, whose engine has a process of its own: before anything is answered, and without a trace."""
    path = program.parent / "model.gguf"
    path.write_bytes(gguf_image().to_bytes()[:-1000])
    options = [str(program)] if command == "run" else ["--port", "0"]
    result = subprocess.run(
        [sys.executable, "-P", "-m", "bough.cli", command, *options, "--model", str(path)],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert result.returncode == 3, result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"bough {command}: model.gguf: tensor 'blk.1.ffn_down.weight'") and "outside" in last
    assert "Traceback" not in result.stderr


def test_settings_that_the_model_cannot_have_are_a_wrong_command_line(program: Path) -> None:
    folder = write_tiny_model(program.parent / "tiny")
    command = [sys.executable, "-P", "-m", "bough.cli", "serve", "--port", "0", "--model", str(folder)]
    result = subprocess.run([*command, "--max-model-len", "9999"], capture_output=True, text=True, timeout=100)
    assert result.returncode == 2 and "--max-model-len is 9999" in result.stderr
