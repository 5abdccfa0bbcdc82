"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TEST = """
    import bough


    @bough.function
    def capital(s, country):
        s += bough.user(f"The capital of {country}?") + bough.assistant(bough.gen("city"))


    @__import__("pytest").mark.parametrize("country", ["France", "Japan", "J/pan", "J pan"])
    def test_capital(bough_replay, country):
        assert capital.run(country)["city"] == country.split()[-1].upper()


    class TestOther:
        def test_capital(self, bough_replay):
            assert capital.run("Peru")["city"] == "PERU"


    def test_mock(bough_mock):
        bough_mock.answers = {"city": "Rome"}
        assert capital.run("Italy")["city"] == "Rome"
        assert len(bough_mock.requests) == 1
"""
CONFTEST = """
    import bough
    import pytest


    @pytest.fixture(scope="session")
    def bough_backend():
        return bough.MockBackend(lambda prompt, name: prompt.split("?")[0].split()[-1].upper())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_capitals.py").write_text(textwrap.dedent(TEST))
    (tmp_path / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    return tmp_path


def run(project: Path, *options: str) -> tuple[int, str]:
    """pytest with the plugin and no other."""
    command = [
        sys.executable,
        "-P",
        "-c",
        PYTEST,
        "-p",
        "bough.lang.backends.testing",
        "-p",
        "no:cacheprovider",
        "-q",
        *options,
    ]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


PYTEST = """
import os, sys
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
import pytest
code = pytest.main(sys.argv[1:])
print("heavy:", *[name for name in ("torch", "transformers") if name in sys.modules])
sys.exit(code)
"""


def test_recordings_are_made_played_back_and_made_anew(project: Path) -> None:
    code, output = run(project)
    assert code == 1 and "nothing is recorded" in output and "1 passed" in output
    code, output = run(project, "--bough-record=missing")
    assert code == 0, output
    tapes = sorted(path.stem for path in (project / "cassettes" / "test_capitals").iterdir())
    assert len(tapes) == 5 and "TestOther.test_capital" in tapes
    assert {tape.split("-")[0] for tape in tapes[1:]} == {
        "test_capital_France",
        "test_capital_Japan",
        "test_capital_J_pan",
    }
    code, output = run(project)
    assert code == 0, output
    assert output.rstrip().endswith("heavy:")

    test = project / "test_capitals.py"
    test.write_text(test.read_text().replace("The capital of", "What is the capital of"))
    code, output = run(project)
    assert code == 1 and "instruction 1 differs" in output
    code, output = run(project, "--bough-record=all")
    assert code == 0, output
    assert run(project)[0] == 0


def test_the_options_are_listed(project: Path) -> None:
    code, output = run(project, "--help")
    assert code == 0 and "--bough-record" in output and "--bough-backend" in output


def test_the_plugin_alone_imports_next_to_nothing() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import bough.lang.backends.testing; "
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["bough", "bough.lang", "bough.lang.backends", "bough.lang.backends.testing"]
