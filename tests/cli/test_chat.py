"""A chat as a user meets it: through a pipe, over several turns, saved, and when its context is full."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bough import Conversation
from bough.cli.main import main
from bough.runtime.client.local import LocalClient

from ..support.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


Talk = Callable[..., str]


@pytest.fixture
def talk(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Talk:
    """Returns what a chat prints for these lines, in this process."""

    def run(*lines: str, options: tuple[str, ...] = ()) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
        capsys.readouterr()
        model = ("--model", str(folder), "--num-pages", "2000", "--temperature", "0", "--max-tokens", "6")
        assert main(["chat", *model, *options]) == 0
        return capsys.readouterr().out

    return run


def counts(shown: str) -> list[tuple[int, int, int]]:
    """(completion tokens, cached, prompt tokens) of each answer."""
    speed, context = r"(\d+) tokens, \d+ tok/s, first after [\d.]+ s", r"context [\d,]+ of [\d,]+"
    found = re.findall(rf"\({speed}; (\d+) of (\d+) prompt tokens cached; {context}\)", shown)
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
    assert shown.count("/reset        start over") == 2  # at the start, and for what is no command
    assert counts(shown) == []


def test_a_message_without_room_is_not_sent(talk: Talk) -> None:
    shown = talk("x" * 600, "hi")
    assert re.search(r"not sent: this message takes \d+ of 512 tokens: shorten it", shown)
    assert len(counts(shown)) == 1


def test_history_goes_only_if_the_user_agrees(talk: Talk) -> None:
    question = "The context is full"
    shown = talk("a" * 150, "b" * 150, "c" * 150, "no", "/stats", "c" * 150, "y", "d")
    assert [shown.count(question), shown.count("not sent: /save FILE keeps it")] == [2, 0]
    assert shown.count("(not sent: /save FILE keeps the conversation, /reset starts over)") == 1
    assert re.findall(r"Drop the oldest (\d+) messages", shown) == ["2", "2"]
    first, second, third, last = counts(shown)
    assert second[2] > first[2] + 150
    assert abs(third[2] - second[2]) < 12  # one went, one came, and answers differ in length
    assert last[2] > third[2]


def test_the_end_of_input_is_no_agreement(talk: Talk) -> None:
    shown = talk("a" * 150, "b" * 150, "c" * 150)
    assert shown.count("The context is full") == 1 and len(counts(shown)) == 2


def test_a_session_is_saved_and_gone_on_with(talk: Talk, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    shown = talk("/system Be brief.", "hello", f"/save {file}")
    assert f"(saved: bough chat --load {file})" in shown
    saved = json.loads(file.read_text())
    assert [message["role"] for message in saved["messages"]] == ["system", "user", "assistant"]
    expected = counts(talk("/system Be brief.", "hello", "more"))[1][2]
    loaded = talk("more", options=("--load", str(file)))
    assert re.search(r"^\(3 messages, with tiny.*\)$", loaded, re.MULTILINE)
    by_option = counts(loaded)
    by_command = counts(talk("hi", f"/load {file}", "more", f"/save {file}"))
    assert by_option[0][2] == by_command[1][2] == expected
    assert len(json.loads(file.read_text())["messages"]) == 5


def test_files_that_are_no_sessions(talk: Talk, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    shown = talk("/save", "/load", f"/load {tmp_path}/no.json", f"/load {tmp_path}/notes.json",
                 f"/save {tmp_path}/notes.json", f"/save {tmp_path}/no/talk.json")  # fmt: skip
    assert shown.count("is not a saved conversation") == 2 and shown.count("choose another") == 4
    assert "(which file? /save FILE)" in shown and "(which file? /load FILE)" in shown
    assert (tmp_path / "notes.json").read_text() == "{}"
    assert main(["chat", "--model", str(folder), "--load", str(tmp_path / "no.json")]) == 2


def test_a_conversation_of_a_program_is_gone_on_with(talk: Talk, tmp_path: Path) -> None:
    file, text = tmp_path / "talk.json", tmp_path / "text.json"
    Conversation([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hi!"}], {"n": 1}).save(file)
    Conversation([{"role": "text", "content": "Once"}]).save(text)
    shown = talk(f"/load {file}", "more", f"/load {text}", f"/save {file}")
    assert "(2 messages" in shown and "holds text outside of messages: continue it with a program" in shown
    loaded = Conversation.load(file)
    assert [message.content for message in loaded.messages[:3]] == ["hi", "Hi!", "more"] and loaded.values == {"n": 1}


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


def test_a_loaded_conversation_is_kept_whole(talk: Talk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A system message for all chats, from the settings, does not erase what is loaded; one beside it is refused."""
    file = tmp_path / "talk.json"
    talk("hello", f"/save {file}")
    settings = tmp_path / "bough.toml"
    settings.write_text("[chat]\nsystem = 'Be brief.'\n")
    talk("more", f"/save {file}", options=("--load", str(file), "--config", str(settings)))
    assert [one["role"] for one in json.loads(file.read_text())["messages"]] == ["user", "assistant"] * 2
    assert main(["chat", "--load", str(file), "--system", "Be brief."]) == 2
    assert "--system is for a new conversation" in capsys.readouterr().err


def test_odd_names_of_files_do_not_end_the_chat(talk: Talk, tmp_path: Path) -> None:
    shown = talk("/save ~nobody/x/talk.json", "/save a\0b", "/load /dev/zero", "hello")
    assert shown.count("choose another") == 3 and len(counts(shown)) == 1
