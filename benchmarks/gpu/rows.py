"""Rows of a GPU benchmark, the report they make up, the file it is kept in, and lines between its processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import msgspec

from .roofline import H200, Machine, Work


class Row(msgspec.Struct, kw_only=True):
    """One thing measured.

    sec           C ceilings, K kernels, E engine, P whole workloads beside peers
    cfg           what distinguishes rows of one name
    us            median time in microseconds; None: not measured, `note` says why
    us_p10/p90    of the repetitions
    bytes, flops  the least that must be moved and done; floor_us is their time on the fixed machine (roofline.H200)
    pct_floor     100 floor_us / us
    pct_ceiling   the same against the ceilings measured in this run
    peers         the same work by others, in microseconds; None: absent, or it failed
    ratio_peer    the best peer's time over ours: above 1 ours is faster
    err           relative error norm against a float32 reference
    noise         difference of two measurements of this row, relative to the faster
    value, unit   what the row is about where that is no time ("tok/s", "%", "s")
    """

    sec: str
    name: str
    cfg: dict[str, Any] = {}
    us: float | None = None
    us_p10: float | None = None
    us_p90: float | None = None
    bytes: float | None = None
    flops: float | None = None
    floor_us: float | None = None
    pct_floor: float | None = None
    pct_ceiling: float | None = None
    peers: dict[str, float | None] = {}
    ratio_peer: float | None = None
    err: float | None = None
    noise: float | None = None
    value: float | None = None
    unit: str = ""
    note: str = ""

    def rated(self, work: Work | None = None, floor_s: float | None = None) -> Row:
        """The row with its floor (of `work`, or given) and the ratios that follow from its times."""
        if work is not None:
            self.bytes, self.flops = work.bytes, work.flops
            floor_s = work.floor_s(H200)
        if floor_s is not None:
            self.floor_us = floor_s * 1e6
        if self.us is not None:
            if self.floor_us is not None:
                self.pct_floor = 100 * self.floor_us / self.us
            times = [us for us in self.peers.values() if us is not None]
            self.ratio_peer = min(times) / self.us if times else None
        return self

    def label(self) -> str:
        return f"{self.name} {' '.join(f'{key}={value}' for key, value in self.cfg.items())}".strip()


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
            machine = Machine("measured", self.ceilings["copy"], self.ceilings["gemm"])
            row.pct_ceiling = 100 * Work(row.bytes, row.flops).floor_s(machine) * 1e6 / row.us
        for index, earlier in enumerate(self.rows):
            if (earlier.sec, earlier.name, earlier.cfg) == (row.sec, row.name, row.cfg):
                self.rows[index] = row
                return
        self.rows.append(row)

    def find(self, name: str, **cfg: Any) -> list[Row]:
        """Measured rows of a name whose `cfg` has all these entries."""
        return [
            row
            for row in self.rows
            if row.name == name
            and (row.us is not None or row.value is not None)
            and all(row.cfg.get(key) == value for key, value in cfg.items())
        ]

    def write(self, path: Path) -> None:
        """Replaces the file as a whole, so that whoever reads it meanwhile finds a complete one."""
        beside = path.with_name(path.name + ".part")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        os.replace(beside, path)


def spread(samples: Sequence[float]) -> tuple[float, float]:
    """Tenth and ninetieth percentile."""
    if len(samples) < 2:
        return samples[0], samples[0]
    cuts = quantiles(samples, n=10, method="inclusive")
    return cuts[0], cuts[-1]


def read_report(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)


MARK = "@bench "
"""Begins a line that is meant for the parent; all others are chatter of libraries."""

CONTEXT_LOST = 3
"""Exit status: a kernel ended the process's CUDA context."""


class Event(msgspec.Struct, kw_only=True):
    """A line to the parent: case `number` begins (and has something to say `within_s`), gave a row or ended without.

    With `peer`, what is said is that the case that runs tries that one next.
    """

    number: int = 0
    case: str = ""
    within_s: float | None = None
    peer: str | None = None
    row: Row | None = None
    skipped: str | None = None
