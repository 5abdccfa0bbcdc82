"""A report for people: a short table, markdown for docs/performance.md, and pictures."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .pictures import draw_roofline, draw_steps, draw_workloads
from .rows import Report, Row
from .targets import Verdict, verdicts

MAX_LINES = 60

_MARKS = {True: "pass", False: "FAIL", None: "-"}
_COLUMNS = (
    *(("", 40), ("time", 11), ("p90", 11), ("floor", 7), ("ceiling", 9), ("best peer", 24), ("ratio", 8)),
    *(("error", 8), ("noise", 8)),
)


def table(report: Report) -> str:
    """At most MAX_LINES lines. Rows that no target looks at give way; they are in the JSON file."""
    judged = verdicts(report)
    head = [*_summary(report), "".join(f"{name:>{width}}" for name, width in _COLUMNS)]
    tail = ["", f"{'target':46}{'goal':>26}{'measured':>16}", *map(_target_line, judged), _count_line(judged)]
    room = MAX_LINES - len(head) - len(tail) - 1
    shown = _most_important(report.rows, judged, room)
    left_out = [f"  and {len(report.rows) - len(shown)} rows more in the file"] if len(shown) < len(report.rows) else []
    return "\n".join([*head, *map(_row_line, shown), *left_out, *tail])


def _summary(report: Report) -> list[str]:
    machine = report.machine
    lines = [
        f"{machine.get('gpu') or machine.get('device')}, torch {machine.get('torch')}, triton {machine.get('triton')}, "
        f"commit {machine.get('commit')}, {report.date}, {report.elapsed_s:.0f} s"
    ]
    if not report.meaningful:
        lines.append("TINY SIZES: these figures try the path out and say nothing about speed")
    if report.ceilings:
        lines.append(f"ceilings: {_ceilings(report)}")
    if report.skipped:
        lines.append(f"left out: {len(report.skipped)}; the first: {report.skipped[0][:120]}")
    return lines


def _ceilings(report: Report) -> str:
    units = {"copy": (1e12, "TB/s"), "read": (1e12, "TB/s"), "gemm": (1e12, "TFLOP/s")}
    found = [(name, value / units[name][0], units[name][1]) for name, value in report.ceilings.items() if name in units]
    return ", ".join(f"{name} {value:.{2 if value < 100 else 0}f} {unit}" for name, value, unit in found)


def _most_important(rows: Sequence[Row], judged: Sequence[Verdict], room: int) -> list[Row]:
    """As many rows as there is room for, in their order."""
    targeted = {id(row) for verdict in judged for row in verdict.rows}
    ranked = sorted(
        range(len(rows)), key=lambda index: (rows[index].sec == "C", id(rows[index]) not in targeted, index)
    )
    return [rows[index] for index in sorted(ranked[: max(room, 0)])]


def _row_line(row: Row) -> str:
    label = f"{row.sec} {row.name} {' '.join(_setting(key, value) for key, value in row.cfg.items())}"[:39]
    if row.us is None:
        figure = "" if row.value is None else f"{row.value:,.2f} {row.unit}"
        return f"{label:<40}{figure:>22}  {row.note}"[:140].rstrip()
    name, theirs = _best_peer(row)
    cells = [
        _time(row.us),
        _time(row.us_p90),
        _number(row.pct_floor, ".0f", "%"),
        _number(row.pct_ceiling, ".0f", "%"),
        "" if theirs is None else f"{name[:13]} {_time(theirs)}",
        _number(row.ratio_peer, ".2f", "x"),
        _number(row.err, ".0e"),
        _number(row.noise, ".1%"),
    ]
    widths = [width for _, width in _COLUMNS[1:]]
    return (f"{label:<40}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))).rstrip()


def _setting(key: str, value: object) -> str:
    """What a value is called, unless it says so itself."""
    return str(value) if isinstance(value, str) else f"{key}={value}"


def _best_peer(row: Row) -> tuple[str, float | None]:
    found = [(us, name) for name, us in row.peers.items() if us is not None]
    return (min(found)[1], min(found)[0]) if found else ("", None)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def _target_line(verdict: Verdict) -> str:
    return f"{verdict.name:46}{verdict.goal:>26}{verdict.text:>16}  {_MARKS[verdict.passed]}"


def _count_line(judged: Sequence[Verdict]) -> str:
    known = [verdict for verdict in judged if verdict.passed is not None]
    reached = sum(bool(verdict.passed) for verdict in known)
    return f"{reached} of {len(known)} measured targets reached, {len(judged)} in all"


# -- Markdown ----------------------------------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """Targets, then every row, with date, machine and commit."""
    machine = report.machine
    lines = [
        f"Measured on {report.date[:10]} at {machine.get('commit')} on {machine.get('gpu') or machine.get('device')}, "
        f"torch {machine.get('torch')}, Triton {machine.get('triton')}, in {report.elapsed_s:.0f} s. "
        f"Ceilings of this run: {_ceilings(report) or 'not measured'}.",
        "",
    ]
    if not report.meaningful:
        lines += ["**Tiny sizes: these figures try the path out and say nothing about speed.**", ""]
    lines += ["| target | goal | measured | |", "|---|---|---|---|"]
    lines += [f"| {v.name} | {v.goal} | {v.text} | {_MARKS[v.passed]} |" for v in verdicts(report)]
    lines += ["", "| what | time | p90 | of the floor | of the ceiling | others | best other / ours | noise |"]
    lines += ["|---|---|---|---|---|---|---|---|", *map(_markdown_row, report.rows)]
    if report.skipped:
        lines += ["", "Left out:", "", *(f"- {line}" for line in report.skipped)]
    return "\n".join(lines)


def _markdown_row(row: Row) -> str:
    cells = [
        row.label(),
        _time(row.us) if row.us is not None else f"{_number(row.value, ',.2f')} {row.unit}".strip(),
        _time(row.us_p90),
        _number(row.pct_floor, ".0f", " %"),
        _number(row.pct_ceiling, ".0f", " %"),
        ", ".join(f"{name} {_time(us)}" for name, us in row.peers.items() if us is not None),
        _number(row.ratio_peer, ".2f"),
        _number(row.noise, ".1%"),
    ]
    return f"| {' | '.join(cells)} |"


def _time(us: float | None) -> str:
    if us is None:
        return ""
    for limit, divisor, unit in ((1e3, 1, "us"), (1e6, 1e3, "ms")):
        if us < limit:
            return f"{us / divisor:.{1 if us / divisor < 100 else 0}f} {unit}"
    return f"{us / 1e6:.2f} s"


# -- Pictures ----------------------------------------------------------------------------------------------------------


def write_pictures(report: Report, folder: Path) -> list[Path]:
    """Draws what there are rows for; returns the files.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure: Any = importlib.import_module("matplotlib.figure").Figure
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in (("roofline", draw_roofline), ("steps", draw_steps), ("workloads", draw_workloads)):
        drawn = draw(report, figure)
        if drawn is not None:
            written.append(folder / f"gpu-{name}.png")
            drawn.savefig(written[-1], dpi=160)
    return written
