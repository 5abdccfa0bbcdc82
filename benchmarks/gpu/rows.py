"""Rows of a GPU benchmark, the report that they form, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from ..harness import report as common
from ..harness.report import duration, number, percentile
from .roofline import Work


class Row(msgspec.Struct, kw_only=True):
    """One thing measured."""

    sec: str  # C ceilings, K kernels, M whole models beside peers
    name: str
    cfg: dict[str, Any] = {}  # what distinguishes rows of one name
    us: float | None = None  # median time in microseconds; None: not measured, `note` says why
    us_p90: float | None = None  # of the repetitions
    # bytes, flops: the least that must be moved and done; floor_us is their time on a fixed machine (tree_cost.H200)
    bytes: float | None = None
    flops: float | None = None
    floor_us: float | None = None
    pct_floor: float | None = None  # 100 floor_us / us
    pct_ceiling: float | None = None  # the same against the ceilings measured in this run
    peers: dict[str, float | None] = {}  # the same work by others, in microseconds; None: absent, or it failed
    ratio_peer: float | None = None  # the best peer's time over ours: above 1 ours is faster
    err: float | None = None  # relative error norm against a float32 reference
    noise: float | None = None  # difference of two measurements of this row, relative to the faster
    # value, unit: what the row is about where that is no time ("tok/s")
    value: float | None = None
    unit: str = ""
    note: str = ""

    def rated(self, work: Work | None = None, floor_s: float | None = None) -> Row:
        """The row with its floor (of `work`, or given) and the ratios that follow from its times."""
        if work is not None:
            self.bytes, self.flops = work.bytes, work.flops
            floor_s = work.floor_s()
        if floor_s is not None:
            self.floor_us = floor_s * 1e6
        if self.us is not None:
            if self.floor_us is not None:
                self.pct_floor = 100 * self.floor_us / self.us
            times = [us for us in self.peers.values() if us is not None]
            self.ratio_peer = min(times) / self.us if times else None
        return self

    def timed(self, seconds: Sequence[float]) -> Row:
        """The row with the time of repetitions."""
        self.us, self.us_p90 = median(seconds) * 1e6, percentile(seconds, 90) * 1e6
        return self

    def label(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.cfg.items())])


class Report(msgspec.Struct, kw_only=True):
    """One run. `meaningful` is false where it ran on a CPU: the path is tried, the figures say nothing.

    `ceilings`: "copy" and "read" in bytes a second, "gemm" in operations a second. `skipped`: what was left out, and
    why.
    """

    date: str
    machine: dict[str, Any]
    meaningful: bool
    ceilings: dict[str, float] = {}
    rows: list[Row] = []
    skipped: list[str] = []
    elapsed_s: float = 0.0

    def add(self, row: Row) -> None:
        """Takes a row, in place of an earlier one of the same name and `cfg`."""
        if row.sec == "C" and row.value is not None:
            self.ceilings[row.name] = row.value
        if row.us and row.bytes and row.flops is not None and {"copy", "gemm"} <= self.ceilings.keys():
            ceiling_s = Work(row.bytes, row.flops).floor_s(self.ceilings["copy"], self.ceilings["gemm"])
            row.pct_ceiling = 100 * ceiling_s * 1e6 / row.us
        keys = [(each.sec, each.name, each.cfg) for each in (*self.rows, row)]
        first = keys.index(keys[-1])
        self.rows[first : first + 1] = [row]


# -- The table ---------------------------------------------------------------------------------------------------------

_HEADS = ("", "what", "time", "p90", "floor", "ceiling", "others", "best other / ours", "error", "noise", "remarks")


def table(report: Report, *, markdown: bool = False) -> str:
    """Every row, below where it was measured, and what was left out."""
    head = common.machine_line(report.machine, report.date, f"{report.elapsed_s:.0f} s")
    warning = "TINY SIZES: these figures try the path out and say nothing about speed"
    rows = common.table(_HEADS, map(_cells, report.rows), markdown=markdown, right=range(2, 10))
    left_out = "\n".join(["Left out:", "", *(f"- {line}" for line in report.skipped)]) if report.skipped else ""
    return "\n\n".join(part for part in (head, "" if report.meaningful else warning, rows, left_out) if part)


def _cells(row: Row) -> list[str]:
    peers = sorted((us, name) for name, us in row.peers.items() if us is not None)
    return [
        row.sec,
        row.label(),
        _time(row.us) if row.us is not None else f"{number(row.value, ',.2f')} {row.unit}".strip(),
        _time(row.us_p90),
        number(row.pct_floor, ".0f", " %"),
        number(row.pct_ceiling, ".0f", " %"),
        ", ".join(f"{name} {_time(us)}" for us, name in peers),
        number(row.ratio_peer, ".2f", "x"),
        number(row.err, ".0e"),
        number(row.noise, ".1%"),
        row.note,
    ]


def _time(us: float | None) -> str:
    return duration(None if us is None else us / 1e6)
