"""Host memory that this process can still allocate: the least of what the machine, cgroups and rlimits leave it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_UNKNOWN = 4 << 30
"""Bytes assumed on a system that does not report them: any machine for language models has that much."""

_RLIMITS = (("RLIMIT_AS", resource.RLIMIT_AS, "VmSize"), ("RLIMIT_DATA", resource.RLIMIT_DATA, "VmData"))
"""Limits of a process, each with the field of /proc/self/status that counts against it."""


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that can be allocated, and the source of that limit: "the machine", a cgroup's file, or a process limit."""

    num_bytes: int
    bound: str = "the machine"

    def __str__(self) -> str:
        return f"{self.num_bytes:,} are free" + ("" if self.bound == "the machine" else f" (by {self.bound})")


def free_memory(root: Path = Path("/")) -> FreeMemory:
    """Returns the memory that can be allocated before the first limit. `root` is the mount point of proc and cgroups.

    A limit that cannot be read is ignored.
    """
    free = [FreeMemory(_available(root)), *_in_cgroups(root), *_within_rlimits(root)]
    return min(free, key=lambda one: one.num_bytes)


def _available(root: Path) -> int:
    """Returns the bytes that the machine has for new processes without swapping."""
    kilobytes = _fields(root / "proc/meminfo").get("MemAvailable")
    return _UNKNOWN if kilobytes is None else kilobytes * 1024


# Limits of the process


def _within_rlimits(root: Path) -> Iterator[FreeMemory]:
    """Yields the memory left by the process's own limits, which count addresses even without memory behind them."""
    used = _fields(root / "proc/self/status")
    for name, number, counted in _RLIMITS:
        limit, _ = resource.getrlimit(number)
        if limit != resource.RLIM_INFINITY:
            yield FreeMemory(max(limit - used.get(counted, 0) * 1024, 0), name)


# Control groups


def _in_cgroups(root: Path) -> Iterator[FreeMemory]:
    """Yields the memory left in this process's control group and in each of its ancestors."""
    paths = _cgroup_paths(root)
    for mount, base, version in _cgroup_mounts(root):
        path = paths.get(version)
        if path is None:
            continue
        # A container often sees its own group as the root of the mount, while its path is given from outside.
        inside = path.relative_to(base) if path.is_relative_to(base) else PurePosixPath()
        parts = [part for part in inside.parts if part not in ("/", "..")]
        read = _left_in_v2 if version == 2 else _left_in_v1
        for depth in range(len(parts), -1, -1):
            yield from read(mount.joinpath(*parts[:depth]))


def _cgroup_paths(root: Path) -> dict[int, PurePosixPath]:
    """Returns the memory cgroup of this process in the hierarchies of version 1 and 2, as far as they exist."""
    paths: dict[int, PurePosixPath] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[2] = PurePosixPath(path)
        elif "memory" in controllers.split(","):
            paths[1] = PurePosixPath(path)
    return paths


def _cgroup_mounts(root: Path) -> Iterator[tuple[Path, PurePosixPath, int]]:
    """Yields the mount points of hierarchies that may limit memory, each with its root group and version."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, described = before.split(), after.split()
        if len(fields) < 5 or not described:
            continue
        mount = root / fields[4].lstrip("/")
        if described[0] == "cgroup2":
            yield mount, PurePosixPath(fields[3]), 2
        elif described[0] == "cgroup" and "memory" in described[-1].split(","):
            yield mount, PurePosixPath(fields[3]), 1


def _left_in_v2(group: Path) -> Iterator[FreeMemory]:
    """Yields the memory left by a group's limits. `memory.high` counts too: beyond it the group is throttled."""
    used = _number(group / "memory.current")
    if used is None:
        return
    stat = _fields(group / "memory.stat")
    used -= stat.get("inactive_file", 0) + stat.get("slab_reclaimable", 0)
    for name in ("memory.max", "memory.high"):
        limit = _number(group / name)
        if limit is not None:
            yield FreeMemory(max(limit - max(used, 0), 0), str(group / name))


def _left_in_v1(group: Path) -> Iterator[FreeMemory]:
    used, limit = _number(group / "memory.usage_in_bytes"), _number(group / "memory.limit_in_bytes")
    if used is not None and limit is not None:
        used -= _fields(group / "memory.stat").get("total_inactive_file", 0)
        yield FreeMemory(max(limit - max(used, 0), 0), str(group / "memory.limit_in_bytes"))


# Files of the kernel


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Returns the number in a file; None for "max", and if there is no such file."""
    text = _text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """Returns numbers by name, from lines such as "MemAvailable:  1234 kB" and "inactive_file 1234"."""
    found: dict[str, int] = {}
    for line in _text(path).splitlines():
        words = line.replace(":", " ", 1).split()
        if len(words) >= 2 and words[1].isascii() and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found
