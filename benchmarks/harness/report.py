"""Reports of benchmarks: tables, figures with units, statistics of rounds, the machine, and the files they go to.

Figures are text: None, or nothing measured, is "" or "-". pictures.py draws them.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import msgspec
import numpy as np

MARKS = {True: "met", False: "MISSED", None: ""}
"""A goal that was reached, one that was not, and a figure without a goal or a goal without a figure."""

# -- Tables ------------------------------------------------------------------------------------------------------------


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, markdown: bool = False, right: Iterable[int] = ()
) -> str:
    """Rows of cells under their heads, one line each.

    In Markdown cells are stripped. At a terminal columns are as wide as their widest cell, and those numbered in
    `right` are flush right.
    """
    lines = [heads, *rows]
    if markdown:
        lines.insert(1, ["---"] * len(heads))
        return "\n".join(f"| {' | '.join(cell.strip() for cell in line)} |" for line in lines)
    flush = ["rjust" if column in set(right) else "ljust" for column in range(len(heads))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(getattr(cell, way)(width) for cell, way, width in zip(line, flush, widths, strict=True)).rstrip()
        for line in lines
    )


def cells_table(rows: Iterable[Mapping[str, str]], **how: Any) -> str:
    """A table of rows that have their cells by the same heads; there is one at least."""
    lines = list(rows)
    return table(list(lines[0]), [list(line.values()) for line in lines], **how)


def figures_table(columns: Mapping[str, str], values: Iterable[Any], **how: Any) -> str:
    """A table of values, a line each. `columns`: the head of each, and the format that makes a cell of a value, {0}."""
    return table(list(columns), [[form.format(value) for form in columns.values()] for value in values], **how)


# -- Figures -----------------------------------------------------------------------------------------------------------


def number(value: float | None, form: str, unit: str = "") -> str:
    """`value` by a format of Python's and with its unit, "" of None."""
    return "" if value is None else f"{value:{form}}{unit}"


def share(part: float, whole: float) -> str:
    """`part` of `whole` in per cent, "-" of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def short(value: float) -> str:
    """Two figures below 100, all before the point from there on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def duration(seconds: float | None) -> str:
    """Seconds as microseconds, milliseconds or seconds: the smallest unit that needs no more than three digits."""
    if seconds is None:
        return ""
    for unit, name in ((1e-6, "us"), (1e-3, "ms")):
        if seconds < 1e3 * unit:
            value = seconds / unit
            return f"{value:.{1 if value < 100 else 0}f} {name}"
    return f"{seconds:.2f} s"


def percentile(values: Iterable[float], percent: float) -> float:
    """The value below which `percent` of all lie, between neighbours by interpolation; NaN of none."""
    return percentiles(values, percent)[0]


def percentiles(values: Iterable[float], *percents: float) -> tuple[float, ...]:
    """Several percentiles of the same values."""
    found: list[float] = np.percentile(list(values) or [math.nan], percents).tolist()
    return tuple(found)


def geometric_means(ratios: Iterable[Sequence[float]]) -> list[float]:
    """The geometric mean over all workloads of each round's ratio, for as many rounds as all have."""
    return [geometric_mean(column) for column in zip(*ratios, strict=False)]


# -- The machine -------------------------------------------------------------------------------------------------------


def describe_machine(device: str = "cpu", commit: str | None = None) -> dict[str, Any]:
    """The machine and the code as a report keeps them; None: not known here.

    Keys: device, gpu, clocks_before, system, processor, cpus, python, torch, triton, commit (of this checkout, unless
    given).
    """
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "device": device,
        "gpu": nvidia_smi("name,driver_version,memory.total"),
        "clocks_before": nvidia_smi("clocks.sm,clocks.mem,temperature.gpu"),
        "system": platform.platform(),
        "processor": processor or platform.processor(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        **versions("torch", "triton"),
        "commit": commit or _output("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"),
    }


def versions(*packages: str) -> dict[str, str | None]:
    """Versions of installed distributions by name, None of those that are absent."""
    found: dict[str, str | None] = dict.fromkeys(packages)
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def machine_line(machine: Mapping[str, Any], *more: str) -> str:
    """The machine in a line: GPU or system, processors, versions, commit, then `more`."""
    hardware = machine.get("gpu") or machine.get("system") or machine.get("device") or "unknown machine"
    parts = [str(hardware), f"{machine['cpus']} CPUs" if machine.get("cpus") else ""]
    parts += [f"{name} {machine[name]}" for name in ("torch", "triton", "commit") if machine.get(name)]
    return ", ".join(part for part in (*parts, *more) if part)


def now() -> str:
    """The time of a report, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def nvidia_smi(fields: str) -> str | None:
    """Fields of the GPUs, a line each; None where there is no such tool."""
    return _output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader")


def _output(*command: str) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def say(line: str) -> None:
    """Tells on standard error what is being done."""
    print(line, file=sys.stderr, flush=True)


# -- Files -------------------------------------------------------------------------------------------------------------
# A path is None where nobody has asked for the file.


def write_json(path: str | Path | None, value: object) -> None:
    """Writes data classes, structs, dicts and lists; NaN becomes null, what else JSON lacks its text."""
    write_text(path, msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=1).decode())


def write_text(path: str | Path | None, text: str) -> None:
    """Writes `text` and a line end. The file is replaced as a whole: a reader meanwhile finds a complete one."""
    if path is not None:
        beside = Path(f"{path}.part")
        beside.write_text(text + "\n")
        os.replace(beside, path)
