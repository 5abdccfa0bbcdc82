"""Runs our Triton kernels on the CPU, where they are tested: import this before any `bough.kernels.triton_*`.

Without a GPU it turns the interpreter on and mends what is wrong with it in Triton 3.6 to 3.9. All arithmetic on
bfloat16 works on the raw 16-bit patterns; conversions truncate to bfloat16, round to 8-bit floats badly, and read their
NaNs and subnormals as other numbers; a row's product may depend on its place. And it does some things over and over.
With a GPU it does nothing, and the same tests run the compiled kernels.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
import torch

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"

if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")  # there is none for every platform

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
import triton.runtime.interpreter as interpreter  # noqa: E402

warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")

_TYPES = {
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _convert(values, source, target):
    """The patterns of floats of type `source` as those of `target`, rounded to nearest even."""
    source, target = _TYPES[source], _TYPES[target]
    patterns = torch.from_numpy(np.array(values, copy=True, order="C").view(f"i{source.itemsize}"))
    wide = patterns.view(_BITS[source.itemsize]).view(source).float()
    if target.itemsize == 1 < source.itemsize:  # as the hardware's conversion saturates
        largest = torch.finfo(target).max
        wide = wide.clamp(-largest, largest)
    return wide.to(target).view(_BITS[target.itemsize]).numpy().view(f"u{target.itemsize}")


def _widen(handle):
    """A tensor's numbers, those of types that numpy does not have as float32."""
    is_narrow = handle.dtype.scalar in (tl.bfloat16, tl.float8e4nv, tl.float8e5)
    return _convert(handle.data, handle.dtype.scalar, tl.float32).view(np.float32) if is_narrow else handle.data


def _conversion(stock):
    def convert(values, source, target, rounding=None):
        if source in _TYPES and target in _TYPES:
            return _convert(values, source, target)
        return stock(values, source, target, rounding)

    return convert


def _product(stock):
    """Computes products of floats four rows at a time, the tile of BLAS libraries: in larger ones the sums of a row are
    formed in another order for other places, which no GPU does."""

    def dot(self, a, b, accumulator, *rest):
        if accumulator.dtype.scalar != tl.float32 or a.data.shape[-2] % 4:
            return stock(self, a, b, accumulator, *rest)
        rows, columns = (np.ascontiguousarray(_widen(each), dtype=np.float32) for each in (a, b))
        tiles = rows.reshape(*rows.shape[:-2], -1, 4, rows.shape[-1])
        product = np.matmul(tiles, columns[..., None, :, :]).reshape(accumulator.data.shape)
        return interpreter.TensorHandle(product + accumulator.data, tl.float32)

    return dot


def _elementwise(stock):
    """Computes bfloat16 in float32, and rounds."""

    def compute(self, *operands_and_operation):
        *operands, operation = operands_and_operation
        if not all(operand.dtype.scalar == tl.bfloat16 for operand in operands):
            return stock(self, *operands_and_operation)
        result = np.array(operation(*map(_widen, operands)))
        if result.dtype == np.bool_:
            return interpreter.TensorHandle(result, tl.int1)
        return interpreter.TensorHandle(_convert(result, tl.float32, tl.bfloat16), tl.bfloat16)

    return compute


def _sum(stock):
    def add_up(self, operand):
        if operand.dtype.scalar == tl.bfloat16:
            raise TypeError("how a sum of bfloat16 is rounded is not defined: convert to float32 first")
        return stock(self, operand)

    return add_up


def _launch(stock):
    def launch(self, *arguments, **constants):
        with np.errstate(all="ignore"):  # a GPU has no warnings either
            return stock(self, *arguments, **constants)

    return launch


def _patched_once(stock):
    """Prepares Triton's language for interpretation once a launch, and not again at each call within it: a third of the
    time."""
    languages = {}

    def patch(function):
        if function not in languages:
            names = function.__globals__.values()
            languages[function] = [each for each in (tl, tl.core) if any(each is value for value in names)]
        if languages[function] and not any(tl.core.is_builtin(language.load) for language in languages[function]):
            return interpreter._LangPatchScope()
        return stock(function)

    return patch


def _no_copies(stock):
    """Arguments in the host's memory are computed with where they are, and need not be copied back onto themselves."""
    return lambda self, *arguments: None


if not HAS_GPU:
    assert not isinstance(tl.sum, triton.JITFunction), "triton was imported before tests.support.triton_interpreter"
    for _owner, _name, _mended in (
        (interpreter, "_convert_float", _conversion),
        (interpreter.InterpreterBuilder, "create_dot", _product),
        (interpreter.InterpreterBuilder, "binary_op", _elementwise),
        (interpreter.InterpreterBuilder, "unary_op", _elementwise),
        (interpreter.ReduceOps, "sum", _sum),
        (interpreter.GridExecutor, "__call__", _launch),
        (interpreter.GridExecutor, "_restore_args_dev", _no_copies),
        (interpreter, "_patch_lang", _patched_once),
    ):
        setattr(_owner, _name, _mended(getattr(_owner, _name)))
