"""Child processes: marked lines only, hard time limits, nothing left running."""

import os
import subprocess
import sys
import time

import pytest

from bough.benchmarks.harness.child import Child, GoneError, python_command


def start(tmp_path, code):
    return Child([sys.executable, "-u", "-c", code], mark="@ ", log=tmp_path / "log")


def test_only_marked_lines_are_messages(tmp_path):
    child = start(
        tmp_path, "import sys; print('chatter'); print('@ one'); print('noise', file=sys.stderr); print('@ two')"
    )
    assert child.receive(20) == "one\n"
    assert child.receive(20) == "two\n"
    assert child.receive(20) is None
    assert child.wait() == 0
    child.end()
    log = (tmp_path / "log").read_text()
    assert "chatter" in log and "noise" in log and "one" not in log.splitlines()[1:]


def test_it_answers(tmp_path):
    child = start(tmp_path, "import sys\nfor line in sys.stdin: print('@ ' + line.strip().upper())")
    child.send("abc")
    assert child.receive(20) == "ABC\n"
    child.end()
    assert child.wait() is not None


def test_who_hangs_is_ended_with_its_children(tmp_path):
    code = (
        "import subprocess, sys, time\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('@', inner.pid)\n"
        "time.sleep(600)"
    )
    child = start(tmp_path, code)
    inner = int(child.receive(20))
    started = time.monotonic()
    with pytest.raises(GoneError, match="no answer"):
        child.receive(0.2)
    assert time.monotonic() - started < 15
    assert child.wait() < 0
    deadline = time.monotonic() + 5
    while _runs(inner) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(inner)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def test_sending_to_who_has_gone(tmp_path):
    child = start(tmp_path, "pass")
    assert child.receive(20) is None
    child.wait()
    with pytest.raises(GoneError):
        child.send("x" * 1_000_000)
    child.end()


def test_a_module_of_the_package_can_be_run(tmp_path):
    child = Child([*python_command("gpu.worker"), "--help"], mark="@ ", log=tmp_path / "log")
    assert child.receive(60) is None
    assert child.wait() == 0
    child.end()
    assert "--deadline" in (tmp_path / "log").read_text()
