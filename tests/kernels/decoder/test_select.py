"""The decoder's operations: torch's are the reference's to the bit, Triton's agree; and which device gets which."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from bough.kernels.decoder import reference
from bough.kernels.decoder.select import TORCH_OPS, DecoderOps, select_ops, triton_ops

from ...support.triton_interpreter import DEVICE

TRITON_OPS = triton_ops()  # after the interpreter


def noise(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_torch_ops_are_the_reference(dtype: torch.dtype) -> None:
    ops = TORCH_OPS
    hidden, delta, weight = (noise(*shape, dtype=dtype, seed=i) for i, shape in enumerate([(5, 48), (5, 48), (48,)]))
    total = hidden + delta
    assert torch.equal(ops.rms_norm(hidden, weight, 1e-5), reference.rms_norm(hidden, weight, 1e-5))
    assert torch.equal(ops.add_rms_norm(hidden, delta, weight, 1e-5), reference.rms_norm(total, weight, 1e-5))
    assert torch.equal(hidden, total)
    assert torch.equal(ops.silu_multiply(hidden), reference.silu_multiply(hidden))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_ops_agree(dtype: torch.dtype) -> None:
    plain, fast = TORCH_OPS, TRITON_OPS
    mine, other = (noise(5, 48, dtype=dtype) for _ in range(2))
    delta, weight = noise(5, 48, dtype=dtype, seed=1), noise(48, dtype=dtype, seed=2)
    torch.testing.assert_close(fast.rms_norm(mine, weight, 1e-5), plain.rms_norm(mine, weight, 1e-5))
    torch.testing.assert_close(
        fast.add_rms_norm(mine, delta, weight, 1e-5), plain.add_rms_norm(other, delta, weight, 1e-5)
    )
    assert torch.equal(mine, other)
    torch.testing.assert_close(fast.silu_multiply(mine), plain.silu_multiply(mine))


@pytest.mark.parametrize(
    ("device", "backend", "ops"),
    [
        ("cpu", "auto", TORCH_OPS),
        ("cpu", "torch", TORCH_OPS),
        ("cpu", "triton", TRITON_OPS),
        ("cuda", "auto", TRITON_OPS),
        ("cuda:1", "auto", TRITON_OPS),
        (torch.device("cuda"), "torch", TORCH_OPS),
    ],
)
def test_selection(device: str | torch.device, backend: str, ops: DecoderOps) -> None:
    assert select_ops(device, backend) == ops


def test_without_triton_a_gpu_gets_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert select_ops("cuda") == TORCH_OPS


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, torch or triton, got 'cuda'"):
        select_ops("cuda", "cuda")
