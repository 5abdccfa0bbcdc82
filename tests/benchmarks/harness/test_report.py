"""The common report: tables, figures, statistics of rounds, the machine, files."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

import pytest

from bough.benchmarks.harness.report import (
    describe_machine,
    duration,
    geometric_means,
    machine_line,
    number,
    percentile,
    percentiles,
    share,
    short,
    table,
    versions,
    write_json,
)


def test_table_at_a_terminal() -> None:
    lines = table(("what", "ms"), [("one", "1.5"), ("the other", "12.0")], right=[1]).splitlines()
    assert lines == ["what         ms", "one         1.5", "the other  12.0"]


def test_table_in_markdown() -> None:
    assert table(("what", "ms"), [("  one", "1")], markdown=True).splitlines() == [
        "| what | ms |",
        "| --- | --- |",
        "| one | 1 |",
    ]


def test_figures() -> None:
    assert (number(None, ".1f"), number(2.345, ".1f", "x")) == ("", "2.3x")
    assert (share(1, 8), share(1, 0)) == ("12.5 %", "-")
    assert [short(value) for value in (0.123, 4.56, 45.6, 4567.0)] == ["0.12", "4.6", "46", "4,567"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (2.5e-6, "2.5 us"), (123e-6, "123 us"), (0.0123, "12.3 ms"), (0.5, "500 ms"), (12.0, "12.00 s")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_percentiles_are_those_of_the_standard_library() -> None:
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    assert percentiles(values, 10, 50, 90) == pytest.approx(
        [quantiles(values, n=10, method="inclusive")[place] for place in (0, 4, 8)]
    )
    assert (percentile([7.0], 99.9), percentile(values, 0), percentile(values, 100)) == (7.0, 1.0, 9.0)
    assert math.isnan(percentile([], 50))


def test_geometric_means_are_of_rounds_that_all_have() -> None:
    assert geometric_means([[2.0, 3.0, 9.0], [8.0, 3.0]]) == pytest.approx([4.0, 3.0])


class TestMachine:
    def test_can_be_kept_in_a_file(self) -> None:
        machine = describe_machine("cpu", "abc")
        assert json.loads(json.dumps(machine)) == machine
        assert (machine["device"], machine["commit"]) == ("cpu", "abc")
        assert machine["cpus"] >= 1

    def test_line_leaves_out_what_is_unknown(self) -> None:
        machine = {"system": "Linux", "gpu": None, "cpus": 4, "torch": "2.9", "triton": None, "commit": "abc"}
        assert machine_line(machine, "2026-01-01", "") == "Linux, 4 CPUs, torch 2.9, commit abc, 2026-01-01"
        assert machine_line({"device": "cpu"}) == "cpu"

    def test_versions(self) -> None:
        found = versions("numpy", "no-such-distribution")
        assert found["numpy"]
        assert found["no-such-distribution"] is None


@dataclass
class _Figures:
    name: str
    values: list[float]


def test_json_replaces_the_file_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    write_json(path, {"of": _Figures("a", [1.0, math.nan])})
    assert json.loads(path.read_text()) == {"of": {"name": "a", "values": [1.0, None]}}
    assert [found.name for found in tmp_path.iterdir()] == ["report.json"]
