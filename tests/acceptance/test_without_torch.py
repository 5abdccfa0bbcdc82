"""Promise: an install without torch runs the default model: programs, constraints and the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from .server_process import ServerProcess

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.usefixtures("native_library")]

ABSENT = ("torch", "triton", "transformers")
MODEL = "smollm2-135m"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which processes cannot import what a plain install leaves out."""
    folder = tmp_path_factory.mktemp("absent")
    for name in ABSENT:
        (folder / f"{name}.py").write_text(f'raise ModuleNotFoundError("No module named {name}", name="{name}")\n')
    return os.environ | {"PYTHONPATH": str(folder)}


def bough(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "bough.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_it_is_absent(environment: dict[str, str]) -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-c", "import torch"], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 1 and "No module named torch" in result.stderr


def test_a_program_runs(environment: dict[str, str], repository: Path, tmp_path: Path) -> None:
    page = tmp_path / "demo.html"
    result = bough(environment, "run", str(repository / "examples/demo.py"), "--timeline", str(page))
    assert result.returncode == 0, result.stderr
    assert page.stat().st_size > 10_000


def test_a_server_answers_under_a_schema(environment: dict[str, str]) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    messages: Any = [{"role": "user", "content": "Anna is 29 years old. Her age as JSON?"}]
    answer_format: Any = {"type": "json_schema", "json_schema": {"name": "age", "schema": schema}}
    with ServerProcess(env=environment) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        completion = client.chat.completions.create(
            model=MODEL, messages=messages, response_format=answer_format, max_tokens=40
        )
    assert isinstance(json.loads(completion.choices[0].message.content or "")["age"], int)


def test_what_needs_torch_names_the_extra(environment: dict[str, str]) -> None:
    result = bough(environment, "serve", "--dtype", "float32", "--port", "0")
    last = result.stderr.splitlines()[-1]
    assert (result.returncode, last) == (
        3,
        'bough serve: --dtype float32 needs torch, which is not installed: pip install "bough[torch]"',
    )


@pytest.mark.parametrize("name", ["throughput", "perplexity"])
def test_benchmarks_that_need_torch_say_so(name: str, environment: dict[str, str]) -> None:
    result = bough(environment, "bench", name)
    assert (result.returncode, result.stderr) == (
        1,
        f'bough bench: benchmark {name} needs torch, which is not installed: pip install "bough[torch]"\n',
    )
