"""Pictures of reports as SVG: charts of horizontal bars, side by side or end to end.

chart = Chart("Time", "seconds", {"one": {"bough": 1.5, "other": 2.0}}, {"bough": BLUE, "other": ORANGE})
write_picture(path, [[chart]], caption="4 CPUs, commit abc")
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from .report import write_text

BLUE, PALE_BLUE, ORANGE, PALE_ORANGE, GREEN = "#0072b2", "#7fb8d8", "#d98b00", "#ecc27f", "#009e73"
RED, GREY = "#d55e00", "#c9ced6"

_INK, _SOFT, _GRID = "#22272e", "#6b7480", "#e4e7eb"
_CHARACTER = 6.3  # width of a character of 11 pixels
_LINE = 16
_TOP, _AXIS, _MARGIN, _PLOT, _ROW = 30, 40, 16, 360, 28


@dataclass(frozen=True)
class Chart:
    """Rows from the top down, each with values by the names of their bars."""

    title: str
    unit: str  # of the values, below the axis
    rows: Mapping[str, Mapping[str, float]]
    colours: Mapping[str, str]  # of bars by their names, in the order in which a row has them
    stacked: bool = False  # bars of a row lie end to end; else below each other
    log: bool = False  # the axis has equal factors in place of equal steps

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in pixels, with title and legend."""
        return self._left + _PLOT + 2 * _MARGIN, self._bottom + _AXIS + _LINE * len(self.colours)

    @property
    def _left(self) -> float:
        return _MARGIN + _CHARACTER * max(map(len, self.rows), default=0)

    @property
    def _bottom(self) -> float:
        return _TOP + _ROW * len(self.rows)

    def ticks(self) -> list[float]:
        """Round values from one end of the axis to the other, all values between them."""
        sizes = [[value for value in row.values() if math.isfinite(value)] for row in self.rows.values()]
        values = [sum(row) for row in sizes] if self.stacked else [value for row in sizes for value in row]
        if self.log:
            powers = [math.log10(value) for value in values if value > 0] or [0.0]
            return [10.0**power for power in range(math.floor(min(powers)), math.floor(max(powers)) + 2)]
        high = max(values, default=0.0) or 1.0
        coarse = 10.0 ** math.floor(math.log10(high / 5))
        step = next(step for step in (coarse, 2 * coarse, 5 * coarse, 10 * coarse) if high / step <= 7)
        return [step * index for index in range(math.ceil(high / step - 1e-9) + 1)]

    def svg(self) -> str:
        """The chart as elements, its upper left corner at the origin."""
        ticks = self.ticks()

        def place(value: float) -> float:
            low, at, high = (math.log(max(v, 1e-300)) if self.log else v for v in (ticks[0], value, ticks[-1]))
            return self._left + _PLOT * max(0.0, (at - low) / (high - low))

        parts = [_text(self._left, 16, self.title, size=13)]
        for tick in ticks:
            parts.append(f'<path d="M{place(tick):.1f} {_TOP}V{self._bottom}" stroke="{_GRID}"/>')
            parts.append(_text(place(tick), self._bottom + 15, f"{tick:,g}", _SOFT, anchor="middle"))
        for number, (name, row) in enumerate(self.rows.items()):
            top = _TOP + _ROW * number
            parts.append(_text(self._left - 5, top + _ROW / 2 + 4, name, _SOFT, anchor="end"))
            for label, start, end, y, height in self._bars(row, top):
                where = f'x="{place(start):.1f}" y="{y:.1f}" width="{place(end) - place(start):.1f}"'
                parts.append(f'<rect {where} height="{height:.1f}" fill="{self.colours[label]}"/>')
        parts.append(_text(self._left + _PLOT / 2, self._bottom + 32, self.unit, _SOFT, anchor="middle"))
        for number, (label, colour) in enumerate(self.colours.items()):
            y = self._bottom + _AXIS + _LINE * number
            parts.append(f'<rect x="{self._left:.1f}" y="{y}" width="10" height="10" fill="{colour}"/>')
            parts.append(_text(self._left + 14, y + 9, label, _SOFT))
        return "\n".join(parts)

    def _bars(self, row: Mapping[str, float], top: float) -> Iterator[tuple[str, float, float, float, float]]:
        """Name, beginning and end by value, upper edge and height in pixels of each bar."""
        height = (_ROW - 6) / (1 if self.stacked else max(1, len(row)))
        start = 0.0
        for number, (label, value) in enumerate(row.items()):
            yield label, start, start + value, top + 3 + (0 if self.stacked else number * height), height
            start += value if self.stacked else 0.0


def _text(x: float, y: float, text: str, colour: str = _INK, *, anchor: str = "start", size: int = 11) -> str:
    look = f'fill="{colour}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'


def picture(charts: Sequence[Sequence[Chart]], *, caption: str = "") -> str:
    """An SVG document of rows of charts, with a caption in its upper right corner."""
    parts, top, width = [], 24.0 if caption else 0.0, 0.0
    for row in charts:
        left = 0.0
        for chart in row:
            parts.append(f'<g transform="translate({left:.0f} {top:.0f})">\n{chart.svg()}\n</g>')
            left += chart.size[0]
        top, width = top + max(chart.size[1] for chart in row), max(width, left)
    if caption:
        parts.append(_text(width - _MARGIN, 16, caption, _SOFT, anchor="end"))
    frame = f'width="{width:.0f}" height="{top:.0f}" viewBox="0 0 {width:.0f} {top:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {frame} font-family="sans-serif" font-size="11">'
    return "\n".join([head, f'<rect width="{width:.0f}" height="{top:.0f}" fill="white"/>', *parts, "</svg>"])


def write_picture(path: str | Path | None, charts: Sequence[Sequence[Chart]], *, caption: str = "") -> None:
    """Writes `picture` to a file; None: nobody has asked for it."""
    if path is not None:
        write_text(path, picture(charts, caption=caption))
