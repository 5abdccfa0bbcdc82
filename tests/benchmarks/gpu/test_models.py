"""Workloads and comparisons: the same prompts for every side, turns taken, peers that fail."""

import sys
import textwrap
import time
from contextlib import ExitStack

import pytest

from bough.benchmarks.gpu import models as gpu_models
from bough.benchmarks.gpu.models import WORKLOADS, Comparison, Requests
from bough.benchmarks.gpu.rows import Row
from bough.benchmarks.harness.shapes import shape

FAKE = """
    import json, sys
    if {fails!r} == "start":
        sys.exit(1)
    print('@bench {{"ready": 0.1}}', flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if {fails!r} == "many" and len(asked["prompts"]) > 1:
            print('@bench {{"error": "OutOfMemoryError: x"}}', flush=True)
        elif {fails!r} == "exit":
            sys.exit(2)
        else:
            print('@bench ' + json.dumps(dict(seconds={seconds} * asked["num_tokens"])), flush=True)
"""


def test_prompts_are_as_said():
    requests = Requests(3, 40, 5, 9)
    one, two, again = (requests.prompts(seed) for seed in ("a", "b", "a"))
    assert one == again and one != two
    assert {len(prompt) for prompt in one} == {45} and len({tuple(prompt[:40]) for prompt in one}) == 1
    assert len({tuple(prompt) for prompt in one}) == 3
    assert max(max(prompt) for prompt in requests.prompts("a", 50)) < 50


def test_small_workloads_keep_their_shape():
    small = WORKLOADS["shared-8k"].scaled(1 / 16)
    assert small == Requests(4, 512, 16, 16)
    assert WORKLOADS["1 x 1k"].scaled(1 / 64) == Requests(1, 0, 16, 4)


def test_what_is_shared_is_read_once():
    config = shape("qwen3-8b")
    shared, apart = Requests(64, 2048, 512, 256), Requests(64, 0, 2560, 256)
    assert shared.step_floor_s(config) < 0.7 * apart.step_floor_s(config)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Compares a fake of ours with fakes of peers; name -> how it fails, if it does."""

    def command(name, fails, seconds):
        script = tmp_path / f"{name}.py"
        script.write_text(textwrap.dedent(FAKE.format(fails=fails, seconds=seconds)))
        return [sys.executable, "-u", str(script)]

    def run_comparison(*, budget_s=60.0, **fails):
        def side_command(kind, name, interpreter, options):
            assert (kind, interpreter is None) == ("random", name == "bough")
            return command(name, fails.get(name), 2.0 if name == "bough" else 3.0)

        monkeypatch.setattr(gpu_models, "side_command", side_command)
        rows: list[Row] = []
        peers = {name: sys.executable for name in fails if name != "bough"}
        where = ("cpu", tmp_path / "log", time.time() + budget_s)
        skipped = Comparison("tiny", peers, *where, rows.append, scale=1 / 64).run()
        return {row.name: row for row in rows}, skipped

    return run_comparison


def test_both_sides_run_twice(run):
    rows, skipped = run(vllm=None)
    assert set(rows) == {*WORKLOADS, *(f"{name} step" for name in WORKLOADS)}
    whole, step = rows["1 x 1k"], rows["1 x 1k step"]
    assert (whole.us, whole.peers, whole.ratio_peer, whole.value, whole.noise) == (8e6, {"vllm": 12e6}, 1.5, 0.5, 0)
    assert (step.us, step.peers, step.value) == (2e6, {"vllm": 3e6}, 0.5)
    assert whole.floor_us is None and step.floor_us > 0
    assert skipped == []


def test_ours_alone(run):
    rows, _ = run()
    assert rows["unshared"].us == 8e6 and rows["unshared"].peers == {} and rows["unshared"].ratio_peer is None


def test_several_peers_stay_in_the_row(run):
    rows, _ = run(vllm=None, sglang=None)
    assert rows["unshared"].peers == {"vllm": 12e6, "sglang": 12e6}


@pytest.mark.parametrize("how", ["start", "exit", "many"])
def test_a_peer_that_fails_has_no_time(run, how):
    rows, skipped = run(vllm=how)
    assert rows["256 x 1k"].us == 8e6 and rows["256 x 1k"].peers == {"vllm": None}
    assert any("vllm" in line for line in skipped)


def test_an_interpreter_that_is_not_there(tmp_path):
    deadline = time.time() + 60
    comparison = Comparison("tiny", {"vllm": "/no/such/python"}, "cpu", tmp_path / "log", deadline, print)
    assert comparison.started("vllm", str(tmp_path), deadline, ExitStack()) == []
    assert "No such file" in comparison.skipped[0]


def test_ours_failing_is_said(run):
    rows, skipped = run(bough="start")
    assert rows == {} and any("bough" in line for line in skipped)


def test_no_round_is_begun_that_cannot_end(run):
    rows, skipped = run(vllm=None, budget_s=-1.0)
    assert rows == {} and skipped
