"""The command: jobs in order, processes that crash or hang, the budget, the report."""

import sys
import textwrap
import time

import msgspec
import pytest

from bough.benchmarks.gpu import gpu
from bough.benchmarks.gpu.gpu import Job, Run, plan_jobs
from bough.benchmarks.gpu.rows import MARK, Event, Row, read_report
from bough.cli import bench

MODELS = ("qwen3-8b", "qwen3-0.6b")


def test_the_most_important_comes_first():
    jobs = plan_jobs("CKEP", MODELS)
    assert [job.section for job in jobs[:4]] == ["C", "K", "E", "P"]
    assert jobs[1].groups == ("kernels:decode", "kernels:tree") and jobs[2].cold
    assert [job.section for job in plan_jobs("C", MODELS)] == ["C"]
    groups = [group for job in jobs for group in job.groups]
    assert len(groups) == len(set(groups))


def arguments(tmp_path, *more):
    return gpu._parser().parse_args(["--out", str(tmp_path / "r.json"), "--device", "cpu", "--quick", *more])


def lines(*events):
    return [MARK + msgspec.json.encode(event).decode() for event in events]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose worker prints these lines from case `--first` on, and then does what `end` says."""

    def make(cases, end="", budget="60"):
        script = tmp_path / "worker.py"
        script.write_text(
            textwrap.dedent(f"""
                import sys, time
                first = int(sys.argv[sys.argv.index("--first") + 1])
                without = [sys.argv[i + 1] for i, word in enumerate(sys.argv) if word == "--without"]
                for number, told in enumerate({cases!r}):
                    if number >= first:
                        for line in told:
                            print(line, flush=True)
                        {end or "pass"}
            """)
        )
        monkeypatch.setattr(gpu, "python_command", lambda module: [sys.executable, str(script)])
        return Run(arguments(tmp_path, "--budget", budget), "cpu")

    return make


def told(number, *, row=True, within_s=10.0, peer=None):
    label = f"case {number}"
    events = [Event(number=number, case=label, within_s=within_s)]
    events += [Event(number=number, case=label, row=Row(sec="K", name=label, us=1.0))] if row else []
    events += [Event(number=-1, peer=peer)] if peer else []
    return lines(*events)


def names(run):
    return [row.name for row in run._report.rows]


def test_rows_arrive(run):
    one = run([told(0), told(1)])
    one._work(Job("K", ("kernels:x",), 60.0), time.time() + 60, {})
    assert names(one) == ["case 0", "case 1"] and one._report.skipped == []
    assert [row.name for row in read_report(one._out).rows] == names(one)


def test_a_crash_costs_its_case_only(run):
    one = run([told(0), told(1, row=False), told(2)], "number == 1 and sys.exit(-11 % 256)")
    one._work(Job("K", ("kernels:x",), 60.0), time.time() + 60, {})
    assert names(one) == ["case 0", "case 2"]
    assert len(one._report.skipped) == 1 and "case 1" in one._report.skipped[0]


def test_a_lost_context_is_no_news(run):
    one = run(
        [told(0), lines(Event(number=1, case="case 1", skipped="CUDA error")), told(2)], "number == 1 and sys.exit(3)"
    )
    one._work(Job("K", ("kernels:x",), 60.0), time.time() + 60, {})
    assert names(one) == ["case 0", "case 2"]
    assert one._report.skipped == ["case 1: CUDA error"]


def test_a_peer_that_hangs_is_left_alone_from_then_on(run):
    hanging = "number == 0 and 'slow' not in without and time.sleep(60)"
    one = run([told(0, within_s=0.5, peer="slow"), told(1)], hanging)
    started = time.monotonic()
    one._work(Job("K", ("kernels:x",), 60.0), time.time() + 60, {})
    assert time.monotonic() - started < 20
    assert names(one) == ["case 0", "case 1"] and one._without == {"slow"}
    assert "slow" in one._report.skipped[0]


def test_a_worker_that_does_not_start_is_not_started_again(run):
    one = run([[]], "sys.exit(1)")
    one._work(Job("K", ("kernels:x",), 60.0), time.time() + 60, {})
    assert names(one) == [] and any("did not start" in line for line in one._report.skipped)


def test_nothing_is_begun_after_the_budget(run):
    one = run([told(0)], budget="5")
    report = one.run()
    assert report.rows == [] and all("no time" in line for line in report.skipped)
    assert len(report.skipped) == len(plan_jobs("CKEP", MODELS))


def test_an_unknown_model_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no-such"):
        Run(arguments(tmp_path, "--models", "no-such"), "cpu").run()


def test_without_a_gpu_it_says_what_to_do(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu, "_device", lambda name: None)
    assert gpu.main(["--out", str(tmp_path / "r.json")]) == 1
    assert "--device cpu --quick" in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()


def test_a_cpu_is_for_trying_only(capsys, tmp_path):
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path / "r.json")]) == 1
    assert "--quick" in capsys.readouterr().err


def test_the_whole_path_on_tiny_sizes(tmp_path, capsys):
    """The real processes: ceilings, a few kernels, one model."""
    out = tmp_path / "r.json"
    more = ["--markdown", str(tmp_path / "t.md"), "--budget", "100", "--commit", "abc1234"]
    which = ["--device", "cpu", "--quick", "--sections", "C,P", "--models", "qwen3-8b"]
    status = gpu.main([*which, "--out", str(out), *more])
    report = read_report(out)
    assert status == 0 and not report.meaningful and report.skipped == []
    assert {row.name for row in report.rows} >= {"copy", "read", "gemm", "w1", "shared-8k decode", "unshared"}
    assert all(row.us for row in report.rows)
    assert "say nothing about speed" in capsys.readouterr().out
    assert "abc1234" in (tmp_path / "t.md").read_text()
    assert gpu.main(["--show", str(out)]) == 0
    assert "copy" in capsys.readouterr().out


def test_the_command_knows_it():
    assert "gpu" in bench._BENCHMARKS
