"""The engine's benchmark on a tiny model: every row is there, and its figures come from what ran."""

import time

import pytest

from bough.benchmarks.gpu.cases import engine as gpu_engine
from bough.benchmarks.gpu.cases.case import Settings
from bough.benchmarks.gpu.cases.engine import Bench, idle_share

QUICK = Settings("cpu", quick=True, spawned=time.time(), cold=True)


def test_every_case_gives_rows():
    rows = [row for case in gpu_engine.cases(QUICK, "qwen3-8b") for row in case.run()]
    names = [row.name for row in rows]
    assert names == ["start", "step", "step", "step", "bubble", "ttft", "ttft", "ttft", "json"]
    for row in rows:
        assert row.cfg["model"] == "tiny"
        assert row.us is None or (row.us > 0 and row.floor_us is not None and row.floor_us > 0)
    assert rows[0].cfg["cache"] == "cold"
    assert rows[0].value and rows[-1].value and "tok/s" in rows[-1].note


def test_options_are_other_engines():
    cases = gpu_engine.cases(QUICK, "qwen3-0.6b:options")
    rows = [row for case in cases for row in case.run()]
    assert [row.cfg["option"] for row in rows] == ["plain", "no graphs", "no overlap"]
    assert [case.label for case in gpu_engine.cases(QUICK, "qwen3-8b:start")] == ["start"]


def test_full_size_has_every_batch_of_the_targets():
    labels = [case.label for case in gpu_engine.cases(Settings("cuda"), "qwen3-8b")]
    assert {f"step B={batch} S=1024" for batch in (1, 8, 32, 64, 128, 256)} <= set(labels)
    assert {"step B=64 S=4096", "shared 8192", "shared 2048", "ttft", "json", "bubble"} <= set(labels)
    options = [case.label for case in gpu_engine.cases(Settings("cuda"), "qwen3-8b:options")]
    assert "fp8 cache 64" in options and "int4 weights 1" in options


@pytest.fixture
def bench():
    made = Bench("tiny", QUICK)
    yield made
    made.close()


def test_times_are_of_tokens_that_all_got(bench):
    bench.open()
    running = bench.start([[1, 2, 3], [4, 5, 6]], 100)
    running.until_decoding()
    before = running.num_tokens
    assert len(running.time_tokens(2)) == 2
    assert running.num_tokens - before >= 2 * 2 * 16
    running.stop()
    assert bench.engine.stats().running == 0


def test_an_engine_is_kept_until_its_options_change(bench):
    first = bench.open()
    assert bench.open() is first
    second = bench.open(overlap=False)
    assert second is not first and bench.open(overlap=False) is second


def test_idle_time_is_that_of_long_gaps():
    spans = [(0.0, 10.0), (11.0, 20.0), (12.0, 15.0), (40.0, 50.0)]
    assert idle_share(spans, 5.0) == pytest.approx(100 * 20 / 50)
    assert idle_share(spans, 0.5) == pytest.approx(100 * 21 / 50)
    assert idle_share([], 5.0) is None
    assert idle_share([(1.0, 1.0)], 5.0) is None
