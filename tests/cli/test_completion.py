"""Completion scripts: what a shell offers once it has read them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.cli import main as command
from bough.cli.completion import commands
from bough.cli.main import main, make_parser

Completed = Callable[..., list[str]]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of each shell."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        with pytest.MonkeyPatch.context() as patch, (folder / shell).open("w") as file:
            patch.setattr("sys.stdout", file)
            assert main(["completion", shell]) == 0
    (folder / "judge.py").write_text("")
    return folder


@pytest.fixture
def bash(scripts: Path) -> Completed:
    """Returns what bash offers for the last of the words."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")

    def complete(*words: str) -> list[str]:
        script = 'source ./bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _bough; printf "%s\\n" "${COMPREPLY[@]}"'
        ended = subprocess.run(
            ["bash", "--norc", "-euc", script, "-", "bough", *words],
            cwd=scripts,
            check=True,
            capture_output=True,
            text=True,
        )
        assert ended.stderr == ""
        return ended.stdout.split()

    return complete


def test_bash_offers_commands(bash: Completed) -> None:
    assert bash("") == list(command.COMMANDS)
    assert bash("s") == ["serve", "schema"]
    assert bash("models", "") == ["list", "info", "remove"]
    assert bash("bench", "pro") == ["programs"]
    assert bash("completion", "") == ["bash", "zsh", "fish"]


def test_bash_offers_options_and_values(bash: Completed) -> None:
    assert bash("serve", "--max-num") == ["--max-num-seqs"]
    assert bash("serve", "--port", "1", "--no-o") == ["--no-overlap"]
    assert bash("schema", "check", "--pol") == ["--policy"]
    assert bash("serve", "--dtype", "f") == ["float32", "float16"]
    assert bash("serve", "--dtype", "=", "bf") == ["bfloat16"]
    assert bash("serve", "--dtype", "=") == ["auto", "float32", "bfloat16", "float16"]
    assert bash("serve", "--port", "") == []
    assert bash("run", "ju") == ["judge.py"]
    assert bash("serve", "--tools", "ju") == ["judge.py"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_offers_commands_options_and_values(scripts: Path) -> None:
    def complete(line: str) -> list[str]:
        command = ["fish", "--no-config", "-c", 'source ./fish; complete -C "$argv[1]"', line]
        ended = subprocess.run(command, cwd=scripts, check=True, capture_output=True, text=True)
        assert ended.stderr == ""
        return [offer.split("\t")[0] for offer in ended.stdout.splitlines()]

    assert complete("bough s") == ["schema", "serve"]
    assert complete("bough models ") == ["info", "list", "remove"]
    assert complete("bough serve --dty") == ["--dtype"]
    assert complete("bough serve --dtype ") == ["auto", "bfloat16", "float16", "float32"]
    assert complete("bough run jud") == ["judge.py"]


def test_every_option_of_every_command_is_in_each_script(scripts: Path) -> None:
    texts = {shell: (scripts / shell).read_text() for shell in ("bash", "zsh", "fish")}
    found = list(commands(make_parser()))
    assert {entry.path[0] for entry in found if entry.path} == set(command.COMMANDS)
    for name in (name for entry in found for option in entry.options for name in option.names):
        assert name in texts["bash"] and name in texts["zsh"]
        assert (f" -l {name[2:]} " if name.startswith("--") else f" -s {name[1:]}") in texts["fish"]


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_a_shell_can_read_its_script(shell: str, check: str, scripts: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    ended = subprocess.run([shell, check, str(scripts / shell)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_script_of_zsh_has_the_structure_of_one(scripts: Path) -> None:
    """bash reads it: what the script uses, both shells have in common."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    ended = subprocess.run(["bash", "-n", str(scripts / "zsh")], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_quotes_in_help_stay_text(scripts: Path) -> None:
    """Each line of fish has an even number of quotes, escaped ones aside; zsh's too."""
    for line in (scripts / "fish").read_text().splitlines():
        assert line.replace("\\'", "").count("'") % 2 == 0, line
    assert (scripts / "zsh").read_text().replace("'\\''", "").count("'") % 2 == 0
