"""The command: jobs in order, processes that crash or hang, the budget."""

import json
import sys
import textwrap
import time

import msgspec
import pytest

from bough.benchmarks.gpu import gpu
from bough.benchmarks.gpu.gpu import Run, plan_jobs
from bough.benchmarks.gpu.rows import Report, Row
from bough.cli import bench
from bough.runtime.protocol.errors import BoughError, RequestError

MODELS = ("qwen3-8b", "qwen3-0.6b")


def test_the_most_important_comes_first():
    jobs = plan_jobs("CKM", MODELS)
    assert [job.family or job.model for job in jobs[:4]] == ["ceilings", "kernels:decode", "kernels:tree", "qwen3-8b"]
    assert [job.section for job in plan_jobs("C", MODELS)] == ["C"]
    assert len(jobs) == len({job.family or job.model for job in jobs})


def arguments(tmp_path, *more):
    return bench.read("gpu", ["--out", str(tmp_path / "r.json"), "--device", "cpu", "--quick", *more])[1]


def read_report(path):
    return msgspec.json.decode(path.read_bytes(), type=Report)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose worker prints two rows and a skipped case, and then does what `end` says."""

    def make(end="print('@bench {\"told\": null}', flush=True)"):
        rows = [msgspec.to_builtins(Row(sec="K", name=name, us=1.0)) for name in ("one", "two")]
        told = [{"ready": 0.1}, {"told": rows[0]}, {"told": "three: no"}, {"told": rows[1]}]
        lines = [f"@bench {json.dumps(message)}" for message in told]
        script = tmp_path / "worker.py"
        script.write_text(
            textwrap.dedent(f"""
                import sys, time
                print(*{lines!r}, sep="\\n", flush=True)
                for number, asked in enumerate(sys.stdin):
                    if number == 3:
                        {end}
            """)
        )
        monkeypatch.setattr(gpu, "side_command", lambda kind, *_: [sys.executable, str(script)])
        return Run(arguments(tmp_path), "cpu")

    return make


def names(run):
    return [row.name for row in run.report.rows]


def test_rows_arrive(run, tmp_path):
    one = run()
    one.measure_kernels("kernels:x", time.time() + 60, {})
    assert names(one) == ["one", "two"] and one.report.skipped == ["three: no"]
    assert [row.name for row in read_report(tmp_path / "r.json").rows] == names(one)


def test_a_crash_costs_what_was_left_of_its_family(run):
    one = run("sys.exit(7)")
    one.measure_kernels("kernels:x", time.time() + 60, {})
    assert names(one) == ["one", "two"] and "kernels:x ended with status 7" in one.report.skipped[1]


def test_a_process_that_hangs_is_ended(run, monkeypatch):
    monkeypatch.setattr(gpu, "_GRACE_S", 0.0)
    one = run("time.sleep(60)")
    started = time.monotonic()
    one.measure_kernels("kernels:x", time.time() + 2, {})
    assert time.monotonic() - started < 20
    assert names(one) == ["one", "two"] and "no answer" in one.report.skipped[1]


def test_nothing_is_begun_after_the_budget(tmp_path):
    report = Run(arguments(tmp_path, "--budget", "5"), "cpu").run()
    assert report.rows == [] and all("no time" in line for line in report.skipped)
    assert len(report.skipped) == len(plan_jobs("CKM", MODELS))


def test_an_unknown_model_is_refused(tmp_path):
    with pytest.raises(RequestError, match="no-such"):
        Run(arguments(tmp_path, "--models", "no-such"), "cpu").run()


def test_without_a_gpu_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "_has_gpu", lambda: False)
    with pytest.raises(BoughError, match="--device cpu --quick"):
        gpu.run(bench.read("gpu", ["--out", str(tmp_path / "r.json")])[1])
    assert not (tmp_path / "r.json").exists()


def test_a_cpu_is_for_trying_only(tmp_path):
    with pytest.raises(BoughError, match="--quick"):
        gpu.run(bench.read("gpu", ["--device", "cpu", "--out", str(tmp_path / "r.json")])[1])


def test_the_whole_path_on_tiny_sizes(tmp_path, capsys):
    """The real processes: ceilings, and one model."""
    out = tmp_path / "r.json"
    more = ["--markdown", str(tmp_path / "t.md"), "--budget", "100", "--commit", "abc1234"]
    which = ["--device", "cpu", "--quick", "--sections", "C,M", "--models", "qwen3-8b"]
    status = gpu.run(bench.read("gpu", [*which, "--out", str(out), *more])[1])
    report = read_report(out)
    assert status == 0 and not report.meaningful and report.skipped == []
    assert {row.name for row in report.rows} >= {"copy", "read", "gemm", "shared-8k step", "unshared", "1 x 1k"}
    assert all(row.us for row in report.rows)
    assert "say nothing about speed" in capsys.readouterr().out
    assert "abc1234" in (tmp_path / "t.md").read_text()


def test_the_command_knows_it():
    assert "gpu" in bench._BENCHMARKS
