"""Pictures of reports as SVG: panels with axes, and bars, lines, dots and words on them, placed by their data.

panel = Panel("Time", x_label="seconds", rows=["one", "two"])
panel.bar(0, 0.0, 1.5, "#0072b2", label="bough")
write_picture(path, [[panel]], caption="4 CPUs, commit abc")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from .report import write_text

INK, SOFT, GRID = "#22272e", "#6b7480", "#e4e7eb"
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#7a5195", "#9aa3ad"
SIDES = {"bough": BLUE, "vllm": ORANGE, "sglang": "#56b4a9", "llama.cpp": RED, "openvino": GREEN, "transformers": GREY}
"""Colours of bough and its peers in every picture."""

_CHARACTER = 6.3  # width of a character of 11 pixels
_LINE = 16
_TOP, _BOTTOM, _RIGHT, _GAP = 30, 40, 18, 12


@dataclass
class Axis:
    """One direction of a panel: from `low` to `high`, in equal steps or, if `log`, in equal factors.

    Bounds that are None follow the data, with a margin; `room` is what the high end gets in addition, as a part of
    the whole, for words beside bars.
    """

    label: str = ""
    low: float | None = None
    high: float | None = None
    log: bool = False
    room: float = 0.0
    tick: Callable[[float], str] = "{:g}".format

    def fitted(self, values: Sequence[float]) -> Axis:
        """The axis with bounds that hold all `values`."""
        values = [value for value in values if math.isfinite(value) and (value > 0 or not self.log)] or [1.0]
        low, high = (math.log10(edge) if self.log else edge for edge in (min(values), max(values)))
        margin = 0.04 * (high - low) or 0.5
        low = low if low == 0 and not self.log else low - margin
        high += margin + self.room * (high - low)
        unscaled = (10.0**low, 10.0**high) if self.log else (low, high)
        low = self.low if self.low is not None else unscaled[0]
        high = self.high if self.high is not None else unscaled[1]
        return replace(self, low=low, high=high)

    def place(self, value: float) -> float:
        """Position of `value`, 0 at the low end and 1 at the high one. Needs bounds."""
        assert self.low is not None and self.high is not None
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        return math.log(max(value, 1e-300) / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Round values between the bounds: powers where it is logarithmic, else a handful of 1, 2 or 5 times ten."""
        assert self.low is not None and self.high is not None
        if self.log:
            base = 10.0 if self.high / self.low > 200 else 2.0
            first, last = (math.log(edge, base) for edge in (self.low, self.high))
            return [base**power for power in range(math.ceil(first), math.floor(last) + 1)]
        coarse = 10.0 ** math.floor(math.log10((self.high - self.low) / 5))
        step = next(
            step for step in (coarse, 2 * coarse, 5 * coarse, 10 * coarse) if (self.high - self.low) / step <= 7
        )
        return [step * index for index in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


Place = Callable[[float, float], tuple[float, float]]
"""Pixels of a point (x, y) of the data."""


@dataclass
class Panel:
    """Axes with a title. Marks are drawn in the order in which they are added.

    With `rows` the vertical axis is a list from the top down, and y is a place in it: 0 is the first row, 0.5 half way
    to the second. `ticks` are places and names of rows that are not one apart.
    """

    title: str
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    rows: Sequence[str] = ()
    ticks: Sequence[tuple[float, str]] = ()
    note: str = ""
    width: float = 470
    height: float | None = None
    _marks: list[Callable[[Place], str]] = field(default_factory=list)
    _points: list[tuple[float, float]] = field(default_factory=list)
    _legend: dict[str, str] = field(default_factory=dict)

    def bar(self, y: float, start: float, end: float, colour: str, *, thick: float = 0.7, label: str = "") -> None:
        """A horizontal bar around `y`, `thick` rows thick. A bar with a label is in the legend."""

        def draw(place: Place) -> str:
            (left, top), (right, bottom) = place(min(start, end), y - thick / 2), place(max(start, end), y + thick / 2)
            size = f'width="{right - left:.1f}" height="{abs(bottom - top):.1f}"'
            return f'<rect x="{left:.1f}" y="{min(top, bottom):.1f}" {size} fill="{colour}"/>'

        self._add(draw, (start, y - thick / 2), (end, y + thick / 2), label=label, colour=colour)

    def stack(self, y: float, parts: Iterable[tuple[str, float, str]]) -> None:
        """Bars end to end from 0 on: the label, the length and the colour of each."""
        start = 0.0
        for label, length, colour in parts:
            self.bar(y, start, start + length, colour, label=label)
            start += length

    def line(
        self, points: Sequence[tuple[float, float]], colour: str = INK, *, wide: float = 1.6, steps: bool = False,
        faint: bool = False, label: str = "",
    ) -> None:  # fmt: skip
        """A line through points; with `steps` each value holds until the next point."""
        if steps:
            held = [((x, y), (after, y)) for (x, y), (after, _) in pairwise(points)]
            points = list(chain.from_iterable(held))

        def draw(place: Place) -> str:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
            look = f'stroke="{colour}" stroke-width="{wide}"' + (' stroke-opacity="0.4"' if faint else "")
            return f'<polyline points="{path}" fill="none" {look}/>'

        self._add(draw, *points, label=label, colour=colour)

    def dot(
        self, x: float, y: float, colour: str = INK, *, size: float = 4.0, hollow: bool = False, diamond: bool = False,
        label: str = "",
    ) -> None:  # fmt: skip
        """A point of `size` pixels in radius."""

        def draw(place: Place) -> str:
            at_x, at_y = place(x, y)
            fill, edge = ("white", colour) if hollow else (colour, "white")
            look = f'fill="{fill}" stroke="{edge}"'
            if diamond:
                corners = f"M{at_x - size:.1f} {at_y:.1f}l{size} {-size} {size} {size} {-size} {size}z"
                return f'<path d="{corners}" {look}/>'
            return f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="{size}" {look}/>'

        self._add(draw, (x, y), label=label, colour=colour)

    def text(
        self, x: float, y: float, text: str, colour: str = INK, *, anchor: str = "start",
        shift: tuple[float, float] = (6, 4), along: tuple[float, float] | None = None,
    ) -> None:  # fmt: skip
        """Words at a point, moved by `shift` pixels; with `along` they follow the line from there to that point."""

        def draw(place: Place) -> str:
            at_x, at_y = place(x, y)
            turn = ""
            if along is not None:
                to_x, to_y = place(*along)
                turn = f" rotate({math.degrees(math.atan2(to_y - at_y, to_x - at_x)):.1f})"
            where = f'transform="translate({at_x:.1f} {at_y:.1f}){turn}" x="{shift[0]}" y="{shift[1]}"'
            return f'<text {where} text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'

        self._add(draw, (x, y))

    def key(self, label: str, colour: str) -> None:
        """An entry of the legend."""
        self._legend.setdefault(label, colour)

    def _add(
        self, draw: Callable[[Place], str], *points: tuple[float, float], label: str = "", colour: str = INK
    ) -> None:
        self._marks.append(draw)
        self._points.extend(points)
        if label:
            self.key(label, colour)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in pixels, with title and legend."""
        if self.height is not None:
            return self.width, self.height
        places = len(self.rows) or (self.ticks[-1][0] + 1 if self.ticks else 12)
        return self.width, _TOP + _BOTTOM + _LINE * bool(self.note) + self._legend_lines() * _LINE + 26 * max(3, places)

    def _legend_places(self) -> list[tuple[float, int]]:
        """Start of each entry of the legend, in pixels from the panel's left, and its line."""
        places: list[tuple[float, int]] = []
        at, line = float(_GAP), 0
        for label in self._legend:
            wide = (len(label) + 4) * _CHARACTER
            if at > _GAP and at + wide > self.width:
                at, line = float(_GAP), line + 1
            places.append((at, line))
            at += wide
        return places

    def _legend_lines(self) -> int:
        return max((line + 1 for _, line in self._legend_places()), default=0)

    def svg(self) -> str:
        """The panel as a group of elements, its upper left corner at the origin."""
        width, height = self.size
        named = [*self.ticks, *enumerate(self.rows)]
        x_axis = self.x.fitted([x for x, _ in self._points])
        if named:
            y_axis = Axis(low=max(at for at, _ in named) + 0.6, high=min(at for at, _ in named) - 0.6)
            if self.ticks and self._points:  # groups of bars reach beyond their names
                y_axis = Axis(low=max(y for _, y in self._points) + 0.2, high=min(y for _, y in self._points) - 0.2)
        else:
            y_axis = self.y.fitted([y for _, y in self._points])
            named = [(value, y_axis.tick(value)) for value in y_axis.ticks()]
        left = _GAP + _LINE * bool(self.y.label) + _CHARACTER * max((len(name) for _, name in named), default=0)
        top = _TOP + _LINE * bool(self.note)
        right, bottom = width - _RIGHT, height - _BOTTOM - self._legend_lines() * _LINE

        def place(x: float, y: float) -> tuple[float, float]:
            return left + (right - left) * x_axis.place(x), bottom - (bottom - top) * y_axis.place(y)

        parts = [_text(left, 16, self.title, INK, size=13), _text(left, 33, self.note, SOFT) if self.note else ""]
        for value in x_axis.ticks():
            at = left + (right - left) * x_axis.place(value)
            parts.append(f'<path d="M{at:.1f} {top}V{bottom:.1f}" stroke="{GRID}"/>')
            parts.append(_text(at, bottom + 15, x_axis.tick(value), SOFT, anchor="middle"))
        for value, name in named:
            at = bottom - (bottom - top) * y_axis.place(value)
            if not (self.rows or self.ticks):
                parts.append(f'<path d="M{left:.1f} {at:.1f}H{right:.1f}" stroke="{GRID}"/>')
            parts.append(_text(left - 5, at + 4, name, SOFT, anchor="end"))
        parts += [mark(place) for mark in self._marks]
        parts.append(f'<path d="M{left:.1f} {top}V{bottom:.1f}H{right:.1f}" stroke="{SOFT}" fill="none"/>')
        parts.append(_text((left + right) / 2, bottom + 32, self.x.label, SOFT, anchor="middle"))
        if self.y.label:
            turned = f"translate(12 {(top + bottom) / 2:.1f}) rotate(-90)"
            parts.append(f'<g transform="{turned}">{_text(0, 0, self.y.label, SOFT, anchor="middle")}</g>')
        parts += self._drawn_legend(bottom + _BOTTOM + 10)
        return "\n".join(part for part in parts if part)

    def _drawn_legend(self, top: float) -> list[str]:
        parts = []
        for (label, colour), (at, line) in zip(self._legend.items(), self._legend_places(), strict=True):
            y = top + line * _LINE
            parts.append(f'<rect x="{at:.1f}" y="{y - 9:.1f}" width="10" height="10" fill="{colour}"/>')
            parts.append(_text(at + 14, y, label, SOFT))
        return parts


def _text(x: float, y: float, text: str, colour: str, *, anchor: str = "start", size: int = 11) -> str:
    look = f'fill="{colour}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'


def picture(panels: Sequence[Sequence[Panel]], *, caption: str = "") -> str:
    """An SVG document of rows of panels, with a caption in its upper right corner."""
    parts, top, width = [], 24.0 if caption else 0.0, 0.0
    for row in panels:
        left = 0.0
        for panel in row:
            parts.append(f'<g transform="translate({left:.0f} {top:.0f})">\n{panel.svg()}\n</g>')
            left += panel.size[0]
        top, width = top + max(panel.size[1] for panel in row), max(width, left)
    if caption:
        parts.append(_text(width - _RIGHT, 16, caption, SOFT, anchor="end"))
    frame = f'width="{width:.0f}" height="{top:.0f}" viewBox="0 0 {width:.0f} {top:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {frame} font-family="sans-serif" font-size="11">'
    return "\n".join([head, f'<rect width="{width:.0f}" height="{top:.0f}" fill="white"/>', *parts, "</svg>"])


def write_picture(path: str | Path, panels: Sequence[Sequence[Panel]], *, caption: str = "") -> None:
    """Writes `picture` to a file."""
    write_text(path, picture(panels, caption=caption))
