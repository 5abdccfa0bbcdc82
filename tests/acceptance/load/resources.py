"""Resources that a server's processes hold: memory, sockets, threads."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and those that it has started, workers for constraints excepted: they come and go."""
    mine = [pid]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"engine_process" in (stat.parent / "cmdline").read_bytes():
                mine.append(int(stat.parent.name))
    return mine


def resident(pids: list[int]) -> int:
    """Bytes of memory that the processes hold."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def sockets_and_threads(pids: list[int]) -> tuple[int, int]:
    num_sockets = num_threads = 0
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                num_sockets += str(link.readlink()).startswith("socket:")
        num_threads += len(list(Path(f"/proc/{pid}/task").iterdir()))
    return num_sockets, num_threads


def slope(points: list[tuple[int, int]]) -> float:
    """Bytes for each thing done, by least squares over the last half."""
    points = points[len(points) // 2 :]
    middle = sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)
    above = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return above / sum((x - middle[0]) ** 2 for x, _ in points)
