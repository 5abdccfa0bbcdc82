"""Mistakes on the command line: one line each, which names what is wrong and says what to do next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bough.cli.main import main

from ..support.tiny_model import write_tiny_model

PROGRAM = """\
import bough

@bough.function
def brief(s, text: str, words: int = 30):
    s += f"Summarise in {words} words: {text}" + bough.gen("summary", max_tokens=4)
"""
TWO = PROGRAM + PROGRAM.replace("brief", "long").removeprefix("import bough\n")

MISTAKES: tuple[tuple[str, int, str], ...] = (
    ("", 2, r"COMMAND is missing: bough \{serve\|run\|.*bough --help"),
    ("srve", 2, r"no command 'srve': did you mean bough serve\?"),
    ("download", 2, r"no command 'download': did you mean bough pull\?"),
    ("--port 8000 serve", 2, r"--port comes after the command: bough COMMAND --port"),
    ("serve --prot 8000", 2, r"no option --prot: did you mean --port\?"),
    ("serve --max-num 8", 2, r"no option --max-num: did you mean --max-num-seqs\?"),
    ("serve --api-key sk-1", 2, r"--api-key is not supported: .* set BOUGH_API_KEY, or write --api-key-file"),
    ("serve --port http", 2, r"--port needs a whole number, such as 8; got 'http'"),
    ("serve --port 99999", 2, r"--port \(port\) must be 0 to 65535, got 99999"),
    ("serve --dtype float8", 2, r"--dtype must be auto, .* or float16, got 'float8': did you mean float"),
    ("serve --page-size", 2, r"--page-size needs a value: --page-size N"),
    ("serve --jump-forward=yes", 2, r"--jump-forward takes no value, got 'yes': write --jump-forward or --no-jump-f"),
    ("serve --tensor-parallel-size 2", 2, r"--tensor-parallel-size 2 is not supported: .*start a server for each"),
    ("serve org/name", 2, r"no place for 'org/name': did you mean --model org/name\?"),
    ("run", 2, r"FILE\[:FUNCTION\] is missing: bough run FILE"),
    ("run breif.py", 2, r"no file breif.py: did you mean brief.py\?"),
    ("run brief.py", 2, r"brief needs --arg text=\.\.\."),
    ("run brief.py --arg txt=hello", 2, r"brief has no argument 'txt': did you mean --arg text=\.\.\.\?"),
    ("run brief.py text=hello", 2, r"no place for 'text=hello': did you mean --arg text=hello\?"),
    ("run brief.py --arg text", 2, r"--arg needs NAME=VALUE, got 'text'"),
    ("run brief.py --arg text=@esay.txt", 2, r"--arg text: there is no file esay.txt: did you mean essay.txt\?"),
    ("run brief.py --arg text=a --arg words=few", 2, r"--arg words: brief takes a whole number there, got 'few'"),
    ("run two.py", 2, r"several programs: name one, two.py:brief, two.py:long"),
    ("run two.py:breif", 2, r"no program 'breif': it has brief, long"),
    ("run empty.py", 2, r"has no program: mark a function in it with @bough.function"),
    ("run wrong.py", 2, r"wrong\.py:2: invalid syntax: def f\(:"),
    ("run .", 2, r"\. is a folder: name a Python file in it"),
    ("run brief.py --arg text=a --timeline no/x.html", 2, r"--timeline: there is no folder no: make it first"),
    ("run brief.py --arg text=a --model no/model", 3, r"no model 'no/model'|no folder 'no/model'"),
    ("chat --config bough.tml", 2, r"--config: there is no file bough.tml: write it, or leave --config out"),
    ("pull huge", 3, r"no model 'huge' to pull; there is smollm2-135m, organisation/name"),
    ("pull smollm2-135m --sha256 abc", 2, r"--sha256 takes the 64 hexadecimal digits of one GGUF file: give"),
    ("models info smollm", 2, r"no model 'smollm' on this machine: bough models lists"),
    ("schema", 2, r"ACTION is missing: bough schema \{check\}"),
    ("completion powershell", 2, r"shell must be bash, zsh or fish, got 'powershell'"),
    ("deploy brief.py --arg sise=1", 2, r"brief has no argument 'sise': it takes text, words"),
)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's files."""
    folder = tmp_path_factory.mktemp("desk")
    for name, text in {
        "brief.py": PROGRAM, "two.py": TWO, "empty.py": "x = 1\n", "wrong.py": "import bough\ndef f(:\n",
        "essay.txt": "",
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(("line", "status", "said"), MISTAKES, ids=[line or "nothing" for line, *_ in MISTAKES])
def test_a_mistake_gets_one_line_with_the_next_step(
    line: str, status: int, said: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("BOUGH_CACHE", str(desk / "cache"))
    try:
        ended = main(line.split())
    except SystemExit as end:
        ended = int(end.code or 0)
    captured = capsys.readouterr()
    assert (ended, captured.out) == (status, "")
    (shown,) = captured.err.splitlines()
    assert re.match(r"bough( [a-z]+)*: ", shown)
    assert re.search(said, shown), shown


def test_a_mistake_in_users_code_shows_users_lines_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fails.py"
    file.write_text(PROGRAM.replace("    s +=", "    1 / (words - 30)\n    s +="))
    model = write_tiny_model(tmp_path / "tiny")
    assert main(["run", str(file), "--arg", "text=x", "--model", str(model), "--num-pages", "64"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("bough run: your code failed:\n")
    assert "ZeroDivisionError" in shown and "line 5, in brief" in shown and "1 / (words - 30)" in shown
    assert re.findall('File "(.*?)"', shown) == [str(file)]


def test_a_file_that_fails_while_it_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loads.py"
    file.write_text("import bough\nimport no_such_module\n")
    assert main(["run", str(file)]) == 1
    shown = capsys.readouterr().err
    assert re.findall('File "(.*?)", line (.*?),', shown) == [(str(file), "2")]
    assert shown.rstrip().endswith("No module named 'no_such_module'")


def test_a_cache_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("bough.runtime.checkpoints.fetch.installed_file", lambda model: None)
    assert main(["pull"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be written (Not a directory): set BOUGH_CACHE to one that can" in line
