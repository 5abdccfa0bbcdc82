"""Processes of sides: marked lines only, hard time limits, nothing left running."""

import os
import subprocess
import sys
import time

import pytest

from bough.benchmarks.peers.process import PeerError, Side, side_command


@pytest.fixture
def start(tmp_path):
    sides = []

    def started(code):
        sides.append(Side("side", [sys.executable, "-u", "-c", code], log=tmp_path / "log"))
        return sides[-1]

    yield started
    for side in sides:
        side.close()


def test_only_marked_lines_are_messages(start, tmp_path):
    side = start(
        "import sys; print('chatter'); print('@bench {\"one\": 1}'); print('noise', file=sys.stderr)\n"
        "print('@bench {\"two\": 2}')"
    )
    assert side.wait_ready(20) == {"one": 1}
    assert side.wait_ready(20) == {"two": 2}
    with pytest.raises(PeerError, match="side ended with status 0"):
        side.wait_ready(20)
    log = (tmp_path / "log").read_text()
    assert "chatter" in log and "noise" in log and '{"one": 1}' not in log.splitlines()[1:]


def test_it_answers(start):
    side = start("import sys\nfor line in sys.stdin: print('@bench ' + line.strip().upper())")
    assert side.ask("abc", 20) == {"JOB": "ABC"}


def test_who_hangs_is_ended_with_its_children(start):
    side = start(
        "import subprocess, sys, time\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('@bench', inner.pid)\n"
        "time.sleep(600)"
    )
    inner = side._messages.get(timeout=20)
    started = time.monotonic()
    with pytest.raises(PeerError, match="no answer"):
        side.wait_ready(0.2)
    assert time.monotonic() - started < 15
    assert side._process.returncode < 0
    deadline = time.monotonic() + 5
    while _runs(int(inner)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(int(inner))


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def test_sending_to_who_has_gone(start):
    side = start("pass")
    side._process.wait(20)
    with pytest.raises(PeerError, match="side has ended"):
        side.ask("x" * 1_000_000, 20)
    with pytest.raises(PeerError, match="side has ended"):
        side.ask("y", 20)


def test_a_module_of_the_package_can_be_run(tmp_path):
    side = Side("help", [*side_command("kernels", "bough", None, {})[:5], "--help"], log=tmp_path / "log")
    with pytest.raises(PeerError, match="help ended with status 0"):
        side.wait_ready(60)
    side.close()
    assert "a JSON object" in (tmp_path / "log").read_text()
