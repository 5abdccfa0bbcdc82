"""The CPU library compiled with sanitizers, for processes of their own in which a finding is the end."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

Kind = Literal["address", "thread"]

FLAGS: dict[Kind, tuple[str, ...]] = {
    "address": (
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "--param=asan-instrumentation-with-call-threshold=0",  # half the compiler's time
    ),
    "thread": ("-fsanitize=thread",),
}
"""`address`: memory and undefined behaviour. `thread`: data races."""

EXIT_CODE = 86
"""Status of a process that a finding has ended."""

_ROOT = Path(__file__).resolve().parents[2]
_SOURCE = _ROOT / "kernels" / "native" / "source"
_COMMON = ("-std=c11", "-Og", "-g1", "-fno-omit-frame-pointer", "-fPIC", "-shared", "-pthread", "-w")
_RUNTIMES: dict[Kind, str] = {"address": "libasan.so", "thread": "libtsan.so"}
_ABSENT = "const bough_variant bough_{0} = {{0}};\n"


def missing(kind: Kind) -> str | None:
    """Returns why the library cannot be compiled so on this machine; None if it can."""
    if shutil.which("gcc") is None:
        return "needs gcc"
    if not _variants():
        return "the processor has no AVX2"
    if not _runtime(_RUNTIMES[kind]).is_file():
        return f"gcc has no {_RUNTIMES[kind]}"
    return None


def build(kind: Kind) -> Path:
    """Returns the library with the sanitizers of `kind`, compiled unless build/sanitized/ has it already.

    Only the variant that this processor runs is in it, which saves most of the time (half a minute each).

    Raises:
        subprocess.CalledProcessError: it cannot be compiled.
    """
    variants = _variants()
    command = ["gcc", *_COMMON, *FLAGS[kind]]
    version = subprocess.run(["gcc", "--version"], capture_output=True, check=True).stdout
    sources = sorted(path for path in _SOURCE.rglob("*.[ch]"))
    digest = hashlib.sha256(b"\0".join([repr((command, variants)).encode(), version, *map(Path.read_bytes, sources)]))
    library = _ROOT / "build" / "sanitized" / f"{kind}-{digest.hexdigest()[:16]}.so"
    if library.is_file():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    for old in library.parent.glob(f"{kind}-*.so"):
        old.unlink(missing_ok=True)
    stubs = library.parent / f"absent-{kind}-{os.getpid()}.c"
    absent = [path.stem for path in (_SOURCE / "variants").glob("*.c") if path.stem not in variants]
    stubs.write_text(f'#include "{_SOURCE}/variant.h"\n' + "".join(map(_ABSENT.format, absent)))
    own = [*_SOURCE.glob("*.c"), *(_SOURCE / "variants" / f"{name}.c" for name in variants), stubs]
    unfinished = library.with_suffix(f".{os.getpid()}")
    try:
        subprocess.run([*command, *own, "-o", unfinished, "-lm"], check=True)
        unfinished.replace(library)
    finally:
        stubs.unlink()
        unfinished.unlink(missing_ok=True)
    return library


def environment(kind: Kind) -> dict[str, str]:
    """Returns the environment of a Python process that loads the library of `build`, and ends with EXIT_CODE, and what
    was found on stderr, at the first finding. Memory that is never freed is none: Python leaves much."""
    # libstdc++ before torch brings it: AddressSanitizer looks for what throws exceptions when it starts
    preloaded = [_runtime(_RUNTIMES[kind]), _runtime("libstdc++.so.6")]
    options = f"halt_on_error=1:exitcode={EXIT_CODE}"
    return os.environ | {
        "BOUGH_CPU_LIBRARY": str(build(kind)),
        "LD_PRELOAD": " ".join(str(path) for path in preloaded if path.is_file()),
        "ASAN_OPTIONS": f"detect_leaks=0:{options}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{options}",
        "TSAN_OPTIONS": f"ignore_noninstrumented_modules=1:{options}",
        "PYTHONMALLOC": "malloc",  # each object is memory of its own, which nothing may be written beside
    }


def _variants() -> tuple[str, ...]:
    """The variant that dispatch.c takes on this processor; none without AVX2."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return ()
    if not {"avx2", "fma"} <= flags:
        return ()
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"} <= flags:
        return ("avx512",)
    return ("avxvnni",) if "avx_vnni" in flags else ("avx2",)


def _runtime(name: str) -> Path:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    return Path(found.strip())
