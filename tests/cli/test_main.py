"""The command line as a user meets it: help, exit statuses, a chat through a pipe, and pulling a model."""

from __future__ import annotations

import importlib.metadata
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.cli.main import main
from bough.cli.progress import LoadingBar
from bough.runtime.checkpoints import fetch as pull
from bough.runtime.client.local import LocalClient
from bough.runtime.protocol.errors import ModelError

from ..support.tiny_model import write_tiny_model

COMMANDS = ("serve", "run", "chat", "pull", "schema", "bench")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def status_of(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--help") == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"^    {command} ", shown, re.MULTILINE) for command in COMMANDS)
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


def test_help_starts_without_heavy_imports() -> None:
    script = (
        "import sys; from bough.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'fastapi'} & set(sys.modules), sys.modules.keys()"
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
        (["chat", "--memory-fraction", "3"], "memory_fraction"),
        (["chat", "--num-pages", "1"], "num_pages"),
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
    assert status_of("chat", "--model", "./no-such-model") == 1
    error = capsys.readouterr().err
    assert error.startswith("bough chat: ")
    assert "no-such-model" in error
    assert "Traceback" not in error

    def interrupted(*_: object, **__: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(pull, "pull", interrupted)
    assert status_of("pull") == 130


Talk = Callable[..., str]


@pytest.fixture
def talk(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Talk:
    """Returns what a chat prints for these lines, in this process."""

    def run(*lines: str, options: tuple[str, ...] = ()) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
        capsys.readouterr()
        model = ("--model", str(folder), "--num-pages", "2000", "--temperature", "0", "--max-tokens", "6")
        assert status_of("chat", *model, *options) == 0
        return capsys.readouterr().out

    return run


def counts(shown: str) -> list[tuple[int, int, int]]:
    """(completion tokens, cached, prompt tokens) of each answer."""
    found = re.findall(r"\((\d+) tokens, \d+ tok/s; (\d+) of (\d+) prompt tokens cached\)", shown)
    return [(int(a), int(b), int(c)) for a, b, c in found]


def test_chat_through_a_pipe(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "bough.cli", "chat", "--model", str(folder), "--num-pages", "2000"]
    ended = subprocess.run(
        [*command, "--max-tokens", "5"], input="hello\nagain\n", capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.startswith(f"{folder.name} (")
    assert len(counts(ended.stdout)) == 2
    assert "\033" not in ended.stdout
    assert "Traceback" not in ended.stderr


def test_a_history_is_kept_in_the_cache(talk: Talk) -> None:
    (first, second, third) = counts(talk("hello", "", "and now?", "more"))
    assert first[1] == 0
    assert second[1] >= first[2]  # at least the whole prompt of the turn before
    assert third[1] >= second[2]


def test_reset_and_system(talk: Talk) -> None:
    shown = counts(talk("hello", "/reset", "hello", "/system Be brief.", "hello", "/reset", "hello"))
    lengths = [prompt for _, _, prompt in shown]
    assert lengths[0] == lengths[1]
    assert lengths[2] == lengths[3] > lengths[0]
    assert counts(talk("hello", options=("--system", "Be brief.")))[0][2] == lengths[2]


def test_commands_of_a_chat(talk: Talk) -> None:
    shown = talk("/stats", "/dance", "/quit", "never said")
    assert "EngineStats(" in shown
    assert shown.count("/reset starts over") == 2  # at the start, and for what is no command
    assert counts(shown) == []


def test_a_conversation_that_is_too_long_is_told(talk: Talk) -> None:
    shown = talk("x" * 600, "/reset", "hi")
    assert "which is all the model can hold" in shown
    assert len(counts(shown)) == 1


def test_an_interrupt_ends_the_answer_not_the_chat(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = LocalClient.stream
    calls = []

    def interrupted(self: LocalClient, request: object) -> object:
        calls.append(request)
        events = stream(self, request)  # type: ignore[arg-type]
        yield next(events)
        if len(calls) == 1:
            raise KeyboardInterrupt
        yield from events

    monkeypatch.setattr(LocalClient, "stream", interrupted)
    shown = talk("hello", "again")
    assert "(stopped)" in shown
    assert len(counts(shown)) == 1


def test_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def fake(name: str, progress: Callable[[str, int, int], None]) -> Path:
        asked.append(name)
        progress("downloading", 5, 10)
        progress("downloading", 10, 10)
        return tmp_path / "model.gguf"

    monkeypatch.setattr(pull, "pull", fake)
    assert status_of("pull") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'model.gguf'}\n"
    assert status_of("pull", "other") == 0
    assert asked == ["smollm2-135m", "other"]


def test_pulling_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("pull", "no-such-model") == 1
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
