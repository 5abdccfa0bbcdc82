"""Pictures: bars lie where their data says, and the document is well-formed."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bough.benchmarks.harness.pictures import BLUE, RED, Chart, picture, write_picture

SVG = "{http://www.w3.org/2000/svg}"
COLOURS = {"ours": BLUE, "theirs": RED}


def bars(chart: Chart, colour: str) -> list[tuple[float, float]]:
    """Beginning and width of the bars of a colour, without the legend's square."""
    tree = ElementTree.fromstring(picture([[chart]]))
    found = [each for each in tree.iter(f"{SVG}rect") if each.get("fill") == colour]
    return [(float(each.get("x", 0)), float(each.get("width", 0))) for each in found[:-1]]


def test_bars_are_as_long_as_their_values() -> None:
    chart = Chart("<Times> & more", "s", {"one": {"ours": 2.0, "theirs": 6.0}}, COLOURS)
    ((start, ours),), ((same, theirs),) = bars(chart, BLUE), bars(chart, RED)
    assert start == same and theirs == pytest.approx(3 * ours, abs=0.2)
    texts = [each.text for each in ElementTree.fromstring(picture([[chart]])).iter(f"{SVG}text")]
    assert {"<Times> & more", "one", "ours", "s", "0", "6"} <= set(texts)


def test_a_stack_is_bars_end_to_end() -> None:
    chart = Chart("Shares", "%", {"one": {"ours": 1.0, "theirs": 3.0}}, COLOURS, stacked=True)
    ((start, ours),), ((after, theirs),) = bars(chart, BLUE), bars(chart, RED)
    assert (after, theirs) == pytest.approx((start + ours, 3 * ours), abs=0.2)
    assert chart.ticks()[-1] == 4


def test_equal_factors_are_equally_long() -> None:
    chart = Chart("Times", "ms", {"one": {"ours": 10.0, "theirs": 1000.0}}, COLOURS, log=True)
    assert chart.ticks() == pytest.approx([10, 100, 1000, 10_000])
    ((_, ours),), ((_, theirs),) = bars(chart, BLUE), bars(chart, RED)
    assert ours == 0 and theirs == pytest.approx(2 / 3 * 360, abs=0.2)


@pytest.mark.parametrize("values", [{}, {"ours": 0.0}, {"ours": float("nan")}])
@pytest.mark.parametrize("log", [False, True])
def test_an_axis_has_an_extent_whatever_was_measured(values: dict[str, float], log: bool) -> None:
    for rows in ({}, {"one": values}):
        ticks = Chart("Nothing", "", rows, COLOURS, log=log).ticks()
        assert ticks[0] < ticks[-1]


def test_charts_side_by_side(tmp_path: Path) -> None:
    small, large = (Chart("a", "s", {name: {"ours": 1.0} for name in names}, COLOURS) for names in ("x", "xyz"))
    write_picture(tmp_path / "p.svg", [[small, large], [small]], caption="4 CPUs")
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    assert float(root.get("width", 0)) == pytest.approx(small.size[0] + large.size[0], abs=1)
    assert float(root.get("height", 0)) == pytest.approx(24 + large.size[1] + small.size[1], abs=1)
    moved = f"translate({small.size[0]:.0f} 24)"
    assert [each.get("transform") for each in root.findall(f"{SVG}g")][1] == moved
