"""Pictures of a report: kernels under the roofline, steps beside their floors, workloads beside peers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .roofline import H200
from .rows import Report, Row

_INK, _SOFT, _GRID = "#22272e", "#6b7480", "#e4e7eb"
_COLOURS = {
    "decode": "#0072b2",
    "tree": "#d55e00",
    "extend": "#009e73",
    "linear": "#7a5195",
    "small": "#8a6d00",
    "sampler": "#b0447a",
}
_FAMILY = {"add_norm": "small", "silu": "small", "rope_store": "small"}
_NAMES = {
    "decode": "decode attention",
    "tree": "tree decode",
    "extend": "extend attention",
    "linear": "weight products",
    "small": "norm, SiLU, rope",
    "sampler": "sampler",
}
_SHORTEST_US = 2.0  # a launch whose floor is below this is limited by how long a launch takes
_SIDES = {"bough": "#0072b2", "vllm": "#e69f00", "sglang": "#56b4a9", "transformers": "#9aa3ad"}


def draw_roofline(report: Report, new_figure: Callable[..., Any]) -> Any:
    """Rate against intensity of every kernel, ours filled and the best peer hollow, under the measured ceilings.

    A kernel's intensity is counted from what it must move, so sharing moves it to the right. Launches too short to be
    limited by either ceiling are left out. None: no kernels.
    """
    rows = [row for row in report.rows if row.sec == "K" and row.us and row.bytes and row.flops]
    rows = [row for row in rows if (row.floor_us or 0) >= _SHORTEST_US] or rows
    if not rows:
        return None
    bandwidth, rate = report.ceilings.get("copy", H200.bandwidth), report.ceilings.get("gemm", H200.flops)
    figure = new_figure(figsize=(9.6, 5.8), layout="constrained", facecolor="white")
    axes = figure.subplots()
    _plain(axes)
    intensities = [(row.flops or 0) / (row.bytes or 1) for row in rows]
    ridge = rate / bandwidth
    low, high = min(intensities) / 2.5, max(*intensities, ridge) * 3
    slowest = min(_teraflops(row, max([row.us or 0, *_times(row)])) for row in rows)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(slowest / 2, rate / 1e12 * 2))
    axes.set_xlabel("operations for each byte that must move", color=_SOFT)
    axes.set_ylabel("TFLOP/s", color=_SOFT)
    axes.plot(
        [low, ridge, high], [low * bandwidth / 1e12, rate / 1e12, rate / 1e12], color=_INK, linewidth=1.6, zorder=2
    )
    for row, intensity in zip(rows, intensities, strict=True):
        _draw_kernel(axes, row, intensity)
    _title(axes, report, "Kernels under the roofline: filled is bough, hollow the best peer")
    figure.draw_without_rendering()  # the slope of a line is known once the layout is
    _label_ceilings(axes, bandwidth, rate, low, high)
    _label_families(axes, list(dict.fromkeys(map(_family, rows))))
    return figure


def _draw_kernel(axes: Any, row: Row, intensity: float) -> None:
    colour, ours = _COLOURS[_family(row)], _teraflops(row, row.us or 1)
    if times := _times(row):
        theirs = _teraflops(row, min(times))
        axes.plot([intensity] * 2, [ours, theirs], color=colour, linewidth=0.8, alpha=0.5, zorder=3)
        axes.scatter(intensity, theirs, s=30, facecolor="white", edgecolor=colour, linewidth=1.1, zorder=4)
    axes.scatter(intensity, ours, s=34, color=colour, edgecolor="white", linewidth=0.6, zorder=5)


def _times(row: Row) -> list[float]:
    """Of peers; our own flat kernel is none."""
    return [us for name, us in row.peers.items() if us and name != "flat"]


def _teraflops(row: Row, us: float) -> float:
    return (row.flops or 0) / us / 1e6


def _family(row: Row) -> str:
    name = _FAMILY.get(row.name, row.name)
    return name if name in _COLOURS else "small"


def _label_ceilings(axes: Any, bandwidth: float, rate: float, low: float, high: float) -> None:
    axes.annotate(
        f"matrix product, measured: {rate / 1e12:.0f} TFLOP/s", (high, rate / 1e12), xytext=(-4, 5),
        textcoords="offset points", ha="right", va="bottom", fontsize=9, color=_INK,
    )  # fmt: skip
    beginning = low * 1.5
    axes.annotate(
        f"copy, measured: {bandwidth / 1e12:.2f} TB/s", (beginning, beginning * bandwidth / 1e12), xytext=(0, 6),
        textcoords="offset points", ha="left", va="bottom", fontsize=9, color=_INK, rotation=_slope(axes),
        rotation_mode="anchor",
    )  # fmt: skip


def _slope(axes: Any) -> float:
    """Degrees at which a line of slope one rises on these logarithmic axes, as they are drawn."""
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    box = axes.get_window_extent()
    return math.degrees(math.atan2(box.height / math.log10(y1 / y0), box.width / math.log10(x1 / x0)))


def _label_families(axes: Any, families: Sequence[str]) -> None:
    """Names in the lower right corner, where the roof leaves room whatever was measured."""
    for line, family in enumerate(reversed(families)):
        axes.annotate(
            _NAMES[family], (1.0, 0.0), xycoords="axes fraction", xytext=(-8, 10 + 16 * line),
            textcoords="offset points", fontsize=10, color=_COLOURS[family], fontweight="bold", ha="right",
        )  # fmt: skip


def draw_steps(report: Report, new_figure: Callable[..., Any]) -> Any:
    """Decode steps of each model beside their floors. None: none was measured."""
    steps = [row for row in report.find("step") if "option" not in row.cfg and row.us and row.floor_us]
    models = list(dict.fromkeys(row.cfg["model"] for row in steps))
    if not models:
        return None
    most = max(sum(row.cfg["model"] == model for row in steps) for model in models)
    figure = new_figure(figsize=(5.2 * len(models), 1.6 + 0.36 * most), layout="constrained", facecolor="white")
    for index, (axes, model) in enumerate(zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True)):
        _draw_model(axes, [row for row in steps if row.cfg["model"] == model])
        _title(axes, report if index == 0 else None, f"{model}: decode steps")
    return figure


def _draw_model(axes: Any, rows: Sequence[Row]) -> None:
    _plain(axes, "x")
    places = range(len(rows))
    times = [(row.us or 0) / 1e3 for row in rows]
    colours = [_COLOURS["tree"] if "shared" in row.cfg else _COLOURS["decode"] for row in rows]
    axes.barh(places, times, 0.62, color=colours, zorder=3)
    for place, row, time_ms in zip(places, rows, times, strict=True):
        floor_ms = (row.floor_us or 0) / 1e3
        axes.plot([floor_ms] * 2, [place - 0.38, place + 0.38], color=_INK, linewidth=1.8, zorder=4)
        axes.annotate(
            f"{time_ms:.2f} ms, {row.pct_floor:.0f} %", (max(time_ms, floor_ms), place), xytext=(5, 0),
            textcoords="offset points", va="center", fontsize=9, color=_INK,
        )  # fmt: skip
    axes.set_yticks(list(places), [_step_label(row) for row in rows], fontsize=9)
    axes.set_xlim(0, max(times) * 1.45)
    axes.invert_yaxis()
    axes.set_xlabel("ms, and the share of the floor (the mark)", color=_SOFT)


def _step_label(row: Row) -> str:
    batch, length, shared = row.cfg["B"], row.cfg["S"], row.cfg.get("shared")
    return f"{batch} × ({shared:,} shared + {length:,})" if shared else f"{batch} × {length:,}"


def draw_workloads(report: Report, new_figure: Callable[..., Any]) -> Any:
    """Time of each workload beside peers, ours as 1. None: no peer ran one."""
    rows = [row for row in report.rows if row.sec == "P" and row.us and _times(row)]
    models = list(dict.fromkeys(row.cfg["model"] for row in rows))
    if not models:
        return None
    most = max(sum(1.8 + len(_times(row)) for row in rows if row.cfg["model"] == model) for model in models)
    figure = new_figure(figsize=(5.2 * len(models), 1.6 + 0.22 * most), layout="constrained", facecolor="white")
    for index, (axes, model) in enumerate(zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True)):
        _draw_model_workloads(axes, [row for row in rows if row.cfg["model"] == model])
        _title(axes, report if index == 0 else None, f"{model}: whole workloads")
    return figure


def _draw_model_workloads(axes: Any, rows: Sequence[Row]) -> None:
    _plain(axes, "x")
    place, ticks, longest = 0.0, [], 1.0
    for row in rows:
        ours = row.us or 1.0
        sides = [("bough", ours), *((name, us) for name, us in row.peers.items() if us is not None)]
        ticks.append(place + 0.45 * (len(sides) - 1))
        for name, us in sides:
            longest = max(longest, us / ours)
            axes.barh(place, us / ours, 0.8, color=_SIDES.get(name, _SOFT), zorder=3)
            axes.annotate(
                f"{name} {_seconds(us)}", (us / ours, place), xytext=(5, 0), textcoords="offset points", va="center",
                fontsize=8.5, color=_INK,
            )  # fmt: skip
            place += 0.9
        place += 0.8
    axes.set_yticks(ticks, [row.name for row in rows], fontsize=9)
    axes.set_xlim(0, longest * 1.4)
    axes.invert_yaxis()
    axes.set_xlabel("time, bough = 1", color=_SOFT)


def _seconds(us: float) -> str:
    return f"{us / 1e6:.2f} s" if us >= 1e5 else f"{us / 1e3:.1f} ms"


def _plain(axes: Any, grid: str = "both") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GRID)
    axes.grid(True, axis=grid, color=_GRID, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_SOFT, which="both", length=0, labelsize=9)


def _title(axes: Any, report: Report | None, text: str) -> None:
    """The title, and on the first panel below it where and when it was measured."""
    axes.set_title(text, loc="left", fontsize=12, color=_INK, pad=22)
    if report is not None:
        gpu = str(report.machine.get("gpu") or report.machine.get("device")).split(",")[0]
        place = f"{gpu}, {report.date[:10]}, {report.machine.get('commit')}"
        note = place if report.meaningful else f"{place}: tiny sizes, no figure means anything"
        axes.annotate(
            note,
            (0.0, 1.0),
            xycoords="axes fraction",
            xytext=(0, 7),
            textcoords="offset points",
            fontsize=8.5,
            color=_SOFT,
        )
