"""The command line as a user meets it: help, exit statuses, a chat through a pipe, and pulling a model."""

from __future__ import annotations

import importlib.metadata
import io
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.cli.main import entry, main, told
from bough.cli.progress import LoadingBar
from bough.runtime.checkpoints import fetch as pull
from bough.runtime.protocol.errors import ModelError

COMMANDS = ("serve", "run", "deploy", "chat", "models", "pull", "schema", "bench", "completion")


def status_of(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--help") == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"^    {command}\b", shown, re.MULTILINE) for command in COMMANDS)
    assert "examples:" in shown
    assert status_of("--version") == 0
    assert capsys.readouterr().out == f"bough {importlib.metadata.version('bough')}\n"


@pytest.mark.parametrize(
    ("command", "mentioned"),
    [("chat", ["--system", "--temperature", "--max-num-seqs"]), ("pull", ["smollm2-135m"]), ("bench", ["throughput"])],
)
def test_help_of_a_command(command: str, mentioned: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(command, "--help") == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: bough {command}")
    assert all(word in shown for word in mentioned)


def test_python_runs_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "bough", "--version"]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert ended.stdout == f"bough {importlib.metadata.version('bough')}\n"


def test_help_starts_without_heavy_imports() -> None:
    script = (
        "import sys; from bough.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'starlette'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["dance"], "dance"),
        (["chat", "--max-num-seqs", "none"], "--max-num-seqs"),
        (["chat", "--no-such-flag"], "--no-such-flag"),
        (["chat", "--temperature", "warm"], "--temperature"),
        (["chat", "--memory-fraction", "3"], "--memory-fraction must be"),
        (["chat", "--num-pages", "1"], "--num-pages must be"),
        (["bench", "speed"], "speed"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_names_what_is_wrong(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_a_failure_exits_with_1_and_an_interrupt_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("chat", "--model", "./no-such-model") == 3
    error = capsys.readouterr().err
    assert error.startswith("bough chat: ")
    assert "no-such-model" in error
    assert "Traceback" not in error

    def interrupted(*_: object, **__: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(pull, "pull", interrupted)
    monkeypatch.setattr(sys, "argv", ["bough", "pull"])
    assert entry() == 130


def test_a_server_that_fails_in_any_way_ends() -> None:
    """A thread that a tool has begun does not keep it."""
    program = (
        "import sys, threading\n"
        "from bough.cli import main\n"
        "def fail(): raise RuntimeError('no more threads')\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "main.main, sys.argv = fail, ['bough', 'serve']\n"
        "sys.exit(main.entry())\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "RuntimeError: no more threads" in done.stderr


def test_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def fake(name: str, progress: Callable[[str, int, int], None], *, verify: bool) -> Path:
        assert verify
        asked.append(name)
        progress("downloading", 5, 10)
        progress("downloading", 10, 10)
        return tmp_path / "model.gguf"

    monkeypatch.setattr(pull, "pull", fake)
    assert status_of("pull") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'model.gguf'}\n"
    assert "bough chat --model smollm2-135m" in captured.err
    assert status_of("pull", "other") == 0
    assert asked == ["smollm2-135m", "other"]


def test_pulling_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("pull", "no-such-model") == 3
    assert "no model 'no-such-model' to pull" in capsys.readouterr().err
    with pytest.raises(ModelError):
        pull.pull("no-such-model")


class Terminal(io.StringIO):
    """A stream that shows bars, unlike a file."""

    def isatty(self) -> bool:
        return True


def test_the_bar_shows_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with LoadingBar() as bar:
        bar("reading", 1, 4)
        bar("reading", 4, 4)
        bar("writing", 2, 2)
    assert "reading" in terminal.getvalue()
    assert "writing" in terminal.getvalue()
    bar.close()  # twice is fine


def test_an_error_of_the_engines_process_names_the_option() -> None:
    error = ModelError("max_model_len is 9, but the model supports 8: leave max_model_len out", code="invalid_value")
    assert told(error, Namespace(max_model_len=9)) == (
        "--max-model-len is 9, but the model supports 8: leave --max-model-len out"
    )
    assert told(error, Namespace(max_model_len=9, sources={"max_model_len": "x.toml"})).startswith("x.toml: is 9")
