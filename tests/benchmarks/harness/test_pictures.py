"""Pictures: marks lie where their data says, and the document is well-formed."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bough.benchmarks.harness.pictures import BLUE, RED, Axis, Panel, picture, write_picture

SVG = "{http://www.w3.org/2000/svg}"


def parsed(panel: Panel) -> ElementTree.Element:
    return ElementTree.fromstring(picture([[panel]]))


def bars(panel: Panel, colour: str) -> list[ElementTree.Element]:
    """Bars of a colour; of the legend's squares only the text beside them matters."""
    return [
        each for each in parsed(panel).iter(f"{SVG}rect") if each.get("fill") == colour and each.get("width") != "10"
    ]


class TestAxis:
    def test_follows_the_data(self) -> None:
        axis = Axis(room=0.5).fitted([0.0, 10.0])
        assert axis.low == 0.0
        assert axis.high == pytest.approx(15.4)
        assert axis.place(0.0) == 0.0
        assert axis.ticks() == [0, 5, 10, 15]

    def test_keeps_given_bounds(self) -> None:
        axis = Axis(low=0, high=100).fitted([250.0])
        assert (axis.low, axis.high, axis.place(50)) == (0, 100, 0.5)

    def test_logarithmic(self) -> None:
        axis = Axis(low=1, high=10_000, log=True).fitted([0.0, 5.0])
        assert axis.place(100) == pytest.approx(0.5)
        assert axis.ticks() == pytest.approx([1, 10, 100, 1_000, 10_000])
        assert Axis(low=0.5, high=4, log=True).fitted([]).ticks() == pytest.approx([0.5, 1, 2, 4])

    @pytest.mark.parametrize("values", [[], [3.0], [2.0, 2.0], [float("nan"), 1.0]])
    def test_has_an_extent_whatever_was_measured(self, values: list[float]) -> None:
        for log in (False, True):
            axis = Axis(log=log).fitted(values)
            assert axis.low is not None
            assert axis.high is not None
            assert axis.low < axis.high


class TestPanel:
    def test_a_stack_is_bars_end_to_end(self) -> None:
        panel = Panel("Shares", Axis(low=0, high=4), rows=["one"])
        panel.stack(0, [("first", 1.0, BLUE), ("second", 3.0, RED)])
        (first,), (second,) = bars(panel, BLUE), bars(panel, RED)
        end = float(first.get("x", 0)) + float(first.get("width", 0))
        assert float(second.get("x", 0)) == pytest.approx(end, abs=0.2)
        assert float(second.get("width", 0)) == pytest.approx(3 * float(first.get("width", 0)), abs=0.2)

    def test_its_legend_lies_within_it_whatever_its_rows_are_called(self) -> None:
        panel = Panel("Where time goes", rows=["a row of a name as long as half of the picture " * 2], width=520)
        for number in range(9):
            panel.bar(0, number, number + 1.0, BLUE, label=f"entry {'x' * number}")
        words = [each for each in parsed(panel).iter(f"{SVG}text") if (each.text or "").startswith("entry")]
        assert len(words) == 9
        assert all(float(each.get("x", 0)) + 6 * len(each.text or "") < panel.width for each in words)
        assert max(float(each.get("y", 0)) for each in words) < panel.size[1]

    def test_bars_are_as_long_as_their_values(self) -> None:
        panel = Panel("<Times> & more", Axis("s"), rows=["one", "two"])
        panel.bar(0, 0.0, 2.0, BLUE, label="ours")
        panel.bar(1, 0.0, 6.0, RED)
        (ours,), (theirs,) = bars(panel, BLUE), bars(panel, RED)
        assert float(theirs.get("width", 0)) == pytest.approx(3 * float(ours.get("width", 0)), abs=0.2)
        assert float(theirs.get("y", 0)) > float(ours.get("y", 0))
        texts = [each.text for each in parsed(panel).iter(f"{SVG}text")]
        assert {"<Times> & more", "one", "two", "ours", "s"} <= set(texts)

    def test_points_and_lines_share_places(self) -> None:
        panel = Panel("roof", Axis("x", log=True), Axis("y", log=True))
        panel.line([(1, 1), (10, 10), (100, 10)])
        panel.dot(10, 10, BLUE)
        panel.dot(100, 10, RED, hollow=True)
        panel.text(1, 1, "slope", along=(10, 10))
        tree = parsed(panel)
        (line,) = tree.iter(f"{SVG}polyline")
        corners = line.get("points", "").split()
        dots = [f"{each.get('cx')},{each.get('cy')}" for each in tree.iter(f"{SVG}circle")]
        assert dots == corners[1:]

    def test_steps_hold_a_value_until_the_next(self) -> None:
        panel = Panel("batches")
        panel.line([(0, 1), (1, 3), (2, 0)], steps=True)
        (line,) = parsed(panel).iter(f"{SVG}polyline")
        points = [tuple(map(float, corner.split(","))) for corner in line.get("points", "").split()]
        assert len(points) == 4
        assert points[0][1] == points[1][1] > points[2][1] == points[3][1]

    def test_draws_with_nothing_on_it(self) -> None:
        assert parsed(Panel("empty")).tag == f"{SVG}svg"


def test_panels_side_by_side(tmp_path: Path) -> None:
    panels = [Panel("a", width=200), Panel("b", width=300, height=90)]
    write_picture(tmp_path / "p.svg", [panels, [Panel("c", height=50)]], caption="4 CPUs")
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    assert (root.get("width"), root.get("height")) == ("500", f"{24 + panels[0].size[1] + 50:.0f}")
    assert [each.get("transform") for each in root.findall(f"{SVG}g")][1] == "translate(200 24)"
