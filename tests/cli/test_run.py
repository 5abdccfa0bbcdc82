"""`bough run`: what it says before a run without a model, and after one on a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bough.cli.main import main

from ..support.tiny_model import write_tiny_model

PROGRAM = """
import bough

@bough.function
def ask(s, question):
    s += "Answer: " + question
    branches = s.fork(2)
    branches += bough.gen("answer", max_tokens=3, ignore_eos=True)
    branches.join()

@bough.function
def reads(s):
    s += "One" + bough.gen("x", max_tokens=3)
    if s["x"]:
        s += "!"
"""
MISTAKES = {
    'return s["p"]': "there is no variable 'p'",
    "s += 5": "write str(5)",
    "s += bough.gen('o', regex='(ab')": "'(ab' cannot be used: unclosed group",
    "s += bough.gen('o', json_schema={'type': 'objct'})": "type must be one of",
    "s += bough.select('o', [])": "got none",
    "s = s + bough.gen('o')": "appended to with s += ...",
    "for _ in range(9): s += bough.user('a b ' * 90) + bough.gen('o')": "bough.KeepLast(turns=8).trim(state)",
    "s += 'a' * 9000 + bough.gen('o')": "more than there is room for",
}
"""Lines of a program, and what they are told. Those of gen and select are no ProgramErrors."""

Run = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns what `bough run` prints to standard output and error."""
    file = tmp_path / "program_to_run.py"
    file.write_text(PROGRAM)

    def ran(function: str, *options: str) -> tuple[str, str]:
        assert main(["run", f"{file}:{function}", *options]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    return ran


def test_explain_counts_with_the_models_tokenizer(run: Run, model: Path) -> None:
    out, _ = run("ask", "--explain", "--arg", "question=who?", "--model", str(model), "--temperature", "0")
    assert "program ask()" in out and "gen answer (max_tokens=3, temperature=0.0, ignore_eos=true)" in out
    assert f"counted         by the tokenizer of {model}" in out
    assert "not 2 times" in out


def test_explain_needs_no_model(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path / "empty"))
    out, _ = run("ask", "--explain")
    assert "{question}" in out and "the model's tokenizer is not available" in out
    assert not (tmp_path / "empty").exists()


def test_explain_names_the_line_that_cannot_be_compiled(run: Run) -> None:
    out, _ = run("reads", "--explain")
    assert "cannot be compiled" in out and 'if s["x"]:' in out


def test_report_and_timeline_after_a_run(run: Run, model: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = ("--model", str(model), "--num-pages", "2000", "--report", "--timeline", str(page))
    out, err = run("ask", "--arg", "question=who?", *options)
    assert out.startswith("answer: [")
    assert "1 of the program, 2 inside the engine" in err
    assert [line.split()[-1] for line in err.splitlines() if line.startswith("answer")] == ["length", "length"]
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("line", MISTAKES)
def test_an_error_of_a_program_has_its_line(
    line: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mistaken.py"
    file.write_text(f"import bough\n\n@bough.function\ndef f(s):\n    {line}\n")
    assert main(["run", str(file), "--model", str(model), "--num-pages", "2000"]) == 1
    shown = capsys.readouterr().err
    assert MISTAKES[line] in shown
    assert f"\n  at {file}:5, in f" in shown and f"\n    {line}" in shown
