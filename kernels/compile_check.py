"""Compiles every Triton kernel for GPUs that need not be present, and reads the resources that each needs.

    python -m bough.kernels.compile_check --target 80 --target 90

A kernel that keeps variables in memory for want of registers (a spill), or that needs more shared memory than the GPU
has, is found here and not on the GPU. Neither a GPU, nor its driver, nor a C compiler is needed.

With `--ledger` only what has changed since it was written is compiled, and `--again` of the others (`compile_ledger`).
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
from dataclasses import asdict, astuple, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .compile_case import CompileCase
from .compile_ledger import Ledger, Needs, Place, digest_of, forget_lines

SHARED_LIMIT = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
"""KiB of shared memory that one thread block may have, by compute capability."""

TENSOR_COLUMNS = 512
"""Columns of tensor memory, 128 numbers of 32 bits each, that a GPU of compute capability 10 has."""

TARGETS = (80, 86, 89, 90, 100, 120)
_ROOMY = 160
_FLOAT8_SINCE = 89
_COUNTED = {
    "wgmma": r"\bwgmma\.mma_async",
    "mma": r"\bmma\.sync",
    "tcgen05": r"\btcgen05\.mma",
    "cp_async": r"\bcp\.async\.c[ag]",
    "tma": r"\bcp\.async\.bulk\.tensor",
}
_SHAPE = re.compile(r"\b(?:wgmma\.mma_async|mma)\.sync\.\S*?\b(m\d+n\d+k\d+)")
_COLUMNS = (
    *("module", "kernel", "target", "regs", "spill", "shared"),
    *("tensor", "wgmma", "mma", "tcgen05", "shape", "cp.async", "tma", "seconds", "result"),
)


@dataclass(frozen=True)
class Finding:
    """Resources of one case, compiled for one compute capability; `error` is None if it compiled."""

    module: str
    case: str
    target: int
    needs: Needs
    seconds: float = 0.0
    error: str | None = None

    @property
    def fault(self) -> str | None:
        """Reason why the kernel must not be launched; None if it may be."""
        if self.error is not None:
            return self.error
        needs, limit, faults = self.needs, SHARED_LIMIT[self.target] * 1024, []
        if needs.spill_bytes:
            faults.append(f"spills {needs.spill_bytes} bytes")
        if needs.shared_bytes > limit:
            faults.append(f"needs {needs.shared_bytes} bytes of shared memory, there are {limit}")
        if needs.tensor_columns > TENSOR_COLUMNS:
            faults.append(f"needs {needs.tensor_columns} columns of tensor memory, there are {TENSOR_COLUMNS}")
        return "; ".join(faults) or None

    def row(self) -> tuple[str, ...]:
        """Returns its table cells, by `_COLUMNS`."""
        registers, spilled, shared, *counts = astuple(self.needs)
        cells = map(str, (registers, spilled, f"{shared / 1024:.1f} KiB", *counts, f"{self.seconds:.1f}"))
        return (self.module, self.case, f"sm_{self.target}", *cells, self.fault or "ok")


def kernel_modules() -> list[str]:
    """Names of the modules below this folder that hold Triton kernels, such as "attention.decode"; sorted."""
    folder = Path(__file__).parent
    found = (path for path in folder.rglob("*.py") if "\n@triton.jit" in path.read_text())
    return sorted(".".join(path.relative_to(folder).with_suffix("").parts) for path in found)


def cases_of(module: str) -> list[CompileCase]:
    """Returns the cases of `module`; empty if it has no `compile_cases`."""
    listing = getattr(importlib.import_module(f".{module}", __package__), "compile_cases", list)
    forget_lines(__package__)
    cases: list[CompileCase] = listing()
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        raise ValueError(f"{module}.compile_cases gives one name to two cases: {sorted(names)}")
    return cases


def applies(case: CompileCase, target: int) -> bool:
    """Returns True if `case` is launched on `target`."""
    fits = case.roomy is None or case.roomy == (SHARED_LIMIT[target] >= _ROOMY)
    knows = target >= _FLOAT8_SINCE or not any("fp8" in kind for kind in case.signature.values())
    return fits and knows and case.since <= target < case.before


def compile_case(case: CompileCase, target: int) -> Any:
    """Returns the compiled kernel, with `asm["ptx"]`, `asm["cubin"]` and `metadata`.

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
    """Compiles one case and reads its resources; an error of the compiler is a finding too."""
    began = time.monotonic()
    case = next(case for case in cases_of(module) if case.name == name)
    try:
        compiled = compile_case(case, target)
        registers, spill_bytes = _read_resources(compiled.asm["cubin"])
    except Exception as error:  # noqa: BLE001  whatever the compiler raises is the finding
        lines = str(error).strip().splitlines() or [""]
        message = f"{type(error).__name__}: {lines[-1]}"
        return Finding(module, name, target, Needs(), time.monotonic() - began, message)
    ptx = compiled.asm["ptx"]
    needs = Needs(
        registers,
        spill_bytes,
        compiled.metadata.shared,
        getattr(compiled.metadata, "tmem_size", 0),
        shape=" ".join(sorted(set(_SHAPE.findall(ptx)))),
        **{field: len(re.findall(pattern, ptx)) for field, pattern in _COUNTED.items()},
    )
    return Finding(module, name, target, needs, time.monotonic() - began)


def list_work(modules: Iterable[str], targets: Iterable[int]) -> dict[Place, str]:
    """Lists every case of `modules` on each of its targets, in this order, with its digest."""
    return {
        (module, case.name, target): digest_of(case, target)
        for module in modules
        for case in cases_of(module)
        for target in targets
        if applies(case, target)
    }


def inspect_all(work: Sequence[Place], *, num_workers: int) -> list[Finding]:
    """Compiles cases and reads their resources."""
    if num_workers <= 1 or len(work) <= 1:
        return [inspect(*item) for item in work]
    # `fork` shares imported modules. It is safe here, since no thread has been started yet.
    with ProcessPoolExecutor(num_workers, mp_context=get_context("fork")) as pool:
        return list(pool.map(inspect, *zip(*work, strict=True)))


def inspect_changed(work: dict[Place, str], ledger: Ledger, again: int, *, num_workers: int) -> list[Finding]:
    """Takes the unchanged cases from `ledger` and compiles the others. Also compiles `again` of the unchanged ones,
    evenly spread, to verify that the result equals the ledger's."""
    known = {item: needs for item, digest in work.items() if (needs := ledger.find(item, digest)) is not None}
    spread = list(known)[:: max(len(known) // again, 1)][:again] if again else []
    compiled = inspect_all([item for item in work if item not in known or item in spread], num_workers=num_workers)
    findings = {(each.module, each.case, each.target): each for each in compiled}
    for item, needs in known.items():
        if item not in findings:
            findings[item] = Finding(*item, needs)
        elif findings[item].error is None and findings[item].needs != needs:
            findings[item] = replace(findings[item], error=f"the ledger is wrong: it says {needs}")
    return [findings[item] for item in work]


def table(findings: Sequence[Finding], *, markdown: bool = False) -> str:
    """Formats one line per finding, as aligned columns or as a Markdown table."""
    rows = [_COLUMNS, *(finding.row() for finding in findings)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    if not markdown:
        cells = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in cells)
    rule = tuple("-" * width for width in widths)
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:]))


def _read_resources(cubin: bytes) -> tuple[int, int]:
    """Returns the registers, and the bytes of stack and local memory, of the one kernel in `cubin`."""
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
    """Prints the table; returns 1 if a case has a fault."""
    parser = argparse.ArgumentParser(prog="python -m bough.kernels.compile_check", description=__doc__)
    parser.add_argument("--target", type=int, action="append", choices=sorted(SHARED_LIMIT), help="compute capability")
    parser.add_argument("--module", action="append", choices=kernel_modules(), help="default: all")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="writes the table there, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all that was found there")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ledger", type=Path, metavar="FOLDER", help="takes what has not changed from there")
    parser.add_argument("--again", type=int, default=0, metavar="N", help="compiles so many of these all the same")
    parser.add_argument("--update", action="store_true", help="writes the ledger of this Triton")
    options = parser.parse_args(argv)
    targets, modules = options.target or TARGETS, options.module or kernel_modules()
    began = time.monotonic()
    work = list_work(modules, targets)
    ledger = Ledger(options.ledger / f"{triton.__version__}.csv" if options.ledger else None)
    unlisted = {item for item, digest in work.items() if ledger.find(item, digest) is None}
    findings = inspect_changed(work, ledger, options.again, num_workers=options.workers)
    print(table(findings))
    faults = [finding for finding in findings if finding.fault is not None]
    took = time.monotonic() - began
    print(f"triton {triton.__version__}: {len(findings)} kernels in {took:.0f} s, {len(faults)} with a fault")
    if options.markdown is not None:
        options.markdown.write_text(table(findings, markdown=True) + "\n")
    if options.json is not None:
        rows = [
            asdict(each) | asdict(each.needs) | {"fault": each.fault, "listed": item not in unlisted}
            for item, each in zip(work, findings, strict=True)
        ]
        options.json.write_text(json.dumps(rows))
    if options.update and not faults:
        ledger.write({item: (digest, each.needs) for (item, digest), each in zip(work.items(), findings, strict=True)})
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
