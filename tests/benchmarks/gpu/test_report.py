"""Reports: rows and their ratios, targets judged, a table that fits, markdown, pictures."""

from pathlib import Path

import pytest

from bough.benchmarks.gpu.report import MAX_LINES, markdown, table, verdicts, write_pictures
from bough.benchmarks.gpu.roofline import Heads, Work, decode_attention, decode_step_s, extend_attention
from bough.benchmarks.gpu.rows import Report, Row, read_report, spread
from bough.benchmarks.harness.shapes import shape

HEADS = Heads(32, 8, 128)


def make_report(*, meaningful=True):
    machine = {"gpu": "NVIDIA H200, 580.1", "torch": "2.11.0", "triton": "3.6.0", "commit": "abc1234"}
    report = Report(date="2026-11-21T12:00:00Z", machine=machine, meaningful=meaningful)
    for name, value, unit in (("copy", 4.0e12, "B/s"), ("read", 4.2e12, "B/s"), ("gemm", 700e12, "FLOP/s")):
        report.add(Row(sec="C", name=name, us=2000.0, value=value, unit=unit, noise=0.01))
    return report


def kernel(report, name, cfg, work, us, **peers):
    report.add(Row(sec="K", name=name, cfg=cfg, us=us, us_p90=us * 1.1, peers=peers, err=2e-3, noise=0.01).rated(work))


def full_report():
    report = make_report()
    for batch in (1, 64, 256):
        for length in (1024, 4096):
            work = decode_attention(HEADS, [length] * batch)
            us = work.floor_s() * 1.2e6
            kernel(
                report, "decode", {"heads": "32/8", "B": batch, "S": str(length)}, work, us, fa3=us * 1.3, flashinfer=us
            )
    kernel(report, "extend", {"T": 4096, "P": 0}, extend_attention(HEADS, 4096, 0), 300.0, fa3=240.0, cudnn=None)
    shared = decode_attention(HEADS, [8448] * 64, 8192 + 64 * 256)
    kernel(report, "tree", {"load": "8k x 64"}, shared, 60.0, flat=500.0, fa3=520.0)
    for model in ("qwen3-8b", "qwen3-0.6b"):
        for batch in (1, 8, 32, 64, 128, 256):
            floor_s = decode_step_s(shape(model), [1024] * batch)
            cfg = {"model": model, "B": batch, "S": 1024}
            report.add(
                Row(sec="E", name="step", cfg=cfg, us=floor_s * 1.1e6, us_p90=floor_s * 1.2e6).rated(floor_s=floor_s)
            )
        cfg = {"model": model, "B": 64, "S": 256, "shared": 8192}
        report.add(Row(sec="E", name="step", cfg=cfg, us=9e3).rated(floor_s=4e-3))
        report.add(Row(sec="E", name="json", cfg={"model": model, "B": 64}, value=1.1, unit="x unconstrained"))
        for name in ("w1", "shared-8k decode", "shared-2k decode", "unshared"):
            report.add(
                Row(sec="P", name=name, cfg={"model": model}, us=1e7, peers={"vllm": 1.2e7, "sglang": None}).rated()
            )
    report.add(Row(sec="E", name="start", cfg={"model": "qwen3-8b", "cache": "cold"}, value=55.0, unit="s"))
    report.skipped.append("kernels:linear: no time")
    return report


def test_ratios_of_a_row():
    row = Row(sec="K", name="decode", us=100.0, peers={"a": 150.0, "b": 120.0, "c": None}).rated(Work(4.3e8, 1e9))
    assert row.floor_us == pytest.approx(100.0)
    assert row.pct_floor == pytest.approx(100.0)
    assert row.ratio_peer == pytest.approx(1.2)


def test_ceilings_of_the_run_rate_later_rows():
    report = make_report()
    kernel(report, "decode", {"B": 1}, Work(4.0e8, 1e6), 125.0)
    kernel(report, "extend", {"T": 1}, Work(1.0, 700e6), 2.0)
    assert report.rows[-2].pct_ceiling == pytest.approx(80.0)
    assert report.rows[-1].pct_ceiling == pytest.approx(50.0)


def test_a_row_measured_again_replaces_the_first():
    report = make_report()
    kernel(report, "decode", {"B": 1}, Work(1.0, 1.0), 9.0)
    kernel(report, "decode", {"B": 1}, Work(1.0, 1.0), 8.0, fa3=7.0)
    assert [row.us for row in report.find("decode")] == [8.0]


def test_the_file_is_the_report(tmp_path):
    report = full_report()
    report.write(tmp_path / "r.json")
    assert read_report(tmp_path / "r.json") == report
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_targets_take_the_worst_row():
    found = {verdict.name: verdict for verdict in verdicts(full_report())}
    bandwidth = found["decode attention, KV >= 256 MB"]
    assert {row.cfg["B"] for row in bandwidth.rows} == {64, 256}
    assert bandwidth.value == pytest.approx(100 * 4.3 / 4.0 / 1.2, rel=0.01)
    assert bandwidth.passed
    assert found["the same, against FlashInfer"].value == pytest.approx(1.0)
    assert found["extend, 4k tokens, against FA3"].passed
    assert found["tree decode, 64 under 8k, against flat"].value == pytest.approx(500 / 60)
    assert found["8B bf16 step, 32 to 128 requests"].value == pytest.approx(100 / 1.1)  # shared ones do not count
    assert found["W1, 0.6B, against vLLM"].passed is False
    assert found["8B, start to ready, cold"].passed is False
    absent = found["64 sharing 8k, 8B decode, against SGLang"]
    assert absent.value is None and absent.passed is None and absent.text == "not measured"


def test_tiny_sizes_are_not_judged():
    report = make_report(meaningful=False)
    report.add(Row(sec="E", name="json", cfg={"model": "tiny", "B": 2}, value=0.2, unit="x"))
    assert {verdict.passed for verdict in verdicts(report)} == {None}
    assert "say nothing about speed" in table(report) and "say nothing about speed" in markdown(report)


def test_the_table_fits():
    report = full_report()
    for index in range(200):
        kernel(report, "linear", {"weight": "8b gate_up", "T": index}, Work(1e6, 1e6), 3.0)
    lines = table(report).splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= 150
    assert any(line.startswith("K tree 8k x 64") for line in lines)
    assert any("rows more in the file" in line for line in lines)
    assert any("FAIL" in line for line in lines) and any(line.endswith("pass") for line in lines)


def test_an_empty_report_has_a_table():
    assert "0 of 0 measured targets" in table(make_report())


def test_markdown_has_every_row_and_target():
    report = full_report()
    text = markdown(report)
    assert text.count("\n| ") >= len(report.rows) + len(verdicts(report))
    assert "abc1234" in text and "2026-11-21" in text and "NVIDIA H200" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("| ")}
    assert widths == {5, 9}


def test_pictures(tmp_path):
    paths = write_pictures(full_report(), tmp_path / "pictures")
    assert [path.name for path in paths] == ["gpu-roofline.svg", "gpu-steps.svg", "gpu-workloads.svg"]
    roofline, steps, workloads = (path.read_text() for path in paths)
    assert "decode attention" in roofline and "TFLOP/s" in roofline
    assert "% </text>" in steps or " %</text>" in steps
    assert "bough" in workloads and "vllm" in workloads


def test_what_was_not_measured_is_not_drawn(tmp_path):
    assert write_pictures(make_report(), Path(tmp_path)) == []


def test_spread():
    assert spread([5.0]) == (5.0, 5.0)
    assert spread(list(range(11))) == (1.0, 9.0)
