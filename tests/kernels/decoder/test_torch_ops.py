"""The decoder's operations: torch's are the reference's to the bit, Triton's agree; and which device gets which."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from bough.kernels.decoder import reference
from bough.kernels.decoder.ops import DecoderOps
from bough.kernels.decoder.select import select_ops
from bough.kernels.decoder.torch_ops import TorchOps

from ...support.triton_interpreter import DEVICE

from bough.kernels.decoder.triton_ops import TritonOps  # isort: skip  after the interpreter


def noise(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_torch_ops_are_the_reference(dtype: torch.dtype) -> None:
    ops = TorchOps()
    hidden, delta, weight = (noise(*shape, dtype=dtype, seed=i) for i, shape in enumerate([(5, 48), (5, 48), (48,)]))
    total = hidden + delta
    assert torch.equal(ops.rms_norm(hidden, weight, 1e-5), reference.rms_norm(hidden, weight, 1e-5))
    assert torch.equal(ops.add_rms_norm(hidden, delta, weight, 1e-5), reference.rms_norm(total, weight, 1e-5))
    assert torch.equal(hidden, total)
    assert torch.equal(ops.silu_multiply(hidden), reference.silu_multiply(hidden))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_ops_agree(dtype: torch.dtype) -> None:
    plain, fast = TorchOps(), TritonOps()
    mine, other = (noise(5, 48, dtype=dtype) for _ in range(2))
    delta, weight = noise(5, 48, dtype=dtype, seed=1), noise(48, dtype=dtype, seed=2)
    torch.testing.assert_close(fast.rms_norm(mine, weight, 1e-5), plain.rms_norm(mine, weight, 1e-5))
    torch.testing.assert_close(
        fast.add_rms_norm(mine, delta, weight, 1e-5), plain.add_rms_norm(other, delta, weight, 1e-5)
    )
    assert torch.equal(mine, other)
    torch.testing.assert_close(fast.silu_multiply(mine), plain.silu_multiply(mine))


@pytest.mark.parametrize(
    ("device", "backend", "kind"),
    [
        ("cpu", "auto", TorchOps),
        ("cpu", "torch", TorchOps),
        ("cpu", "triton", TritonOps),
        ("cuda", "auto", TritonOps),
        ("cuda:1", "auto", TritonOps),
        (torch.device("cuda"), "torch", TorchOps),
    ],
)
def test_selection(device: str | torch.device, backend: str, kind: type[DecoderOps]) -> None:
    assert isinstance(select_ops(device, backend), kind)


def test_without_triton_a_gpu_gets_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert isinstance(select_ops("cuda"), TorchOps)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, torch or triton, got 'cuda'"):
        select_ops("cuda", "cuda")
