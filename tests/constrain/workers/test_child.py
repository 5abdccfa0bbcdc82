"""Child processes do not get secrets, and end with their parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bough.constrain import GrammarCompiler, JsonSchema, Vocabulary
from bough.constrain.workers.child import child_environment, tied

SECRET = (
    "BOUGH_API_KEY", "OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "GITHUB_TOKEN",
    "DB_PASSWORD", "MY_CREDENTIALS", "azure_client_secret", "APIKEY", "SSH_PRIVATE_KEY", "PGPASSWORD", "MYSQL_PWD",
    "STRIPE_KEY", "DATABASE_URL", "GITLAB_PAT", "SLACK_WEBHOOK", "MY_PATH", "PATH2",
)  # fmt: skip
PLAIN = ("PATH", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "BOUGH_CACHE", "PYTHONPATH", "XDG_SECRETARY", "LC_ALL",
         "CUDA_VISIBLE_DEVICES", "https_proxy", "NO_PROXY", "HF_HUB_OFFLINE", "LD_LIBRARY_PATH")  # fmt: skip


def test_a_child_has_only_what_is_known_to_be_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SECRET, *PLAIN):
        monkeypatch.setenv(name, "value")
    assert set(SECRET).isdisjoint(child_environment())
    assert child_environment().keys() >= set(PLAIN)
    assert set(SECRET) & child_environment(keep=("HF_TOKEN",)).keys() == {"HF_TOKEN"}


def test_a_worker_has_none(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden")
    compiler = GrammarCompiler(vocabulary)
    compiler.compile(JsonSchema('{"anyOf": [{"type": "integer", "minimum": 3}, {"type": "string"}]}'))
    (process_id,) = compiler.process_ids
    assert b"sk-hidden" not in Path(f"/proc/{process_id}/environ").read_bytes()
    compiler.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a child of its parent's end")
def test_a_command_that_is_tied_starts_as_it_would_alone() -> None:
    command = ["sh", "-c", 'grep Sig /proc/self/status; echo "$@"', "sh", "one", "two words"]
    alone, beside = (subprocess.run(each, capture_output=True, check=True) for each in (command, tied(command)))
    assert alone.stdout == beside.stdout and alone.stdout.endswith(b"one two words\n")
