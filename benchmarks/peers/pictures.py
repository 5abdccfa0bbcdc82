"""A picture of ratios: each workload against each peer, the median as a bar, least and most as a line over it."""

from __future__ import annotations

import importlib
from typing import Any

from .report import Report, Row

_COLOURS = {"llama.cpp": "#0072b2", "openvino": "#009e73", "vllm": "#e69f00", "transformers": "#9aa3ad"}
_OTHER = "#7a5195"
_INK, _SOFT, _GRID = "#22272e", "#6b7480", "#e4e7eb"
_BAR = 0.8


def draw(report: Report, path: str) -> None:
    """Draws all rows that have a ratio; what was asked for is a mark on the bar.

    Raises:
        ImportError: matplotlib is not installed.
    """
    rows = [row for row in report.rows if row.ratio is not None]
    names = list(dict.fromkeys(row.workload for row in rows))
    new_figure = importlib.import_module("matplotlib.figure").Figure
    figure = new_figure(
        figsize=(10, 1.6 + 0.3 * len(rows) + 0.15 * len(names)), layout="constrained", facecolor="white"
    )
    axes = figure.subplots()
    top, ticks = 0.0, []
    for name in names:
        group = [row for row in rows if row.workload == name]
        ticks.append((top + (len(group) - 1) / 2, name))
        for offset, row in enumerate(group):
            _draw_row(axes, top + offset, row)
        top += len(group) + 0.5
    axes.axvline(1.0, color=_INK, linewidth=1)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=9)
    axes.invert_yaxis()
    axes.set_xscale("log")
    low, high = min([0.5, *(min(row.ratios) for row in rows)]), max([2.0, *(max(row.ratios) for row in rows)])
    axes.set_xlim(low / 1.3, high * 1.4)
    steps = [2.0**power for power in range(-8, 13) if low / 1.3 < 2.0**power < high * 1.4]
    axes.set_xticks(steps, [f"{step:g}x" for step in steps])
    axes.minorticks_off()
    axes.grid(axis="x", color=_GRID, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("times as fast (or as small) as the peer; a diamond is what was asked for", color=_SOFT)
    axes.set_title(f"bough beside its peers: {report.facts.get('model', '')}", loc="left", color=_INK)
    peers = dict.fromkeys(row.peer for row in rows)
    handles = [axes.barh([0], [0], color=_COLOURS.get(peer, _OTHER), label=peer) for peer in peers]
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="best")
    figure.savefig(path)


def _draw_row(axes: Any, at: float, row: Row) -> None:
    assert row.ratio is not None
    axes.barh([at], [row.ratio - 1], _BAR, left=1, color=_COLOURS.get(row.peer, _OTHER), zorder=2)
    axes.plot([min(row.ratios), max(row.ratios)], [at, at], color=_INK, linewidth=1.2, zorder=3)
    axes.annotate(
        f" {row.ratio:.2f}x",
        (max(1.0, *row.ratios), at),
        va="center",
        fontsize=7,
        color=_SOFT,
        zorder=4,
        annotation_clip=False,
    )
    if row.asked is not None:
        axes.plot([row.asked], [at], marker="D", markersize=5, color="white", markeredgecolor=_INK, zorder=5)
