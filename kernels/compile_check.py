"""Compiles every Triton kernel for GPUs that are not there, and reads what each needs of one.

    python -m bough.kernels.compile_check --target 80 --target 90

A kernel that keeps variables in memory for want of registers (a spill), or that needs more shared memory than the GPU
has, is found here and not on the GPU. Neither a GPU, nor its driver, nor a C compiler is needed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .compile_case import CompileCase

SHARED_LIMIT = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
"""KiB of shared memory that one thread block may have, by compute capability."""

_ROOMY = 160

TARGETS = (80, 90)
_TARGET_NAME = re.compile(r"\bsm(\d+)$")
_COUNTED = {
    "wgmma": r"\bwgmma\.mma_async",
    "mma": r"\bmma\.sync",
    "cp_async": r"\bcp\.async\.c[ag]",
    "tma": r"\bcp\.async\.bulk\.tensor",
}
_SHAPE = re.compile(r"\b(?:wgmma\.mma_async|mma)\.sync\.\S*?\b(m\d+n\d+k\d+)")
_COLUMNS = (
    *("module", "kernel", "target", "regs", "spill", "shared"),
    *("wgmma", "mma", "shape", "cp.async", "tma", "seconds", "result"),
)


@dataclass(frozen=True)
class Finding:
    """Resources of one case compiled for one compute capability; `error` is None if it compiled."""

    module: str
    case: str
    target: int
    seconds: float
    error: str | None = None
    registers: int = 0  # per thread
    spill_bytes: int = 0  # of stack and local memory, per thread
    shared_bytes: int = 0  # per thread block
    wgmma: int = 0
    mma: int = 0
    shape: str = ""  # of its matrix instructions, such as m64n128k16
    cp_async: int = 0
    tma: int = 0

    @property
    def fault(self) -> str | None:
        """Reason why this must not be launched; None if it may be."""
        limit = SHARED_LIMIT[self.target] * 1024
        if self.error is not None:
            return self.error
        if self.spill_bytes:
            return f"spills {self.spill_bytes} bytes"
        if self.shared_bytes > limit:
            return f"needs {self.shared_bytes} bytes of shared memory, there are {limit}"
        return None

    def row(self) -> tuple[str, ...]:
        """Its cells under `_COLUMNS`."""
        needs = (self.registers, self.spill_bytes, f"{self.shared_bytes / 1024:.1f} KiB")
        counts = (self.wgmma, self.mma, self.shape, self.cp_async, self.tma, f"{self.seconds:.1f}")
        return (self.module, self.case, f"sm_{self.target}", *map(str, needs + counts), self.fault or "ok")


def kernel_modules() -> list[str]:
    """Names of the modules below this folder that hold Triton kernels, such as "attention.decode"; sorted."""
    folder = Path(__file__).parent
    found = (path for path in folder.rglob("*.py") if "\n@triton.jit" in path.read_text())
    return sorted(".".join(path.relative_to(folder).with_suffix("").parts) for path in found)


def cases_of(module: str) -> list[CompileCase]:
    """Returns the cases of `module`; empty if it has no `compile_cases`."""
    listing = getattr(importlib.import_module(f".{module}", __package__), "compile_cases", list)
    cases: list[CompileCase] = listing()
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        raise ValueError(f"{module}.compile_cases gives one name to two cases: {sorted(names)}")
    return cases


def applies(case: CompileCase, target: int) -> bool:
    """Tells whether `case` is launched on `target`: a name that ends in sm90 or sm80 belongs to that one alone, some
    cases belong to GPUs with much or with little shared memory."""
    named = _TARGET_NAME.search(case.name)
    fits = case.roomy is None or case.roomy == (SHARED_LIMIT[target] >= _ROOMY)
    return fits and (named is None or int(named[1]) == target)


def compile_case(case: CompileCase, target: int) -> Any:
    """The compiled kernel, with `asm["ptx"]`, `asm["cubin"]` and `metadata`.

    Raises:
        ValueError: the case does not fit its kernel's arguments.
    """
    names = list(getattr(case.kernel, "arg_names", ()))
    if not isinstance(case.kernel, triton.JITFunction):
        raise ValueError("the kernel is not compiled but interpreted: unset TRITON_INTERPRET")
    if given := sorted({*case.signature} & {*case.constants}):
        raise ValueError(f"{given} are both in signature and in constants")
    if different := sorted({*case.signature, *case.constants} ^ {*names}):
        raise ValueError(f"the case and the kernel differ in the arguments {different}")
    if unknown := sorted({*case.aligned} - {*case.signature}):
        raise ValueError(f"{unknown} are aligned, but not in signature")
    signature = {name: case.signature.get(name, "constexpr") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in case.aligned}
    source = ASTSource(case.kernel, signature, dict(case.constants), aligned)
    options: dict[str, Any] = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    options |= {"enable_fp_fusion": case.fusion, "maxnreg": case.max_registers}
    return triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)


def inspect(module: str, name: str, target: int) -> Finding:
    """Compiles one case and reads what came out; an error of the compiler is a finding too."""
    began = time.monotonic()
    case = next(case for case in cases_of(module) if case.name == name)
    try:
        compiled = compile_case(case, target)
        registers, spill_bytes = _read_resources(compiled.asm["cubin"])
    except Exception as error:  # noqa: BLE001  whatever the compiler raises is the finding
        lines = str(error).strip().splitlines() or [""]
        return Finding(module, name, target, time.monotonic() - began, f"{type(error).__name__}: {lines[-1]}")
    counts: dict[str, Any] = {
        field: len(re.findall(pattern, compiled.asm["ptx"])) for field, pattern in _COUNTED.items()
    }
    return Finding(
        module,
        name,
        target,
        time.monotonic() - began,
        registers=registers,
        spill_bytes=spill_bytes,
        shared_bytes=compiled.metadata.shared,
        shape=" ".join(sorted(set(_SHAPE.findall(compiled.asm["ptx"])))),
        **counts,
    )


def inspect_all(modules: Iterable[str], targets: Iterable[int], *, num_workers: int) -> list[Finding]:
    """Every case of `modules` on every target that it is for, in the order of modules, cases, targets."""
    work = [
        (module, case.name, target)
        for module in modules
        for case in cases_of(module)
        for target in targets
        if applies(case, target)
    ]
    if num_workers <= 1 or len(work) <= 1:
        return [inspect(*item) for item in work]
    # `fork` shares what is imported. It is safe here: nothing has started a thread yet.
    with ProcessPoolExecutor(num_workers, mp_context=get_context("fork")) as pool:
        return list(pool.map(inspect, *zip(*work, strict=True)))


def table(findings: Sequence[Finding], *, markdown: bool = False) -> str:
    """One line a finding, as aligned columns or as a Markdown table."""
    rows = [_COLUMNS, *(finding.row() for finding in findings)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    if not markdown:
        cells = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in cells)
    rule = tuple("-" * width for width in widths)
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:]))


def _read_resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack and local memory, of the one kernel in `cubin`."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        command = [str(tool), "--dump-resource-usage", str(file)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", printed)}
    if found.keys() != {"REG", "STACK", "LOCAL"}:
        raise ValueError(f"cuobjdump printed no resources: {printed!r}")
    return found["REG"], found["STACK"] + found["LOCAL"]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a case has a fault."""
    parser = argparse.ArgumentParser(prog="python -m bough.kernels.compile_check", description=__doc__)
    parser.add_argument("--target", type=int, action="append", choices=sorted(SHARED_LIMIT), help="compute capability")
    parser.add_argument("--module", action="append", choices=kernel_modules(), help="default: all")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="writes the table there, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all that was found there")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(argv)
    targets, modules = options.target or TARGETS, options.module or kernel_modules()
    began = time.monotonic()
    findings = inspect_all(modules, targets, num_workers=options.workers)
    print(table(findings))
    faults = [finding for finding in findings if finding.fault is not None]
    took = time.monotonic() - began
    print(f"triton {triton.__version__}: {len(findings)} kernels in {took:.0f} s, {len(faults)} with a fault")
    if options.markdown is not None:
        options.markdown.write_text(table(findings, markdown=True) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(finding) | {"fault": finding.fault} for finding in findings]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
