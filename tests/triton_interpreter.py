"""Runs our Triton kernels on the CPU, where they are tested: import this before any `bough.kernels.triton_*`.

Without a GPU it turns the interpreter on and mends what is wrong with it in Triton 3.6 to 3.9. Products of bfloat16
multiply the raw 16-bit patterns; conversions truncate to bfloat16, round to 8-bit floats badly, and read their NaNs and
subnormals as other numbers. All other arithmetic on bfloat16 works on the raw patterns too; that is refused, because
kernels convert to float32 first.
With a GPU it does nothing, and the same tests run the compiled kernels.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import torch

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"

if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")


def _mend() -> None:
    import triton.language as tl
    import triton.runtime.interpreter as interpreter

    types = {
        tl.float32: torch.float32,
        tl.float16: torch.float16,
        tl.bfloat16: torch.bfloat16,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
    }
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    stock_dot, stock_convert = interpreter.InterpreterBuilder.create_dot, interpreter._convert_float
    stock_binary, stock_unary = interpreter.InterpreterBuilder.binary_op, interpreter.InterpreterBuilder.unary_op
    stock_sum, stock_launch = interpreter.ReduceOps.sum, interpreter.GridExecutor.__call__

    def refuse(*operands: Any) -> None:
        if any(operand.dtype.scalar == tl.bfloat16 for operand in operands):
            raise TypeError("arithmetic on bfloat16 is wrong in the interpreter: convert to float32 first")

    def widen(bits: np.ndarray) -> np.ndarray:
        """bfloat16, as its bits, to float32."""
        return (bits.astype(np.uint32) << 16).view(np.float32)

    def dot(self, a, b, accumulator, *rest):
        if tl.bfloat16 not in (a.dtype.scalar, b.dtype.scalar):
            return stock_dot(self, a, b, accumulator, *rest)
        left, right = (widen(x.data) if x.dtype.scalar == tl.bfloat16 else x.data for x in (a, b))
        product = np.matmul(left, right, dtype=np.float32).astype(accumulator.data.dtype)
        return interpreter.TensorHandle(product + accumulator.data, accumulator.dtype.scalar)

    def convert(values, source, target, rounding=None):
        if source not in types or target not in types:
            return stock_convert(values, source, target, rounding)
        source, target = types[source], types[target]
        pattern = torch.from_numpy(np.array(values, copy=True, order="C").view(f"i{source.itemsize}"))
        wide = pattern.view(bits[source.itemsize]).view(source).float()
        if target.itemsize == 1 < source.itemsize:  # as the hardware's conversion saturates
            largest = torch.finfo(target).max
            wide = wide.clamp(-largest, largest)
        return wide.to(target).view(bits[target.itemsize]).numpy().view(f"u{target.itemsize}")

    def binary(self, left, right, operation):
        refuse(left, right)
        return stock_binary(self, left, right, operation)

    def unary(self, operand, operation):
        refuse(operand)
        return stock_unary(self, operand, operation)

    def add_up(self, operand):
        refuse(operand)
        return stock_sum(self, operand)

    def launch(self, *arguments, **constants):
        with np.errstate(all="ignore"):  # a GPU has no warnings either
            return stock_launch(self, *arguments, **constants)

    interpreter.GridExecutor.__call__ = launch
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter.InterpreterBuilder.binary_op = binary
    interpreter.InterpreterBuilder.unary_op = unary
    interpreter.ReduceOps.sum = add_up
    interpreter._convert_float = convert


if not HAS_GPU:
    _mend()
