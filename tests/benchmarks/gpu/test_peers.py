"""Workloads and comparisons: the same prompts for every side, turns taken, peers that fail."""

import sys
import textwrap
import time

import pytest

from bough.benchmarks.gpu import peers as gpu_peers
from bough.benchmarks.gpu import side as gpu_side
from bough.benchmarks.gpu.peers import WORKLOADS, Comparison, compare
from bough.benchmarks.gpu.rows import Row
from bough.benchmarks.gpu.side import EngineWorkload, make_workload, run_workload

FAKE = """
    import json, sys
    if {fails!r} == "start":
        sys.exit(1)
    print('@bench {{"ready": 0.1}}', flush=True)
    for line in sys.stdin:
        workload = json.loads(line)["workload"]
        if {fails!r} == workload:
            print('@bench {{"error": "OutOfMemoryError: x"}}', flush=True)
        elif {fails!r} == "exit":
            sys.exit(2)
        else:
            times = dict(seconds={seconds}, output_tokens=100, decode_s={seconds} / 2, decode_tokens=90)
            print('@bench ' + json.dumps(times), flush=True)
"""


def test_the_first_workload_is_the_known_one():
    workload = make_workload("w1", 0)
    assert len(workload.prompts) == 256 and sum(workload.outputs) == 133_966
    assert all(100 <= len(prompt) <= 1024 for prompt in workload.prompts)
    assert max(max(prompt) for prompt in workload.prompts) < 10_000


@pytest.mark.parametrize("name", WORKLOADS)
def test_seeds_change_tokens_and_no_length(name):
    one, two, again = (make_workload(name, seed, scale=1 / 16) for seed in (1, 2, 1))
    assert one == again and one.prompts != two.prompts
    assert [len(prompt) for prompt in one.prompts] == [len(prompt) for prompt in two.prompts]
    assert one.outputs == two.outputs


def test_sharing_is_as_said():
    shared = make_workload("shared-8k", 1).prompts
    assert len(shared) == 64 and len(shared[0]) == 8192 + 256
    assert gpu_peers._num_common(shared) == 8192
    assert gpu_peers._num_common(make_workload("unshared", 1).prompts) == 0


def test_a_vocabulary_can_be_small():
    for name in WORKLOADS:
        assert max(max(prompt) for prompt in make_workload(name, 1, scale=1 / 32, vocabulary=50).prompts) < 50


def test_decode_is_timed_with_everything_cached(monkeypatch):
    seen: list[int] = []
    now = [0.0]
    monkeypatch.setattr("bough.benchmarks.gpu.side.time.perf_counter", lambda: now[0])

    def generate(workload):
        seen.append(workload.outputs[0])
        now[0] += 3.0 + workload.outputs[0]
        return sum(workload.outputs)

    times = run_workload(EngineWorkload([[1], [2]], [5, 5], decode=True), generate)
    assert seen == [5, 1, 5]
    assert times["decode_tokens"] == 8 and times["output_tokens"] == 10
    assert times["seconds"] == 8 and times["first_s"] == 4 and times["decode_s"] == 4
    assert set(run_workload(EngineWorkload([[1]], [3]), generate)) == {"seconds", "output_tokens"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Compares a fake of ours with fakes of peers; name -> how it fails, if it does."""

    def command(name, fails, seconds):
        script = tmp_path / f"{name}.py"
        script.write_text(textwrap.dedent(FAKE.format(fails=fails, seconds=seconds)))
        return [sys.executable, "-u", str(script)]

    def run_comparison(*, budget_s=60.0, **fails):
        monkeypatch.setattr(gpu_peers, "python_command", lambda module: command("bough", fails.get("bough"), 2.0))
        monkeypatch.setattr(gpu_side, "__file__", str(tmp_path / "peer.py"))
        command("peer", next((how for name, how in fails.items() if name != "bough"), None), 3.0)
        rows: list[Row] = []
        peers = {name: sys.executable for name in fails if name != "bough"}
        comparison = Comparison("tiny", peers, "cpu", tmp_path / "log", time.time() + budget_s, scale=1 / 64)
        skipped = compare(comparison, rows.append)
        return {row.name: row for row in rows}, skipped

    return run_comparison


def test_both_sides_run_twice(run):
    rows, skipped = run(vllm=None)
    assert set(rows) == {*WORKLOADS, "shared-8k decode", "shared-2k decode", "unshared decode"}
    assert rows["w1"].us == 2e6 and rows["w1"].peers == {"vllm": 3e6} and rows["w1"].ratio_peer == 1.5
    assert rows["w1"].value == 50 and rows["w1"].noise == 0
    assert rows["shared-8k decode"].us == 1e6 and rows["shared-8k decode"].floor_us > 0
    assert rows["shared-8k"].floor_us is None
    assert skipped == []


def test_ours_alone(run):
    rows, _ = run()
    assert rows["w1"].us == 2e6 and rows["w1"].peers == {} and rows["w1"].ratio_peer is None


def test_several_peers_stay_in_the_row(run):
    rows, _ = run(vllm=None, sglang=None)
    assert rows["w1"].peers == {"vllm": 3e6, "sglang": 3e6}


@pytest.mark.parametrize("how", ["start", "exit", "w1"])
def test_a_peer_that_fails_has_no_time(run, how):
    rows, skipped = run(vllm=how)
    assert rows["w1"].us == 2e6 and rows["w1"].peers == {"vllm": None}
    assert bool(skipped) == (how != "w1")  # one workload that it cannot run is noted in the log


def test_an_interpreter_that_is_not_there(tmp_path):
    comparison = Comparison("tiny", {"vllm": "/no/such/python"}, "cpu", tmp_path / "log", time.time() + 60)
    side = gpu_peers._start(comparison, "vllm", str(tmp_path))
    assert side.child is None and "No such file" in side.note
    assert not gpu_peers._ready(side, time.time() + 60)


def test_ours_failing_is_said(run):
    rows, skipped = run(bough="start")
    assert rows == {} and any("bough" in line for line in skipped)


def test_no_round_is_begun_that_cannot_end(run):
    rows, skipped = run(vllm=None, budget_s=-1.0)
    assert rows == {} and skipped
