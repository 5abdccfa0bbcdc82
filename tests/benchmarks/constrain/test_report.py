"""Reports of the benchmark of constraints: goals, tables and pictures, from their file and of engines that fail."""

from __future__ import annotations

import msgspec

from bough.benchmarks.constrain.constrain import ConstrainReport, Standing, charts, goal_table, goals, lines
from bough.benchmarks.constrain.contest import Outcome
from bough.benchmarks.harness.pictures import picture


def standing(*, right: int, under: int, mask_us: float) -> Standing:
    outcome = Outcome("g", "n", 1.0, 1, num_valid=1, mask_us=[mask_us])
    wrong = Outcome("g", "n", 1.0, 1, under=[0])
    return Standing.of([outcome] * right + [wrong] * under)


class TestReport:
    def test_goals(self) -> None:
        report = ConstrainReport("2026", {}, {})
        assert goals(report) == []
        report.suite = {"bough": standing(right=19, under=1, mask_us=2.0)}
        report.maskbench = {"bough": standing(right=10, under=0, mask_us=900.0)}
        met = {goal.name: goal.met for goal in goals(report)}
        assert met["official suite: groups wholly right"] is True
        assert met["official suite: groups silently wrong (under)"] is False
        assert met["MaskBench: schemas wholly right"] is True
        assert met["mask us p50 / p99, one thread"] is False

    def test_lines_name_who_is_absent_and_who_got_less_far(self) -> None:
        report = ConstrainReport("2026", {"cpus": 2}, {"llguidance": "1"}, absent={"xgrammar": "no --peers"})
        report.suite = {
            "bough": standing(right=3, under=1, mask_us=2.0),
            "llguidance": standing(right=1, under=0, mask_us=1.0),
        }
        assert "absent: xgrammar: no --peers" in lines(report)
        assert "100.0 % (n 1)" in lines(report)
        assert "100.0 % (n 1)" in goal_table(report, markdown=True)
        assert picture(charts(report)).count("<rect") > 4

    def test_an_engine_that_refuses_everything_has_no_times(self) -> None:
        report = ConstrainReport("2026", {}, {}, maskbench={"bough": standing(right=1, under=0, mask_us=1.0)})
        report.maskbench["xgrammar"] = Standing.of([Outcome("g", "n", 1.0, 1, refused="no")])
        report = msgspec.json.decode(msgspec.json.encode(report), type=ConstrainReport)
        figures = {goal.name: goal.figures for goal in goals(report)}
        assert figures["compile ms p50 / p99"] == {"bough": "1 / 1", "xgrammar": "-"}
        assert picture(charts(report)).count(">xgrammar<") == 1  # among the verdicts only

    def test_picture_of_nothing(self) -> None:
        assert picture(charts(ConstrainReport("2026", {}, {}))).endswith("</svg>")
