"""Lines for a disk that is full, or a reader that is gone: what is lost is counted."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bough.runtime.client.lines import MAX_WAITING_BYTES, LineWriter

FULL_DISK = """
import resource, sys
from bough.cli.streams import repair_streams
from bough.runtime.client.lines import LineWriter

def room(num_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))

if sys.argv[1] == "forgiving":
    repair_streams()
lines = LineWriter(dropped="{} lines were dropped".format)
room(25)
for number in range(7):
    lines.write(f"line {number:04}")  # ten bytes each, with its end
lines.flush()
room(resource.RLIM_INFINITY)
for number in range(7, 9):
    lines.write(f"line {number:04}")
lines.flush()
"""


class Disk(io.StringIO):
    full = True

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_lost_lines_are_counted_also_where_their_count_was_lost() -> None:
    disk = Disk()
    lines = LineWriter(disk, dropped="{} lines were dropped".format)
    for number in range(5):
        lines.write(f"line {number}")
        lines.flush()
    disk.full = False
    lines.write("line 5")
    lines.write("line 6")
    lines.flush()
    assert disk.getvalue().splitlines() == ["5 lines were dropped", "line 5", "line 6"]


def test_a_stream_that_fails_in_its_own_way_loses_its_line_only() -> None:
    class Odd(io.StringIO):
        def write(self, text: str) -> int:
            if "line 1" in text:
                raise RuntimeError("the notebook is closed")
            return super().write(text)

    told = Odd()
    lines = LineWriter(told, dropped="{} lost".format)
    for number in range(3):
        lines.write(f"line {number}")
    lines.flush()
    lines.write("line 4")
    lines.flush()
    assert told.getvalue().splitlines() == ["line 0", "1 lost", "line 2", "line 4"]


@pytest.mark.parametrize("stream", ["plain", "forgiving"])
def test_a_line_that_was_cut_by_a_full_disk_ends_before_the_next(tmp_path: Path, stream: str) -> None:
    path = tmp_path / "log"
    with path.open("wb") as log:
        subprocess.run([sys.executable, "-P", "-c", FULL_DISK, stream], stderr=log, timeout=60, check=True)
    assert path.read_text().splitlines() == [
        "line 0000", "line 0001", "line ", "5 lines were dropped", "line 0007", "line 0008",
    ]  # fmt: skip


def test_a_process_without_standard_error_loses_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    lines = LineWriter(dropped="{} lines were dropped".format)
    lines.write("line 0")
    lines.flush()
    monkeypatch.setattr("sys.stderr", told := io.StringIO())
    lines.write("line 1")
    lines.flush()
    assert told.getvalue().splitlines() == ["1 lines were dropped", "line 1"]


class SlowDisk(io.StringIO):
    """A disk that takes nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.free = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.asked.set()
        self.free.wait(60)
        return super().write(text)


def test_lines_that_wait_are_bounded_in_bytes_too() -> None:
    disk = SlowDisk()
    lines = LineWriter(disk, dropped="{} lines were dropped".format)
    lines.write("first")
    assert disk.asked.wait(60)
    line = "\N{SNOWMAN}" * (MAX_WAITING_BYTES // 20)  # of two bytes each: ten of them are too many
    for _ in range(30):
        lines.write(line)
    lines.write("short")  # fits still
    disk.free.set()
    lines.flush()
    for _ in range(9):  # what was written makes room
        lines.write(line)
    lines.write("last")
    lines.flush()
    long = [line] * 9
    assert disk.getvalue().splitlines() == ["first", *long, "21 lines were dropped", "short", *long, "last"]


SIGNALS = """
import os, signal, threading, time
from bough.runtime.client.lines import LineWriter

lines, beats = LineWriter(dropped="{} lines were dropped".format), 0
signal.signal(signal.SIGTERM, lambda number, frame: lines.write("a signal"))

def send():
    for _ in range(500):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.004)
    before = beats
    time.sleep(0.5)
    os._exit(beats == before)

threading.Thread(target=send, daemon=True).start()
while True:
    lines.write("a line")
    beats += 1
"""


def test_the_handler_of_a_signal_may_write_while_a_line_is_written() -> None:
    command = [sys.executable, "-P", "-c", SIGNALS]
    ended = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60, check=False)
    assert ended.returncode == 0
