"""Rows and their ratios, the report they make up, its file and its table."""

import msgspec
import pytest

from bough.benchmarks.gpu.roofline import Work
from bough.benchmarks.gpu.rows import Report, Row, table
from bough.benchmarks.harness.report import write_json


@pytest.fixture
def report():
    machine = {"gpu": "NVIDIA H200, 580.1", "torch": "2.11.0", "triton": "3.6.0", "commit": "abc1234"}
    made = Report(date="2026-11-21T12:00:00Z", machine=machine, meaningful=True)
    for name, value, unit in (("copy", 4.0e12, "B/s"), ("read", 4.2e12, "B/s"), ("gemm", 700e12, "FLOP/s")):
        made.add(Row(sec="C", name=name, us=2000.0, value=value, unit=unit, noise=0.01))
    return made


def kernel(report, name, cfg, work, us, **peers):
    report.add(Row(sec="K", name=name, cfg=cfg, us=us, us_p90=us * 1.1, peers=peers, err=2e-3, noise=0.01).rated(work))


def test_ratios_of_a_row():
    row = Row(sec="K", name="decode", us=100.0, peers={"a": 150.0, "b": 120.0, "c": None}).rated(Work(4.3e8, 1e9))
    assert row.floor_us == pytest.approx(100.0)
    assert row.pct_floor == pytest.approx(100.0)
    assert row.ratio_peer == pytest.approx(1.2)


def test_times_of_repetitions():
    row = Row(sec="K", name="decode").timed([number * 1e-6 for number in range(11)])
    assert (row.us, row.us_p90) == pytest.approx((5.0, 9.0))


def test_ceilings_of_the_run_rate_later_rows(report):
    kernel(report, "decode", {"B": 1}, Work(4.0e8, 1e6), 125.0)
    kernel(report, "extend", {"T": 1}, Work(1.0, 700e6), 2.0)
    assert report.rows[-2].pct_ceiling == pytest.approx(80.0)
    assert report.rows[-1].pct_ceiling == pytest.approx(50.0)


def test_a_row_measured_again_replaces_the_first(report):
    kernel(report, "decode", {"B": 1}, Work(1.0, 1.0), 9.0)
    kernel(report, "decode", {"B": 1}, Work(1.0, 1.0), 8.0, fa3=7.0)
    assert [row.us for row in report.rows if row.name == "decode"] == [8.0]


def test_the_file_is_the_report(report, tmp_path):
    kernel(report, "decode", {"B": 1}, Work(1.0, 1.0), 8.0, fa3=7.0)
    write_json(tmp_path / "r.json", report)
    assert msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=Report) == report
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize("markdown", [False, True])
def test_the_table_has_every_row(report, markdown):
    kernel(report, "tree", {"load": "8k x 64"}, Work(1e9, 1e9), 300.0, flat=1200.0, fa3=None)
    report.skipped.append("kernels:linear: no time")
    text = table(report, markdown=markdown)
    assert all(word in text for word in ("abc1234", "2026-11-21", "NVIDIA H200", "- kernels:linear: no time"))
    (line,) = (line for line in text.splitlines() if "tree" in line)
    assert all(word in line for word in ("load=8k x 64", "300 us", "flat 1.2 ms", "4.00x", "2e-03", "1.0%"))
    assert "say nothing about speed" not in text
    report.meaningful = False
    assert "say nothing about speed" in table(report, markdown=markdown)
