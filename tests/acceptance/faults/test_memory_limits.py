"""Promise: with little memory the engine starts and answers, or says in one line what it needs and what there is."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ..server_process import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.alone]

GIB = 1 << 30
PROGRAM = """
from bough import function, gen, user, assistant

@function
def ask(s):
    s += user("The capital of France? One word.")
    s += assistant(gen("name", max_tokens=4, temperature=0.0) + gen("year", regex="[12][0-9]{3}"))
"""
FORM = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}


def limited(num_bytes: float) -> Callable[[], None]:
    """Bounds the addresses of a process and of its children, each for itself."""
    size = int(num_bytes)
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "ask.py"
    path.write_text(PROGRAM)
    return path


def run(program: Path, gibibytes: float, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "bough.cli", "run", str(program), *options]
    limit = limited(gibibytes * GIB)
    return subprocess.run(command, capture_output=True, text=True, timeout=100, preexec_fn=limit, check=False)


@pytest.mark.parametrize("gibibytes", [1, 1.5, 2, 3, 4])
def test_a_program_runs(program: Path, gibibytes: float, default_model: Path) -> None:
    ended = run(program, gibibytes, "--model", str(default_model))
    assert ended.returncode == 0, ended.stderr
    assert "France" in ended.stdout and re.search("[12][0-9]{3}", ended.stdout)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("gibibytes", "options", "wanted"),
    [
        (0.5, (), r"model\.gguf: the model needs .* bytes for weights and tables"),
        (0.7, (), "the KV cache needs .* bytes"),
        (1, ("--num-pages", "200000"), "the KV cache needs .* bytes"),
        (2, ("--kv-cache-memory", str(3 * GIB)), "the KV cache needs .* bytes"),
    ],
    ids=str,
)
def test_or_says_in_one_line_why_not(
    program: Path, default_model: Path, gibibytes: float, options: tuple[str, ...], wanted: str
) -> None:
    ended = run(program, gibibytes, "--model", str(default_model), *options)
    assert ended.returncode == 3
    (line,) = [line for line in ended.stderr.splitlines() if not line.startswith("\r") and line.strip()]
    assert re.search(rf"bough run: {wanted}.* are free \(by RLIMIT_AS\): .*", line)


@pytest.mark.parametrize("gibibytes", [1, 2])
def test_a_server_answers(gibibytes: float, default_model: Path) -> None:
    """Texts, constraints that are compiled in processes of their own, and prompts in the largest passes."""
    with ServerProcess(
        "--model", str(default_model), "--served-model-name", "m", preexec_fn=limited(gibibytes * GIB)
    ) as server:
        prompts = ["The capital of France is", "one two three " * 250]
        for prompt in prompts:
            body = {"model": "m", "prompt": prompt, "max_tokens": 4, "temperature": 0}
            assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": FORM}}
        messages = [{"role": "user", "content": "A number, please."}]
        body = {"model": "m", "messages": messages, "response_format": form, "max_tokens": 20}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert "Traceback" not in "".join(server.lines)


def test_or_ends_before_it_listens(default_model: Path) -> None:
    with pytest.raises(RuntimeError, match=r"bough serve: the KV cache needs .* are free \(by RLIMIT_AS\)") as caught:
        ServerProcess("--model", str(default_model), "--num-pages", "200000", preexec_fn=limited(GIB))
    assert "Traceback" not in str(caught.value)
