"""Recordings: what was recorded comes back, offline; what was not is an error that says what differs."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bough.lang.api import assistant, function, gen, user
from bough.lang.backends import cassette as cassette_module
from bough.lang.backends.cassette import Cassette
from bough.lang.backends.cassette_file import MAX_BYTES
from bough.lang.backends.mock import MockBackend
from bough.lang.control import var, when
from bough.lang.diagnostics.errors import BackendError, ProgramError, UnsupportedError
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Delta, Done, Gen, Program

from ..fakes import FakeBackend


@function
def capital(s: Any, country: str) -> None:
    s += user(f"The capital of {country}?") + assistant(gen("city", max_tokens=8))
    if s["city"] == "Paris":
        s += user("And its river?") + assistant(gen("river"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tapes" / "capital.jsonl"


def record(path: Path, *countries: str, answers: Any = None, **options: Any) -> MockBackend:
    mock = MockBackend(answers or {"city": ["Paris", "Tokyo", "Rome"], "river": ["Seine"]})
    with Cassette(path, mock, **options) as cassette:
        for country in countries:
            capital.run(country, backend=cassette)
    return mock


def test_what_was_recorded_is_played_back_without_a_backend(path: Path) -> None:
    record(path, "France", "Japan")
    with Cassette(path, mode="replay") as cassette:
        started = time.perf_counter()
        states = [capital.run(country, backend=cassette) for country in ("Japan", "France")]
        assert time.perf_counter() - started < 0.5
    assert [state.values() for state in states] == [{"city": "Tokyo"}, {"city": "Paris", "river": "Seine"}]
    assert states[1].messages()[-1] == {"role": "assistant", "content": "Seine"}


def test_others_cannot_read_it(path: Path) -> None:
    record(path, "France")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_equal_programs_come_back_in_the_order_of_their_recording(path: Path) -> None:
    record(path, "X", "X", "X", answers={"city": ["a", "b", "c"]})

    async def main() -> list[str]:
        with Cassette(path, mode="replay") as cassette:
            states = await asyncio.gather(*(capital.arun("X", backend=cassette) for _ in range(3)))
            return [state["city"] for state in states]

    assert sorted(asyncio.run(main())) == ["a", "b", "c"]
    with Cassette(path, mode="replay") as cassette:
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda: found.append(capital.run("X", backend=cassette)["city"])) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == ["a", "b", "c"]
        with pytest.raises(ProgramError, match="recorded 3 times, and is run once more"):
            capital.run("X", backend=cassette)


def test_what_is_missing_is_an_error_that_says_what_differs(path: Path) -> None:
    record(path, "France", "Japan")
    with Cassette(path, mode="replay") as cassette:
        with pytest.raises(ProgramError, match="instruction 1 differs") as caught:
            capital.run("Spain", backend=cassette)
        assert caught.value.code == "not_recorded"
        assert "The capital of Spain?" in caught.value.message and "recorded: " in caught.value.message
        with pytest.raises(ProgramError, match="--bough-record=all"):
            capital.run("France", backend=cassette, temperature=0)
    with Cassette(path.with_name("none"), mode="replay") as cassette, pytest.raises(ProgramError, match="nothing is"):
        capital.run("France", backend=cassette)


def test_auto_records_what_is_missing_only(path: Path) -> None:
    record(path, "France")
    mock = record(path, "France", "Japan", answers={"city": "Tokyo"})
    assert len(mock.requests) == 1
    assert not record(path, "France", "Japan").requests


def test_record_begins_anew(path: Path) -> None:
    record(path, "France", "Japan")
    record(path, "France", answers={"city": "Lyon"}, mode="record")
    with Cassette(path, mode="replay") as cassette:
        assert capital.run("France", backend=cassette)["city"] == "Lyon"
        with pytest.raises(ProgramError, match="not on the cassette"):
            capital.run("Japan", backend=cassette)


def test_a_run_that_changes_in_the_middle_cannot_go_on_elsewhere(path: Path) -> None:
    record(path, "France")

    @function
    def other(s: Any) -> None:
        s += user("The capital of France?") + assistant(gen("city", max_tokens=8))
        s += user(f"More of {s['city']}") + assistant(gen("more"))

    with Cassette(path, MockBackend()) as cassette, pytest.raises(ProgramError, match="differs"):
        other.run(backend=cassette)


def test_the_file_is_lines_of_json_without_ids_times_and_secrets(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "tell-nobody")
    record(path, "tell-nobody", "my own", answers={"city": "tell-nobody"}, secrets=["own"])
    text = path.read_text()
    assert "tell-nobody" not in text and "my own" not in text and "[SOME_API_KEY]" in text and "my [secret]" in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0] == {"type": "cassette", "version": 1}
    assert {line["type"] for line in lines[1:]} == {"program", "delta", "value", "done"}
    assert not {"id", "timeout_s", "namespace"} & lines[1]["program"].keys()
    assert "timings" not in text and "elapsed" not in text
    again = text
    record(path, "tell-nobody", "my own", answers={"city": "tell-nobody"}, secrets=["own"], mode="record")
    assert path.read_text() == again
    with Cassette(path, mode="replay") as cassette:
        assert capital.run("tell-nobody", backend=cassette)["city"] == "[SOME_API_KEY]"


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\r"])
def test_texts_may_hold_other_ends_of_lines(path: Path, end: str) -> None:
    record(path, f"a{end}b", answers={"city": f"c{end}d"})
    with Cassette(path, mode="replay") as cassette:
        assert capital.run(f"a{end}b", backend=cassette)["city"] == f"c{end}d"


def test_refusals_are_played_back(path: Path) -> None:
    def script(program: Program) -> Any:
        yield UnsupportedError("no images", param="image")

    fake: Any = FakeBackend(script)
    for backend in (fake, None):
        with Cassette(path, backend) as cassette, pytest.raises(UnsupportedError, match="no images"):
            list(cassette.run(Program(id="p", ops=(Gen(0, "x"),))))


def test_a_lost_connection_is_not_recorded(path: Path) -> None:
    def script(program: Program) -> Any:
        yield Delta(0, "x", "he")
        yield BackendError("gone", retryable=True)

    fake: Any = FakeBackend(script)
    with Cassette(path, fake) as cassette, pytest.raises(BackendError):
        list(cassette.run(Program(id="p", ops=(Gen(0, "x"),))))
    with Cassette(path, MockBackend({"x": "hello"})) as cassette:
        assert isinstance(list(cassette.run(Program(id="p", ops=(Gen(0, "x"),))))[-1], Done)


def test_a_recording_that_was_left_ends_there(path: Path) -> None:
    program = Program(id="p", ops=(Gen(0, "x"),))
    with Cassette(path, MockBackend({"x": "one two"})) as cassette:
        events: Any = cassette.run(program)
        next(events)
        events.close()
    with Cassette(path, mode="replay") as cassette:
        events = cassette.run(program)
        next(events)
        with pytest.raises(ProgramError, match="was left here"):
            next(events)


def test_a_file_that_is_none_is_refused_by_line(path: Path) -> None:
    path.parent.mkdir()
    for text, message in (
        ("nonsense\n", "line 1"),
        ('{"type": "cassette", "version": 99}\n', "version 1"),
        ('{"type": "cassette", "version": 1}\n{"type": "done"}\n', "line 2: this belongs to no program"),
        ('{"type": "cassette", "version": 1}\n{"type": "novel"}\n', "line 2"),
    ):
        path.write_text(text)
        with pytest.raises(ProgramError, match=message):
            Cassette(path, mode="replay")
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ProgramError, match="larger than"):
        Cassette(path, mode="replay")


def test_a_file_that_cannot_be_written_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(path, "France")
    before = path.read_bytes()

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    cassette = Cassette(path, MockBackend())
    capital.run("Japan", backend=cassette)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        with pytest.raises(OSError, match="disk full"):
            cassette.close()
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_wrong_modes_are_refused(path: Path) -> None:
    with pytest.raises(RequestError, match="mode"):
        Cassette(path, mode="play")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="needs a backend"):
        Cassette(path, mode="record")


def test_states_are_dropped_on_the_backend_that_has_them(path: Path) -> None:
    mock = record(path, "France")
    assert len(mock.dropped) == 0 or mock.dropped == [mock.requests[0].id]
    with Cassette(path, MockBackend()) as cassette:
        capital.run("France", backend=cassette)
        cassette.drop("unknown")


def test_what_is_not_recorded_is_blamed_on_the_line_that_differs(tmp_path: Path) -> None:
    @function
    def body(s: Any, question: str, more: bool) -> None:
        s += "first " + gen("a")
        s += when(var("a") == "(a)", "yes " + gen("b"))
        s += question + gen("c")
        if more:
            s += gen("d")

    path = tmp_path / "tape.jsonl"
    with Cassette(path, MockBackend(), mode="record") as tape:
        body.run("old ", False, backend=tape)
    with Cassette(path, mode="replay") as tape:
        for question, more, line in (("new ", False, 's += question + gen("c")'), ("old ", True, 's += gen("d")')):
            with pytest.raises(ProgramError) as caught:
                body.run(question, more, backend=tape)
            assert caught.value.code == "not_recorded"
            assert caught.value.place is not None
            lines = Path(__file__).read_text().splitlines()
            assert lines[caught.value.place.line - 1].strip() == line


def test_a_full_disk_fails_no_run_and_nothing_is_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cassette_module, "SAVE_EVERY_S", -1.0)
    cassette = Cassette(path, MockBackend({"city": ["Paris", "Tokyo", "Rome"], "river": ["Seine"]}))

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        assert [capital.run(country, backend=cassette)["city"] for country in ("France", "Japan")] == ["Paris", "Tokyo"]
        with pytest.raises(OSError, match="disk full"):
            cassette.close()
    assert caplog.text.count("disk full") == 1
    cassette.close()
    with Cassette(path, mode="replay") as replayed:
        assert capital.run("Japan", backend=replayed)["city"] == "Tokyo"
