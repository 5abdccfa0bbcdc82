"""Free memory of the host: whichever of machine, control groups and process limits leaves least."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from bough.runtime.runner.host_memory import FreeMemory, free_memory

MIB = 1 << 20
GIB = 1 << 30
V2 = "36 25 0:30 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = "41 25 0:33 {root} /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
OTHERS = (
    "20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
    "40 25 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "broken\n24 25 0:7 / /x rw -\n"
)


class Host:
    """Files of /proc and /sys/fs/cgroup under a folder: 20 GiB are available, and this process takes 1 GiB."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.monkeypatch = monkeypatch
        self.write("proc/meminfo", f"MemTotal: {24 * MIB} kB\nMemFree: 1 kB\nMemAvailable:   {20 * MIB} kB\n")
        self.write("proc/self/status", f"Name:\tpython\nVmSize:\t{MIB} kB\nVmData:\t{MIB // 2} kB\nThreads:\t3\n")
        self.limit({})

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def group(self, path: str, files: dict[str, str | int]) -> None:
        for name, value in files.items():
            self.write(f"sys/fs/cgroup/{path}/{name}", f"{value}\n")

    def limit(self, limits: dict[int, int]) -> None:
        infinity = resource.RLIM_INFINITY
        self.monkeypatch.setattr(resource, "getrlimit", lambda number: (limits.get(number, infinity), infinity))

    @property
    def free(self) -> FreeMemory:
        return free_memory(self.root)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def v2(limit: str | int, used: int, cached: int = 0, **more: str | int) -> dict[str, str | int]:
    stat = f"anon {used - cached}\ninactive_file {cached}\nactive_file 17\nslab_reclaimable 0"
    return {"memory.max": limit, "memory.high": "max", "memory.current": used, "memory.stat": stat} | {
        name.replace("_", ".", 1): value for name, value in more.items()
    }


def v1(limit: int, used: int, cached: int = 0) -> dict[str, str | int]:
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": used,
        "memory.stat": f"inactive_file 1\ntotal_inactive_file {cached}",
    }


def test_of_this_machine() -> None:
    assert 64 * MIB < free_memory().num_bytes < 1 << 50


def test_without_other_bounds_it_is_what_the_machine_has(host: Host) -> None:
    assert host.free == FreeMemory(20 * GIB, "the machine")
    assert str(host.free) == f"{20 * GIB:,} are free"


@pytest.mark.parametrize("text", ["", "MemAvailable: lots kB\n", "MemAvailable:\n", "MemTotal: 5 kB\n", "\0\xff"])
def test_a_machine_that_does_not_tell_has_four_gibibytes(host: Host, text: str) -> None:
    host.write("proc/meminfo", text)
    assert host.free.num_bytes == 4 * GIB


def test_nothing_at_all_can_be_read(tmp_path: Path) -> None:
    assert free_memory(tmp_path).num_bytes == 4 * GIB


# Limits of the process


def test_addresses(host: Host) -> None:
    host.limit({resource.RLIMIT_AS: 3 * GIB})
    assert host.free == FreeMemory(2 * GIB, "RLIMIT_AS")
    assert str(host.free) == f"{2 * GIB:,} are free (by RLIMIT_AS)"


def test_data(host: Host) -> None:
    host.limit({resource.RLIMIT_AS: 3 * GIB, resource.RLIMIT_DATA: GIB})
    assert host.free == FreeMemory(GIB // 2, "RLIMIT_DATA")


def test_a_limit_below_what_is_used_leaves_nothing(host: Host) -> None:
    host.limit({resource.RLIMIT_AS: GIB - 1})
    assert host.free == FreeMemory(0, "RLIMIT_AS")


def test_a_limit_of_a_process_that_does_not_tell_what_it_takes(host: Host) -> None:
    host.write("proc/self/status", "VmSize:\t? kB\n")
    host.limit({resource.RLIMIT_AS: 3 * GIB})
    assert host.free.num_bytes == 3 * GIB


# Control groups


def in_v2(host: Host, path: str, root: str = "/") -> None:
    host.write("proc/self/cgroup", f"0::{path}\n")
    host.write("proc/self/mountinfo", OTHERS + V2.format(root=root))


def in_v1(host: Host, path: str, root: str = "/") -> None:
    host.write("proc/self/cgroup", f"9:name=systemd:/x\n4:hugetlb,memory:{path}\n1:cpu:/y\n0::/elsewhere\nodd\n")
    host.write("proc/self/mountinfo", OTHERS + V1.format(root=root))


def test_a_container_of_version_2(host: Host) -> None:
    in_v2(host, "/")
    host.group("", v2(GIB, 300 * MIB, cached=100 * MIB))
    assert host.free.num_bytes == GIB - 200 * MIB
    assert host.free.bound.endswith("sys/fs/cgroup/memory.max")


def test_a_container_of_version_1(host: Host) -> None:
    in_v1(host, "/docker/abc", root="/docker/abc")
    host.group("memory", v1(GIB, 300 * MIB, cached=100 * MIB))
    assert host.free.num_bytes == GIB - 200 * MIB
    assert host.free.bound.endswith("memory/memory.limit_in_bytes")


@pytest.mark.parametrize("inner", [["max", 6 * GIB], [6 * GIB, 4 * GIB], [3 * GIB, "max"]])
def test_all_groups_that_hold_the_process_count(host: Host, inner: list[str | int]) -> None:
    """Memory that others in an outer group take is taken from it, too."""
    in_v2(host, "/system/bough.service/engine")
    host.group("system", v2(inner[0], GIB))
    host.group("system/bough.service", v2(inner[1], GIB // 2))
    host.group("system/bough.service/engine", v2("max", GIB // 4))
    host.group("system/other.service", v2(1, 1))
    left = [limit - used for limit, used in zip(inner, (GIB, GIB // 2), strict=True) if isinstance(limit, int)]
    assert host.free.num_bytes == min(left)


def test_the_groups_of_version_1_count_as_far_as_they_have_a_limit(host: Host) -> None:
    in_v1(host, "/pods/one")
    host.group("memory", v1(0x7FFFFFFFFFFFF000, 5 * GIB))
    host.group("memory/pods", v1(8 * GIB, 7 * GIB))
    host.group("memory/pods/one", v1(4 * GIB, GIB))
    assert host.free.num_bytes == GIB


def test_a_path_from_outside_the_container_is_the_root_of_the_mount(host: Host) -> None:
    in_v2(host, "/../../kubepods/one", root="/kubepods/two")
    host.group("", v2(GIB, GIB // 4))
    assert host.free.num_bytes == 3 * GIB // 4


def test_where_a_group_is_slowed_is_a_bound(host: Host) -> None:
    in_v2(host, "/")
    host.group("", v2(4 * GIB, GIB, memory_high=2 * GIB))
    assert host.free == FreeMemory(GIB, str(host.root / "sys/fs/cgroup/memory.high"))


def test_both_hierarchies_at_once(host: Host) -> None:
    host.write("proc/self/cgroup", "4:memory:/a\n0::/b\n")
    host.write(
        "proc/self/mountinfo", V1.format(root="/") + V2.format(root="/").replace("cgroup rw", "cgroup/unified rw")
    )
    host.group("memory/a", v1(3 * GIB, 0))
    host.group("unified/b", v2(2 * GIB, 0))
    assert host.free.num_bytes == 2 * GIB
    host.group("memory/a", v1(GIB, 0))
    assert host.free.num_bytes == GIB


def test_a_full_group_leaves_nothing(host: Host) -> None:
    in_v2(host, "/")
    host.group("", v2(GIB, GIB + 5))
    assert host.free.num_bytes == 0


def test_more_cache_than_is_used_leaves_no_more_than_the_limit(host: Host) -> None:
    in_v2(host, "/")
    host.group("", v2(GIB, 10) | {"memory.stat": f"inactive_file {GIB}"})
    assert host.free.num_bytes == GIB


@pytest.mark.parametrize("value", ["max", "", "-1", "a lot", "1e9", "²", "\0"])
@pytest.mark.parametrize("name", ["memory.max", "memory.current", "memory.limit_in_bytes", "memory.usage_in_bytes"])
def test_what_cannot_be_read_is_no_bound(host: Host, name: str, value: str) -> None:
    prepare, group = (in_v1, "memory") if "_" in name else (in_v2, "")
    prepare(host, "/")
    host.group(group, (v1(GIB, 0) if group else v2(GIB, 0)) | {name: value})
    assert host.free == FreeMemory(20 * GIB)
    (host.root / "sys/fs/cgroup" / group / name).unlink()
    assert host.free == FreeMemory(20 * GIB)


def test_statistics_that_cannot_be_read_count_nothing_as_cache(host: Host) -> None:
    in_v2(host, "/")
    host.group("", v2(2 * GIB, GIB) | {"memory.stat": "inactive_file\nslab_reclaimable x\n"})
    assert host.free.num_bytes == GIB
