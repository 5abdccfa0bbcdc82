"""Cases for compiling Triton kernels without a GPU; each module with kernels lists its own in `compile_cases`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CompileCase:
    """One kernel with one configuration, as it is launched.

    signature    argument -> "*bf16", "*fp32", "*i32", "*i64", "*fp8e4nv", "i32", "i64", "fp32"; constants left out
    constants    argument -> its constexpr value
    aligned      arguments known to be divisible by 16 (pointers of torch tensors are, so are strides of whole heads)
    fusion       whether products and sums may become fused multiply-adds
    max_registers  the launch's limit for a thread, if it has one
    since, before  launched from this compute capability on, and before that one; a case with float8 from 89 on
    roomy        launched only where a program may have 160 KiB of shared memory (`processor.is_roomy`), or only where
                 it may not; None: everywhere
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int
    num_stages: int = 1
    aligned: tuple[str, ...] = ()
    fusion: bool = True
    max_registers: int | None = None
    since: int = 80
    before: int = 1000
    roomy: bool | None = None
