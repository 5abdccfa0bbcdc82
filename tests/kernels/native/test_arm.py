"""The CPU library's variants for ARM64, emulated, compute the bits that those for x86 compute."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from bough.kernels import native

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
FLAGS = ("-std=c11", "-ffp-contract=off", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread")

EMULATED = (("cortex-a53", "", "NEON"), ("max", "neon_dot", "NEON-DotProd"), ("max", "", "NEON-I8MM"))
"""Processor, what BOUGH_CPU says, and the instructions that are chosen."""


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("native_library")
def test_arm_computes_the_bits_of_x86(repository: Path, tmp_path: Path) -> None:
    """Weights in each format, whole passes with each width of the cache, faults among them, and draws."""
    if platform.machine() != "x86_64" or not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        pytest.skip(f"needs {COMPILER} and {EMULATOR}, on x86-64: CONTRIBUTING.md")
    source = repository / "kernels" / "native" / "source"
    program = Path(__file__).with_name("same_bits.c")

    def compiled(path: Path) -> Path:
        run(COMPILER, *FLAGS, f"-I{source}", "-c", path, "-o", tmp_path / f"{path.stem}.o")
        return tmp_path / f"{path.stem}.o"

    def emulated(setting: tuple[str, str, str]) -> tuple[str, list[str]]:
        done = run(EMULATOR, "-cpu", setting[0], tmp_path / "arm", BOUGH_CPU=setting[1])
        return done.stderr.strip(), done.stdout.splitlines()

    built = [Path(native.__file__).with_name(f"_cpu{suffix}") for suffix in EXTENSION_SUFFIXES]
    library = next(path for path in built if path.is_file())
    run("gcc", *FLAGS, f"-I{source}", program, library, f"-Wl,-rpath,{library.parent}", "-o", tmp_path / "x86", "-lm")
    expected = run(tmp_path / "x86", BOUGH_CPU="avx2")
    lines = expected.stdout.splitlines()
    assert expected.stderr.strip() == "AVX2" and len(lines) > 50
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(compiled, [program, *sorted(source.glob("variants/neon*.c")), *source.glob("*.c")]))
        run(COMPILER, "-static", "-pthread", *objects, "-o", tmp_path / "arm", "-lm")
        for (*_, name), (said, printed) in zip(EMULATED, threads.map(emulated, EMULATED), strict=True):
            assert said == name
            assert printed == lines, name
