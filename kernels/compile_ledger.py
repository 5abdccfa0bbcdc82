"""Ledger of the resources of compiled kernels, so that unchanged kernels are not compiled again.

A case is identified by the digest of the compiler's inputs: the source of its kernel and of all functions that it
calls, the constants, the options, the target. There is one file for each release of Triton, whose compiler and
assembler produce the same output on every machine.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from triton.runtime.jit import JITFunction

from .compile_case import CompileCase

Place = tuple[str, str, int]
"""Module, name of the case, target."""


@dataclass(frozen=True)
class Needs:
    """Resources of a compiled kernel, and its instructions."""

    registers: int = 0  # per thread
    spill_bytes: int = 0  # of stack and local memory, per thread
    shared_bytes: int = 0  # per thread block
    tensor_columns: int = 0  # of tensor memory, per thread block
    wgmma: int = 0
    mma: int = 0
    tcgen05: int = 0
    shape: str = ""  # of its matrix instructions, such as m64n128k16
    cp_async: int = 0
    tma: int = 0


def forget_lines(package: str | None) -> None:
    """Excludes line numbers from Triton's keys of kernels in `package`, so that moved kernels count as unchanged."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}."):
            for value in vars(module).values():
                if isinstance(value, JITFunction):
                    value.starting_line_number = 0


def digest_of(case: CompileCase, target: int) -> str:
    """Returns the digest of the compiler's inputs, without line numbers of kernels."""
    parts = (
        case.kernel.cache_key,
        sorted(case.signature.items()),
        sorted((name, str(value)) for name, value in case.constants.items()),
        (sorted(case.aligned), case.num_warps, case.num_stages, case.fusion, case.max_registers, target),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class Ledger:
    """Ledger of one release of Triton, read from `path`; empty if there is no file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[Place, tuple[str, Needs]] = {}
        if path is not None and path.exists():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    place, digest = (row.pop("module"), row.pop("case"), int(row.pop("target"))), row.pop("digest")
                    shape = row.pop("shape")
                    self._entries[place] = digest, Needs(shape=shape, **{name: int(row[name]) for name in row})

    def find(self, place: Place, digest: str) -> Needs | None:
        """Returns the resources of a case; None if it is not in the ledger, or has changed."""
        known, needs = self._entries.get(place, ("", None))
        return needs if known == digest else None

    def write(self, entries: Mapping[Place, tuple[str, Needs]]) -> None:
        """Writes a ledger with exactly these entries."""
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("module", "case", "target", "digest", *(field.name for field in fields(Needs))))
            for place in sorted(entries):
                digest, needs = entries[place]
                writer.writerow((*place, digest, *astuple(needs)))
